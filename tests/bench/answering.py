"""The processes that are measured: the destination service, as the agent wires it, and one that only writes.

The first argument says which: `service`, `bare` or `scale`. Then a command a line, each answered by a line of
JSON; times are seconds of the clock that all processes share, CPU is that of the whole process.
"""

import asyncio
import gc
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import structlog
from prometheus_client import CollectorRegistry

from agent.core import objects
from agent.core.discovery import endpoints
from agent.core.discovery.answers import Endpoints
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.objects import (
    ConfigMap,
    EndpointSlice,
    ExternalWorkload,
    Node,
    Server,
    ServiceProfile,
)
from agent.core.discovery.targets import Client, ServiceTarget
from agent.core.objects import Namespace, Object, Pod, Put, Replace, Service
from agent.destination import garbage
from agent.destination.address import Encoder
from agent.destination.budget import Budget, Limits
from agent.destination.encode import difference, snapshot
from agent.destination.hub import Hub
from agent.destination.metrics import SERVICE, Method, Metrics
from agent.destination.server import OPTIONS
from agent.destinations import Destinations
from agent.settings import Answering
from tests.bench.cluster import NODE, Cluster, Size, hot

OPAQUE = "config.linkerd.io/opaque-ports"
TRUST = Discovery(trust_domain="cluster.local")
KINDS: dict[str, type[Object]] = {
    "nodes": Node,
    "services": Service,
    "slices": EndpointSlice,
    "pods": Pod,
}
PAGE_KIB = 4
STREAMS = 50
EVENTS = 1000


def memory() -> float:
    """Resident memory, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB / 1024


def read(path: Path, kind: type[Object]) -> tuple[Object, ...]:
    """The objects of a file, decoded as a source does."""
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as lines:
        return tuple(decoder.decode(line) for line in lines)


class Measured:
    """The service with a cluster from `directory`, and a listener for each own pod."""

    def __init__(self, directory: str, own: str) -> None:
        self._directory = Path(directory)
        self._own = int(own)
        self._opaque: set[str] = set()
        self._destinations = Destinations(
            Answering(discovery=TRUST, trust_domain=TRUST.trust_domain, diagnostics=None), CollectorRegistry()
        )

    async def load(self) -> dict[str, Any]:
        """Take everything in, from JSON on."""
        empty: tuple[type[Object], ...] = (ConfigMap, Namespace, Server, ServiceProfile, ExternalWorkload)
        began = time.monotonic()
        for kind in empty:
            self._destinations.apply(Replace(kind, ()))
        for name, kind in KINDS.items():
            self._destinations.apply(Replace(kind, read(self._directory / name, kind)))
        seconds = time.monotonic() - began
        await self._destinations.open()
        await self._destinations.complete()
        self._tidying = asyncio.create_task(self._destinations.tidy())
        return {"load_s": seconds}

    async def listen(self) -> dict[str, Any]:
        ports = []
        for number in range(self._own):
            client = Client("bench", NODE, f"pod-{number}")
            listener = await self._destinations.listen("127.0.0.1:0", client, lambda bind: bind())
            ports.append(listener.port)
        return {"ports": ports}

    async def memory(self) -> dict[str, Any]:
        return {"mib": memory()}

    async def heat(self, count: str) -> dict[str, Any]:
        """A Service that everybody will ask for, of `count` endpoints."""
        for item in warm(int(count), self._own):
            self._destinations.apply(Put(item))
        return {}

    async def push(self, count: str) -> dict[str, Any]:
        """All endpoints of a hot Service change by one event, and so each stream gets them all."""
        self._opaque ^= {count}
        annotations = {OPAQUE: "8080" if count in self._opaque else ""}
        metadata = objects.Metadata(name=f"hot-{count}", annotations=annotations)
        began = time.process_time()
        self._destinations.apply(Put(Namespace(metadata)))
        return {"cpu": began}

    async def cpu(self) -> dict[str, Any]:
        return {"cpu": time.process_time()}

    async def events(self, rate: str, seconds: str) -> dict[str, Any]:
        """One endpoint of a slice that somebody asks for changes its zone, so many times a second."""
        cluster = Cluster(Size(*json.loads(Path(self._directory, "size").read_text())))
        slices, decoder = cluster.slices_asked(), msgspec.json.Decoder(EndpointSlice)
        moments: dict[int, float] = {}
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(int(rate) * int(seconds)):
            await asyncio.sleep(max(0.0, began + number / int(rate) - loop.time()))
            text = json.dumps(cluster.slice(slices[number * 7 % len(slices)], f"zone-{number}"))
            moments[number] = time.monotonic()
            self._destinations.apply(Put(decoder.decode(text)))
        await asyncio.sleep(0.5)
        return {"moments": moments}


class Bare:
    """A loop that writes to as many streams the bytes that the service writes, and does nothing else."""

    def __init__(self, own: str) -> None:
        self._own = int(own)
        self._messages: dict[str, list[bytes]] = {}
        self._message = b""
        self._version = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._servers: list[grpc.aio.Server] = []

    async def listen(self) -> dict[str, Any]:
        ports = []
        handler = grpc.unary_stream_rpc_method_handler(self._handle)
        handlers = grpc.method_handlers_generic_handler(SERVICE, {"Get": handler})
        for _ in range(self._own):
            server = grpc.aio.server(options=OPTIONS)
            server.add_generic_rpc_handlers((handlers,))
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
            self._servers.append(server)
        return {"ports": ports}

    async def heat(self, count: str) -> dict[str, Any]:
        self._messages[count] = turns(int(count), self._own)
        self._write(count)
        return {}

    async def push(self, count: str) -> dict[str, Any]:
        began = time.process_time()
        self._write(count)
        return {"cpu": began}

    async def cpu(self) -> dict[str, Any]:
        return {"cpu": time.process_time()}

    def _write(self, count: str) -> None:
        self._version += 1
        self._message = self._messages[count][self._version % 2]
        woken, self._waiting = self._waiting, set()
        for future in woken:
            if not future.done():
                future.set_result(None)

    async def _handle(self, _: bytes, context: Any) -> None:
        loop, version = asyncio.get_running_loop(), -1
        while True:
            if version != self._version:
                version = self._version
                await context.write(self._message)
                continue
            waiting = loop.create_future()
            self._waiting.add(waiting)
            await waiting


def turns(count: int, own: int) -> list[bytes]:
    """What the service sends when a hot Service becomes opaque, and when it no longer is."""
    catalog, encoder, name = Catalog(), Encoder(), f"hot-{count}"
    encoder.use(TRUST.http2)
    for kind in (Namespace, Service, Pod, EndpointSlice, Server, ExternalWorkload):
        catalog.apply(Replace(kind, ()))
    for item in warm(count, own):
        catalog.apply(Put(item))
    states = []
    for ports in ("", "8080"):
        catalog.apply(Put(Namespace(objects.Metadata(name=name, annotations={OPAQUE: ports}))))
        answer, _ = endpoints.get(catalog, TRUST, ServiceTarget(name, name, "", 80), Client())
        assert isinstance(answer, Endpoints)
        states.append(snapshot(encoder, answer))
    return [difference(states[at - 1], states[at])[0] for at in (0, 1)]


def warm(count: int, own: int) -> list[Object]:
    service, slice_, pods = hot(f"hot-{count}", count, own)
    made: list[Object] = [msgspec.convert(service, type=Service)]
    made += [msgspec.convert(pod, type=Pod) for pod in pods]
    return [*made, msgspec.convert(slice_, type=EndpointSlice)]


class Silent:
    """A call that takes whatever is written."""

    async def write(self, _: bytes) -> None:
        return

    async def end(self, _: object, __: str) -> None:
        return


async def scale(services: int) -> float:
    """CPU seconds of one event, in a cluster of so many Services, with fifty streams for fifty of them."""
    cluster = Cluster(Size(pods=5 * services, services=services, slices=5 * services // 2))
    given = Answering(discovery=TRUST, trust_domain=TRUST.trust_domain, diagnostics=None)
    destinations, metrics = Destinations(given, CollectorRegistry()), Metrics(CollectorRegistry())
    hub, budget = Hub(destinations, metrics), Budget(Limits(), metrics)
    hub.open()
    for kind in (Namespace, Server, ServiceProfile, ExternalWorkload):
        destinations.apply(Replace(kind, ()))
    for name, kind in KINDS.items():
        items = getattr(cluster, name)()
        destinations.apply(Replace(kind, tuple(msgspec.convert(item, type=kind) for item in items)))
    asked = cluster.asked[:STREAMS]
    streams = [
        hub.subscribe(Method.GET, cluster.authority(service), Client(node=NODE), Silent(), budget)
        for service in asked
    ]
    running = [asyncio.ensure_future(stream.run()) for stream in streams]
    await asyncio.sleep(0.1)
    slices = [number for number in cluster.slices_asked() if cluster.owner(number) in set(asked)]
    events = [
        Put(msgspec.convert(cluster.slice(slices[n % len(slices)], f"zone-{n}"), type=EndpointSlice))
        for n in range(EVENTS)
    ]
    gc.collect()
    before, began = metrics.tallies[Method.GET].messages, time.process_time()
    for number, event in enumerate(events, 1):
        hub.refresh(destinations.catalog.apply(event))
        if number % 5 == 0:
            await asyncio.sleep(0.004)
    spent = time.process_time() - began
    told = metrics.tallies[Method.GET].messages - before
    if told < 0.9 * EVENTS:
        raise RuntimeError(f"cannot tell the cost of {EVENTS} events: only {told} messages came of them")
    for task in running:
        task.cancel()
    return spent / EVENTS


async def converse(subject: Measured | Bare) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        print(json.dumps(await getattr(subject, line[0])(*line[1:])), flush=True)
    # Its streams are still open, and nobody is there to be told.
    os._exit(0)


def main() -> None:
    garbage.collect_less()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    what, *arguments = sys.argv[1:]
    if what == "scale":
        print(json.dumps(asyncio.run(scale(int(arguments[0])))))
    else:
        asyncio.run(_serve(what, arguments))


async def _serve(what: str, arguments: list[str]) -> None:
    await converse(Measured(*arguments) if what == "service" else Bare(*arguments))


if __name__ == "__main__":
    main()
