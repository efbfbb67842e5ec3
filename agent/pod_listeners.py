"""A listener on loopback in each redirected pod, where its proxy asks for destinations.

It opens once the pod is redirected, before the answer to its CNI ADD, and closes with its netns, which it
would keep alive. A port that the application has, or declares, is left to it. During an upgrade two agents
listen in one pod, and the kernel gives new connections to either, until the older one closes.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import structlog

from agent.core.discovery.asked import Asked, asked
from agent.core.reasons import Reason
from agent.destinations import LEAVING, Destinations
from agent.node.enforcer import Enforcer
from agent.node.hold import Hold
from agent.node.keeper import Keeper
from agent.node.listeners import ListenersUnreadableError, listening
from agent.node.netns import NetnsId, run_in
from agent.state import PodAsks

if TYPE_CHECKING:
    from agent.destination.listener import Listener

REDIRECTED = (Reason.REDIRECTED, Reason.IPTABLES)

log = structlog.get_logger("destination")


class _Open(msgspec.Struct, frozen=True):
    """A listener, and the netns that it is in."""

    netns: NetnsId
    port: int
    listener: "Listener"


class PodListeners:
    """By pod UID. `default_port` is for proxies that do not say where they ask."""

    def __init__(self, destinations: Destinations, enforcer: Enforcer, default_port: int) -> None:
        self._destinations = destinations
        self._enforcer = enforcer
        self._default_port = default_port
        self._open: dict[str, _Open] = {}
        self._problems: dict[str, str] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def state(self, keeper: Keeper) -> PodAsks | None:
        """None for a pod without a proxy."""
        wanted = self._wanted(keeper)
        if wanted is None:
            return None
        is_open = self._open.get(keeper.uid)
        return PodAsks(wanted.asks, is_open.port if is_open else 0, self._problems.get(keeper.uid, ""))

    def follow(self, keeper: Keeper) -> None:
        """Something about the pod has changed: open, close or move its listener, as it takes."""
        task = asyncio.create_task(self.ensure(keeper))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def follow_all(self) -> None:
        """Answers can be given from now on."""
        for keeper in list(self._enforcer.keepers.values()):
            await self.ensure(keeper)

    async def ensure(self, keeper: Keeper) -> None:
        """The pod has the listener that it should have, or the reason why not is known."""
        async with self._turns.setdefault(keeper.uid, asyncio.Lock()):
            await self._settle(keeper)
        if keeper.uid not in self._enforcer.keepers and keeper.uid not in self._open:
            self._turns.pop(keeper.uid, None)
            self._problems.pop(keeper.uid, None)

    async def close(self) -> None:
        """End all calls in all pods; their proxies connect again, to whoever listens then."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        listeners, self._open = [each.listener for each in self._open.values()], {}
        await asyncio.gather(*(listener.close(LEAVING) for listener in listeners))

    def _wanted(self, keeper: Keeper) -> Asked | None:
        pod = self._enforcer.duty.cluster.pod(keeper.uid)
        if pod is None or keeper.spec is None:
            return None
        return asked(pod, self._default_port)

    async def _settle(self, keeper: Keeper) -> None:
        hold, wanted = keeper.hold, self._wanted(keeper)
        redirected = hold is not None and keeper.status.reason in REDIRECTED
        port = wanted.port if wanted is not None and redirected else 0
        is_open = self._open.get(keeper.uid)
        if is_open is not None and (hold is None or (is_open.netns, is_open.port) != (hold.netns, port)):
            del self._open[keeper.uid]
            await is_open.listener.close("the pod has ended, or its port has changed")
            is_open = None
        if is_open is not None or not port or hold is None or wanted is None or self._closing:
            return
        if self._destinations.answering:
            await self._listen(keeper, hold, wanted)

    async def _listen(self, keeper: Keeper, hold: Hold, wanted: Asked) -> None:
        from agent.destination.listener import CannotListen

        problem = f"container {wanted.declared_by} declares port {wanted.port}" if wanted.declared_by else ""
        try:
            problem = problem or await asyncio.to_thread(self._taken, hold, wanted.port)
            if not problem:
                listener = await self._destinations.listen(
                    wanted.port, keeper, lambda bind: run_in(hold.fd, bind)
                )
                self._open[keeper.uid] = _Open(hold.netns, wanted.port, listener)
        except (CannotListen, ListenersUnreadableError, OSError) as error:
            problem = str(error)
        if problem and problem != self._problems.get(keeper.uid):
            log.warning(
                "no listener in pod", pod=str(keeper.key), reason=Reason.PORT_CLASH.value, message=problem
            )
        if problem:
            self._problems[keeper.uid] = problem
        else:
            self._problems.pop(keeper.uid, None)

    def _taken(self, hold: Hold, port: int) -> str:
        """Who has the port already, "" for nobody. While another agent writes, it may be that agent."""
        with contextlib.suppress(FileNotFoundError):
            found = listening(hold.fd)
            others = found.uids.get(port, frozenset())
            if others and (self._enforcer.duty.writer or others != {0}):
                owners = ", ".join(map(str, sorted(others)))
                return f"a process of user {owners} listens on port {port} in the pod already"
        return ""
