"""Real connections through a pod's rules, and where they arrive."""

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from tests.lab import segment
from tests.lab.netns import inside
from tests.lab.pod import Pod
from tests.lab.standin import SOCKET_FAMILIES, Endpoint, Listener, bind, open_listeners, original_destination
from tests.lab.way import NotOnAWireError, Probe, Way, source_ports

DEADLINE = 1.5
"""Seconds after which a connection that has arrived nowhere counts as lost."""

NEUTRAL_GID = 64_321
"""Group of a process whose group does not matter."""

_PLACES: dict[str, Literal["in", "out", "direct"]] = {"inbound": "in", "outbound": "out"}


class Arrival(msgspec.Struct, frozen=True):
    """Where a connection ended: at a listener of the stand-in, at its real target (direct), or nowhere.

    `port` is the port it arrived at, `original` its original destination (TCP at the stand-in).
    `at_target`: that listener is the real target too, so that only a counter tells whether the
    connection was redirected.
    """

    place: Literal["in", "out", "direct", "refused", "lost"]
    port: int | None = None
    original: Endpoint | None = None
    at_target: bool = False
    detail: str = ""


@contextlib.contextmanager
def opened_standin(
    pod: Pod, *, inbound: int = 4143, outbound: int = 4140, uid: int = 2102
) -> Iterator[tuple[Listener, ...]]:
    """The stand-in's listeners in the pod's namespace: TCP, and UDP to catch what must not come."""
    ports = {"inbound": inbound, "outbound": outbound}
    listeners = inside(pod.name, lambda: open_listeners(ports, ("tcp", "udp")), uid=pod.uid_base + uid)
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener.socket)
        yield listeners


def send(pod: Pod, standin: tuple[Listener, ...], probe: Probe, way: Way) -> Arrival:
    """Make the connection on a laid way and see where it arrives, within `DEADLINE` seconds.

    Raises NotOnAWireError for an id that the pod cannot have.
    """
    uid, gid = _host_ids(pod, probe, way)
    if segment.needed(probe):
        landed = segment.send(pod.name, probe, way, ids=(uid, gid), deadline=DEADLINE)
        return _landed(landed, pod, standin, probe, way)
    with contextlib.ExitStack() as stack:
        waiting = [each for each in standin if (each.family, each.protocol) == (probe.family, probe.protocol)]
        target = _target(probe, way)
        if target:
            stack.callback(target.close)
            waiting.append(Listener("target", probe.family, probe.protocol, target))
        client = inside(way.start, lambda: _client(probe, way), uid=uid, gid=gid)
        stack.callback(client.close)
        try:
            _open(client, probe, way.destination)
        except OSError as error:
            return _failed(error.errno or 0)
        return _await(client, waiting, at_target=target is None)


def _host_ids(pod: Pod, probe: Probe, way: Way) -> tuple[int, int]:
    """Uid and gid of the sending process as the host counts them; root's for what comes from outside."""
    if way.start != pod.name:
        return 0, 0
    gid = NEUTRAL_GID if probe.gid is None else probe.gid
    if pod.uid_base and max(probe.uid, gid) > 65_535:
        raise NotOnAWireError(f"the pod's user namespace maps no id {max(probe.uid, gid)}")
    return pod.uid_base + probe.uid, pod.uid_base + gid


def _target(probe: Probe, way: Way) -> socket.socket | None:
    """What waits at the real destination; None when the stand-in itself does."""
    try:
        return inside(way.end, lambda: bind(probe.family, way.destination, probe.port or 0, probe.protocol))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise NotOnAWireError(f"nothing can listen at {way.destination}:{probe.port}: {error}") from error


def _client(probe: Probe, way: Way) -> socket.socket:
    kind = socket.SOCK_STREAM if probe.protocol == "tcp" else socket.SOCK_DGRAM
    client = socket.socket(socket.AF_INET6 if probe.mapped else SOCKET_FAMILIES[probe.family], kind)
    client.setblocking(False)
    address = _mapped(probe, way.source) if way.source else ""
    while True:
        try:
            client.bind((address, next(source_ports)))
            return client
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


def _mapped(probe: Probe, address: str) -> str:
    return f"::ffff:{address}" if probe.mapped else address


def _open(client: socket.socket, probe: Probe, destination: str) -> None:
    code = client.connect_ex((_mapped(probe, destination), probe.port))
    if code not in (0, errno.EINPROGRESS):
        raise OSError(code, os.strerror(code))
    if probe.protocol == "udp":
        client.send(b"?")


def _await(client: socket.socket, waiting: list[Listener], *, at_target: bool) -> Arrival:
    """The first arrival of what `client` has sent at one of `waiting`, its failure, or loss."""
    port = client.getsockname()[1]
    poll = select.poll()
    poll.register(client, 0)  # errors and hang-up only
    by_fd = {each.socket.fileno(): each for each in waiting}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + DEADLINE
    while (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            if fd == client.fileno():
                return _failed(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            arrival = _take(by_fd[fd], port, at_target)
            if arrival:
                return arrival
    return Arrival("lost", detail=f"nothing arrived within {DEADLINE} s")


def _take(listener: Listener, client_port: int, at_target: bool) -> Arrival | None:
    """What has come to `listener`, when it came from `client_port`."""
    port = listener.socket.getsockname()[1]
    place = _PLACES.get(listener.name, "direct")
    if listener.protocol == "udp":
        _, peer = listener.socket.recvfrom(64)
        return Arrival(place, port, at_target=at_target) if peer[1] == client_port else None
    connection, peer = listener.socket.accept()
    with connection:
        original = original_destination(connection) if place != "direct" else None
        _reset_on_close(connection)
    return Arrival(place, port, original, at_target=at_target) if peer[1] == client_port else None


def _reset_on_close(connection: socket.socket) -> None:
    """End with RST, so that no TIME_WAIT of this connection lives on in connection tracking."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _failed(code: int) -> Arrival:
    place: Literal["refused", "lost"] = "refused" if code == errno.ECONNREFUSED else "lost"
    return Arrival(place, detail=os.strerror(code))


def _landed(
    landed: segment.Landed | None, pod: Pod, standin: tuple[Listener, ...], probe: Probe, way: Way
) -> Arrival:
    """The same answer for a packet that was only sniffed."""
    if landed is None:
        return Arrival("lost", detail=f"nothing arrived within {DEADLINE} s")
    at_target = (landed.namespace, landed.address) == (way.end, way.destination)
    at_target = at_target and landed.port in (None, probe.port)
    if landed.namespace == pod.name and landed.port is not None:
        for listener in standin:
            if listener.socket.getsockname()[1] == landed.port:
                return Arrival(_PLACES[listener.name], landed.port, at_target=at_target)
    if at_target:
        return Arrival("direct", landed.port)
    return Arrival("lost", landed.port, detail=f"arrived at {landed.address} port {landed.port}")
