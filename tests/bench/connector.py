"""Opens connections in pods all the time, and counts where they arrive.

As a process:  python -m tests.bench.connector POD,WORLD,ADDRESS ...
For each argument, the names of two namespaces and an address of the second: uid 1000 in POD connects to
ADDRESS again and again. Who accepts says so by one byte: the stand-in proxy in POD, or the peer in WORLD,
and then the connection has escaped. It writes "ready", and a JSON `Count` when its stdin is closed.
"""

import select
import socket
import struct
import sys
import threading
import time
from functools import partial

import msgspec

from tests.lab.netns import inside
from tests.lab.standin import bind

UID, PROXY_UID = 1000, 2102
PORT, OUTBOUND_PORT = 8080, 4140
PAUSE = 0.002
"""Seconds between two connections of one pod: a load that leaves a machine of two cores some air."""
TIMEOUT = 1.0
PROXY, PEER = b"p", b"d"

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Count(msgspec.Struct):
    """Connections begun, those that reached the peer past the proxy, and those that arrived nowhere."""

    opened: int = 0
    escaped: int = 0
    lost: int = 0


class Route(msgspec.Struct, frozen=True):
    """From the namespace `pod` to `address` in the namespace `world`."""

    pod: str
    world: str
    address: str


def main() -> None:
    routes = [Route(*argument.split(",")) for argument in sys.argv[1:]]
    listeners: dict[int, tuple[socket.socket, bytes]] = {}
    for route in routes:
        listen = partial(bind, 4, "127.0.0.1", OUTBOUND_PORT)
        proxy = inside(route.pod, listen, uid=PROXY_UID, gid=PROXY_UID)
        peer = inside(route.world, partial(bind, 4, route.address, PORT))
        listeners |= {proxy.fileno(): (proxy, PROXY), peer.fileno(): (peer, PEER)}
    threading.Thread(target=_serve, args=(listeners,), daemon=True).start()
    counts = [Count() for _ in routes]
    ended = threading.Event()
    threads = [
        threading.Thread(target=_connect, args=(route, count, ended))
        for route, count in zip(routes, counts, strict=True)
    ]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    total = Count(*(sum(getattr(count, name) for count in counts) for name in Count.__struct_fields__))
    print(msgspec.json.encode(total).decode(), flush=True)


def _serve(listeners: dict[int, tuple[socket.socket, bytes]]) -> None:
    """Accept everything, say who it was that accepted, and close."""
    poll = select.poll()
    for fd in listeners:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            listener, word = listeners[fd]
            try:
                accepted, _ = listener.accept()
                with accepted:
                    accepted.send(word)
            except (BlockingIOError, ConnectionError):
                # The connector has given this one up.
                continue


def _connect(route: Route, count: Count, ended: threading.Event) -> None:
    def forever() -> None:
        while not ended.is_set():
            count.opened += 1
            word = _attempt(route.address)
            count.escaped += word == PEER
            count.lost += word == b""
            time.sleep(PAUSE)

    inside(route.pod, forever, uid=UID, gid=UID)


def _attempt(address: str) -> bytes:
    """Who accepted one connection, nobody within the timeout: b""."""
    with socket.socket() as client:
        client.settimeout(TIMEOUT)
        # A reset leaves no TIME_WAIT behind, so that the ports never run out.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        try:
            client.connect((address, PORT))
            return client.recv(1)
        except OSError:
            return b""


if __name__ == "__main__":
    main()
