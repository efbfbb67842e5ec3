"""Listeners inside network namespaces: who asks is known by the socket, and nothing of them is left."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.core.discovery.answers import Endpoints, Profile
from agent.core.discovery.targets import Client
from agent.destination.listener import CannotListen, RunInside
from agent.destination.metrics import Method
from tests.destination.http2 import call, peer
from tests.destination.stage import Stage, address, endpoints, path, stage, token
from tests.lab.netns import configure, inside, netns, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

PORT = 4186
ADDRESS = f"127.0.0.1:{PORT}"


def within(name: str) -> RunInside:
    return lambda function: inside(name, function)


def connected(name: str) -> socket.socket:
    """A connection from inside the namespace; non-blocking. OSError when there is none to be had."""
    made = inside(name, lambda: socket.create_connection(("127.0.0.1", PORT), timeout=2))
    made.setblocking(False)
    return made


async def ask(name: str, question: str = path("web"), text: str = "") -> bool:
    """Whether one call on a connection of its own, from inside the namespace, gets its first message."""
    async with peer(sock=connected(name)) as client:
        client.send(call(1, Method.GET, question, text))
        await client.until(5, lambda: client.messages.total() or client.closed.is_set())
        return client.messages.total() == 1


async def test_a_pod_is_known_by_its_namespace() -> None:
    """There is no route between the two, and the token says something else."""
    asked: list[Client] = []

    def answer(client: Client) -> Endpoints:
        asked.append(client)
        return endpoints(address(1))

    with netns() as one, netns() as two:
        async with stage() as here:
            here.answers.tell(Method.GET, "web", answer)
            for name, node in ((one, "n1"), (two, "n2")):
                await here.listen(ADDRESS, client=Client("shop", node, name), run_inside=within(name))
            assert await ask(one, text=token("team", "n9"))
            assert await ask(two, text=token("team", "n9"))
            assert asked == [Client(node="n1"), Client(node="n2")]
            with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", PORT)):
                pass


async def test_a_namespace_ends_with_its_listener() -> None:
    """Until then it lives, though nobody can find it any more: with it would go its end of the link."""
    with netns() as far:
        async with stage() as here:
            with netns() as name:
                configure(name, f"link add near type veth peer name far netns {far}")
                listener = await here.listen(ADDRESS, run_inside=within(name))
                assert await ask(name)
            await asyncio.sleep(0.2)
            assert "far" in run("ip", "-n", far, "link")
            await listener.close("the pod has ended")
            here.listeners.clear()
            await _until(lambda: "far" not in run("ip", "-n", far, "link"))


async def test_lo_may_still_be_down() -> None:
    """As in CNI ADD, before any plugin has brought it up."""
    with netns() as name:
        configure(name, "link set lo down")
        async with stage() as here:
            await here.listen(ADDRESS, run_inside=within(name))
            configure(name, "link set lo up")
            assert await ask(name)


async def test_a_port_that_is_taken() -> None:
    with netns() as name:
        taken = inside(name, lambda: socket.create_server(("127.0.0.1", PORT)))
        async with stage() as here:
            with pytest.raises(CannotListen, match=f"cannot listen at {ADDRESS}: .*; end the program"):
                await here.listen(ADDRESS, run_inside=within(name))
            assert here.sample("pointsman_destination_listeners") == 0
            taken.close()
            await here.listen(ADDRESS, run_inside=within(name))
            assert await ask(name)
            assert here.sample("pointsman_destination_listeners") == 1


async def test_a_namespace_that_cannot_be_entered() -> None:
    def refused(function: Callable[[], int]) -> int:
        raise PermissionError("cannot enter network namespace 7: needs CAP_SYS_ADMIN")

    async with stage() as here:
        with pytest.raises(PermissionError, match="namespace 7"):
            await here.listen(ADDRESS, run_inside=refused)


async def test_a_socket_that_was_bound_before_a_failure_is_closed() -> None:
    """gRPC keeps the port of a server that was never started until the process ends."""

    def bound_and_failed(function: Callable[[], int]) -> int:
        inside(name, function)
        raise OSError("cannot tell what became of it")

    with netns() as name:
        async with stage() as here:
            with pytest.raises(OSError, match="what became of it"):
                await here.listen(ADDRESS, run_inside=bound_and_failed)
            await _until(lambda: not inside(name, _listening))


async def test_a_hundred_namespaces_and_no_thread_in_any() -> None:
    names = [netns() for _ in range(100)]
    opened = [each.__enter__() for each in names]
    try:
        async with stage() as here:
            await here.listen()
            for name in opened:
                await here.listen(ADDRESS, client=Client("shop", "n1", name), run_inside=within(name))
            assert all(await asyncio.gather(*(ask(name) for name in opened[::10])))
            await asyncio.sleep(0.3)
            threads = {task.joinpath("ns/net").readlink() for task in Path("/proc/self/task").iterdir()}
            assert threads == {Path("/proc/self/ns/net").readlink()}
            assert here.sample("pointsman_destination_listeners") == 101
    finally:
        for each in names:
            each.__exit__(None, None, None)


async def test_two_agents_overlap_and_no_call_is_lost() -> None:
    """The successor binds the same port; then its predecessor goes. Calls come all the while: gRPC ends a few
    that it has not taken up yet, and they are made again, as proxies do, after 0.1 s."""
    served = again = lost = 0
    over = False

    async def load(name: str) -> None:
        nonlocal served, again, lost
        while not over:
            good = await ask(name)
            if not good:
                again += 1
                await asyncio.sleep(0.1)
                good = await ask(name)
            served, lost = served + good, lost + (not good)

    with netns() as name:
        async with stage() as new:
            old = Stage()
            old.hub.open()
            await old.listen(ADDRESS, run_inside=within(name))
            async with peer(sock=connected(name)) as long:
                long.send(call(1, Method.GET, path("web")))
                await long.until(5, lambda: long.messages.total() == 1)
                loads = [asyncio.ensure_future(load(name)) for _ in range(4)]
                await asyncio.sleep(0.5)
                await new.listen(ADDRESS, run_inside=within(name))
                await asyncio.sleep(0.5)
                await old.close()
                await asyncio.sleep(0.5)
                over = True
                await asyncio.gather(*loads)
                await long.until(2, long.closed.is_set)
                assert long.goaway is not None
            assert old.sample("pointsman_destination_updates_total", method="Get") > 20
            assert new.sample("pointsman_destination_updates_total", method="Get") > 20
            assert lost == 0
            assert served > 100
            assert again < 10


async def test_an_agent_that_is_killed_leaves_the_port_to_the_next() -> None:
    """No GOAWAY, no word: the kernel closes its sockets, and the one that is left serves."""
    with netns() as name:
        command = ["ip", "netns", "exec", name, "python3", "-c", _HOLD]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == b"listening\n"
            async with stage() as here:
                await here.listen(ADDRESS, run_inside=within(name))
                killed.kill()
                killed.wait()
                assert all([await ask(name) for _ in range(20)])


async def test_profiles_come_through_a_pod_s_listener_too() -> None:
    with netns() as name:
        async with stage() as here:
            here.answers.tell(Method.PROFILE, "10.1.1.1", lambda client: Profile(name=client.namespace))
            await here.listen(ADDRESS, client=Client("shop", "n1", "web-0"), run_inside=within(name))
            async with peer(sock=connected(name)) as client:
                client.send(call(1, Method.PROFILE, "10.1.1.1:80", token("team")))
                await client.until(5, lambda: client.messages.total() == 1)
            assert here.sample("pointsman_destination_updates_total", method="GetProfile") == 1


_HOLD = f"""
import socket, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("127.0.0.1", {PORT}))
listener.listen(64)
print("listening", flush=True)
time.sleep(60)
"""


def _listening() -> bool:
    with socket.socket() as trial:
        trial.settimeout(1)
        return trial.connect_ex(("127.0.0.1", PORT)) == 0


async def _until(expected: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 3
    while not expected():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
