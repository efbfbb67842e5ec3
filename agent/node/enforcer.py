"""Keeps every pod of the node: one keeper per pod UID, and the rounds that no event replaces.

What wakes a keeper: a change of its pod's objects (`wake`), a netlink event in its netns (`Wakes`),
the end of its netns (twice a second), a generation that moved without an event (each round), and the
clock (a full comparison every `compare_period`, each keeper's own retries). Being woken twice does
no harm; being forgotten is cured by the next round.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog
from prometheus_client import CollectorRegistry

from agent.core.attachments import Attachment
from agent.core.cluster import Cluster
from agent.core.lifecycle import Redirection
from agent.core.objects import Pod
from agent.core.reasons import Phase, Reason
from agent.core.tally import Counters, Tally
from agent.node.discovery import Scanner
from agent.node.duty import Duty, Policy
from agent.node.hold import Hold
from agent.node.keeper import Keeper
from agent.node.kernel import Kernel
from agent.node.lanes import on
from agent.node.metrics import Metrics
from agent.node.netns import NetnsId
from agent.node.nft.channel import NftError
from agent.node.nft.compile import CompileError
from agent.node.notes import Blocked, Changed, Closed, Note, Opened, Visited
from agent.node.wakes import Wakes

END_PERIOD = 0.5
"""Seconds between two looks for ended netns: descriptors are released within a second."""
REST_PERIOD = 5.0

log = structlog.get_logger("enforcer")


class Enforcer:
    """Pods of this node -> kernel state. `told(keeper, note, status)` is called after each change of a
    pod's status, and after its netns was given back. Everything here runs on the loop; the kernel's work
    runs on `Kernel`'s lanes."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        registry: CollectorRegistry,
        told: Callable[[Keeper, Changed | Closed, Redirection], None],
    ) -> None:
        self.keepers: dict[str, Keeper] = {}
        self.kernel = Kernel(policy.owned_tables)
        self.tally = Tally()
        self.duty = Duty(cluster, policy)
        self.metrics = Metrics(registry)
        self._cluster = cluster
        self._policy = policy
        self._listener = told
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wakes = Wakes(self._kernel_news)
        self._scanner = Scanner(policy.proc)
        self._scan_error = ""
        self._stopping = False

    async def run(self) -> None:
        """Probe the kernel, then keep rounds until cancelled. Cancelling leaves all rules in place."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._wakes.fileno(), self._wakes.dispatch)
        try:
            await self._probe()
            async with asyncio.TaskGroup() as rounds:
                rounds.create_task(_every(self._policy.round_period, self.round))
                rounds.create_task(_every(self._policy.compare_period, self._compare_all))
                rounds.create_task(_every(END_PERIOD, self._look_for_ends))
                rounds.create_task(_every(REST_PERIOD, self.kernel.rest))
                if self._policy.discover:
                    rounds.create_task(_every(self._policy.round_period, self._discover))
        finally:
            loop.remove_reader(self._wakes.fileno())
            await self.stop()

    async def _probe(self) -> None:
        """Without libnftables nothing new can be compiled. That is said once here, and of each pod; it is
        tried again with each pod's retry, so that the agent need not be started anew."""
        try:
            await self.kernel.probe()
        except CompileError as error:
            log.error("cannot compile rule sets", reason=Reason.COMPILE_FAILED.value, message=str(error))

    async def stop(self) -> None:
        """Give back every socket and descriptor: owned tables become orphans that others can claim."""
        self._stopping = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._wakes.close()
        await self.kernel.stop()

    def wake(self, uids: Iterable[str]) -> None:
        """The objects of these pods may have changed; a UID that is new gets its keeper."""
        for uid in uids:
            keeper = self.keepers.get(uid)
            if keeper is not None:
                keeper.wake()
            elif self._cluster.pod(uid) is not None and not self._stopping:
                self._keep(uid)

    def keeper(self, uid: str) -> Keeper | None:
        """The keeper of a pod that is known, made if need be; None while the agent stops."""
        if uid not in self.keepers:
            self.wake({uid})
        return self.keepers.get(uid)

    def release(self, gone: Iterable[Attachment], inode: tuple[int, int] | None = None) -> None:
        """The runtime has ended these sandboxes, and the one with this netns (device, inode), unless it has
        told of another there."""
        for attachment in gone:
            hold = self._held(attachment.inode)
            attached = hold.place.attached if hold is not None else None
            # The kernel gives the number of an ended netns to the next.
            if hold is not None and attached is not None and attached.key == attachment.key:
                self._withdraw(hold)
        hold = self._held(inode)
        if hold is not None and hold.place.attached is None:
            self._withdraw(hold)

    def _held(self, inode: tuple[int, int] | None) -> Hold | None:
        uid = self.duty.owner(NetnsId(*inode)) if inode is not None else None
        keeper = self.keepers.get(uid) if uid is not None else None
        return keeper.hold if keeper is not None else None

    def _withdraw(self, hold: Hold) -> None:
        hold.place.withdraw()
        uid = self.duty.owner(hold.netns)
        if uid is not None:
            self.wake({uid})

    def set_writer(self, writer: bool) -> None:
        """Whether this process may change kernel state. Becoming the writer compares every pod."""
        self.duty.writer = writer
        for keeper in self.keepers.values():
            keeper.wake(full=True)

    def drain(self) -> None:
        """Replace every pod's rules by the drain table, and redirect no more."""
        self.duty.draining = True
        self.set_writer(self.duty.writer)

    def remove(self) -> None:
        """Delete the drain tables. Connections through a proxy that still live are reset."""
        self.duty.draining = self.duty.removing = True
        self.set_writer(self.duty.writer)

    async def round(self) -> None:
        """Poll the generation of every held netns; one that moved unseen is visited."""
        held = [keeper for keeper in self.keepers.values() if keeper.hold is not None]
        holds = [keeper.hold for keeper in held if keeper.hold is not None]
        generations = await self.kernel.generations(holds)
        for keeper, hold, generation in zip(held, holds, generations, strict=True):
            if keeper.hold is hold and generation != hold.seen:
                keeper.wake()

    def holds(self) -> list[Hold]:
        """Every network namespace that is held open now."""
        return [keeper.hold for keeper in self.keepers.values() if keeper.hold is not None]

    async def read_counters(self) -> Counters:
        """Totals of all pods since this agent's start, read from the kernel now."""
        for uid, keeper in list(self.keepers.items()):
            if keeper.hold is None or keeper.status.phase is not Phase.APPLIED:
                continue
            try:
                counters = await self.kernel.counters(keeper.hold)
            except (OSError, NftError) as error:
                log.debug("cannot read counters", pod=str(keeper.key), error=str(error))
                continue
            if counters is not None:
                self.tally.seen(uid, counters)
            if keeper.hold is not None and keeper.hold.nft.pending:
                # Read along with the answer, so that the socket is not readable any more.
                keeper.wake()
        return self.tally.total()

    def settled(self) -> bool:
        """Every pod of the picture has been looked at at least once."""
        # Copies, since this is asked from other threads, while pods come and go.
        keepers = self.keepers.copy()
        kept = all(uid in keepers for uid in self._cluster.pods.copy())
        return kept and all(k.status.reason is not Reason.NOT_YET_SEEN for k in keepers.values())

    def _keep(self, uid: str) -> None:
        keeper = Keeper(uid, self.duty, self.kernel, self._told)
        self.keepers[uid] = keeper
        task = asyncio.create_task(keeper.run(), name=f"keeper {uid}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._ended(uid, done))

    def _ended(self, uid: str, task: asyncio.Task[None]) -> None:
        del self.keepers[uid], self._tasks[uid]
        self.tally.ended(uid)
        self.duty.forget(uid)
        if not task.cancelled() and task.exception() is not None:
            log.error("a keeper ended by a fault; it starts again", uid=uid, exc_info=task.exception())
        # Its object may have come back while it was ending; later, lest a fault spin.
        asyncio.get_running_loop().call_later(END_PERIOD, self.wake, [uid])

    def _told(self, keeper: Keeper, note: Note) -> None:
        match note:
            case Opened(hold=hold):
                self._wakes.add(hold.nft.fileno(), keeper.uid)
            case Closed(hold=hold, counters=counters):
                self._wakes.remove(hold.nft.fileno())
                if counters:
                    self.tally.seen(keeper.uid, counters)
                self.tally.ended(keeper.uid)
                self._pass_on(keeper, note)
            case Visited(sight=sight, seconds=seconds):
                self.metrics.visited(sight, seconds)
                if sight is not None and sight.lost:
                    self.tally.lost(keeper.uid, sight.lost)
                if sight is not None and sight.counters:
                    self.tally.seen(keeper.uid, sight.counters)
            case Changed():
                self._pass_on(keeper, note)
            case Blocked(owner=owner) if owner in self._tasks:
                self._tasks[owner].cancel()

    def _pass_on(self, keeper: Keeper, note: Changed | Closed) -> None:
        # Not at once: a pod's start may be waiting for what comes next.
        asyncio.get_running_loop().call_soon(self._listener, keeper, note, keeper.status)

    def _kernel_news(self, uid: str) -> None:
        keeper = self.keepers.get(uid)
        if keeper is not None:
            keeper.wake()

    async def _compare_all(self) -> None:
        for keeper in self.keepers.values():
            keeper.wake(full=True)
        self.metrics.full_sync.set(time.time())

    async def _look_for_ends(self) -> None:
        held = [keeper for keeper in self.keepers.values() if keeper.hold is not None]
        ended = await on(self.kernel.lanes.kernel, _holds_ended, [k.hold for k in held if k.hold is not None])
        for keeper, gone in zip(held, ended, strict=True):
            if gone:
                keeper.wake()

    async def _discover(self) -> None:
        """Scan /proc for pods that have no netns yet, or whose known process has ended, if there are any."""
        if not any(self._wants_scan(keeper) for keeper in self.keepers.values()):
            return
        try:
            scan = await on(self.kernel.lanes.slow, self._scanner.scan)
        except OSError as error:
            # What the last scan has found still stands.
            if str(error) != self._scan_error:
                log.error("cannot scan the node's processes; tried again each round", error=str(error))
            self._scan_error = str(error)
            return
        self._scan_error = ""
        self.duty.sandboxes = scan.sandboxes
        self.metrics.unreadable.set(scan.unreadable)
        for keeper in self.keepers.values():
            found = scan.sandboxes.get(keeper.uid)
            if found is None or not self._wants_scan(keeper):
                continue
            if keeper.hold is not None and keeper.hold.netns == found.netns:
                keeper.hold.place.sandbox = found
            else:
                keeper.wake()

    def _wants_scan(self, keeper: Keeper) -> bool:
        pod: Pod | None = self._cluster.pod(keeper.uid)
        if keeper.hold is not None:
            return keeper.hold.place.process_gone()
        return pod is not None and self.duty.needs_scan(pod)


def _holds_ended(holds: list[Hold]) -> list[bool]:
    return [hold.ended() for hold in holds]


async def _every(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    while True:
        await action()
        await asyncio.sleep(seconds)
