"""The destination service of this node: the picture that answers are made of, and whoever asks.

Nothing is answered before it is known how Linkerd was installed: a wrong trust domain would break all mTLS.
It is told by flags, or by Linkerd's own ConfigMap `linkerd-config`. Only then are gRPC and its 20 MiB loaded,
so an agent that nobody asks does without them.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from agent.core.discovery import endpoints, objects, profiles
from agent.core.discovery.answers import Ended, Endpoints, Profile, Subject, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.linkerd_config import NAME
from agent.core.discovery.objects import ConfigMap
from agent.core.discovery.redirected import known
from agent.core.discovery.targets import Client, Target, parse_authority, parse_token
from agent.core.lifecycle import Redirection
from agent.core.objects import Event, Namespace, Object, Pod, Put, Replace, Service
from agent.flap_guard import FlapGuard
from agent.linkerd_settings import is_linkerds, read_config
from agent.memory import give_back
from agent.settings import Answering

if TYPE_CHECKING:
    from agent.destination.hub import Hub
    from agent.destination.listener import Listener, RunInside
    from agent.destination.metrics import Metrics

LEAVING = "the agent is stopping; connect again"

TIDY = 2.0
"""Seconds between two looks at memory that is free."""

OPENING = 1.5
"""Seconds that a new pod may be held up by gRPC's being loaded. Its proxy would try again anyway."""

NEEDED: tuple[type[Object], ...] = (
    Namespace,
    Service,
    Pod,
    objects.Node,
    objects.Server,
    objects.ServiceProfile,
    objects.ExternalWorkload,
)
"""Kinds that answers are made of, beside the one that lists the endpoints of Services."""

log = structlog.get_logger("destination")


class Destinations:
    """Catalog, hub and the node's own listener."""

    def __init__(self, settings: Answering, registry: CollectorRegistry) -> None:
        self.config = settings.discovery
        self.catalog = Catalog()
        self._settings = settings
        self._registry = registry
        self._hub: Hub | None = None
        self._metrics: Metrics | None = None
        self._node: Listener | None = None
        self._known = asyncio.Event()
        self._opened = asyncio.Event()
        self._complete = asyncio.Event()
        self._guard = FlapGuard(self._redirected)

    @property
    def answering(self) -> bool:
        return self._hub is not None

    @property
    def waits_for(self) -> str:
        """Why nobody can ask yet; "" when they can."""
        if self.answering:
            return ""
        if not self._settings.enabled:
            return "destinations are not answered by this agent (--no-destination)"
        where = f"{self._settings.discovery.control_plane_namespace}/{NAME}"
        return f"how Linkerd was installed is not known: cannot find, or read, ConfigMap {where}"

    def get(self, target: Target, client: Client) -> tuple[Endpoints | Ended | Twofold, frozenset[Subject]]:
        return endpoints.get(self.catalog, self.config, target, client)

    def profile(self, target: Target, client: Client) -> tuple[Profile | Ended | Twofold, frozenset[Subject]]:
        return profiles.profile(self.catalog, self.config, target, client)

    async def open(self) -> None:
        """Wait until it is known how Linkerd was installed; from then on calls are taken, and held until all
        that their answers are made of is listed."""
        await self._known.wait()
        await self._open()

    async def opening(self) -> None:
        """Wait while calls are about to be taken: it is known how Linkerd was installed, and no more."""
        if self._settings.enabled and self._known.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OPENING):
                    await self._opened.wait()

    async def complete(self) -> None:
        """Wait until everything is listed that answers are made of."""
        await self._complete.wait()
        from agent.destination.garbage import leave_alone

        leave_alone()

    async def tidy(self) -> None:
        """Give back the memory that floods of calls have left. Endless."""
        await self._opened.wait()
        from agent.destination.garbage import PERIOD, collect_old

        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await asyncio.sleep(TIDY)
            if loop.time() >= due:
                due = loop.time() + PERIOD
                await asyncio.to_thread(collect_old)
            await asyncio.to_thread(give_back)

    async def close(self) -> None:
        self._guard.close()
        if self._node is not None:
            node, self._node = self._node, None
            await node.close(LEAVING)

    def apply(self, event: Event) -> None:
        """Take one event in, and have the answers that it touches made anew."""
        match event:
            case Put(item=ConfigMap() as one):
                self._read((one,))
            case Replace(kind=kind, items=items) if kind is ConfigMap:
                self._read(items)
                # Flags alone do, now that it is known whether there is more beside them.
                self._settle()
        touched = self.catalog.apply(event)
        if self._hub is not None:
            self._hub.refresh(touched)
            self._tell_complaints()
        if isinstance(event, Replace) and not self.catalog.unlisted(*self._needed()):
            self._complete.set()

    def redirection(self, uid: str, status: Redirection) -> None:
        """A pod of this node was looked at. What is wrong for a moment only changes no answer."""
        self._guard.seen(uid, status)

    def retain(self, uids: Collection[str]) -> None:
        """These are the pods of this node whose redirection is watched; all others are no more."""
        self._guard.retain(uids)

    async def listen(self, address: str, client: Client, run_inside: "RunInside") -> "Listener":
        """A listener in a pod's netns, all of whose calls are the pod's. Raises CannotListen, and what
        `run_inside` raises."""
        from agent.destination.listener import listen

        assert self._hub is not None
        assert self._metrics is not None
        return await listen(self._hub, self._metrics, address, client=client, run_inside=run_inside)

    def explain(self, kind: str, path: str, token: str) -> Endpoints | Profile | Ended | Twofold:
        """The answer to a question, with what does not go over the wire. Raises targets.Invalid."""
        target = parse_authority(path, self.config.cluster_domain)
        ask = self.get if kind == "endpoints" else self.profile
        return ask(target, parse_token(token))[0]

    async def _open(self) -> None:
        # It takes a quarter of a second, which the loop has not.
        await asyncio.to_thread(importlib.import_module, "agent.destination.listener")
        from agent.destination.garbage import collect_less
        from agent.destination.hub import Hub
        from agent.destination.listener import listen
        from agent.destination.metrics import Metrics

        collect_less()
        metrics = Metrics(self._registry)
        hub = Hub(self, metrics)
        # The first listener is in the node's own namespace, since gRPC's threads are born there.
        first = await listen(hub, metrics, "127.0.0.1:0")
        await self._listen_on_node(hub, metrics)
        await first.close("nobody is meant to ask here")
        hub.open()
        self._hub, self._metrics = hub, metrics
        self._tell_complaints()
        self._opened.set()
        log.info(
            "answering for destinations",
            trust_domain=self.config.trust_domain,
            cluster_domain=self.config.cluster_domain,
            diagnostics=self._settings.diagnostics,
        )

    async def _listen_on_node(self, hub: "Hub", metrics: "Metrics") -> None:
        from agent.destination.listener import CannotListen, listen

        if self._settings.diagnostics is None:
            return
        host, port = self._settings.diagnostics
        try:
            self._node = await listen(hub, metrics, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except CannotListen as error:
            # Proxies do without it.
            log.error("cannot be asked by `pointsman diagnostics`", error=str(error))

    def _redirected(self, uid: str, status: Redirection, turned: bool) -> None:
        state = known(status)
        if turned:
            self._report(uid, status, failed=state == "failed")
        touched = self.catalog.set_redirection(uid, state, status.reason)
        if self._hub is not None and touched:
            self._hub.refresh(touched)

    def _report(self, uid: str, status: Redirection, *, failed: bool) -> None:
        pod, asked = self.catalog.pods.of.get(uid), self.config.require_redirection
        if pod is None or asked == "allow" or not self.answering:
            return
        told = {"pod": f"{pod.namespace}/{pod.name}", "reason": status.reason.value}
        told |= {"message": status.message} if status.message else {}
        if not failed:
            log.info("pod is announced as meshed again", **told)
        elif asked == "deny":
            log.warning("pod is not redirected: connections from the mesh to it fail", **told)
        else:
            log.warning("pod is not redirected: announced without identity, and so in clear text", **told)

    def _tell_complaints(self) -> None:
        """Say what of an object cannot be used, once, and when that is over."""
        for complaint, came in self.catalog.news():
            told = {"complaint": complaint.reason.value, "about": complaint.subject}
            if came:
                log.warning("complaint", **told, message=complaint.message, remedy=complaint.remedy)
            else:
                log.info("complaint settled", **told, message=complaint.message)

    def _needed(self) -> tuple[type[Object], ...]:
        return (*NEEDED, objects.EndpointSlice if self.config.endpoint_slices else objects.Endpoints)

    def _read(self, items: tuple[Object, ...]) -> None:
        for item in items:
            if isinstance(item, ConfigMap) and is_linkerds(item, self._settings):
                self._take(item)

    def _take(self, item: ConfigMap) -> None:
        """What cannot be read leaves what was known."""
        try:
            config, complaints = read_config(item, self._settings)
        except ValueError as error:
            where = f"{item.metadata.namespace}/{item.metadata.name}"
            log.error("cannot read how Linkerd was installed", object=where, error=str(error))
            return
        if config == self.config and self._known.is_set():
            return
        for complaint in complaints:
            log.warning("complaint", about=complaint.subject, message=complaint.message)
        self.config = config
        self._settle()
        if self._hub is not None:
            log.info("Linkerd's settings have changed", trust_domain=config.trust_domain)
            self._hub.refresh_all()

    def _settle(self) -> None:
        if self.config.trust_domain:
            self._known.set()
