"""Opens connections out of a pod and into it all the time, and counts where they arrive.

As a process:  python -m tests.chaos.connector POD WORLD POD_ADDRESS WORLD_ADDRESS
In the namespace POD uid 1000 connects to WORLD_ADDRESS, and from the namespace WORLD somebody connects to
POD_ADDRESS, each on its own port. Whoever accepts says so by one byte: one of the two proxy ports in POD, or
the real target, and then the connection has escaped. It writes "ready", and when its stdin is closed one
JSON `Tally` for each direction.
"""

import contextlib
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from tests.lab.netns import inside
from tests.lab.pod import Pod
from tests.lab.standin import bind

UID, PROXY_UID = 1000, 2102
PEER_PORT, APP_PORT, OUTBOUND_PORT, INBOUND_PORT = 8081, 8080, 4140, 4143
PAUSE = 0.003
"""Seconds between two connections of one direction."""
TIMEOUT = 5.0
PROXY, TARGET = b"p", b"t"

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Tally(msgspec.Struct):
    """Connections of one direction: begun, past the proxy, and arrived nowhere."""

    opened: int = 0
    escaped: int = 0
    lost: int = 0


class Report(msgspec.Struct):
    """What became of all connections; `escapes` are (wall clock, direction) of the first few escapes."""

    out: Tally
    inward: Tally
    escapes: list[tuple[float, str]] = []


@contextlib.contextmanager
def connecting(pod: Pod) -> Iterator[Callable[[], Report]]:
    """Connections for as long as the context lasts; what it yields ends them and says how they fared."""
    addresses = (pod.address[4], pod.link("eth0").there[4])
    command = [sys.executable, "-m", "tests.chaos.connector", pod.name, pod.world, *addresses]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"cannot open connections in {pod.name}: the connector has ended")
        yield lambda: msgspec.json.decode(process.communicate(timeout=30)[0], type=Report)
    finally:
        process.kill()
        process.wait()


def main() -> None:
    pod, world, pod_address, world_address = sys.argv[1:]
    as_proxy = partial(inside, pod, uid=PROXY_UID, gid=PROXY_UID)
    listeners = (
        (as_proxy(partial(bind, 4, "127.0.0.1", OUTBOUND_PORT)), PROXY),
        (as_proxy(partial(bind, 4, "0.0.0.0", INBOUND_PORT)), PROXY),
        (inside(pod, partial(bind, 4, pod_address, APP_PORT), uid=UID, gid=UID), TARGET),
        (inside(world, partial(bind, 4, world_address, PEER_PORT)), TARGET),
    )
    threading.Thread(target=_serve, args=(listeners,), daemon=True).start()
    ended = threading.Event()
    report = Report(Tally(), Tally())
    ways = (
        (pod, UID, (world_address, PEER_PORT), report.out, "out"),
        (world, 0, (pod_address, APP_PORT), report.inward, "in"),
    )
    threads = []
    for name, uid, target, tally, direction in ways:
        note = partial(_note, report.escapes, direction)
        connect = partial(_connect, target, tally, note, ended)
        threads.append(threading.Thread(target=inside, args=(name, connect), kwargs={"uid": uid}))
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    print(msgspec.json.encode(report).decode(), flush=True)


def _note(escapes: list[tuple[float, str]], direction: str) -> None:
    if len(escapes) < 20:
        escapes.append((time.time(), direction))


def _serve(listeners: tuple[tuple[socket.socket, bytes], ...]) -> None:
    """Accept everything, say who it was that accepted, and close."""
    words = {listener.fileno(): (listener, word) for listener, word in listeners}
    poll = select.poll()
    for fd in words:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            listener, word = words[fd]
            # The connector may have given this one up.
            with contextlib.suppress(BlockingIOError, ConnectionError):
                accepted, _ = listener.accept()
                with accepted:
                    accepted.send(word)


def _connect(
    target: tuple[str, int], tally: Tally, escaped: Callable[[], None], ended: threading.Event
) -> None:
    while not ended.is_set():
        tally.opened += 1
        word = _attempt(target)
        tally.lost += word == b""
        if word == TARGET:
            tally.escaped += 1
            escaped()
        time.sleep(PAUSE)


def _attempt(target: tuple[str, int]) -> bytes:
    """Who accepted one connection, b"" when nobody did within the timeout."""
    with socket.socket() as client:
        client.settimeout(TIMEOUT)
        # A reset leaves no TIME_WAIT behind, so that the ports never run out.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        try:
            client.connect(target)
            return client.recv(1)
        except OSError:
            return b""


if __name__ == "__main__":
    main()
