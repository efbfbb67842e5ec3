"""A hub with answers made by hand, a listener, and a client that reads as a proxy does."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from agent.core.discovery.answers import Address, Ended, Endpoints, Hint, Profile, Subject, Twofold
from agent.core.discovery.config import Discovery
from agent.core.discovery.targets import AddressTarget, Client, Target
from agent.destination.budget import Limits
from agent.destination.hub import Hub
from agent.destination.listener import Listener, RunInside, listen, run_here
from agent.destination.metrics import SERVICE, Method, Metrics
from agent.destination.proto.destination_pb2 import DestinationProfile, GetDestination, Update

DOMAIN = "svc.cluster.test"
SECONDS = 10.0
"""How long a test waits for what must come."""

Answer = Endpoints | Profile | Ended | Twofold


class Answers:
    """A resolver that knows what it is told. `asked` counts questions."""

    def __init__(self) -> None:
        self.config = Discovery(cluster_domain="cluster.test")
        self.asked = 0
        self.hub: Hub | None = None
        self._told: dict[tuple[Method, str], Answer | Callable[[Client], Answer]] = {}

    def tell(self, method: Method, name: str, answer: Answer | Callable[[Client], Answer]) -> None:
        """From now on this is the answer about a Service of that name, or an IP."""
        self._told[method, name] = answer
        if self.hub is not None:
            self.hub.refresh({self.subject(name)})

    def subject(self, name: str) -> Subject:
        """On which all answers about that Service or IP depend."""
        return Subject("service", name)

    def get(self, target: Target, client: Client) -> tuple[Any, frozenset[Subject]]:
        return self._answer(Method.GET, target, client)

    def profile(self, target: Target, client: Client) -> tuple[Any, frozenset[Subject]]:
        return self._answer(Method.PROFILE, target, client)

    def _answer(self, method: Method, target: Target, client: Client) -> tuple[Any, frozenset[Subject]]:
        self.asked += 1
        name = target.ip if isinstance(target, AddressTarget) else target.service
        nothing = Endpoints(exists=False) if method is Method.GET else Profile()
        answer = self._told.get((method, name), nothing)
        return (answer(client) if callable(answer) else answer), frozenset({self.subject(name)})


class Stage:
    """One hub and its listeners."""

    def __init__(self, registry: CollectorRegistry | None = None, metrics: Metrics | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.metrics = metrics or Metrics(self.registry)
        self.answers = Answers()
        self.hub = self.answers.hub = Hub(self.answers, self.metrics)
        self.listeners: list[Listener] = []

    async def listen(
        self,
        address: str = "127.0.0.1:0",
        *,
        client: Client | None = None,
        run_inside: RunInside = run_here,
        limits: Limits | None = None,
    ) -> Listener:
        made = await listen(
            self.hub, self.metrics, address, client=client, run_inside=run_inside, limits=limits
        )
        self.listeners.append(made)
        return made

    def again(self) -> "Stage":
        """Another hub, which counts where this one did."""
        return Stage(self.registry, self.metrics)

    def sample(self, name: str, **labels: str) -> float:
        """A number of the metrics page."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def close(self) -> None:
        await asyncio.gather(*(each.close("the test is over") for each in self.listeners))


@contextlib.asynccontextmanager
async def stage(*, opened: bool = True) -> AsyncIterator[Stage]:
    made = Stage()
    if opened:
        made.hub.open()
    try:
        yield made
    finally:
        await made.close()


class View:
    """One call, with what a proxy would know by it. `messages` are the bytes, as they came."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.messages: list[bytes] = []
        self.addresses: dict[str, Any] | None = None
        self.profile: DestinationProfile | None = None
        self._news = asyncio.Event()
        self._task = asyncio.ensure_future(self._read())

    async def message(self, count: int = 1) -> bytes:
        """Wait until so many messages have come in all; the last one. AssertionError when they do not."""
        try:
            async with asyncio.timeout(SECONDS):
                while len(self.messages) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{len(self.messages)} messages came, not {count}") from None
        return self.messages[-1]

    async def until(self, expected: Callable[["View"], bool]) -> None:
        """Wait until the view is as expected."""
        async with asyncio.timeout(SECONDS):
            while not expected(self):
                self._news.clear()
                await self._news.wait()

    async def status(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(SECONDS):
            return await self.call.code(), await self.call.details()

    async def close(self) -> None:
        self.call.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async for message in self.call:
                self.messages.append(message)
                self.take(message)
                self._news.set()

    def take(self, message: bytes) -> None:
        """Apply an update; the first `add` resets. AssertionError for a `remove` before any other."""


class GetView(View):
    def take(self, message: bytes) -> None:
        update = Update.FromString(message)
        match update.WhichOneof("update"):
            case "add":
                self.addresses = (self.addresses or {}) | {key(a.addr): a for a in update.add.addrs}
            case "remove":
                assert self.addresses is not None, "remove came first"
                for gone in update.remove.addrs:
                    del self.addresses[key(gone)]
            case "no_endpoints":
                self.addresses = {}


class ProfileView(View):
    def take(self, message: bytes) -> None:
        self.profile = DestinationProfile.FromString(message)


def key(address: Any) -> str:
    """`ip:port` of a TcpAddress, IPv4 only."""
    ip = address.ip.ipv4
    return f"{ip >> 24}.{ip >> 16 & 255}.{ip >> 8 & 255}.{ip & 255}:{address.port}"


class Proxy:
    """A client with one connection."""

    def __init__(self, target: str, *options: tuple[str, Any]) -> None:
        # Without it, channels to one address share a connection.
        self.channel = grpc.aio.insecure_channel(
            target, options=(("grpc.use_local_subchannel_pool", 1), *options)
        )
        self.views: list[View] = []

    def get(self, path: str, token: str = "", **options: Any) -> GetView:
        return self._keep(GetView(self.ask(Method.GET, path, token, **options)))

    def profile(self, path: str, token: str = "", **options: Any) -> ProfileView:
        return self._keep(ProfileView(self.ask(Method.PROFILE, path, token, **options)))

    def ask(self, method: Method, path: str, token: str = "", **options: Any) -> Any:
        request = GetDestination(path=path, context_token=token).SerializeToString()
        return self.channel.unary_stream(f"/{SERVICE}/{method.value}")(request, **options)

    async def close(self) -> None:
        await asyncio.gather(*(view.close() for view in self.views))
        await self.channel.close()

    def _keep(self, view: Any) -> Any:
        self.views.append(view)
        return view


@contextlib.asynccontextmanager
async def proxy(port: int, *options: tuple[str, Any]) -> AsyncIterator[Proxy]:
    made = Proxy(f"127.0.0.1:{port}", *options)
    try:
        yield made
    finally:
        await made.close()


def token(namespace: str = "shop", node: str = "n1", pod: str = "web-0") -> str:
    return json.dumps({"ns": namespace, "nodeName": node, "pod": pod}) + "\n"


def address(last: int, port: int = 8080, **fields: Any) -> Address:
    return Address(f"10.1.{last >> 8}.{last & 255}", port, **fields)


def meshed(last: int, port: int = 8080, pod: str = "") -> Address:
    """As large as a real one."""
    identity = "default.shop.serviceaccount.identity.linkerd.cluster.local"
    labels = {
        "control_plane_ns": "linkerd",
        "deployment": "web",
        "pod": pod or f"web-6f7d8c9b5-{last}",
        "pod_template_hash": "6f7d8c9b5",
        "serviceaccount": "default",
        "zone": "eu-west-1a",
        "zone_locality": "local",
    }
    return address(
        last,
        port,
        labels=tuple(labels.items()),
        identity=identity,
        server_name=identity,
        hint=Hint("h2", 4143),
        http2=True,
    )


def endpoints(*addresses: Address) -> Endpoints:
    return Endpoints(True, addresses, (("namespace", "shop"), ("service", "web")))


def path(service: str, port: int = 80) -> str:
    return f"{service}.shop.{DOMAIN}:{port}"
