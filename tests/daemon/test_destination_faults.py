"""Bad input and misuse of the running agent, through the listener in a pod: others notice nothing."""

import asyncio
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.destination.metrics import Method
from tests.daemon.mesh import ANSWERING, WEB, endpoint_slice, meshed, named, service
from tests.destination.http2 import (
    CANCEL,
    DATA,
    END_HEADERS,
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
from tests.lab.agent import Agent, agent
from tests.lab.asker import asking
from tests.lab.netns import inside, netns

NAME = "web.shop.svc.cluster.local:80"
REQUESTS = 20_000
"""Of one client, which resets half of them."""


class Node:
    """The agent, and two pods in namespaces of their own: one that misbehaves, and another one."""

    def __init__(self, one: Agent, bad: str, good: str) -> None:
        self.agent = one
        self.bad = bad
        self.good = good

    @property
    def mib(self) -> float:
        """Resident memory of the agent."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.agent.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def streams(self) -> int:
        page: str = self.agent.ask("GET", "/metrics")
        return int(sum(map(float, re.findall(r"^pointsman_destination_streams\{.*\} (\S+)", page, re.M))))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("agent")
    with netns() as bad, netns() as good, agent(directory, *ANSWERING, start=False) as one:
        web = meshed("web", ip="10.1.0.1", node="n2")
        pods = {"bad": bad, "good": good}
        for each in (service(), endpoint_slice(web), web, *(meshed(*pod, "") for pod in pods.items())):
            one.put(each)
        one.start()
        for name in pods:
            one.wait(lambda name=name: one.pod(f"shop/{name}")["destination"]["port"] == 4186, "listener")
        yield Node(one, bad, good)


def connected(name: str) -> socket.socket:
    return inside(name, lambda: socket.create_connection(("127.0.0.1", 4186), timeout=5))


async def latency(name: str, count: int = 60) -> float:
    """Median seconds from a call to its first message, over one connection of the pod."""
    seconds = []
    async with peer(sock=connected(name)) as client:
        for stream in range(1, 2 * count, 2):
            began = time.monotonic()
            client.send(call(stream, Method.GET, NAME))
            await client.until(20, lambda stream=stream: client.messages[stream])
            seconds.append(time.monotonic() - began)
            client.send(_reset(stream))
    return sorted(seconds)[count // 2]


def _reset(stream: int) -> bytes:
    return frame(RST_STREAM, struct.pack(">I", CANCEL), stream=stream)


def _half(stream: int) -> bytes:
    """A call that never says what it asks."""
    return frame(HEADERS, call_headers(Method.GET), stream=stream, flags=END_HEADERS)


def _stuffed(stream: int) -> bytes:
    return frame(
        HEADERS, call_headers(Method.GET, header("x", "y" * 14_000)), stream=stream, flags=END_HEADERS
    )


def _cut_short(stream: int) -> bytes:
    return _half(stream) + frame(DATA, b"\0\0\0\xff\xff" + b"x" * 8000, stream=stream)


def _rapid_reset(stream: int) -> bytes:
    return call(stream, Method.GET, f"s{stream}.shop.svc.cluster.local:80") + _reset(stream)


def _no_message(stream: int) -> bytes:
    return call(stream, Method.GET, NAME).replace(b"\x0a", b"\xff")


def _ping(stream: int) -> bytes:
    return frame(PING, struct.pack(">Q", stream))


def _settings(stream: int) -> bytes:
    return frame(SETTINGS, setting(4, stream))


async def _misuse(client: Peer, part: Callable[[int], bytes], count: int) -> None:
    for n in range(count):
        client.send(part(1 + 2 * n))
        if n % 50 == 0:
            if client.closed.is_set():
                return
            await client.writer.drain()


@pytest.mark.parametrize(
    "part",
    [_half, _stuffed, _cut_short, _rapid_reset, _no_message, _ping, _settings],
    ids=lambda f: f.__name__,
)
async def test_misuse(node: Node, part: Callable[[int], bytes]) -> None:
    """Another pod's calls take hardly longer while it goes on, and memory comes back."""
    await latency(node.good)
    calm, before = await latency(node.good), node.mib
    async with peer(sock=connected(node.bad)) as client:
        misuse = asyncio.ensure_future(_misuse(client, part, 10_000))
        under_fire = await latency(node.good)
        await asyncio.wait({misuse}, timeout=20)
        assert misuse.done()
    assert under_fire < 2 * calm + 0.05
    await _until(lambda: node.streams() == 0)
    await _until(lambda: node.mib - before < 120, 30)


async def test_anything_may_be_asked(node: Node) -> None:
    """Any number of questions, most of them nonsense, from one pod."""
    chance = random.Random(5)
    before = node.mib
    tokens = ("", "{" * 900, '{"ns":1}', "ns:shop", '{"ns":"\\ud800"}', "[" * 900, "\0")

    def question(stream: int) -> bytes:
        n = stream >> 1
        paths = (
            f"{chance.randbytes(8).hex()}:80",
            f"s{n}.shop.svc.cluster.local:{n}",
            f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:80",
            "[" + "f" * 900 + "]:1",
            "." * 900 + ":1",
            NAME + "9" * 400,
            "\0:80",
            "",
        )
        asked = call(stream, chance.choice(list(Method)), chance.choice(paths), chance.choice(tokens))
        return asked + (_reset(stream) if n % 2 else b"")

    for _ in range(4):
        async with peer(sock=connected(node.bad)) as client:
            await _misuse(client, question, REQUESTS // 4)
            client.send(call(REQUESTS + 1, Method.GET, NAME))
            await client.until(20, lambda: client.messages[REQUESTS + 1])
    await _until(lambda: node.streams() == 0)
    await _until(lambda: node.mib - before < 120, 30)
    assert not [line for line in node.agent.lines() if line.get("level") == "error" or "text" in line]


async def test_connections_that_say_nothing_end(node: Node) -> None:
    """More than a listener takes; half of them say half a preface."""
    silent = [await asyncio.open_connection(sock=connected(node.bad)) for _ in range(300)]
    for _, writer in silent[::2]:
        writer.write(b"PRI * HTTP/2.0\r\n")
    assert await latency(node.good) < 1
    async with asyncio.timeout(20):
        await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
    for _, writer in silent:
        writer.close()
    await latency(node.bad)


async def test_a_client_that_never_reads_costs_its_own_pod_only(node: Node) -> None:
    before = node.mib
    async with peer(sock=connected(node.bad), window=0) as deaf:
        deaf.send(b"".join(call(1 + 2 * n, Method.GET, NAME) for n in range(2000)))
        await _until(lambda: node.streams() == 2000)
        assert await latency(node.good) < 1
        assert node.mib - before < 120
        assert deaf.messages.total() == 0
    await _until(lambda: node.streams() == 0)


def test_what_cannot_be_used_of_an_object_is_said_with_its_name(node: Node) -> None:
    bad = named("Server", "broken", spec={"podSelector": {"matchLabels": {"app": 7}}, "port": 80})
    with asking(node.good, WEB) as client:
        client.wait(lambda: client.addresses(WEB), "answer")
        node.agent.put(bad)
        node.agent.wait(lambda: _said(node, "complaint"), "complaint")
        assert _said(node, "complaint")[0]["remedy"]
        node.agent.drop(bad)
        node.agent.wait(lambda: _said(node, "complaint settled"), "its end")
        assert client.ends == []


def _said(node: Node, event: str) -> list[dict[str, str]]:
    return [line for line in node.agent.events(event) if "Server shop/broken" in line.get("message", "")]


async def _until(expected: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not expected():
            await asyncio.sleep(0.05)
