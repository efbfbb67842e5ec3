"""`pointsman run`: builds the rooms and connects them.

**Start**: run directory, doors (alive, not ready), kernel probe, then the source's events. The
writer's lock is tried at once and then ten times a second; until it is held, pods are compared and
nothing is written.
**Ready**: the kernel is probed, the source has listed everything, every pod has been looked at once, and,
where this agent is to keep it, the node's CNI configuration has our entry.
**Stop** (SIGTERM, SIGINT): not ready, the shim's calls under way are answered, no more events, every keeper
ends and gives back its sockets (rules stay), then the lock goes, then the doors close.

The pump is the heart: one queue of events, one consumer, and wake-ups that carry no data.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, Counter

from agent import __version__
from agent.admin import Admin, Door, Refused
from agent.calls import Calls
from agent.cni.install import CannotInstallError, Installer
from agent.cni.ledger import Ledger
from agent.cni.server import answers
from agent.cni.watch import Watch
from agent.collector import StateCollector
from agent.core.cluster import Cluster
from agent.core.discovery.explanation import Explanation, explanation
from agent.core.discovery.targets import Invalid
from agent.core.lifecycle import Redirection
from agent.core.names import PodKey
from agent.core.objects import Event
from agent.core.reasons import Reason
from agent.destinations import Destinations
from agent.files.source import FilesSource
from agent.gate import Gate
from agent.journal import Journal
from agent.node import inquiry
from agent.node.duty import Policy
from agent.node.enforcer import Enforcer
from agent.node.keeper import CannotClean, Keeper
from agent.node.leftovers import Leftover, LegacyToolFailed, LegacyToolMissing
from agent.node.lock import WriterLock
from agent.node.nft.channel import NftError
from agent.node.notes import Changed, Closed
from agent.node.trial import Trial
from agent.pod_listeners import PodListeners
from agent.settings import Settings
from agent.state import CniState, NodeState, PodState, Stranger
from agent.watchdog import Watchdog

log = structlog.get_logger("daemon")

LOCK_RETRY = 0.1
BEAT = 0.5
ANSWER_TIMEOUT = 5.0
WORK_TIMEOUT = 60.0
"""Seconds for an answer that has to wait for changes of kernel state, of every pod perhaps."""

T = TypeVar("T")


class Source(Protocol):
    """Where cluster objects come from: a whole picture kind by kind, then each difference."""

    def events(self) -> AsyncIterator[Event]: ...


class Daemon:
    """One agent. `run` returns when it was told to stop."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        self.settings = settings
        self.cluster = Cluster(settings.answering.node_name)
        self.registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            self.registry.register(collector)
        self.enforcer = Enforcer(self.cluster, policy(settings), self.registry, self._told)
        self._journal = Journal()
        self.registry.register(StateCollector(self._snapshot))
        self.lock = WriterLock(settings.lock_path)
        self.destinations = Destinations(settings.answering, self.registry)
        answering = settings.answering
        self.listeners = PodListeners(
            self.destinations, self.enforcer, answering.node_name, answering.port, self._overlapping
        )
        ledger = Ledger(settings.attachments_dir)
        self.gate = Gate(self.enforcer, ledger, settings.unknown_wait, self.listeners.ensure)
        self.calls = Calls(self.gate, self.enforcer, self.lock, settings.run_dir, self.registry)
        self.watch = Watch(Installer(settings.cni), self._chain_news) if settings.cni is not None else None
        self._chain_changes = Counter(
            "pointsman_cni_config_reports",
            "Reports about the node's CNI configuration, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._source = source or FilesSource(settings.source)
        self._watchdog = Watchdog(settings.hang_timeout)
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        self.settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        admin = Admin(self._door(), self.settings.admin_address, self.settings.socket_path)
        log.info("started", version=__version__, pid=os.getpid(), source=str(self.settings.source))
        self._watchdog.start()
        try:
            await self._work()
        finally:
            # gRPC takes the process down when the loop ends under a server, and with it the reason why.
            await self._deafen()
            self.lock.release()
            admin.close()
            self._watchdog.stop()
            log.info("stopped; the rules of all pods stay in place")

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as rooms:
            enforcing = rooms.create_task(self.enforcer.run())
            calls = rooms.create_task(self.calls.run())
            beating = rooms.create_task(self._beat())
            works = [self._pump, self._become_writer]
            works += [self.watch.run] if self.watch is not None else []
            works += [self._answer, self.destinations.tidy] if self.settings.answering.enabled else []
            others = [rooms.create_task(work()) for work in works]
            await self._stop.wait()
            log.info("stopping")
            calls.cancel()
            await self.calls.close()
            for task in others:
                task.cancel()
            await self._deafen()
            beating.cancel()
            # Last, and awaited by the group: it gives back the sockets that own the tables.
            enforcing.cancel()

    async def _deafen(self) -> None:
        await self.listeners.close()
        await self.destinations.close()

    async def _pump(self) -> None:
        self.gate.restore()
        async for event in self._source.events():
            touched = self.cluster.apply(event)
            self.enforcer.wake(touched)
            self.destinations.apply(event)
            self.listeners.wake(touched)
            self.gate.news()

    async def _answer(self) -> None:
        await self.destinations.open()
        await self.destinations.complete()
        await self.listeners.run(self.settings.listener_period)

    def _overlapping(self) -> bool:
        """Whether another agent of this node runs. One that ends gives up the lock last of all."""
        sockets = self.settings.run_dir.glob("cni-*.sock")
        others = (answers(path) for path in sockets if self.calls.instance not in path.name)
        return not self.enforcer.duty.writer or any(others)

    def _told(self, keeper: Keeper, note: Changed | Closed, status: Redirection) -> None:
        if isinstance(note, Changed):
            self._journal.changed(keeper, note.before, status)
            self.destinations.redirection(keeper.uid, status)
        self.listeners.follow(keeper)

    async def _become_writer(self) -> None:
        if self.settings.observe:
            return
        waiting = False
        while not self.lock.take(self.calls.instance):
            if not waiting:
                log.info("another agent writes; comparing only, until it ends", holder=self.lock.holder())
            waiting = True
            await asyncio.sleep(LOCK_RETRY)
        log.info("writing to pods' kernel state from now on")
        self.gate.restore()
        self.enforcer.set_writer(True)

    async def _beat(self) -> None:
        while True:
            self._watchdog.beat()
            await asyncio.sleep(BEAT)

    def _not_ready(self) -> tuple[str, ...]:
        waits = []
        if self._stop.is_set():
            waits.append("stopping")
        if self.enforcer.kernel.flags is None:
            waits.append("the kernel has not been probed yet, or rule sets cannot be compiled")
        if not self.enforcer.duty.listed:
            waits.append("the source has not listed everything yet")
        elif not self.enforcer.settled():
            waits.append("not every pod has been compared yet")
        if not self.calls.open and not self.settings.observe:
            waits.append("the CNI shim is not answered by this agent yet")
        if self.watch is not None and not self.watch.left:
            inspection = self.watch.inspection
            if inspection is None or not inspection.installed:
                waits.append("the shim is not in the node's CNI configuration yet")
        return tuple(waits)

    def _chain_news(self, reason: Reason, _message: str) -> None:
        self._chain_changes.labels(reason.value).inc()

    async def state(self) -> NodeState:
        """The node as it is now; counters are read from the kernel."""
        totals = await self.enforcer.read_counters()
        holds = self.enforcer.holds()
        return NodeState(
            version=__version__,
            pid=os.getpid(),
            writer=self.enforcer.duty.writer,
            observe=self.settings.observe,
            draining=self.enforcer.duty.draining,
            owned_tables=bool(self.enforcer.kernel.flags),
            not_ready=self._not_ready(),
            netns_held=len(holds),
            netns_live=sum(1 for hold in holds if not hold.ended()),
            totals=totals,
            cni=self._cni_state(),
            pods=tuple(self._pod_state(keeper) for keeper in self.enforcer.keepers.values()),
        )

    def _cni_state(self) -> CniState:
        strangers = (
            Stranger(one.pod.namespace, one.pod.name, one.container_id, one.since)
            for one in self.gate.strangers()
            if one.pod is not None
        )
        return CniState(
            answering=self.calls.open,
            attachments=len(self.enforcer.duty.attachments),
            strangers=tuple(strangers),
            chain=self.watch.inspection if self.watch is not None else None,
            left=self.watch is not None and self.watch.left,
        )

    def _pod_state(self, keeper: Keeper) -> PodState:
        hold, derivation = keeper.hold, keeper.derivation
        attached = self.enforcer.duty.attachments.of(keeper.uid, keeper.key)
        return PodState(
            namespace=keeper.key.namespace,
            name=keeper.key.name,
            uid=keeper.uid,
            status=keeper.status,
            netns=str(hold.place) if hold else "",
            netns_from=hold.place.source if hold else "",
            netns_inode=hold.netns.ino if hold else None,
            spec=keeper.spec,
            origins=derivation.origins if derivation else {},
            shadowed=derivation.shadowed if derivation else {},
            counters=self.enforcer.tally.of(keeper.uid),
            destination=self.listeners.state(keeper),
            container=attached.container_id if attached is not None else "",
            let_through=attached is not None and attached.let_through,
        )

    def _find(self, name: str) -> Keeper:
        namespace, _, pod = name.rpartition("/")
        key = PodKey(namespace or "default", pod)
        for keeper in self.enforcer.keepers.values():
            if key == keeper.key:
                return keeper
        raise LookupError(f"cannot find pod {key} on this node")

    async def _visit(self, name: str) -> PodState:
        keeper = self._find(name)
        await keeper.visit_now()
        try:
            addresses = await inquiry.addresses(keeper, self.enforcer.kernel)
        except OSError as error:
            raise Refused(str(error)) from error
        return msgspec.structs.replace(self._pod_state(keeper), addresses=addresses)

    async def _trial(self, name: str) -> Trial:
        try:
            return await inquiry.trial(self._find(name), self.enforcer.kernel)
        except (OSError, NftError) as error:
            raise Refused(f"cannot try a connection from {name}: {error}") from error

    async def _leftovers(self, name: str) -> tuple[Leftover, ...]:
        try:
            return await inquiry.leftovers(self._find(name), self.enforcer.kernel)
        except NftError as error:
            raise Refused(str(error)) from error

    async def _cleanup(self, name: str) -> tuple[str, ...]:
        try:
            return await self._find(name).clean()
        except (CannotClean, NftError, LegacyToolFailed, LegacyToolMissing) as error:
            raise Refused(str(error)) from error

    async def _unchain(self) -> tuple[str, ...]:
        if self.watch is None:
            raise Refused("cannot leave the CNI configuration: this agent does not keep it")
        try:
            return await self.watch.leave()
        except CannotInstallError as error:
            raise Refused(str(error)) from error

    async def _drain(self) -> NodeState:
        return await self._give_up(self.enforcer.drain)

    async def _remove(self) -> NodeState:
        return await self._give_up(self.enforcer.remove)

    async def _give_up(self, order: Callable[[], None]) -> NodeState:
        """Give an order to all pods and wait until each was visited."""
        if not self.enforcer.duty.writes:
            writer = "nobody" if self.settings.observe else f"process {self.lock.holder()}"
            raise Refused(f"cannot change the pods' rules: this agent only compares; {writer} writes")
        order()
        for keeper in list(self.enforcer.keepers.values()):
            await keeper.visit_now()
        return await self.state()

    def _explain(self, query: dict[str, str]) -> bytes:
        """What does not go over the wire of an answer: the rule behind it, and each pod's redirection."""

        async def answer() -> Explanation:
            if not self.destinations.answering:
                raise Refused("cannot explain an answer: this agent does not answer for destinations yet")
            asked = (query.get(name, "") for name in ("question", "path", "token"))
            try:
                return explanation(self.destinations.explain(*asked))
            except Invalid as error:
                raise Refused(str(error)) from error

        return msgspec.json.encode(self._ask(answer))

    def _snapshot(self) -> NodeState:
        return self._ask(self.state)

    def _ask(self, question: Callable[[], Awaitable[T]], patience: float = ANSWER_TIMEOUT) -> T:
        """Run a question on the loop from another thread. TimeoutError when it is stuck for `patience` s."""
        assert self._loop is not None

        async def answer() -> T:
            return await question()

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(patience)

    def _door(self) -> Door:
        def stuck() -> str:
            age = self._watchdog.age
            return (
                f"the event loop has not turned for {age:.0f} s" if age > self.settings.hang_timeout else ""
            )

        return Door(
            registry=self.registry,
            stuck=stuck,
            not_ready=self._not_ready,
            private={
                ("GET", "/state"): self._answering(lambda _: self.state()),
                ("GET", "/leftovers"): self._answering(self._leftovers, WORK_TIMEOUT),
                ("GET", "/explain-destination"): self._explain,
                ("POST", "/visit"): self._answering(self._visit),
                ("POST", "/trial"): self._answering(self._trial),
                ("POST", "/cleanup"): self._answering(self._cleanup, WORK_TIMEOUT),
                ("POST", "/unchain"): self._answering(lambda _: self._unchain(), WORK_TIMEOUT),
                ("POST", "/drain"): self._answering(lambda _: self._drain(), WORK_TIMEOUT),
                ("POST", "/remove"): self._answering(lambda _: self._remove(), WORK_TIMEOUT),
            },
        )

    def _answering(
        self, question: Callable[[str], Awaitable[Any]], patience: float = ANSWER_TIMEOUT
    ) -> Callable[[dict[str, str]], bytes]:
        """A question about a pod, as something that any thread may ask and get JSON."""
        return lambda query: msgspec.json.encode(self._ask(lambda: question(query.get("pod", "")), patience))


def policy(settings: Settings) -> Policy:
    """The part of the settings that enforcement goes by."""
    return Policy(
        defaults=settings.defaults,
        owned_tables=settings.owned_tables,
        observe=settings.observe,
        discover=settings.discover,
        proc=str(settings.proc),
        round_period=settings.round_period,
        compare_period=settings.compare_period,
        listener_period=settings.listener_period,
        repair_burst=settings.repair_burst,
        repair_rate=settings.repair_rate,
    )
