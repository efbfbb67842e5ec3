"""What a visit hears of changes that are made while it looks. Real network namespaces, root."""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from agent.core.names import TABLE
from agent.core.plan import Goal
from agent.node.hold import Hold, Place
from agent.node.nft.compile import Template
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft, State
from agent.node.visit import Order, visit
from tests.lab.netns import path_of
from tests.node.pods import PLAIN, nft

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

Read = Callable[[Nft, str], State]


@pytest.fixture
def hold(name: str, template: Template) -> Iterator[Hold]:
    """A pod that is redirected by a plain table."""
    with contextlib.closing(Hold(Place(str(path_of(name))), NftDatapath())) as made:
        visit(made, NftDatapath(), order(template))
        yield made


def order(template: Template) -> Order:
    return Order(goal=Goal.REDIRECT, template=template, flags=PLAIN, write=True)


def meddling(name: str, script: str, *, before_read: int = 0, after_read: int = 0) -> Read:
    """Reads as the product does; somebody runs a script right before or after the read of this number."""
    count = 0

    def read(nl: Nft, table: str) -> State:
        nonlocal count
        count += 1
        if count == before_read:
            nft(name, script)
        state = nl.read(table)
        if count == after_read:
            nft(name, script)
        return state

    return read


def test_the_culprit_of_a_drift_is_named_whose_news_comes_while_the_table_is_read(
    name: str, hold: Hold, template: Template
) -> None:
    nft(name, "add table ip other")
    read = meddling(name, f"flush chain inet {TABLE} output", before_read=1)
    sight = visit(hold, NftDatapath(read), order(template))
    assert (sight.result, sight.drift) == ("updated", True)
    assert [change.comm for change in sight.foreign] == ["nft", "nft"]
    assert not hold.nft.pending
    assert visit(hold, NftDatapath(), order(template)).foreign == ()


def test_a_change_after_the_last_read_waits_for_the_next_visit(
    name: str, hold: Hold, template: Template
) -> None:
    """Looking around takes its news out of the queue, so nothing else would wake the keeper."""
    nft(name, f"flush chain inet {TABLE} output")
    read = meddling(name, f"delete table inet {TABLE}", after_read=2)
    first = visit(hold, NftDatapath(read), order(template))
    assert (first.result, len(first.foreign)) == ("updated", 1)
    assert hold.nft.pending
    second = visit(hold, NftDatapath(), order(template))
    assert (second.result, second.drift, len(second.foreign)) == ("installed", True, 1)
    assert not hold.nft.pending
