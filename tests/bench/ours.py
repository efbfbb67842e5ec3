"""What our own redirection costs, measured on the product's path: `Hold` opens a pod, `visit` looks and
writes, `Kernel.generations` polls, all on the agent's kernel lane."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.core.plan import Goal
from agent.core.ports import PortSet
from agent.core.redirect import derive
from agent.core.ruleset import render
from agent.core.spec import NodeDefaults
from agent.node.hold import Hold, Place
from agent.node.kernel import Kernel
from agent.node.lanes import on
from agent.node.nft.batch import Batch
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
        await bench.kernel.stop()
    return found


class _Meter(Nft):
    """The product's socket, which notes what its thread spent, in CPU milliseconds: on the last read, and
    from there to the end of the last commit, so that finding the differences and building the messages
    count as well."""

    commit_cpu = read_cpu = _read_ended = 0.0

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        self.commit_cpu = (time.thread_time() - self._read_ended) * 1e3

    def read(self, table: str) -> State:
        began = time.thread_time()
        state = super().read(table)
        self._read_ended = time.thread_time()
        self.read_cpu = (self._read_ended - began) * 1e3
        return state


class _Datapath(NftDatapath):
    """The product's datapath, with metered sockets."""

    def __init__(self) -> None:
        super().__init__(lambda nl, table: nl.read(table))

    def open_here(self) -> Nft:
        return _Meter(events=True)


class _Bench:
    """One kernel lane, and whatever pods it is given."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self._datapath = _Datapath()

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
            seen = await on(lane, self._visits, holds, first, "installed")
            found.installs += [each.commit for each in seen]
            found.verifies += [each.verify for each in seen]
            found.visits += [each.whole for each in seen]
            seen = await on(lane, self._visits, holds, other, "updated")
            found.updates += [each.commit for each in seen]
            seen = await on(lane, self._visits, holds, again, "unchanged")
            found.compares += [each.whole for each in seen]
            for _ in range(ROUNDS):
                found.rounds.append(await self._round(holds))
        finally:
            await asyncio.gather(*map(self.kernel.close, holds))

    async def _order(self, defaults: NodeDefaults) -> Order:
        flags = await self.kernel.probe()
        template = await self.kernel.template(rule_text(defaults))
        return Order(goal=Goal.REDIRECT, template=template, flags=flags, write=True)

    def _visits(self, holds: Sequence[Hold], order: Order, wanted: str) -> list[Visit]:
        """One pod after the other, as the lane works when an agent has just started."""
        return [self._visit(hold, order, wanted) for hold in holds]

    def _visit(self, hold: Hold, order: Order, wanted: str) -> Visit:
        """One visit. RuntimeError when it does another thing than the one to be measured."""
        wall, cpu = time.perf_counter(), time.thread_time()
        sight = visit(hold, self._datapath, order)
        whole = Cost((time.perf_counter() - wall) * 1e3, (time.thread_time() - cpu) * 1e3)
        if sight.result != wanted:
            raise RuntimeError(f"cannot measure {hold.place}: a visit found it {sight.result}, not {wanted}")
        meter = hold.nft
        assert isinstance(meter, _Meter)
        commit = Cost(sight.install_ms or 0.0, meter.commit_cpu)
        return Visit(whole, commit, Cost(sight.verify_ms or 0.0, meter.read_cpu))

    async def _round(self, holds: list[Hold]) -> Cost:
        """The poll that the enforcer makes of all pods. RuntimeError when one has changed meanwhile."""
        wall, cpu = time.perf_counter(), time.process_time()
        generations = await self.kernel.generations(holds)
        moved = [hold for hold, now in zip(holds, generations, strict=True) if now != hold.seen]
        cost = Cost((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3)
        if moved:
            raise RuntimeError(f"cannot measure a round: {len(moved)} of {len(holds)} pods have changed")
        return cost
