"""The destination service of one case: the product's catalog, hub and listeners, wired as the daemon does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType

import msgspec
from prometheus_client import CollectorRegistry

from agent.core import objects
from agent.core.discovery import endpoints, profiles
from agent.core.discovery.answers import Ended, Endpoints, Profile, Subject, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.targets import Client, Target
from agent.core.reasons import Complaint
from agent.destination.hub import Hub
from agent.destination.listener import Listener, listen
from agent.destination.metrics import Metrics
from tests.cases.discovery.objects import Manifest
from tests.cases.discovery.schema import ConfigText
from tests.cases.discovery.settings import discovery
from tests.cases.discovery.world import KINDS, Change, Dropped, Listed, Put, Redirected
from tests.lab.netns import inside

PORT = 4186
"""Where the listener in a pod's namespace is."""

_CLOSED = 10.0
"""Seconds within which a listener is closed, whatever its clients do."""

TYPES: dict[str, type[objects.Object]] = {kind: getattr(objects, kind) for kind in KINDS}


def decoded(item: Manifest) -> objects.Object:
    """A manifest as the product's sources hand it out. Raises msgspec.ValidationError."""
    return msgspec.convert(item, type=TYPES[item["kind"]])


async def _closed(listener: Listener) -> None:
    """Close it. Raises TimeoutError when that does not end."""
    async with asyncio.timeout(_CLOSED):
        await listener.close("the case has ended")


class Answers:
    """The hub's resolver: the core's functions on one catalog."""

    def __init__(self, catalog: Catalog, config: Discovery) -> None:
        self.config = config
        self._catalog = catalog

    def get(self, target: Target, client: Client) -> tuple[Endpoints | Ended | Twofold, frozenset[Subject]]:
        return endpoints.get(self._catalog, self.config, target, client)

    def profile(self, target: Target, client: Client) -> tuple[Profile | Ended | Twofold, frozenset[Subject]]:
        return profiles.profile(self._catalog, self.config, target, client)


class Service:
    """Answers from when it is entered until it is left. `target`: the diagnostics listener, for gRPC."""

    def __init__(self, config: ConfigText) -> None:
        self.target = ""
        self._config = discovery(config)
        self._catalog = Catalog()
        self._registry = CollectorRegistry()
        self._metrics = Metrics(self._registry)
        self._listeners: set[Listener] = set()
        self._listed: set[str] = set()

    async def __aenter__(self) -> "Service":
        self._hub = Hub(Answers(self._catalog, self._config), self._metrics)
        plain = await listen(self._hub, self._metrics, "127.0.0.1:0")
        self._listeners.add(plain)
        self.target = f"127.0.0.1:{plain.port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End every call, and close every listener."""
        while self._listeners:
            await _closed(self._listeners.pop())

    @contextlib.asynccontextmanager
    async def listener(self, name: str, client: Client) -> AsyncIterator[None]:
        """A listener for the pod `client` inside the network namespace `name`."""
        run_inside = partial(inside, name)
        address = f"127.0.0.1:{PORT}"
        opened = await listen(self._hub, self._metrics, address, client=client, run_inside=run_inside)
        self._listeners.add(opened)
        try:
            yield
        finally:
            if opened in self._listeners:
                self._listeners.remove(opened)
                await _closed(opened)

    def watch(self, change: Change) -> None:
        """Take in one change; once every kind is listed, calls are answered."""
        match change:
            case Listed(kind, items):
                self.feed(objects.Replace(TYPES[kind], tuple(map(decoded, items))))
                self._listed.add(kind)
                if len(self._listed) == len(KINDS):
                    self._hub.open()
            case Put(item):
                self.feed(objects.Put(decoded(item)))
            case Dropped(item):
                self.feed(objects.Drop(decoded(item)))
            case Redirected(uid, state):
                self._hub.refresh(self._catalog.set_redirection(uid, state))

    def feed(self, event: objects.Event) -> None:
        """An event as it comes from a source."""
        self._hub.refresh(self._catalog.apply(event))

    def complaints(self, kind: str) -> list[Complaint]:
        """What of the objects of this kind cannot be used."""
        found = self._catalog.complaints.items()
        return [complaint for (of, _), complaints in found if of == kind for complaint in complaints]

    def metrics(self) -> dict[str, float]:
        """Samples by `name{label="value"}`."""
        found: dict[str, float] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                found[f"{sample.name}{{{labels}}}"] = sample.value
        return found

    def encoded(self) -> int:
        """Addresses that were encoded so far."""
        return int(self.metrics()["pointsman_destination_encoded_total{}"])

    def leftovers(self) -> list[str]:
        """What is still held for streams."""
        kept = ("pointsman_destination_streams{", "pointsman_destination_topics{")
        found = self.metrics().items()
        return [f"{name} is {value}" for name, value in found if name.startswith(kept) and value]
