"""What the tests on a real runtime share: the programs, made once, and the proof that nothing stays."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.images import Built, build, compile_static
from tests.lab.leftovers import everything, remaining

SHIM = Path(__file__).parents[2] / "agent/cni/shim.c"


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


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory, nothing_left: None) -> Path:
    """The CNI plugin of the agent, compiled once."""
    return compile_static(SHIM, tmp_path_factory.mktemp("shim") / "pointsman-cni")
