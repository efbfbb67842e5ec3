"""Hand-made packets: TCP segments in the middle of a connection, port 0, ICMP, and other protocols.

They leave by a raw socket and are sniffed by raw sockets where they may be delivered, after all NAT.
"""

import contextlib
import os
import select
import socket
import struct
import time

import msgspec

from tests.lab.netns import inside
from tests.lab.standin import SOCKET_FAMILIES
from tests.lab.way import NotOnAWireError, Probe, Way, source_ports

_PROTOCOLS = {
    "tcp": socket.IPPROTO_TCP,
    "sctp": socket.IPPROTO_SCTP,
    "gre": socket.IPPROTO_GRE,
    "esp": socket.IPPROTO_ESP,
    "udplite": socket.IPPROTO_UDPLITE,
}
_ICMP = {4: (socket.IPPROTO_ICMP, 8), 6: (socket.IPPROTO_ICMPV6, 128)}
_IPV6_CHECKSUM = 7
_SYN, _ACK = 0x02, 0x10


class Landed(msgspec.Struct, frozen=True):
    """Where a packet was delivered; `port` for TCP only."""

    namespace: str
    address: str
    port: int | None


class _Packet(msgspec.Struct, frozen=True):
    """`data` follows the IP header; `token` is its bytes 4 to 8, `first` its first byte where that counts."""

    protocol: int
    data: bytes
    token: bytes
    first: bytes = b""

    def is_in(self, data: bytes) -> bool:
        return data[4:8] == self.token and data.startswith(self.first)


def needed(probe: Probe) -> bool:
    """Whether ordinary sockets cannot make this connection."""
    return probe.protocol not in ("tcp", "udp") or not probe.syn or probe.port == 0


def send(pod: str, probe: Probe, way: Way, *, ids: tuple[int, int], deadline: float) -> Landed | None:
    """Send one packet, and say where in `pod` or at the end of the way it is delivered.

    `ids` are the sender's uid and gid; None when it is nowhere within `deadline` seconds.
    """
    with contextlib.ExitStack() as stack:
        source = way.source or _source_towards(way, probe)
        packet = _packet(probe, source, way.destination)
        sniffers = {
            stack.enter_context(inside(name, lambda: _sniffer(probe, packet.protocol))): name
            for name in dict.fromkeys((pod, way.end))
        }
        client = stack.enter_context(
            inside(way.start, lambda: _raw(probe, packet.protocol), uid=ids[0], gid=ids[1])
        )
        if probe.family == 6 and packet.protocol == socket.IPPROTO_TCP:
            client.setsockopt(socket.IPPROTO_IPV6, _IPV6_CHECKSUM, 16)
        client.bind((source, 0))
        client.sendto(packet.data, (way.destination, 0))
        return _sniff(sniffers, packet, probe, deadline)


def _raw(probe: Probe, protocol: int) -> socket.socket:
    return socket.socket(SOCKET_FAMILIES[probe.family], socket.SOCK_RAW, protocol)


def _sniffer(probe: Probe, protocol: int) -> socket.socket:
    sniffer = _raw(probe, protocol)
    sniffer.setblocking(False)
    if probe.family == 6:
        sniffer.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    return sniffer


def _source_towards(way: Way, probe: Probe) -> str:
    """The address that the kernel would choose at the start of the way."""

    def look() -> str:
        with socket.socket(SOCKET_FAMILIES[probe.family], socket.SOCK_DGRAM) as chooser:
            chooser.connect((way.destination, 9))
            return str(chooser.getsockname()[0])

    return inside(way.start, look)


def _packet(probe: Probe, source: str, destination: str) -> _Packet:
    token = os.urandom(4)
    if probe.protocol == "icmp":
        protocol, echo = _ICMP[probe.family]
        header = struct.pack("!BBH4s", echo, 0, 0, token)
        # The kernel fills the checksum of ICMPv6, never that of ICMP.
        data = header if probe.family == 6 else header[:2] + _checksum(header) + header[4:]
        return _Packet(protocol, data, token, first=bytes([echo]))
    if probe.protocol == "tcp":
        return _Packet(socket.IPPROTO_TCP, _segment(probe, source, destination, token), token)
    if probe.protocol not in _PROTOCOLS:
        raise NotOnAWireError(f"no packet is known for protocol {probe.protocol!r}")
    return _Packet(_PROTOCOLS[probe.protocol], bytes(4) + token + bytes(8), token)


def _segment(probe: Probe, source: str, destination: str, token: bytes) -> bytes:
    """A TCP header without options whose sequence number is `token`."""
    flags, acknowledged = (_SYN, 0) if probe.syn else (_ACK, 1)
    ports = (next(source_ports), probe.port)
    header = struct.pack("!HH4sIBBHHH", *ports, token, acknowledged, 5 << 4, flags, 8192, 0, 0)
    if probe.family == 6:  # the kernel fills the checksum: IPV6_CHECKSUM
        return header
    pseudo = (
        socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!HH", socket.IPPROTO_TCP, 20)
    )
    return header[:16] + _checksum(pseudo + header) + header[18:]


def _checksum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def _sniff(
    sniffers: dict[socket.socket, str], packet: _Packet, probe: Probe, deadline: float
) -> Landed | None:
    end = time.monotonic() + deadline
    while (left := end - time.monotonic()) > 0:
        for sniffer in select.select(list(sniffers), [], [], left)[0]:
            data, ancillary, _, _ = sniffer.recvmsg(2048, 256)
            address, data = _delivered(probe, data, ancillary)
            if packet.is_in(data):
                port = struct.unpack("!H", data[2:4])[0] if probe.protocol == "tcp" else None
                return Landed(sniffers[sniffer], address, port)
    return None


def _delivered(probe: Probe, data: bytes, ancillary: list[tuple[int, int, bytes]]) -> tuple[str, bytes]:
    """Destination of a sniffed packet, and what follows its IP header (which raw IPv6 does not hand out)."""
    if probe.family == 4:
        return socket.inet_ntoa(data[16:20]), data[(data[0] & 0x0F) * 4 :]
    info = next(
        value
        for level, kind, value in ancillary
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)
    )
    return socket.inet_ntop(socket.AF_INET6, info[:16]), data
