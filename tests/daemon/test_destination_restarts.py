"""Destinations over the end of an agent: by order, by force, by its watchdog, and with a successor beside."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent.destination.metrics import Method
from agent.watchdog import EXIT_HUNG
from tests.daemon.mesh import ANSWERING, WEB, endpoint_slice, meshed, service
from tests.destination.http2 import call, peer
from tests.lab.agent import Agent, agent
from tests.lab.asker import Asker, asking
from tests.lab.netns import inside, netns, run

WITHIN = 3.0
"""Seconds in which all calls are answered anew once an agent listens again: clients dial every 0.4 s."""

QUESTIONS = (
    WEB,
    "GetProfile=web.shop.svc.cluster.local:80",
    "GetProfile=10.1.0.1:8080",
    "GetProfile=192.0.2.9:80",
)


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


def ready(one: Agent, pod: str) -> None:
    """A cluster with a Service and its pod, whose pod `client` is listened in."""
    web = meshed("web-0", ip="10.1.0.1", node="n2")
    for each in (service(), endpoint_slice(web), web, meshed("client", pod, "10.1.0.99")):
        one.put(each)
    listened(one)


def listened(one: Agent) -> None:
    one.wait(lambda: one.pod("shop/client")["destination"]["port"] == 4186, "listener")


def answered(client: Asker, after: float = 0.0) -> None:
    """Wait until every question has an answer that came after a moment."""

    def all_new() -> bool:
        return all(client.answered.get(client.current.get(each, 0), -1.0) > after for each in QUESTIONS)

    client.wait(all_new, "answers to all questions", WITHIN)


def test_an_agent_that_stops_tells_its_clients_and_the_next_answers_them(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one, asking(pod, *QUESTIONS) as client:
        ready(one, pod)
        answered(client)
        client.ends.clear()
        began = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - began < 3
        client.wait(lambda: len(client.ends) >= len(QUESTIONS), "the end of all calls", WITHIN)
        assert {end.status for end in client.ends} == {"UNAVAILABLE"}
        assert "the agent is stopping; connect again" in {end.details for end in client.ends}
        moment = time.monotonic()
        one.start()
        listened(one)
        answered(client, moment)
        assert client.faults() == []


def test_an_agent_that_is_killed_is_asked_again_when_it_is_back(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one, asking(pod, *QUESTIONS) as client:
        ready(one, pod)
        for _ in range(3):
            answered(client)
            moment = time.monotonic()
            one.kill()
            one.start()
            listened(one)
            answered(client, moment)
        assert {end.status for end in client.ends} == {"UNAVAILABLE"}
        assert client.faults() == []


HANGS = """
import runpy, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(60))
sys.argv = ["pointsman", *sys.argv[4:]]
runpy.run_module("agent", run_name="__main__")
"""
"""The agent, whose loop hangs when it is told to: it runs on the main thread, as signal handlers do."""

FAILS = HANGS.replace(
    "lambda *_: time.sleep(60)",
    "lambda *_: setattr(__import__('agent.files.source').files.source, 'parse', None)",
)


def test_a_loop_that_hangs_ends_the_process_and_clients_come_back(tmp_path: Path, pod: str) -> None:
    """To a proxy a server that hangs is worse than none: it waits for ever, and never dials again."""
    hanging = (sys.executable, "-c", HANGS)
    with (
        agent(tmp_path, *ANSWERING, "--hang-timeout", "2", prefix=hanging) as one,
        asking(pod, *QUESTIONS) as client,
    ):
        ready(one, pod)
        answered(client)
        moment = time.monotonic()
        os.kill(one.pid, signal.SIGUSR1)
        assert _ended(one) == EXIT_HUNG
        client.wait(lambda: len(client.ends) >= len(QUESTIONS), "the end of all calls", WITHIN)
        assert "the event loop has not turned for" in one.log.read_text()
        one.start()
        listened(one)
        answered(client, moment)


def test_a_fault_that_ends_the_agent_is_told(tmp_path: Path, pod: str) -> None:
    """And not covered up by gRPC, which aborts where a loop ends under its servers."""
    with (
        agent(tmp_path, *ANSWERING, prefix=(sys.executable, "-c", FAILS)) as one,
        asking(pod, *QUESTIONS) as client,
    ):
        ready(one, pod)
        answered(client)
        os.kill(one.pid, signal.SIGUSR1)
        one.put(service("other", "10.96.0.77"))
        assert _ended(one) == 1
        assert "Traceback" in one.log.read_text()
        client.wait(lambda: len(client.ends) >= len(QUESTIONS), "the end of all calls", WITHIN)
        assert any(end.details.endswith("; connect again") for end in client.ends)


async def test_a_successor_takes_over_and_no_call_is_lost(tmp_path: Path, pod: str) -> None:
    """Connections come all the while, two agents share the port for a time, and streams that are open move
    over when the first one ends."""
    load = _Load(pod)
    with (
        agent(tmp_path, *ANSWERING, name="old") as old,
        agent(tmp_path, *ANSWERING, name="new", start=False) as new,
    ):
        await asyncio.to_thread(ready, old, pod)
        with asking(pod, *QUESTIONS) as client:
            await asyncio.to_thread(answered, client)
            client.ends.clear()
            async with load.running():
                await asyncio.to_thread(new.start)
                assert not new.state()["writer"]
                await asyncio.to_thread(listened, new)
                assert new.pod("shop/client")["destination"]["complaint"] is None
                await asyncio.sleep(0.5)
                assert client.ends == []
                moment = time.monotonic()
                assert await asyncio.to_thread(old.stop) == 0
                await asyncio.to_thread(answered, client, moment)
                await asyncio.sleep(0.5)
                new.wait(lambda: new.state()["writer"], "the lock")
            assert len(client.ends) == len(QUESTIONS)
        assert new.pod("shop/client")["destination"] == {"asks": "us", "port": 4186, "complaint": None}
        assert load.lost == []
        assert load.served > 50
        for one in (old, new):
            assert one.events("pod cannot ask as it should") == []


async def test_a_writer_that_is_killed_leaves_its_pods_to_the_successor(tmp_path: Path, pod: str) -> None:
    with (
        agent(tmp_path, *ANSWERING, name="old") as old,
        agent(tmp_path, *ANSWERING, name="new", start=False) as new,
    ):
        ready(old, pod)
        new.start()
        listened(new)
        with asking(pod, *QUESTIONS) as client:
            answered(client)
            moment = time.monotonic()
            old.kill()
            await asyncio.sleep(0.5)
            # Whoever was answered by the successor goes on.
            if client.ends:
                answered(client, moment)
            new.put(service("web", "10.96.0.10", internalTrafficPolicy="Local"))
            client.wait(lambda: not client.addresses(WEB), "an update by the successor")


def test_a_pod_that_starts_while_two_agents_overlap_is_no_clash(tmp_path: Path) -> None:
    often = ("--listeners", "0.2")
    with (
        agent(tmp_path, *ANSWERING, *often, name="old") as old,
        agent(tmp_path, *ANSWERING, *often, name="new", start=False) as new,
        contextlib.ExitStack() as opened,
    ):
        new.start()
        names = [opened.enter_context(netns()) for _ in range(10)]
        for number, name in enumerate(names):
            old.put(meshed(f"pod-{number}", name, f"10.1.0.{number}"))
        new.wait(lambda: [len(_listeners(name)) for name in names] == [2] * 10, "two listeners in each pod")
        time.sleep(0.5)
        assert [pod["destination"]["complaint"] for pod in new.state()["pods"]] == [None] * 10
        for one in (old, new):
            assert one.events("pod cannot ask as it should") == []


def _listeners(name: str) -> list[str]:
    return run("ip", "netns", "exec", name, "ss", "-Hltn", "sport = :4186").splitlines()


class _Load:
    """Calls from inside the pod, each on a connection of its own. `lost`: why, of those without an answer."""

    def __init__(self, pod: str) -> None:
        self.served = 0
        self.lost: list[str] = []
        self._pod = pod
        self._over = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loads = [asyncio.ensure_future(self._run()) for _ in range(2)]
        try:
            yield
        finally:
            self._over = True
            await asyncio.gather(*loads)

    async def _run(self) -> None:
        while not self._over:
            try:
                good = await self._ask()
            except (OSError, TimeoutError) as error:
                self.lost.append(repr(error))
            else:
                self.served += good
                if not good:
                    self.lost.append("hung up")
            await asyncio.sleep(0.01)

    async def _ask(self) -> bool:
        made = inside(self._pod, lambda: socket.create_connection(("127.0.0.1", 4186), timeout=2))
        made.setblocking(False)
        async with peer(sock=made) as client:
            client.send(call(1, Method.GET, WEB.removeprefix("Get=")))
            await client.until(5, lambda: client.messages.total() or client.closed.is_set())
            return client.messages.total() > 0


def _ended(one: Agent) -> int:
    """Its exit status, once it has ended by itself."""
    assert one._process is not None
    return one._process.wait(15)
