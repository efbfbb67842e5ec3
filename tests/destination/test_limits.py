"""Clients that do not read, floods, and what HTTP/2 allows: others notice nothing, and memory comes back."""

import asyncio
import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from agent.destination.budget import Limits
from agent.destination.metrics import SERVICE, Method
from agent.destination.server import OPTIONS
from tests.destination.http2 import (
    CANCEL,
    CONTINUATION,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    Peer,
    call,
    call_headers,
    frame,
    header,
    peer,
    setting,
)
from tests.destination.stage import Proxy, Stage, address, endpoints, meshed, path, proxy, stage


async def test_a_client_that_does_not_read_is_given_up() -> None:
    """Its other streams, and other clients, go on. When it reads again it is told, and asks again."""
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(500))))
        here.answers.tell(Method.GET, "api", endpoints(address(1)))
        listener = await here.listen(limits=Limits(write_timeout=0.5))
        async with peer(listener.port, window=200) as slow, proxy(listener.port) as other:
            view = other.get(path("web"))
            await view.message()
            slow.send(call(1, Method.GET, path("web")) + call(3, Method.GET, path("api")))
            await slow.until(5, lambda: slow.messages[3] == 1)
            await _until(lambda: here.sample("pointsman_destination_dropped_total") == 1)
            here.answers.tell(Method.GET, "api", endpoints(address(2)))
            here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(501))))
            await view.message(2)
            slow.send(frame(SETTINGS, setting(4, 1 << 20)))
            await slow.until(5, lambda: slow.messages[1] == 1 and slow.messages[3] == 3)
            await _until(lambda: _unavailable(here) == 1)
            slow.send(call(5, Method.GET, path("web")))
            await slow.until(5, lambda: slow.messages[5] == 1)


async def test_a_client_that_reads_again_in_time_keeps_its_stream() -> None:
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(500))))
        listener = await here.listen(limits=Limits(write_timeout=2))
        async with peer(listener.port, window=100) as slow:
            slow.send(call(1, Method.GET, path("web")))
            await asyncio.sleep(0.3)
            assert slow.messages.total() == 0
            for n in range(501, 520):
                here.answers.tell(Method.GET, "web", endpoints(*map(meshed, range(n))))
                await asyncio.sleep(0.01)
            slow.send(frame(SETTINGS, setting(4, 1 << 20)))
            await slow.until(5, lambda: slow.messages[1] == 2)
            await asyncio.sleep(0.2)
            assert slow.messages[1] == 2
            assert slow.resets == {}


async def test_thousands_that_do_not_read() -> None:
    """They are counted for as long as they are there, others go on, and all is given back when they go."""
    async with stage() as here:
        here.answers.tell(Method.GET, "web", endpoints(meshed(1)))
        listener = await here.listen(limits=Limits(write_timeout=0.3, streams=3001))
        async with proxy(listener.port) as other:
            view = other.get(path("web"))
            await view.message()
            async with peer(listener.port, window=100) as slow:
                slow.send(b"".join(call(1 + 2 * n, Method.GET, path("web")) for n in range(3000)))
                await _until(lambda: here.sample("pointsman_destination_dropped_total") == 3000)
                here.answers.tell(Method.GET, "web", endpoints(meshed(2)))
                await view.message(3)
                assert (await other.get(path("web")).status())[0] is grpc.StatusCode.UNAVAILABLE
            await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 1)
            await other.get(path("web")).message()


async def test_a_frozen_client_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers no pings: its connection is closed, with all its calls."""
    hasten(monkeypatch)
    async with stage() as here:
        listener = await here.listen()
        async with peer(listener.port) as frozen:
            frozen.send(call(1, Method.GET, path("web")))
            await frozen.until(5, lambda: frozen.messages.total() == 1)
            frozen.deaf = True
            await _until(lambda: here.sample("pointsman_destination_streams", method="Get") == 0)


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a second stand for ten or more, where listeners wait for peers."""
    shorter = {
        name: 1000 if "time" in name and isinstance(value, int) and value >= 10_000 else value
        for name, value in OPTIONS
    }
    monkeypatch.setattr("agent.destination.server.OPTIONS", tuple(shorter.items()))


MEMORY = os.environ | {"MALLOC_ARENA_MAX": "2"}
"""As the agent is run: else what a flood has left free stays with each of many threads."""


@contextlib.contextmanager
def server(*limits: str) -> Iterator["Served"]:
    """A process with two listeners, so that its memory is its own. `limits`: see there."""
    command = [sys.executable, "-m", "tests.destination.serve", *limits]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=MEMORY) as process:
        try:
            yield Served(process)
        finally:
            process.kill()


class Served:
    """`ports` of the two listeners, of which one is misused."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.ports: list[int] = self._answer()["ports"]

    async def ask(self, **question: Any) -> Any:
        """Have the process answer: `tell`: so many endpoints from now on; {}: its memory and metrics."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return await asyncio.to_thread(self._answer)

    async def mib(self) -> float:
        """Resident memory."""
        return float((await self.ask())["mib"])

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


async def latency(client: Proxy, count: int = 40) -> float:
    """Median seconds of a call's first message."""
    seconds = []
    for _ in range(count):
        began = time.monotonic()
        view = client.get(path("web"))
        await view.message()
        seconds.append(time.monotonic() - began)
        await view.close()
    client.views.clear()
    return sorted(seconds)[count // 2]


async def test_a_slow_reader_costs_no_memory_however_much_changes() -> None:
    with server() as there:
        await there.ask(tell=1000)
        async with peer(there.ports[0], window=1000) as slow, proxy(there.ports[0]) as other:
            view = other.get(path("web"))
            await view.until(lambda v: len(v.addresses or ()) == 1000)
            slow.send(call(1, Method.GET, path("web")))
            await asyncio.sleep(0.2)
            await there.ask(tell=999)
            before = await there.mib()
            for n in range(500):
                await there.ask(tell=1000 + n % 7)
            await there.ask(tell=42)
            await view.until(lambda v: len(v.addresses or ()) == 42)
            assert await there.mib() - before < 20
            slow.send(frame(SETTINGS, setting(4, 1 << 24)))
            await slow.until(5, lambda: slow.messages[1] >= 2)


async def _reset(client: Peer, count: int) -> None:
    for n in range(count):
        stream = 1 + 2 * n
        reset = frame(RST_STREAM, struct.pack(">I", CANCEL), stream=stream)
        client.send(call(stream, Method.GET, path(f"s{n}")) + reset)
        if n % 100 == 0:
            await client.writer.drain()


async def _ping(client: Peer, count: int) -> None:
    for n in range(count):
        client.send(frame(PING, struct.pack(">Q", n)))
        if n % 100 == 0:
            await client.writer.drain()


async def _settings(client: Peer, count: int) -> None:
    for n in range(count):
        client.send(frame(SETTINGS, setting(3, n)))
        if n % 100 == 0:
            await client.writer.drain()


async def _continue(client: Peer, count: int) -> None:
    client.send(frame(HEADERS, call_headers(Method.GET), stream=1))
    for _ in range(count // 10):
        client.send(frame(CONTINUATION, header("x", "y" * 16_000), stream=1))
        await client.writer.drain()


async def _questions(client: Peer, count: int) -> None:
    for n in range(count):
        client.send(call(1 + 2 * n, Method(("Get", "GetProfile")[n % 2]), os.urandom(8).hex() + ":80"))
        if n % 100 == 0:
            await client.writer.drain()


@pytest.mark.parametrize("misuse", [_reset, _ping, _settings, _continue, _questions])
async def test_floods(misuse: Any) -> None:
    """Memory is bounded by two limits, and another pod's calls take hardly longer while it goes on.

    A call that waits costs 12 KiB, and an open one 24: without the limits, these would cost 400 MiB.
    """
    with server("--pending", "2000", "--streams", "1000") as there:
        async with proxy(there.ports[1]) as other:
            await latency(other)
            calm, before, after = await latency(other), await there.mib(), []
            for _ in range(8):
                async with peer(there.ports[0]) as client:
                    flood = asyncio.ensure_future(misuse(client, 4_000))
                    under_fire = await latency(other)
                    with contextlib.suppress(OSError):
                        await flood
                after.append(await there.mib())
            assert max(after) - before < 120
            assert under_fire < 2 * calm + 0.05
            await latency(other)
            assert (await there.ask())["streams"] == 0


async def test_a_flood_of_pings_is_ended() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with peer(listener.port) as client:
            while not client.closed.is_set():
                await _ping(client, 1)
                await asyncio.sleep(0.01)
            assert client.goaway is not None
            assert client.goaway.body.endswith(b"too_many_pings")


async def test_a_ping_now_and_then_is_none() -> None:
    """Go's clients send one in ten seconds at most."""
    async with stage() as here:
        listener = await here.listen()
        async with peer(listener.port) as client:
            client.send(call(1, Method.GET, path("web")))
            await client.until(5, lambda: client.messages.total() == 1)
            await _ping(client, 2)
            await client.until(5, lambda: client.counts[PING] >= 2)
            assert client.goaway is None


async def test_huge_headers_are_refused() -> None:
    async with stage() as here:
        listener = await here.listen()
        async with proxy(listener.port) as client:
            for size, code in ((8_000, grpc.StatusCode.OK), (40_000, None)):
                view = client.get(path("web"), metadata=(("x-much", "y" * size),))
                if code is grpc.StatusCode.OK:
                    await view.message()
                else:
                    assert (await view.status())[0] is not grpc.StatusCode.OK
            await client.get(path("web")).message()


async def test_connections_are_bounded_and_half_open_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens them all keeps only its own pod's listener busy, and not for long."""
    hasten(monkeypatch)
    async with stage() as here:
        flooded, other = await here.listen(), await here.listen()
        before = _descriptors()
        opened = [await asyncio.open_connection("127.0.0.1", flooded.port) for _ in range(400)]
        await asyncio.sleep(0.3)
        assert _descriptors() - before < 400 + 300
        async with proxy(other.port) as client:
            await client.get(path("web")).message()
        async with asyncio.timeout(15):
            await asyncio.gather(*(reader.read() for reader, _ in opened))
        async with proxy(flooded.port) as client:
            await client.get(path("web")).message()
        for _, writer in opened:
            writer.close()


async def test_m15_mass_subscription_is_paced() -> None:
    """Three thousand different questions at once: all are answered, and the loop is never kept long."""
    count = 3000
    async with stage() as here:
        listener = await here.listen()
        loop = asyncio.get_running_loop()
        lag, stop = [0.0], asyncio.Event()

        async def measure() -> None:
            while not stop.is_set():
                began = loop.time()
                await asyncio.sleep(0.005)
                lag.append(loop.time() - began - 0.005)

        async with peer(listener.port) as client:
            measuring = asyncio.ensure_future(measure())
            calls = (call(1 + 2 * n, Method.PROFILE, f"10.{n >> 8}.{n & 255}.1:80") for n in range(count))
            client.send(b"".join(calls))
            await client.until(10, lambda: client.messages.total() == count)
            stop.set()
            await measuring
        assert max(lag) < 0.2


async def test_m01_bursts_that_are_half_cancelled_leave_nothing() -> None:
    """As when many proxies restart: afterwards a call takes no longer than before."""
    with server() as there:
        async with proxy(there.ports[1]) as other:
            await latency(other)
            for _ in range(5):
                async with peer(there.ports[0]) as client:
                    for n in range(2000):
                        client.send(call(1 + 2 * n, Method.PROFILE, f"10.{n >> 8}.{n & 255}.1:80"))
                    for n in range(0, 2000, 2):
                        client.send(frame(RST_STREAM, struct.pack(">I", CANCEL), stream=1 + 2 * n))
                    await client.until(10, lambda: client.messages.total() >= 1000)
            assert await latency(other) < 0.2
            state = await there.ask()
            assert (state["streams"], state["topics"]) == (0, 0)


def _unavailable(here: Stage) -> float:
    labels = {"grpc_type": "server_stream", "grpc_service": SERVICE, "grpc_method": "Get"}
    return here.sample("grpc_server_handled_total", grpc_code="Unavailable", **labels)


async def _until(expected: Callable[[], bool], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not expected():
            await asyncio.sleep(0.01)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths
