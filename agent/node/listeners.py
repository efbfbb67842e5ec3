"""Which TCP ports something listens on in a pod's network namespace, asked by sock_diag(7).

An nftables redirect to a port on which nobody listens answers every connection with a reset, and
nothing else in the kernel says why. `listening` is the evidence for that: one dump per address
family, of sockets in state LISTEN only, so the cost follows the number of listeners and not of
connections (about 0.1 ms).
"""

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator

import msgspec

from agent.node.netns import run_in
from agent.node.nft.wire import DONE, DUMP, ERROR, REQUEST, attrs, messages

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
TCP_LISTEN = 10
INET_DIAG_SKV6ONLY = 11
TIMEOUT = 2.0
"""Seconds to wait for the kernel's next part of a dump; it normally is there at once."""

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port id
_ASK = struct.Struct("=BBBBI48x")  # inet_diag_req_v2: family, protocol, ext, pad, states, socket id
_ANSWER = struct.Struct("=BBBBHH16s16sI8xIIIII")  # inet_diag_msg; ports are big-endian
_STATUS = struct.Struct("=i")  # 0 or a negative errno

_MAPPED = bytes(10) + b"\xff\xff"
_ANY = ("0.0.0.0", "::ffff:0.0.0.0", "::")
_SOCKET = re.compile(r"socket:\[(\d+)\]")

OWN_DESCRIPTORS = "/proc/self/fd"


class Listeners(msgspec.Struct, frozen=True):
    """The listening TCP ports of one network namespace.

    `v4` and `v6` hold the ports that accept connections of that family on at least one local
    address; a dual-stack socket (`[::]` without IPV6_V6ONLY) is in both. `uids` maps each port to
    the owners of its sockets, as numbered in the agent's user namespace: a pod with
    `hostUsers: false` shows its mapped uids.
    """

    v4: frozenset[int] = frozenset()
    v6: frozenset[int] = frozenset()
    uids: dict[int, frozenset[int]] = {}


class Holder(msgspec.Struct, frozen=True):
    """A listening socket: its local address ("0.0.0.0" and "::" for any), its owner as in `Listeners.uids`,
    and its inode, which is the same wherever the socket is open."""

    address: str
    uid: int
    inode: int


class ListenersUnreadableError(OSError):
    """The kernel refused the dump of listening sockets. `errno` is the kernel's answer."""


class _Listener(msgspec.Struct, frozen=True):
    port: int
    holder: Holder
    v4: bool
    v6: bool


def listening(netns_fd: int) -> Listeners:
    """Dump the listeners of the network namespace behind `netns_fd`.

    Raises ListenersUnreadableError when the kernel has no sock_diag for TCP or answers with an
    error, and what `run_in` raises when the namespace cannot be entered.
    """
    found = _all(netns_fd)
    uids: dict[int, frozenset[int]] = {}
    for one in found:
        uids[one.port] = uids.get(one.port, frozenset()) | {one.holder.uid}
    return Listeners(
        v4=frozenset(one.port for one in found if one.v4),
        v6=frozenset(one.port for one in found if one.v6),
        uids=uids,
    )


def holders(netns_fd: int, address: str, port: int) -> tuple[Holder, ...]:
    """The listeners that connections to an address and port inside the namespace may come to, and beside
    which nobody else can bind it who does not share it with them. Raises what `listening` raises."""
    ipv6 = ":" in address
    covering = {address, "::"} if ipv6 else {address, f"::ffff:{address}", *_ANY}
    return tuple(
        one.holder
        for one in _all(netns_fd)
        if one.port == port and (one.v6 if ipv6 else one.v4) and one.holder.address in covering
    )


def bindable(netns_fd: int, address: str, port: int) -> str:
    """Why the kernel would not let this process, and others of its user beside it, listen there inside the
    namespace; "" when it would. Raises what `run_in` raises."""

    def bind() -> str:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                trial.bind((address, port))
            except OSError as error:
                return os.strerror(error.errno or 0)
        return ""

    return run_in(netns_fd, bind)


def own_inodes() -> frozenset[int]:
    """Inodes of the sockets that this process has open. Takes a microsecond or two for each descriptor."""
    inodes = set()
    for entry in os.scandir(OWN_DESCRIPTORS):
        # What another thread closes meanwhile is gone.
        with contextlib.suppress(FileNotFoundError):
            found = _SOCKET.fullmatch(os.readlink(entry.path))  # noqa: PTH115 - half the time of a Path
            if found is not None:
                inodes.add(int(found[1]))
    return frozenset(inodes)


def _all(netns_fd: int) -> tuple[_Listener, ...]:
    try:
        return run_in(netns_fd, lambda: (*_dump(socket.AF_INET), *_dump(socket.AF_INET6)))
    except TimeoutError as error:
        raise ListenersUnreadableError(
            error.errno, f"cannot list listening sockets: no answer from the kernel in {TIMEOUT:g} s"
        ) from error


def _dump(family: int) -> tuple[_Listener, ...]:
    """All TCP listeners of one address family in the calling thread's network namespace."""
    body = _ASK.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << TCP_LISTEN)
    header = _HEADER.pack(_HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as nl:
        nl.settimeout(TIMEOUT)
        nl.send(header + body)
        return tuple(_listener(answer) for answer in _answers(nl))


def _answers(nl: socket.socket) -> Iterator[bytes]:
    """Bodies of the messages of one dump, up to its end."""
    while True:
        for message in messages(nl.recv(1 << 16)):
            if message.kind not in (DONE, ERROR):
                yield message.body
                continue
            (status,) = _STATUS.unpack_from(message.body)
            if status < 0:  # a kernel without tcp_diag says so in the message that ends the dump
                raise _refused(-status)
            return


def _listener(body: bytes) -> _Listener:
    family, _, _, _, port, _, source, _, _, _, _, _, uid, inode = _ANSWER.unpack_from(body)
    port = socket.ntohs(port)
    if family == socket.AF_INET:
        holder = Holder(socket.inet_ntop(socket.AF_INET, source[:4]), uid, inode)
        return _Listener(port, holder, v4=True, v6=False)
    holder = Holder(socket.inet_ntop(socket.AF_INET6, source), uid, inode)
    if source.startswith(_MAPPED):  # an IPv6 socket bound to an IPv4 address, as Java makes them
        return _Listener(port, holder, v4=True, v6=False)
    return _Listener(port, holder, v4=not _v6only(body), v6=True)


def _v6only(body: bytes) -> bool:
    """IPV6_V6ONLY, which the kernel also sets itself for a socket bound to one IPv6 address."""
    return any(kind == INET_DIAG_SKV6ONLY and data != b"\0" for kind, data in attrs(body[_ANSWER.size :]))


def _refused(errno: int) -> ListenersUnreadableError:
    return ListenersUnreadableError(
        errno,
        f"cannot list listening sockets by sock_diag: {os.strerror(errno)}; "
        "load the kernel modules tcp_diag and inet_diag",
    )
