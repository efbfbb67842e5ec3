"""What the tests on a real runtime share: the programs, made once, and the proof that nothing stays."""

import os
from collections.abc import Iterator

import pytest

from tests.lab.images import Built, build
from tests.lab.leftovers import everything, remaining


@pytest.fixture(scope="session", autouse=True)
def nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run when a process, cgroup, mount, namespace, link or cache of ours outlives it."""
    marks = (f"pm-{os.getpid()}-", str(tmp_path_factory.getbasetemp()))
    before = everything(marks)
    yield
    assert not remaining(before, marks)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, nothing_left: None) -> Built:
    """Images and plugins, compiled once."""
    return build(tmp_path_factory.mktemp("built"))
