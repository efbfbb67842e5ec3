"""Public bug reports about endpoints and streams, each as an input to catalog, hub and listener together.

docs/reports.md lists all reports: where their tests are, or why there is none.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from agent.core.objects import Drop, Object, Put
from agent.destination.metrics import SERVICE, Method
from tests.cases.discovery.case import Call
from tests.cases.discovery.client import Client, Stream
from tests.cases.discovery.schema import ConfigText
from tests.cases.discovery.service import Service
from tests.cases.discovery.world import KINDS, Listed
from tests.core.discovery.world import endpoint_slice, node, pod, server, service
from tests.destination.http2 import HEADERS, call, peer
from tests.destination.stage import address, endpoints, path, proxy, stage, token

WEB = "web.shop.svc.cluster.test:80"
ON_NODE_1 = token(node="n1")


class Cluster:
    """Objects that a running service knows, and a client of it."""

    def __init__(self, service: Service, client: Client) -> None:
        self._service = service
        self._client = client

    def put(self, *items: Object) -> None:
        for item in items:
            self._service.feed(Put(item))

    def drop(self, *items: Object) -> None:
        for item in items:
            self._service.feed(Drop(item))

    def ask(self, path: str = WEB, token: str = "") -> Stream:
        return self._client.open(Call("Get", path, token))

    def profile(self, path: str) -> Stream:
        return self._client.open(Call("Profile", path))


@contextlib.asynccontextmanager
async def cluster(*items: Object) -> AsyncIterator[Cluster]:
    """Everything is listed, and then these objects come."""
    async with Service(ConfigText()) as running, Client(running.target) as client:
        for kind in KINDS:
            running.watch(Listed(kind, ()))
        made = Cluster(running, client)
        made.put(*items)
        yield made


async def until(expected: Callable[[], object], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not expected():
            await asyncio.sleep(0.01)


async def holds(stream: Stream, *addresses: str) -> None:
    """Until the client has exactly these."""
    try:
        await until(lambda: stream.view.seen and sorted(stream.view.addresses) == sorted(addresses))
    except TimeoutError:
        raise AssertionError(f"{sorted(stream.view.addresses)}, not {sorted(addresses)}") from None
    assert stream.view.faults == []


async def test_j01_an_endpoint_whose_pod_went_first_is_removed() -> None:
    pods = [pod(f"p{n}", f"10.99.1.{n}") for n in (5, 6)]
    both = ("10.99.1.5 pod=p5", "10.99.1.6 pod=p6")
    async with cluster(service("web", "- 80"), endpoint_slice("s1", "web", ["- 80"], *both), *pods) as here:
        stream = here.ask()
        await holds(stream, "10.99.1.5:80", "10.99.1.6:80")
        here.drop(pods[0])
        here.put(endpoint_slice("s1", "web", ["- 80"], both[1]))
        await holds(stream, "10.99.1.6:80")
        assert stream.view.seen[-1].facts == ["10.99.1.5:80"]


async def test_j04_j05_slices_are_one_set() -> None:
    first = endpoint_slice("s1", "web", ["- 80"], "10.99.1.5", "10.99.1.6")
    async with cluster(service("web", "- 80"), first) as here:
        here.put(endpoint_slice("s2", "web", ["- 80"], "10.99.1.9"))
        stream = here.ask()
        await holds(stream, "10.99.1.5:80", "10.99.1.6:80", "10.99.1.9:80")
        here.drop(first)
        await holds(stream, "10.99.1.9:80")
        assert [seen.kind for seen in stream.view.seen] == ["add", "remove"]
        here.put(endpoint_slice("s3", "web", ["- 80"]))
        here.put(endpoint_slice("s3", "web", ["- 80"], "10.99.1.7"))
        await holds(stream, "10.99.1.7:80", "10.99.1.9:80")


async def test_j10_new_endpoints_are_told_while_zones_are_filtered() -> None:
    mine, others = "10.99.1.5 zone=za hint=za", "10.99.1.6 zone=zb hint=zb"
    async with cluster(service("web", "- 80"), node("n1", "za")) as here:
        here.put(endpoint_slice("s1", "web", ["- 80"], mine, others))
        stream = here.ask(token=ON_NODE_1)
        await holds(stream, "10.99.1.5:80")
        here.put(endpoint_slice("s1", "web", ["- 80"], mine, others, "10.99.1.7 zone=za hint=za"))
        await holds(stream, "10.99.1.5:80", "10.99.1.7:80")
        assert [sorted(seen.facts) for seen in stream.view.seen] == [["10.99.1.5:80"], ["10.99.1.7:80"]]


async def test_j11_the_first_endpoint_of_a_service_is_told() -> None:
    async with cluster(service("web", "- 80")) as here:
        stream = here.ask()
        await holds(stream)
        assert stream.view.exists
        here.put(endpoint_slice("s1", "web", ["- 80"], "10.99.1.5"))
        await holds(stream, "10.99.1.5:80")


async def test_k13_k14_a_server_that_selects_another_pod_lets_go_on_open_streams() -> None:
    async with cluster(
        service("web", "- 80"), endpoint_slice("s1", "web", ["- 80"], "10.99.1.5 pod=a")
    ) as here:
        here.put(pod("a", "10.99.1.5", labels={"app": "db"}))
        here.put(pod("b", "10.99.1.6", labels={"app": "db"}, namespace="other"))
        streams = [here.ask(), here.profile("10.99.1.5:80")]
        elsewhere = here.profile("10.99.1.6:80")
        await until(lambda: all(each.answered for each in (*streams, elsewhere)))
        here.put(server("s", {"app": "db"}, 80))
        await until(lambda: all(each.view.opaque for each in streams))
        here.put(server("s", {"app": "other"}, 80))
        await until(lambda: not any(each.view.opaque for each in streams))
        assert len(elsewhere.view.seen) == 1


class Broken(Collector):
    """A collector as a fault would have it."""

    def collect(self) -> Iterator[Metric]:
        raise ValueError("no metric has such a label")


async def test_m09_metrics_never_break_an_answer() -> None:
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(address(1)))
        listener = await here.listen()
        async with proxy(listener.port) as client, peer(listener.port) as rude:
            view = client.get(path("web"))
            for name in ("web", "a" * 63, "ü" * 40, '"\n\\{}', "\0"):
                await client.get(path(name)).message()
            before = _series(here.registry)
            await client.get(path("b" * 5000)).status()
            rude.send(call(1, Method.GET, "????").replace(b"????", b"\xff\xfe\xc0\x80"))
            await rude.until(5, lambda: rude.counts[HEADERS])
            assert _series(here.registry) - before == {"InvalidArgument"}
            here.registry.register(Broken())
            with pytest.raises(ValueError, match="no metric"):
                generate_latest(here.registry)
            here.answers.tell(Method.GET, "web", endpoints(address(2)))
            await view.until(lambda v: list(v.addresses or ()) == ["10.1.0.2:8080"])


def _series(registry: CollectorRegistry) -> set[str]:
    """Every value of every label but the bounds of histograms."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    labels = (sample.labels for family in families for sample in family.samples)
    return {value for each in labels for name, value in each.items() if name != "le"}


async def test_m12_a_service_starts_three_times_in_one_process() -> None:
    for _ in range(3):
        async with stage() as here:
            listener = await here.listen()
            async with proxy(listener.port) as client:
                await client.get(path("web")).message()
            page = generate_latest(here.registry).decode()
            kinds = [line for line in page.splitlines() if line.startswith("# TYPE")]
            assert len(kinds) == len(set(kinds)) > 10
            assert here.sample("grpc_server_started_total", **_labels(Method.GET)) == 1


def _labels(method: Method) -> dict[str, str]:
    return {"grpc_type": "server_stream", "grpc_service": SERVICE, "grpc_method": method.value}
