"""A listener on loopback in each redirected pod, where its proxy asks for destinations.

It opens once the pod is redirected, before the answer to its CNI ADD, and closes with its netns, which it
would keep alive. A port that the application has, or declares, is left to it. During an upgrade two agents
listen in one pod, and the kernel gives new connections to either, until the older one closes.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
import structlog

from agent.core.discovery.asked import Asked, asked
from agent.core.discovery.targets import Client
from agent.core.reasons import MEANINGS, Complaint, Phase, Reason
from agent.destinations import LEAVING, Destinations
from agent.node.enforcer import Enforcer
from agent.node.hold import Hold
from agent.node.keeper import Keeper
from agent.node.netns import NetnsId, run_in
from agent.port_clash import clash, sharers
from agent.state import PodAsks

if TYPE_CHECKING:
    from agent.destination.listener import Listener

SERVED = (Phase.APPLIED, Phase.FAILED)
"""A proxy whose rules cannot be verified, or are being undone, asks all the same."""

ENDED = "the agent does not listen here any more; connect again"

log = structlog.get_logger("destination")


class _Open(msgspec.Struct, frozen=True):
    """A listener, and where it is."""

    netns: NetnsId
    place: Asked
    listener: "Listener"


class _Seat:
    """One pod's listener, and `complaint`: why there is none, or who shares its port. Changed in `turn`."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.open: _Open | None = None
        self.complaint: Complaint | None = None


class PodListeners:
    """By pod UID. `default_port` is for proxies that do not say where they ask. `overlapping`, called on any
    thread: whether another agent of this node runs, whose listeners are not to be taken for strangers'."""

    def __init__(
        self,
        destinations: Destinations,
        enforcer: Enforcer,
        node: str,
        default_port: int,
        overlapping: Callable[[], bool],
    ) -> None:
        self._destinations = destinations
        self._enforcer = enforcer
        self._node = node
        self._default_port = default_port
        self._overlapping = overlapping
        self._seats: dict[str, _Seat] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._complete = False
        self._closing = False

    def state(self, keeper: Keeper) -> PodAsks | None:
        """None for a pod without a proxy."""
        wanted, seat = self._wanted(keeper), self._seats.get(keeper.uid)
        if wanted is None:
            return None
        port = seat.open.place.port if seat is not None and seat.open is not None else 0
        complaint = seat.complaint if seat is not None else None
        waits_for = self._destinations.waits_for
        if complaint is None and waits_for and wanted.asks == "us" and keeper.status.phase in SERVED:
            complaint = _complaint(Reason.NOT_ANSWERING, wanted, waits_for)
        return PodAsks(wanted.asks, port, complaint)

    def follow(self, keeper: Keeper) -> None:
        """Something about the pod has changed: open, close or move its listener, as it takes."""
        self._begin(keeper, also_open=self._complete)

    def wake(self, uids: Iterable[str]) -> None:
        """The objects of these pods may have changed."""
        for uid in uids:
            keeper = self._enforcer.keepers.get(uid)
            if keeper is not None:
                self.follow(keeper)

    async def ensure(self, keeper: Keeper) -> None:
        """The pod, which is new, has the listener that it should have, or the reason why not is known. Calls
        are taken at once, and held until they can be answered."""
        await self._destinations.opening()
        await asyncio.shield(self._begin(keeper, also_open=True))

    async def run(self, period: float) -> None:
        """From now on all pods are served. Every `period` seconds it is tried again where a port was not to
        be had, and looked whether somebody has come to share one. Endless."""
        self._complete = True
        while True:
            for keeper in list(self._enforcer.keepers.values()):
                await asyncio.shield(self._begin(keeper, also_open=True, look=True))
            self._destinations.retain(self._enforcer.keepers)
            for uid in self._seats.keys() - self._enforcer.keepers.keys():
                if self._seats[uid].open is None and not self._seats[uid].turn.locked():
                    del self._seats[uid]
            await asyncio.sleep(period)

    async def close(self) -> None:
        """End all calls in all pods; their proxies connect again, to whoever listens then."""
        self._closing = True
        await asyncio.gather(*map(self._vacate, list(self._seats.values())))

    async def _vacate(self, seat: _Seat) -> None:
        async with seat.turn:
            is_open, seat.open = seat.open, None
            if is_open is not None:
                await is_open.listener.close(LEAVING)

    def _wanted(self, keeper: Keeper) -> Asked | None:
        pod = self._enforcer.duty.cluster.pod(keeper.uid)
        return asked(pod, self._default_port) if pod is not None else None

    def _begin(self, keeper: Keeper, *, also_open: bool, look: bool = False) -> asyncio.Task[None]:
        """In a task that nobody cancels: a server that was bound and not started could never be closed."""
        task = asyncio.create_task(self._attend(keeper, also_open=also_open, look=look))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _attend(self, keeper: Keeper, *, also_open: bool, look: bool) -> None:
        seat = self._seats.setdefault(keeper.uid, _Seat())
        async with seat.turn:
            try:
                await self._settle(keeper, seat, also_open=also_open, look=look)
            except Exception:
                # One pod's listener is no reason to stop, or to hold back the pod.
                log.exception("unexpected failure about the listener in a pod", pod=str(keeper.key))

    async def _settle(self, keeper: Keeper, seat: _Seat, *, also_open: bool, look: bool) -> None:
        hold, wanted, is_open = keeper.hold, self._wanted(keeper), seat.open
        if is_open is not None and (hold is None or self._moved(is_open, hold, wanted)):
            seat.open = None
            await is_open.listener.close(ENDED)
            # Its netns may be another one by now.
            hold = keeper.hold
        if hold is None or wanted is None or not wanted.port or keeper.status.phase not in SERVED:
            seat.complaint = None
        elif seat.open is not None:
            if look:
                self._tell(keeper, wanted, seat, await self._looked(hold, seat.open.place, sharing=True))
        elif also_open and self._may_open():
            await self._listen(keeper, hold, wanted, seat)

    def _moved(self, is_open: _Open, hold: Hold, wanted: Asked | None) -> bool:
        """Whether its place is another one. A pod whose object is gone keeps what it has, as its rules do."""
        elsewhere = wanted is not None and is_open.place.address != wanted.address
        return is_open.netns != hold.netns or elsewhere

    def _may_open(self) -> bool:
        return self._destinations.answering and not self._closing and not self._enforcer.duty.policy.observe

    async def _listen(self, keeper: Keeper, hold: Hold, wanted: Asked, seat: _Seat) -> None:
        from agent.destination.listener import CannotListen

        problem = f"container {wanted.declared_by} declares port {wanted.port}" if wanted.declared_by else ""
        try:
            problem = problem or await self._looked(hold, wanted, sharing=False)
            # Its descriptor may have been closed meanwhile, and its number be another's.
            if keeper.hold is not hold or self._closing:
                return
            if not problem:
                listener = await self._destinations.listen(
                    wanted.address, self._client(keeper), lambda bind: run_in(hold.fd, bind)
                )
                seat.open = _Open(hold.netns, wanted, listener)
        except (CannotListen, OSError) as error:
            problem = str(error)
        self._tell(keeper, wanted, seat, problem)

    def _client(self, keeper: Keeper) -> Client:
        pod = self._enforcer.duty.cluster.pod(keeper.uid)
        node = (pod.spec.node_name if pod is not None else None) or self._node
        return Client(keeper.key.namespace, node, keeper.key.name)

    def _tell(self, keeper: Keeper, wanted: Asked, seat: _Seat, problem: str) -> None:
        before, seat.complaint = seat.complaint, None
        # Where nobody asks, the port is the application's to use.
        if problem and wanted.asks == "us":
            seat.complaint = _complaint(Reason.PORT_CLASH, wanted, problem)
        if seat.complaint == before:
            return
        told = {"pod": str(keeper.key), "address": wanted.address}
        if seat.complaint is not None:
            reason = Reason.PORT_CLASH.value
            log.warning("pod cannot ask as it should", reason=reason, message=problem, **told)
        else:
            log.info("pod can ask now", **told)

    async def _looked(self, hold: Hold, place: Asked, *, sharing: bool) -> str:
        """Who else has the port in the pod, or why it cannot be had, in words; "" when all is well.
        `sharing`: beside our own listener."""
        look = sharers if sharing else clash
        # A descriptor of its own, since the hold may be given back meanwhile.
        return await asyncio.to_thread(look, os.dup(hold.fd), place, self._overlapping)


def _complaint(reason: Reason, place: Asked, problem: str) -> Complaint:
    return Complaint(reason, place.address, problem, MEANINGS[reason].remedy)
