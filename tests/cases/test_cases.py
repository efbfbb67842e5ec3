"""Every case of redirection.md, one test each, against the pure core and the kernel."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.__main__ import examine
from tests.cases.datapath import Datapath
from tests.cases.load import Entry, load

_LOADED = load(Path(__file__).with_name("redirection.md"))


@pytest.fixture(scope="module")
def datapath() -> Iterator[Datapath]:
    with contextlib.closing(Datapath()) as made:
        yield made


def test_every_block_of_the_file_is_read() -> None:
    assert not _LOADED.problems
    assert len(_LOADED.entries) > 50


@pytest.mark.parametrize("entry", _LOADED.entries, ids=[entry.id for entry in _LOADED.entries])
def test_case(entry: Entry, datapath: Datapath) -> None:
    outcome = examine(entry, datapath)
    if outcome.status == "skip":
        pytest.skip(outcome.detail)
    assert outcome.status == "ok", "\n".join(outcome.lines())
