"""The destination service of this node: the picture that answers are made of, and whoever asks.

Nothing is answered before it is known how Linkerd was installed: a wrong trust domain would break all mTLS.
It is told by flags, or by Linkerd's own ConfigMap `linkerd-config`. Only then are gRPC and its 20 MiB loaded,
so an agent that nobody asks does without them.
"""

import asyncio
import importlib
from typing import TYPE_CHECKING

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from agent.core.discovery import endpoints, profiles
from agent.core.discovery.answers import Ended, Endpoints, Profile, Subject, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.linkerd_config import KEY, NAME, read_values
from agent.core.discovery.objects import ConfigMap
from agent.core.discovery.redirected import FLAP_GUARD, deliberate, known
from agent.core.discovery.targets import Client, Target, parse_authority, parse_token
from agent.core.lifecycle import Redirection
from agent.core.objects import Event, Put, Replace
from agent.files.documents import documents
from agent.node.keeper import Keeper
from agent.settings import Answering

if TYPE_CHECKING:
    from agent.destination.hub import Hub
    from agent.destination.listener import Listener, RunInside
    from agent.destination.metrics import Metrics

LEAVING = "the agent is stopping; connect again"

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
        if settings.trust_domain is not None:
            self._known.set()
        self._guards: dict[str, asyncio.TimerHandle] = {}

    @property
    def answering(self) -> bool:
        return self._hub is not None

    def get(self, target: Target, client: Client) -> tuple[Endpoints | Ended | Twofold, frozenset[Subject]]:
        return endpoints.get(self.catalog, self.config, target, client)

    def profile(self, target: Target, client: Client) -> tuple[Profile | Ended | Twofold, frozenset[Subject]]:
        return profiles.profile(self.catalog, self.config, target, client)

    async def open(self) -> None:
        """Wait until it is known how Linkerd was installed; from then on answers are given."""
        await self._known.wait()
        await self._open()

    async def close(self) -> None:
        for guard in self._guards.values():
            guard.cancel()
        if self._node is not None:
            await self._node.close(LEAVING)

    def apply(self, event: Event) -> None:
        """Take one event in, and have the answers that it touches made anew."""
        match event:
            case Put(item=ConfigMap() as found):
                self._read_config((found,))
            case Replace(kind=kind, items=items) if kind is ConfigMap:
                self._read_config(tuple(item for item in items if isinstance(item, ConfigMap)))
        touched = self.catalog.apply(event)
        if self._hub is not None and touched:
            self._hub.refresh(touched)

    def redirection(self, uid: str, status: Redirection) -> None:
        """A pod of this node was looked at. What is wrong for a moment only changes no answer."""
        guard = self._guards.pop(uid, None)
        if guard is not None:
            guard.cancel()
        state = known(status)
        if state == "failed" and not deliberate(status):
            loop = asyncio.get_running_loop()
            self._guards[uid] = loop.call_later(FLAP_GUARD, self._tell, uid, status)
            return
        self._tell(uid, status)

    def _tell(self, uid: str, status: Redirection) -> None:
        self._guards.pop(uid, None)
        touched = self.catalog.set_redirection(uid, known(status), status.reason)
        if self._hub is not None and touched:
            self._hub.refresh(touched)

    async def listen(self, port: int, keeper: Keeper, run_inside: "RunInside") -> "Listener":
        """A listener on loopback in a pod's netns, all of whose calls are the pod's. CannotListen."""
        from agent.destination.listener import listen

        assert self._hub is not None
        assert self._metrics is not None
        client = Client(keeper.key.namespace, self._settings.node_name, keeper.key.name)
        return await listen(
            self._hub, self._metrics, f"127.0.0.1:{port}", client=client, run_inside=run_inside
        )

    def explain(self, kind: str, path: str, token: str) -> Endpoints | Profile | Ended | Twofold:
        """The answer to a question, with what does not go over the wire. Raises targets.Invalid."""
        target = parse_authority(path, self.config.cluster_domain)
        ask = self.get if kind == "endpoints" else self.profile
        return ask(target, parse_token(token))[0]

    async def _open(self) -> None:
        # It takes a quarter of a second, which the loop has not.
        await asyncio.to_thread(importlib.import_module, "agent.destination.listener")
        from agent.destination.hub import Hub
        from agent.destination.listener import listen
        from agent.destination.metrics import Metrics

        self._metrics = Metrics(self._registry)
        hub = Hub(self, self._metrics)
        host, port = self._settings.diagnostics or ("127.0.0.1", 0)
        # The first listener is the node's own: gRPC's threads are born in its namespace.
        node = await listen(hub, self._metrics, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if self._settings.diagnostics is None:
            await node.close("there is no listener for diagnostics")
        else:
            self._node = node
        hub.open()
        self._hub = hub
        log.info(
            "answering for destinations",
            trust_domain=self.config.trust_domain,
            cluster_domain=self.config.cluster_domain,
            diagnostics=self._settings.diagnostics,
        )

    def _read_config(self, found: tuple[ConfigMap, ...]) -> None:
        namespace = self._settings.discovery.control_plane_namespace
        for item in found:
            if (item.metadata.namespace, item.metadata.name) == (namespace, NAME):
                self._take(item, namespace)

    def _take(self, item: ConfigMap, namespace: str) -> None:
        try:
            values = next(iter(documents((item.data or {}).get(KEY, ""))), None)
        except ValueError as error:
            log.error("cannot read how Linkerd was installed", object=f"{namespace}/{NAME}", error=str(error))
            return
        config, complaints = read_values(
            values if isinstance(values, dict) else {}, namespace, self._settings.discovery
        )
        for complaint in complaints:
            log.warning("complaint", about=complaint.subject, message=complaint.message)
        self.config = msgspec.structs.replace(config, **self._settings.overrides)
        self._known.set()
        if self._hub is not None:
            self._hub.refresh_all()
