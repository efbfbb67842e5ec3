"""Through gRPC's own server and client: calls, statuses, shutdown, a new server in the same process."""

import asyncio
import time
from typing import Any

import grpc

from agent.core.discovery.answers import Ended, Endpoints, Profile, RetryBudget
from agent.core.discovery.targets import Client
from agent.destination.budget import Limits
from agent.destination.metrics import SERVICE, Method
from tests.destination.http2 import RST_STREAM, call, peer
from tests.destination.stage import Proxy, Stage, address, endpoints, meshed, path, proxy, stage, token

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def test_a_view_follows_the_answer() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with proxy(listener.port) as client:
            view, absent = client.get(path("web")), client.get(path("ghost"))
            await absent.message()
            assert absent.addresses == {}
            here.answers.tell(Method.GET, "web", endpoints(meshed(1), meshed(2)))
            await view.until(lambda v: len(v.addresses or ()) == 2)
            here.answers.tell(Method.GET, "web", endpoints(meshed(2), meshed(3)))
            await view.until(lambda v: sorted(v.addresses or ()) == ["10.1.0.2:8080", "10.1.0.3:8080"])
            here.answers.tell(Method.GET, "web", Endpoints(True))
            await view.until(lambda v: v.addresses == {})


async def test_the_empty_profile_is_a_message() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with proxy(listener.port) as client:
            view = client.profile(path("ghost"))
            assert await view.message() == b""
            here.answers.tell(Method.PROFILE, "ghost", Profile(name="ghost", retry_budget=RetryBudget()))
            await view.message(2)
            assert view.profile is not None
            assert view.profile.fully_qualified_name == "ghost"


async def test_statuses() -> None:
    async with stage() as here:
        listener = await here.listen()
        here.answers.tell(Method.PROFILE, "10.0.0.1", Ended("two Services claim it", "FAILED_PRECONDITION"))
        async with proxy(listener.port) as client:
            code, text = await client.get("www.example.org:80").status()
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith("cannot resolve")
            code, text = await client.profile("10.0.0.1:80").status()
            assert (code, text) == (grpc.StatusCode.FAILED_PRECONDITION, "two Services claim it")
            garbage = client.channel.unary_stream(f"/{SERVICE}/Get")(b"\xff\xff")
            assert await garbage.code() is grpc.StatusCode.INVALID_ARGUMENT
            other = client.channel.unary_stream(f"/{SERVICE}/Post")(b"")
            assert await other.code() is grpc.StatusCode.UNIMPLEMENTED
            large = client.channel.unary_stream(f"/{SERVICE}/Get")(bytes(100_000))
            assert await large.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            view = client.get(path("web"))
            await view.message()


async def test_an_open_stream_whose_answer_ends_is_asked_again() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with proxy(listener.port) as client:
            view = client.get(path("web"))
            await view.message()
            here.answers.tell(Method.GET, "web", Ended("it is an ExternalName"))
            assert await view.status() == (UNAVAILABLE, "it is an ExternalName")
            assert (await client.get(path("web")).status())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_token_counts_where_the_listener_does_not_know() -> None:
    def by_node(client: Client) -> Endpoints:
        return endpoints(address({"n1": 1, "n2": 2}.get(client.node, 3)))

    def by_namespace(client: Client) -> Profile:
        return Profile(name=client.namespace or "none")

    async with stage() as here:
        here.answers.tell(Method.GET, "web", by_node)
        here.answers.tell(Method.PROFILE, "web", by_namespace)
        plain = await here.listen()
        pods = await here.listen(client=Client("shop", "n2", "web-0"))
        for listener, expected in (
            (plain, ("10.1.0.1:8080", "team", "10.1.0.3:8080", "none")),
            (pods, ("10.1.0.2:8080", "shop", "10.1.0.2:8080", "shop")),
        ):
            async with proxy(listener.port) as client:
                got: list[str] = []
                for text in (token("team", "n1"), "garbage"):
                    view, profile = client.get(path("web"), text), client.profile(path("web"), text)
                    await asyncio.gather(view.message(), profile.message())
                    assert profile.profile is not None
                    got += [*(view.addresses or ()), profile.profile.fully_qualified_name]
                assert tuple(got) == expected


async def test_m07_five_thousand_calls_at_once_on_one_connection() -> None:
    """gRPC's own limit on calls that wait would have most of them refused."""
    count = 5060
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(meshed(1)))
        listener = await here.listen()
        async with peer(listener.port) as client:
            client.send(b"".join(call(1 + 2 * n, Method.GET, path("web")) for n in range(count)))
            await client.until(20, lambda: client.messages.total() == count)
            assert here.sample("pointsman_destination_streams", method="Get") == count
            assert here.answers.asked == 1
            here.answers.tell(Method.GET, "web", endpoints(meshed(2), meshed(1)))
            await client.until(20, lambda: client.messages.total() == 2 * count)
            assert client.counts[RST_STREAM] == 0


async def test_thirty_thousand_endpoints() -> None:
    """Within the 4 MiB that a client takes, and with nothing between the parts."""
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(30_000))))
        listener = await here.listen()
        async with proxy(listener.port) as client:
            view = client.get(path("web"))
            await view.until(lambda v: len(v.addresses or ()) == 30_000)
            assert max(map(len, view.messages)) <= 1 << 20


async def test_i10_a_cancelled_call_leaves_nothing() -> None:
    async with stage() as here:
        listener = await here.listen()
        before = len(asyncio.all_tasks())
        async with proxy(listener.port) as client:
            views = [client.get(path("web")), client.profile("10.1.1.1:80")]
            await asyncio.gather(*(view.message() for view in views))
            assert here.sample("pointsman_destination_streams", method="Get") == 1
        await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 0)
        await _until(lambda: here.sample("pointsman_destination_topics", method="GetProfile") == 0)
        await _until(lambda: len(asyncio.all_tasks()) <= before)
        ended = here.sample("grpc_server_handled_total", grpc_code="Canceled", **_labels(Method.GET))
        assert ended == 1


async def test_i10_a_dead_connection_leaves_nothing() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with peer(listener.port) as client:
            client.send(b"".join(call(1 + 2 * n, Method.GET, path("web")) for n in range(50)))
            await client.until(5, lambda: client.messages.total() == 50)
            client.writer.transport.abort()
            await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 0)


async def test_shutdown() -> None:
    """GOAWAY, and UNAVAILABLE for all: answered, held and stalled. Within two seconds, and never OK."""
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(1000))))
        listener = await here.listen()
        async with proxy(listener.port) as client, peer(listener.port, window=0) as stalled:
            views = [client.get(path("web")) for _ in range(100)]
            await asyncio.gather(*(view.message() for view in views))
            stalled.send(call(1, Method.GET, path("web")))
            await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 101)
            began = time.monotonic()
            await listener.close("the agent stops")
            assert time.monotonic() - began < 2
            here.listeners.clear()
            for view in views:
                assert await view.status() == (UNAVAILABLE, "the agent stops")
            await stalled.until(1, stalled.closed.is_set)
            assert stalled.goaway is not None
            assert here.sample("pointsman_destination_streams", method="Get") == 0


async def test_shutdown_before_anything_was_answered() -> None:
    async with stage(opened=False) as here:
        listener = await here.listen()
        async with proxy(listener.port) as client:
            views = [client.get(path("web")), client.profile("10.1.1.1:80"), client.get("nonsense")]
            await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 2)
            await listener.close("the agent stops")
            here.listeners.clear()
            for view in views:
                assert await view.status() == (UNAVAILABLE, "the agent stops")


async def test_one_listener_ends_without_the_other() -> None:
    async with stage() as here:
        one, other = await here.listen(), await here.listen()
        async with proxy(one.port) as first, proxy(other.port) as second:
            ended, kept = first.get(path("web")), second.get(path("web"))
            await asyncio.gather(ended.message(), kept.message())
            await one.close("the pod has ended")
            here.listeners.remove(one)
            assert (await ended.status())[0] is UNAVAILABLE
            here.answers.tell(Method.GET, "web", endpoints(address(1)))
            await kept.message(2)


async def test_m13_twenty_restarts_under_streams() -> None:
    """Every client comes to the right view each time, in one process with one registry of metrics."""
    here = Stage()
    port = 0
    clients: list[Proxy] = []
    for round_ in range(20):
        here = here.again()
        here.hub.open()
        here.answers.tell(Method.GET, "web", endpoints(address(round_)))
        listener = await here.listen(f"127.0.0.1:{port}")
        port = listener.port
        if not clients:
            option = ("grpc.initial_reconnect_backoff_ms", 100)
            clients = [Proxy(f"127.0.0.1:{port}", option) for _ in range(20)]
        views = [client.get(path("web"), wait_for_ready=True) for client in clients for _ in range(10)]
        await asyncio.gather(*(view.message() for view in views))
        assert all(list(view.addresses or ()) == [f"10.1.0.{round_}:8080"] for view in views)
        began = time.monotonic()
        await here.close()
        assert time.monotonic() - began < 2
        assert {(await view.status())[0] for view in views} == {UNAVAILABLE}
    await asyncio.gather(*(client.close() for client in clients))


async def test_the_budget_of_one_listener_is_its_own() -> None:
    async with stage() as here:
        narrow, wide = await here.listen(limits=Limits(streams=5)), await here.listen()
        async with proxy(narrow.port) as greedy, proxy(wide.port) as other:
            views = [greedy.get(path("web")) for _ in range(5)]
            await asyncio.gather(*(view.message() for view in views))
            code, text = await greedy.get(path("web")).status()
            assert (code, text) == (UNAVAILABLE, "cannot take more than 5 streams of one pod")
            await other.get(path("web")).message()
            await views[0].close()
            await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 5)
            await greedy.get(path("web")).message()
        assert here.sample("pointsman_destination_refused_total") == 1


def _labels(method: Method) -> dict[str, str]:
    return {"grpc_type": "server_stream", "grpc_service": SERVICE, "grpc_method": method.value}


async def _until(expected: Any) -> None:
    async with asyncio.timeout(5):
        while not expected():
            await asyncio.sleep(0.01)
