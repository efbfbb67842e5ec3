"""One WeightedAddr as bytes. Each distinct address is encoded once, for as long as an answer holds it."""

import struct
from socket import AF_INET, AF_INET6, inet_pton
from weakref import WeakValueDictionary

import msgspec

from agent.core.discovery.answers import Address
from agent.core.discovery.config import Http2
from agent.destination.proto.destination_pb2 import Http2ClientParams, WeightedAddr
from agent.destination.proto.net_pb2 import IPAddress, IPv6, TcpAddress

_WORD = struct.Struct(">I")
_HALVES = struct.Struct(">QQ")

LENGTH_DELIMITED = 2
"""Wire type of messages, strings and map entries."""


class Encoded(msgspec.Struct, frozen=True, weakref=True, eq=False):
    """An address as it stands in messages.

    `added`: its element of WeightedAddrSet.addrs; `removed`: its element of AddrSet.addrs.
    """

    added: bytes
    removed: bytes


class Encoder:
    """Addresses to bytes. `count` is how many were encoded, not taken from what is there."""

    def __init__(self) -> None:
        self.count = 0
        self._http2: Http2 | None = None
        self._known: WeakValueDictionary[Address, Encoded] = WeakValueDictionary()

    def use(self, http2: Http2 | None) -> None:
        """The parameters to be sent with addresses that take them, from now on."""
        if http2 != self._http2:
            self._http2 = http2
            self._known = WeakValueDictionary()

    def encode(self, address: Address) -> Encoded:
        known = self._known.get(address)
        if known is None:
            self.count += 1
            message = weighted_addr(address, self._http2)
            added = field(1, message.SerializeToString(deterministic=True))
            known = Encoded(added, removed=field(1, message.addr.SerializeToString()))
            self._known[address] = known
        return known


def weighted_addr(address: Address, http2: Http2 | None) -> WeightedAddr:
    """`http2` is sent only with an address that takes it. Maps have no order: serialize deterministically."""
    message = WeightedAddr(addr=tcp_address(address.ip, address.port), weight=address.weight)
    message.metric_labels.update(address.labels)
    if address.identity and address.uri:
        message.tls_identity.uri_like_identity.uri = address.identity
    elif address.identity:
        message.tls_identity.dns_like_identity.name = address.identity
    if address.server_name:
        message.tls_identity.server_name.name = address.server_name
    if address.hint is not None:
        # Empty messages have to be said to be there.
        message.protocol_hint.SetInParent()
        if address.hint.protocol == "h2":
            message.protocol_hint.h2.SetInParent()
        elif address.hint.protocol == "opaque":
            message.protocol_hint.opaque.SetInParent()
        if address.hint.transport_port:
            message.protocol_hint.opaque_transport.inbound_port = address.hint.transport_port
    if address.authority:
        message.authority_override.authority_override = address.authority
    if address.http2 and http2 is not None:
        message.http2.CopyFrom(_http2(http2))
    return message


def tcp_address(ip: str, port: int) -> TcpAddress:
    """OSError for what is no IP."""
    if ":" not in ip:
        [value] = _WORD.unpack(inet_pton(AF_INET, ip))
        return TcpAddress(ip=IPAddress(ipv4=value), port=port)
    first, last = _HALVES.unpack(inet_pton(AF_INET6, ip))
    return TcpAddress(ip=IPAddress(ipv6=IPv6(first=first, last=last)), port=port)


def _http2(given: Http2) -> Http2ClientParams:
    message = Http2ClientParams()
    if given.flow_control is not None:
        flow = given.flow_control
        message.flow_control.SetInParent()
        message.flow_control.initial_connection_window_size = flow.connection_window
        message.flow_control.initial_stream_window_size = flow.stream_window
        message.flow_control.adaptive_flow_control = flow.adaptive
    if given.keep_alive is not None:
        keep = given.keep_alive
        message.keep_alive.SetInParent()
        if keep.interval:
            message.keep_alive.interval.FromNanoseconds(keep.interval)
        if keep.timeout:
            message.keep_alive.timeout.FromNanoseconds(keep.timeout)
        message.keep_alive.while_idle = keep.while_idle
    if given.internals is not None:
        internals = given.internals
        message.internals.SetInParent()
        message.internals.max_concurrent_reset_streams = internals.max_concurrent_reset_streams
        message.internals.max_frame_size = internals.max_frame_size
        message.internals.max_send_buf_size = internals.max_send_buf_size
    return message


def field(number: int, payload: bytes) -> bytes:
    """A field that holds a message. Fields that are written one after the other are one message."""
    return bytes((number << 3 | LENGTH_DELIMITED,)) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
