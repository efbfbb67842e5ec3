"""What our own redirection costs, measured on the product's path: `Hold` opens a pod, `visit` looks and
writes, `Kernel.generations` polls, all on the agent's kernel lane."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.core.plan import Goal
from agent.core.ports import PortSet
from agent.core.redirect import NodeDefaults, derive
from agent.core.ruleset import render
from agent.node.hold import Hold, Place
from agent.node.kernel import Kernel
from agent.node.lanes import on
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft, State
from agent.node.visit import Order, visit
from tests.bench.stage import Cost, namespaces
from tests.build import pod

ENOUGH = 20
"""Few pods are measured again, in new namespaces, until there are this many figures of each kind."""
ROUNDS = 20
OTHER_PORTS = PortSet.of(25, 587, (9000, 9099))


class Ours(msgspec.Struct):
    """Costs per pod, and per round over all pods; `visits` are whole first visits."""

    installs: list[Cost] = []
    verifies: list[Cost] = []
    visits: list[Cost] = []
    updates: list[Cost] = []
    compares: list[Cost] = []
    rounds: list[Cost] = []


class Visit(msgspec.Struct, frozen=True):
    """What a whole visit cost, and of that its commit, and its last read with the comparison."""

    whole: Cost
    commit: Cost
    verify: Cost


def rule_text(defaults: NodeDefaults) -> str:
    """The text of a meshed pod without annotations."""
    spec = derive(pod(), None, defaults).spec
    assert spec is not None
    return render(spec)


def measure_ours(count: int) -> Ours:
    """All costs of `count` pods."""
    return asyncio.run(_measure(count))


async def _measure(count: int) -> Ours:
    found = Ours()
    bench = _Bench()
    try:
        while len(found.installs) < ENOUGH:
            with namespaces(count) as paths:
                await bench.measure(paths, found)
    finally:
        bench.kernel.stop()
    return found


class _Meter:
    """Reads tables for the datapath and notes its thread's CPU clock around each read: what lies between
    the last two reads of a visit that writes is the commit."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = [(0.0, 0.0)]

    def read(self, nl: Nft, table: str) -> State:
        began = time.thread_time()
        state = nl.read(table)
        self._marks = [self._marks[-1], (began, time.thread_time())]
        return state

    @property
    def commit_cpu(self) -> float:
        """CPU milliseconds between the last two reads."""
        return (self._marks[-1][0] - self._marks[0][1]) * 1e3

    @property
    def read_cpu(self) -> float:
        """CPU milliseconds of the last read."""
        return (self._marks[-1][1] - self._marks[-1][0]) * 1e3


class _Bench:
    """One kernel lane, and whatever pods it is given."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self._meter = _Meter()
        self._datapath = NftDatapath(self._meter.read)

    async def measure(self, paths: Sequence[Path], found: Ours) -> None:
        """Install, update, compare and poll; the figures are added to `found`."""
        defaults = NodeDefaults()
        first = await self._order(defaults)
        other = await self._order(msgspec.structs.replace(defaults, skip_outbound=OTHER_PORTS))
        again = msgspec.structs.replace(other, full=True)
        lane = self.kernel.lanes.kernel
        holds: list[Hold] = []
        try:
            for path in paths:
                holds.append(await on(lane, Hold, Place(str(path)), self._datapath))
            for hold in holds:
                seen = await on(lane, self._visit, hold, first, "installed")
                found.installs.append(seen.commit)
                found.verifies.append(seen.verify)
                found.visits.append(seen.whole)
            for hold in holds:
                found.updates.append((await on(lane, self._visit, hold, other, "updated")).commit)
            for hold in holds:
                found.compares.append((await on(lane, self._visit, hold, again, "unchanged")).whole)
            for _ in range(ROUNDS):
                found.rounds.append(await self._round(holds))
        finally:
            await asyncio.gather(*map(self.kernel.close, holds))

    async def _order(self, defaults: NodeDefaults) -> Order:
        flags = await self.kernel.probe()
        template = await self.kernel.template(rule_text(defaults))
        return Order(goal=Goal.REDIRECT, template=template, flags=flags, write=True)

    def _visit(self, hold: Hold, order: Order, wanted: str) -> Visit:
        """One visit. RuntimeError when it does another thing than the one to be measured."""
        wall, cpu = time.perf_counter(), time.thread_time()
        sight = visit(hold, self._datapath, order)
        whole = Cost((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3)
        if sight.result != wanted:
            raise RuntimeError(f"cannot measure {hold.place}: a visit found it {sight.result}, not {wanted}")
        commit = Cost(sight.install_ms or 0.0, self._meter.commit_cpu)
        return Visit(whole, commit, Cost(sight.verify_ms or 0.0, self._meter.read_cpu))

    async def _round(self, holds: list[Hold]) -> Cost:
        """The poll that the enforcer makes of all pods. RuntimeError when one has changed meanwhile."""
        wall, cpu = time.perf_counter(), time.process_time()
        generations = await self.kernel.generations(holds)
        moved = [hold for hold, now in zip(holds, generations, strict=True) if now != hold.seen]
        cost = Cost((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)
        if moved:
            raise RuntimeError(f"cannot measure a round: {len(moved)} of {len(holds)} pods have changed")
        return cost
