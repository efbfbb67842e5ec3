"""Long-lived connections through a pod's proxy, with bytes on their way both ways all the time."""

import contextlib
import functools
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.lab.addresses import Family
from tests.lab.agent import PATIENCE, SLOWNESS
from tests.lab.netns import inside
from tests.lab.pod import Pod, pod_and_world
from tests.lab.standin import Endpoint, bind

ROOT = Path(__file__).parents[2]
UID, PORT = 1000, 8080
BLOCK, IN_FLIGHT = 1024, 8
"""Bytes of a block, and blocks of a flow that are on their way at any time."""

_SECONDS = PATIENCE * SLOWNESS
_ANY: dict[Family, str] = {4: "0.0.0.0", 6: "::"}


class Flow:
    """A connection from the namespace `start`, on which blocks, no two alike, are sent and echoed."""

    def __init__(self, start: str, destination: Endpoint, uid: int) -> None:
        connect = functools.partial(socket.create_connection, destination, _SECONDS)
        self.failure: BaseException | None = None
        self._client = inside(start, connect, uid=uid, gid=uid)
        self._echoed = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def goes_on(self) -> None:
        """Blocks that are sent from now on come back. AssertionError when they do not."""
        wanted = self._echoed + 2 * IN_FLIGHT
        deadline = time.monotonic() + _SECONDS
        while self._echoed < wanted and time.monotonic() < deadline and not self.failure:
            time.sleep(0.005)
        assert self.failure is None
        assert self._echoed >= wanted, "the connection stands still"

    def close(self) -> None:
        """End it; AssertionError unless every byte came back, and the other end has closed in its turn."""
        self._ended.set()
        self._thread.join()
        self._client.close()
        assert self.failure is None

    def _run(self) -> None:
        try:
            self._talk()
        except (OSError, AssertionError) as failure:
            self.failure = failure

    def _talk(self) -> None:
        sent = 0
        while self._echoed < sent or not self._ended.is_set():
            if sent - self._echoed < IN_FLIGHT and not self._ended.is_set():
                self._client.sendall(_block(sent))
                sent += 1
                continue
            assert self._receive(BLOCK) == _block(self._echoed), f"block {self._echoed} is not as it was sent"
            self._echoed += 1
            time.sleep(0.001)
        self._client.shutdown(socket.SHUT_WR)
        assert self._receive(1) == b"", "more has come back than was sent"

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size and (data := self._client.recv(size - len(received))):
            received += data
        return received


class Stage:
    """A pod with a proxy, which is a process of the proxy's user and carries the bytes on. An application in
    the pod and one in the world echo what they get."""

    def __init__(self, pod: Pod, families: tuple[Family, ...], log: Path) -> None:
        self.pod = pod
        self._families = families
        self._log = log
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(_proxy(pod, log))
            for name, family in itertools.product((pod.name, pod.world), families):
                stack.enter_context(_echoing(name, family))
            self._stack = stack.pop_all()

    @property
    def accepted(self) -> Counter[str]:
        """Connections that the proxy has taken so far, by its listener: inbound or outbound."""
        lines = map(json.loads, self._log.read_text().splitlines())
        return Counter(line["listener"] for line in lines if "peer" in line)

    def flows(self) -> list[Flow]:
        """One into the pod and one out of it for each family, all under way. They end with the stage."""
        made = []
        for family in self._families:
            into, out = self.pod.address[family], self.pod.link("eth0").there[family]
            for start, destination, uid in ((self.pod.world, into, 0), (self.pod.name, out, UID)):
                flow = Flow(start, (destination, PORT), uid)
                self._stack.callback(flow.close)
                made.append(flow)
        for flow in made:
            flow.goes_on()
        return made

    def close(self) -> None:
        """The flows first, each of which must end well."""
        self._stack.close()


@contextlib.contextmanager
def staged(families: tuple[Family, ...], directory: Path) -> Iterator[Stage]:
    """A stage whose proxy writes its log into `directory`."""
    with pod_and_world() as pod, contextlib.closing(Stage(pod, families, directory / "proxy.log")) as stage:
        yield stage


@contextlib.contextmanager
def _proxy(pod: Pod, log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.lab.standin", "--netns", pod.name, "--forward"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out)
    try:
        deadline = time.monotonic() + _SECONDS
        while "ready" not in log.read_text():
            assert time.monotonic() < deadline, "the stand-in for the proxy is not ready"
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _echoing(name: str, family: Family) -> Iterator[None]:
    with inside(name, lambda: bind(family, _ANY[family], PORT), uid=UID, gid=UID) as listener:
        listener.setblocking(True)
        thread = threading.Thread(target=_accept, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(listener: socket.socket) -> None:
    # Until it is shut down.
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_echo, args=(connection,)).start()


def _echo(connection: socket.socket) -> None:
    # Of a connection that is reset its other end tells.
    with connection, contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def _block(number: int) -> bytes:
    return number.to_bytes(8, "big") * (BLOCK // 8)
