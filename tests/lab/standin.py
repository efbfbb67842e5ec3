"""A stand-in for the proxy: it knows nothing but SO_ORIGINAL_DST.

As a process:  python -m tests.lab.standin --uid 2102 --forward
It writes one JSON object per line: first {"ready": [...]}, then one for each accepted connection with the
listener, the peer and the original destination; `--forward` carries the bytes to that destination and back.
In a test, `open_listeners` gives the same sockets without a process.
"""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import socket
import struct
import sys

import click
import msgspec

from tests.lab.addresses import FAMILIES, Family
from tests.lab.netns import enter

SO_ORIGINAL_DST = 80
"""Option of that number at SOL_IP and at SOL_IPV6 alike (linux/netfilter_ipv4.h)."""

SOCKET_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_ANY = {4: "0.0.0.0", 6: "::"}
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}

Endpoint = tuple[str, int]
"""Address and port."""


class Listener(msgspec.Struct, frozen=True):
    """A bound socket of the stand-in: `name` is inbound, outbound, control or admin."""

    name: str
    family: Family
    protocol: str
    socket: socket.socket


def original_destination(connection: socket.socket) -> Endpoint | None:
    """Where an accepted TCP connection wanted to go; None when connection tracking knows nothing of it."""
    try:
        if connection.family == socket.AF_INET:
            _, port, packed = struct.unpack(
                "!HH4s", connection.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)[:8]
            )
            return socket.inet_ntop(socket.AF_INET, packed), port
        raw = connection.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
        _, port, _, packed = struct.unpack("!HHI16s", raw[:24])
        return socket.inet_ntop(socket.AF_INET6, packed), port
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOPROTOOPT):
            return None
        raise


def bind(family: Family, address: str, port: int, protocol: str = "tcp") -> socket.socket:
    """A socket that waits at `address`: listening (tcp) or bound (udp). Raises OSError."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    bound = socket.socket(SOCKET_FAMILIES[family], kind)
    try:
        bound.setblocking(False)
        if protocol == "tcp":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == 6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address, port))
        if protocol == "tcp":
            bound.listen(128)
    except BaseException:
        bound.close()
        raise
    return bound


def open_listeners(ports: dict[str, int], protocols: tuple[str, ...] = ("tcp",)) -> tuple[Listener, ...]:
    """Sockets of `ports` (listener name -> port), IPv4 and IPv6, in the caller's namespace and with its ids.

    The outbound listener is on loopback, as the real proxy's is; all others are on any address.
    Where the namespace has no IPv6, there are IPv4 sockets only.
    """
    opened: list[Listener] = []
    with contextlib.ExitStack() as stack:
        for (name, port), family, protocol in itertools.product(ports.items(), FAMILIES, protocols):
            address = (_LOOPBACK if name == "outbound" else _ANY)[family]
            try:
                bound = stack.enter_context(bind(family, address, port, protocol))
            except OSError as error:
                if family == 6 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                raise
            opened.append(Listener(name=name, family=family, protocol=protocol, socket=bound))
        stack.pop_all()
    return tuple(opened)


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _forward(
    target: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> str | None:
    """Carry bytes both ways until both sides have ended; returns why the target could not be reached."""
    try:
        far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(*target), 10)
    except OSError as error:
        return str(error)
    with contextlib.closing(far_writer):
        await asyncio.gather(_relay(reader, far_writer), _relay(far_reader, writer))
    return None


async def _accepted(
    name: str, port: int, forward: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.closing(writer):
        connection: socket.socket = writer.get_extra_info("socket")
        original = original_destination(connection)
        _say(listener=name, port=port, peer=writer.get_extra_info("peername")[:2], original=original)
        # A connection to the listener itself has no other destination: carrying it on would be a loop.
        if forward and original and original[1] != port:
            failure = await _forward(original, reader, writer)
            if failure:
                _say(listener=name, port=port, original=original, failure=failure)


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def _serve(listeners: tuple[Listener, ...], forward: bool) -> None:
    for listener in listeners:
        port = listener.socket.getsockname()[1]

        async def accepted(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            name: str = listener.name,
            port: int = port,
        ) -> None:
            await _accepted(name, port, forward, reader, writer)

        await asyncio.start_server(accepted, sock=listener.socket)
    _say(ready=[[each.name, *each.socket.getsockname()[:2]] for each in listeners])
    await asyncio.Event().wait()


@click.command()
@click.option("--uid", default=2102, show_default=True, help="Uid (and gid, unless --gid) of the sockets.")
@click.option("--gid", type=int, help="Gid of the sockets.")
@click.option("--inbound", default=4143, show_default=True)
@click.option("--outbound", default=4140, show_default=True)
@click.option("--control", default=4190, show_default=True)
@click.option("--admin", default=4191, show_default=True)
@click.option("--netns", help="Name of the network namespace to serve; without it, the caller's.")
@click.option("--forward", is_flag=True, help="Carry the bytes to the original destination and back.")
def main(
    *,
    uid: int,
    gid: int | None,
    inbound: int,
    outbound: int,
    control: int,
    admin: int,
    netns: str | None,
    forward: bool,
) -> None:
    """Accept what is redirected to the proxy's ports, and say where it wanted to go."""
    if netns:
        enter(netns)
    # Before the first socket: the uid exemption looks at the ids of the moment a socket is made.
    os.setgid(uid if gid is None else gid)
    os.setuid(uid)
    ports = {"inbound": inbound, "outbound": outbound, "control": control, "admin": admin}
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(open_listeners(ports), forward))


if __name__ == "__main__":
    main()
