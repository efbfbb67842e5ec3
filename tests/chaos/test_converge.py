"""Whatever happens to a node, in whatever order: once it is quiet, every pod is as it should be.

Sequences of object events, vanishing namespaces, rivals and foreign changes, against the real enforcer and
real network namespaces. `CHAOS_EXAMPLES` sequences (default 25) for owned and for plain tables.
"""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent.core.reasons import Reason
from tests.chaos.node import NAMESPACE, NAMESPACES, OWNERSHIP, SHAPES, Node, Slot
from tests.chaos.subject import HARM, known
from tests.chaos.tables import ABSENT, held_namespaces, listing, text_of

EXAMPLES = int(os.environ.get("CHAOS_EXAMPLES", "25"))
SLOTS = 3
QUIET = 15.0
"""Seconds after the last event by which everything must be right."""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
    pytest.mark.timeout(900),
]

slot = st.integers(0, SLOTS - 1)


def step(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.tuples(st.just(name), *arguments)


FOREIGN = (
    *HARM,
    "add table inet pointsman { flags dormant; }",
    "add chain inet pointsman output { policy drop; }",
    "delete element inet pointsman out_skip_ports { 25 }",
    "add table ip nat { chain early { type nat hook output priority -110; tcp dport 1 redirect to :9; }; }",
)

steps = st.lists(
    st.one_of(
        step("put", slot, st.sampled_from(sorted(SHAPES))),
        step("put", slot, st.just("25")),
        step("drop", slot),
        step("namespace", st.sampled_from(sorted(NAMESPACES))),
        step("no_namespace"),
        step("vanish", slot),
        step("appear", slot),
        step("remake", slot, st.sampled_from((0.0, 0.6))),
        step("harm", slot, st.sampled_from(FOREIGN)),
        step("seize", slot, st.sampled_from(sorted(OWNERSHIP))),
        step("release", slot),
        step("churn", slot),
        step("rest", st.sampled_from((0.002, 0.02, 0.3))),
        step("restart"),
    ),
    min_size=12,
    max_size=30,
)

harms = st.lists(st.sampled_from(FOREIGN), min_size=SLOTS, max_size=SLOTS)


@pytest.mark.parametrize("owned", [True, False], ids=("owned", "plain"))
def test_it_converges(owned: bool) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(steps, st.booleans(), harms)
    def sequences(happenings: list[tuple[object, ...]], rested: bool, last: list[str]) -> None:
        # What other tests have left to the garbage collector must not go in between.
        gc.collect()
        before = descriptors()
        asyncio.run(live(happenings, owned, rested, last))
        assert descriptors() == before

    sequences()


async def live(happenings: list[tuple[object, ...]], owned: bool, rested: bool, last: list[str]) -> None:
    """The life of a node: pods, what happens to them at once or when they are at rest, quiet, and some
    harm to each pod that must be noticed whatever was before."""
    node = Node(SLOTS, owned=owned)
    with contextlib.closing(node):
        for each in node.slots:
            await node.appear(each)
        await node.start()
        try:
            for each in node.slots:
                await node.put(each, "25")
            if rested:
                await quiet(node)
            for happening in happenings:
                await node.happen(happening)
            for each in node.slots:
                each.release()
            await quiet(node)
            for each, command in zip(node.slots, last, strict=True):
                await node.harm(each, command)
            await quiet(node)
        finally:
            await node.stop()


async def quiet(node: Node) -> None:
    deadline = time.monotonic() + QUIET
    while found := await asyncio.to_thread(lambda: list(problems(node))):
        assert time.monotonic() < deadline, "\n".join(found)
        await asyncio.sleep(0.05)


def problems(node: Node) -> Iterator[str]:
    """What is not as it should be, by slot."""
    for each in node.slots:
        yield from (f"{each.pod_name} ({each.shape}): {what}" for what in _slot_problems(node, each))
    live = {each.inode for each in node.slots if each.there}
    held = [hold.netns.ino for hold in node.enforcer.holds()]
    if set(held) - live:
        yield f"held, and dead: {set(held) - live}"
    if (opened := held_namespaces(os.getpid())) != sorted(held):
        yield f"open: {opened}, held: {held}"


def _slot_problems(node: Node, each: Slot) -> Iterator[str]:
    keepers = [keeper for keeper in node.enforcer.keepers.values() if keeper.key.name == each.pod_name]
    table = listing(each.name) if each.there else ABSENT
    reasons = [keeper.status.reason for keeper in keepers]
    if each.pod is None:
        if any(reason is not Reason.ORPHANED for reason in reasons) or (reasons and not each.there):
            yield f"no object, and {reasons}"
        return
    wanted = _reasons(node, each, table)
    if len(keepers) != 1 or reasons[0] not in wanted:
        yield f"is {reasons}, should be one of {wanted}: {[keeper.status.message for keeper in keepers]}"
    text = text_of(each.pod, node.cluster.namespaces.get(NAMESPACE))
    held = reasons[:1] in ([Reason.REDIRECTED], [Reason.DRAINING])
    if held and table != known(text):
        yield f"its table is not right: {table}"
    if any((keeper.hold is not None) is not held for keeper in keepers):
        yield f"held: {not held}"


def _reasons(node: Node, each: Slot, table: tuple[str, ...]) -> set[Reason]:
    """What may be said of a pod that has an object, when all is quiet."""
    assert each.pod is not None
    if each.shape == "finished":
        return {Reason.FINISHED}
    excluded = node.enforcer.duty.derive(each.pod).excluded
    if excluded is not None:
        # A pod that has nothing of ours is let go, whatever somebody else makes of our table's name.
        redirects = any("redirect to" in block for block in table)
        return {Reason.DRAINING} if redirects else {excluded, Reason.DRAINING}
    return {Reason.REDIRECTED} if each.there else {Reason.NETNS_MISSING, Reason.NETNS_GONE}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
