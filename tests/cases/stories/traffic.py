"""Connections of a story: one at a time, some that stay open, and a steady load in both directions."""

import contextlib
import itertools
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from agent.core.spec import RedirectSpec
from tests.lab.agent import PATIENCE
from tests.lab.netns import inside
from tests.lab.pod import Pod
from tests.lab.probe import Arrival, opened_standin, send
from tests.lab.standin import Endpoint, Listener, bind
from tests.lab.way import Probe, laid

PAUSE = 0.002
"""Seconds between two connections of the load in one direction."""

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_PROXY, _APPLICATION = b"p", b"a"


def ordinary_port(spec: RedirectSpec, first: int = 8080) -> int:
    """A port that is redirected in both directions, `first` or after it."""
    skipped = spec.skip_inbound | spec.proxy_ports | spec.skip_outbound
    listens = (spec.inbound_port, spec.outbound_port)
    listed = spec.only_inbound
    for port in itertools.chain(range(first, 1 << 16), range(1, first)):
        if port not in skipped and port not in listens and (listed is None or port in listed):
            return port
    raise AssertionError("no port is redirected in both directions")


def ordinary_uid(spec: RedirectSpec) -> int:
    """A user that is not the proxy."""
    return 1000 if spec.proxy_uid != 1000 else 1001


def both_ways(spec: RedirectSpec, port: int | None = None) -> tuple[Probe, Probe]:
    """A connection into the pod and one out of it, at a port that is redirected."""
    port = port or ordinary_port(spec)
    return Probe(direction="in", port=port), Probe(direction="out", port=port, uid=ordinary_uid(spec))


def said(probe: Probe) -> str:
    """The connection in words."""
    by = f" by uid {probe.uid}" if probe.direction == "out" else ""
    return f"{probe.direction}bound to {probe.port}{by}"


def standin_of(pod: Pod, spec: RedirectSpec) -> contextlib.AbstractContextManager[tuple[Listener, ...]]:
    """The stand-in for the proxy of this spec, listening in the pod."""
    return opened_standin(pod, inbound=spec.inbound_port, outbound=spec.outbound_port, uid=spec.proxy_uid)


def arrival(pod: Pod, standin: tuple[Listener, ...], probe: Probe) -> Arrival:
    """Make one connection, and see where it arrives."""
    with laid(pod, probe) as way:
        return send(pod, standin, probe, way)


class Live(NamedTuple):
    """Both ends of an open connection."""

    client: socket.socket
    server: socket.socket

    def works(self) -> bool:
        """A word goes each way."""
        try:
            for here, there in ((self.client, self.server), (self.server, self.client)):
                here.sendall(b"word")
                if there.recv(64) != b"word":
                    return False
        except OSError:
            return False
        return True


@contextlib.contextmanager
def live(start: str, destination: Endpoint, listener: socket.socket, *, uid: int = 0) -> Iterator[Live]:
    """A connection from the namespace `start` that `listener` accepts; open for as long as the context lasts.

    Raises OSError when it does not get there.
    """
    client = inside(start, lambda: socket.create_connection(destination, PATIENCE), uid=uid, gid=uid)
    with client:
        if not select.select([listener], [], [], PATIENCE)[0]:
            raise TimeoutError(f"cannot find the connection to {destination}: it has arrived elsewhere")
        server, _ = listener.accept()
        with server:
            server.settimeout(PATIENCE)
            yield Live(client, server)


@contextlib.contextmanager
def proxied(pod: Pod, spec: RedirectSpec) -> Iterator[dict[str, Live]]:
    """A connection into the pod and one out of it that its proxy has accepted, by "inbound", "outbound".

    The proxy's ports are free again. Raises OSError when one is not redirected.
    """
    port, here, there = ordinary_port(spec), pod.address[4], pod.link("eth0").there[4]
    with contextlib.ExitStack() as stack:
        with _listener(pod.name, "0.0.0.0", spec.inbound_port) as inbound:
            into = stack.enter_context(live(pod.world, (here, port), inbound))
        with _listener(pod.name, "127.0.0.1", spec.outbound_port) as outbound:
            out = stack.enter_context(live(pod.name, (there, port), outbound, uid=ordinary_uid(spec)))
        yield {"inbound": into, "outbound": out}


class Load:
    """Connections opened so far, those that came to an application past its proxy, and those that failed."""

    def __init__(self) -> None:
        self.opened = 0
        self.escaped = 0
        self.failed: Counter[str] = Counter()

    def count(self, word: bytes | OSError) -> None:
        """Count one connection by the word of who accepted it, or by its failure."""
        self.opened += 1
        if isinstance(word, OSError):
            self.failed[type(word).__name__] += 1
        elif word == _APPLICATION:
            self.escaped += 1
        elif word != _PROXY:
            self.failed["closed without a word"] += 1

    def failures(self, during: str) -> list[str]:
        """What went wrong, as sentences."""
        found = (
            [f"{self.escaped} of {self.opened} connections escaped during {during}"] if self.escaped else []
        )
        found += [f"{dict(self.failed)} of {self.opened} connections during {during}"] if self.failed else []
        return found if self.opened else [f"no connection was opened during {during}"]


@contextlib.contextmanager
def load(pod: Pod, spec: RedirectSpec) -> Iterator[Load]:
    """Open connections all the time, out of the pod and into it; its proxy and both applications accept."""
    port, uid = ordinary_port(spec), ordinary_uid(spec)
    here, there = pod.address[4], pod.link("eth0").there[4]
    counted, ended = Load(), threading.Event()
    with contextlib.ExitStack() as stack:
        words: dict[int, tuple[socket.socket, bytes]] = {}
        for netns, address, number, word in (
            (pod.name, "127.0.0.1", spec.outbound_port, _PROXY),
            (pod.name, "0.0.0.0", spec.inbound_port, _PROXY),
            (pod.name, here, port, _APPLICATION),
            (pod.world, there, port, _APPLICATION),
        ):
            listener = stack.enter_context(_listener(netns, address, number))
            words[listener.fileno()] = (listener, word)
        threads = [
            threading.Thread(target=_accept, args=(words, ended)),
            threading.Thread(target=_connect, args=(pod.name, (there, port), uid, counted, ended)),
            threading.Thread(target=_connect, args=(pod.world, (here, port), 0, counted, ended)),
        ]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(ended.set)
        yield counted


def _listener(netns: str, address: str, port: int) -> socket.socket:
    return inside(netns, lambda: bind(4, address, port))


def _accept(listeners: dict[int, tuple[socket.socket, bytes]], ended: threading.Event) -> None:
    """Say who it was that accepted, until nobody connects any more."""
    poll = select.poll()
    for fd in listeners:
        poll.register(fd, select.POLLIN)
    while (ready := poll.poll(100)) or not ended.is_set():
        for fd, _ in ready:
            listener, word = listeners[fd]
            # The peer may have given up; it counts that itself.
            with contextlib.suppress(BlockingIOError, ConnectionError):
                accepted, _ = listener.accept()
                with accepted:
                    accepted.send(word)


def _connect(netns: str, destination: Endpoint, uid: int, counted: Load, ended: threading.Event) -> None:
    def forever() -> None:
        while not ended.is_set():
            counted.count(_attempt(destination))
            time.sleep(PAUSE)

    inside(netns, forever, uid=uid, gid=uid)


def _attempt(destination: Endpoint) -> bytes | OSError:
    with socket.socket() as client:
        client.settimeout(PATIENCE)
        # A reset leaves no TIME_WAIT behind, so that the ports never run out.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        try:
            client.connect(destination)
            return client.recv(1)
        except OSError as error:
            return error
