"""What is counted: linted by promtool, true, and with no label that grows."""

import asyncio
import re
import subprocess

from prometheus_client import generate_latest

from agent.core.discovery.answers import Endpoints, Profile
from agent.core.discovery.targets import Client
from agent.destination.metrics import SERVICE, Method
from tests.daemon.test_metrics import promtool
from tests.destination.stage import Stage, address, endpoints, meshed, path, proxy, stage

ALLOWED = {
    "method": {"Get", "GetProfile"},
    "grpc_method": {"Get", "GetProfile"},
    "grpc_service": {SERVICE},
    "grpc_type": {"server_stream"},
    "grpc_code": {"Canceled", "InvalidArgument", "Unavailable"},
    "reason": {"NotRedirected"},
    "le": None,
}


async def busy(here: Stage) -> None:
    """A bit of everything."""
    listener = await here.listen()
    here.answers.tell(Method.GET, "web", endpoints(meshed(1), address(2, withheld="NotRedirected")))
    pod = Profile(endpoint=address(2, withheld="NotRedirected"))
    here.answers.tell(Method.PROFILE, "10.1.0.2", pod)
    async with proxy(listener.port) as client:
        view, profile = client.get(path("web")), client.profile("10.1.0.2:80")
        await asyncio.gather(view.message(), profile.message())
        here.answers.tell(Method.GET, "web", endpoints(address(3)))
        await view.message(3)
        here.answers.tell(Method.GET, "web", endpoints(address(3)))
        await client.get("nonsense").status()
        await client.get("www.example.org:80").status()
        page = generate_latest(here.registry).decode()
    here.answers.tell(Method.GET, "web", Endpoints(True))
    await _over(here)
    _check(page)


async def test_promtool_finds_nothing_to_say() -> None:
    async with stage() as here:
        await busy(here)
        page = generate_latest(here.registry)
    done = await asyncio.to_thread(
        subprocess.run, [promtool(), "check", "metrics"], input=page, capture_output=True, check=False
    )
    said = [line for line in done.stderr.decode().splitlines() if not line.split()[0].endswith("_created")]
    assert said == []


async def test_what_is_counted_is_so() -> None:
    async with stage() as here:
        await busy(here)
        call = {"grpc_type": "server_stream", "grpc_service": SERVICE}
        get, profile = call | {"grpc_method": "Get"}, call | {"grpc_method": "GetProfile"}
        expected = {
            ("grpc_server_started_total", *get.items()): 3,
            ("grpc_server_started_total", *profile.items()): 1,
            ("grpc_server_handled_total", *get.items(), ("grpc_code", "InvalidArgument")): 2,
            ("grpc_server_handled_total", *get.items(), ("grpc_code", "Canceled")): 1,
            ("grpc_server_handled_total", *profile.items(), ("grpc_code", "Canceled")): 1,
            ("grpc_server_msg_sent_total", *get.items()): 3,
            ("grpc_server_msg_received_total", *get.items()): 3,
            ("grpc_server_handling_seconds_count", *get.items()): 3,
            ("pointsman_destination_updates_total", ("method", "Get")): 3,
            ("pointsman_destination_updates_total", ("method", "GetProfile")): 1,
            ("pointsman_destination_suppressed_total", ("method", "Get")): 1,
            ("pointsman_destination_update_latency_seconds_count", ("method", "Get")): 1,
            ("pointsman_destination_encoded_total",): 3,
            ("pointsman_destination_listeners",): 1,
            ("pointsman_destination_streams", ("method", "Get")): 0,
            ("pointsman_destination_topics", ("method", "GetProfile")): 0,
        }
        for (name, *labels), value in expected.items():
            assert here.sample(name, **dict(labels)) == value, (name, labels)


async def test_latency_is_that_from_the_event() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with proxy(listener.port) as client:
            view = client.get(path("web"))
            await view.message()
            here.answers.hub = None
            here.answers.tell(Method.GET, "web", endpoints(address(1)))
            seen = asyncio.get_running_loop().time() - 2
            here.hub.refresh({here.answers.subject("web")}, seen)
            await view.message(2)
        await _over(here)
        bucket = "pointsman_destination_update_latency_seconds_bucket"
        assert here.sample(bucket, method="Get", le="1.0") == 0
        assert here.sample(bucket, method="Get", le="2.5") == 1


async def test_an_address_is_encoded_once_for_all_streams() -> None:
    """A thousand streams, two hundred addresses, one that changes: one is encoded."""
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(200))))
        listeners = [await here.listen(client=Client("shop", f"n{n % 2}")) for n in range(10)]
        clients = [proxy(listener.port) for listener in listeners]
        opened = [await client.__aenter__() for client in clients]
        views = [client.get(path("web")) for client in opened for _ in range(100)]
        await asyncio.gather(*(view.message() for view in views))
        assert here.sample("pointsman_destination_encoded_total") == 200
        others = (meshed(0, pod="another"), *map(meshed, range(1, 200)))
        here.answers.tell(Method.GET, "web", endpoints(*others))
        await asyncio.gather(*(view.message(2) for view in views))
        assert here.sample("pointsman_destination_encoded_total") == 201
        for client in clients:
            await client.__aexit__(None, None, None)


def _check(page: str) -> None:
    assert 'pointsman_destination_withheld{reason="NotRedirected"} 1.0' in page
    for label, value in re.findall(r'(\w+)="([^"]*)"', page):
        allowed = ALLOWED[label]
        assert allowed is None or value in allowed, (label, value)


async def _over(here: Stage) -> None:
    """Wait until nobody asks any more."""
    async with asyncio.timeout(5):
        while any(tally.streams for tally in here.metrics.tallies.values()):
            await asyncio.sleep(0.01)
