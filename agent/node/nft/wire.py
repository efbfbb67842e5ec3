"""Netlink framing for nf_tables: attributes and messages to bytes and back. Pure.

Attribute and message numbers are those of <linux/netfilter/nf_tables.h>; nf_tables numbers are
big-endian, netlink headers native.
"""

import struct
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["table", "chain", "rule", "set", "elements", "object"]

NUMBER: dict[Kind, int] = {"table": 0, "chain": 3, "rule": 6, "set": 9, "elements": 12, "object": 18}
"""Message number of NEW per kind. GET and DELETE are the next two, for every kind."""
NEW, GET, DELETE = 0, 1, 2
NEWGEN, GETGEN = 15, 16

SUBSYSTEM = 10
BATCH_BEGIN, BATCH_END = 16, 17
ERROR, DONE = 2, 3

REQUEST, ACK, DUMP, CREATE, APPEND = 0x1, 0x4, 0x300, 0x400, 0x800
DUMP_INTERRUPTED = 0x10
ACK_ATTRIBUTES = 0x200

UNSPEC, INET = 0, 1
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
FAMILY_NUMBERS = {name: number for number, name in FAMILIES.items()}

LONGEST = 0xFFFF
"""Bytes in the largest attribute, header included: its length is a 16-bit number."""

_HEADER = struct.Struct("=IHHII")
_NFGEN = struct.Struct(">BBH")
_ATTRIBUTE = struct.Struct("=HH")
_INT = struct.Struct("=i")
# Bits 15 and 14 of the type say "nested" and "big-endian"; kernels differ in setting them.
_TYPE_MASK = 0x3FFF


class Message(NamedTuple):
    """One netlink message; `body` is what follows its 16-byte header."""

    kind: int
    flags: int
    seq: int
    portid: int
    body: bytes

    @property
    def family(self) -> int:
        return self.body[0]

    @property
    def attributes(self) -> bytes:
        """The attributes of an nf_tables message, after the 4 bytes of nfgenmsg."""
        return self.body[4:]


def attr(kind: int, data: bytes) -> bytes:
    """One attribute, padded to 4 bytes. Raises ValueError above 64 KiB."""
    length = len(data) + 4
    if length > LONGEST:
        raise ValueError(f"cannot encode netlink attribute {kind}: {length} bytes do not fit into 16 bits")
    return _ATTRIBUTE.pack(length, kind) + data + b"\0" * (-length & 3)


def attrs(buffer: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a buffer as (type, data). Raises ValueError when a length makes no sense."""
    at, end = 0, len(buffer)
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(buffer, at)
        if length < 4 or at + length > end:
            raise ValueError(f"cannot decode netlink attribute at byte {at}: length {length} of {end - at}")
        yield kind & _TYPE_MASK, buffer[at + 4 : at + length]
        at += (length + 3) & ~3


def text(data: bytes) -> str:
    """A NUL-terminated kernel string; bytes that are no UTF-8 are kept as surrogates."""
    return data.partition(b"\0")[0].decode(errors="surrogateescape")


def string(value: str) -> bytes:
    return value.encode(errors="surrogateescape") + b"\0"


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def number(data: bytes) -> int:
    """An unsigned big-endian number of any width."""
    return int.from_bytes(data, "big")


def message(kind: int, flags: int, seq: int, attributes: bytes = b"", family: int = INET) -> bytes:
    """A request to nf_tables; `kind` is a message number such as NUMBER["rule"] + NEW."""
    body = _NFGEN.pack(family, 0, 0) + attributes
    return _HEADER.pack(len(body) + 16, SUBSYSTEM << 8 | kind, flags | REQUEST, seq, 0) + body


def envelope(kind: int, seq: int, generation: int | None = None) -> bytes:
    """The begin or end of a batch; with a generation the batch is refused once that has passed."""
    body = _NFGEN.pack(UNSPEC, 0, SUBSYSTEM)
    if generation is not None:
        body += attr(1, u32(generation))
    return _HEADER.pack(len(body) + 16, kind, REQUEST, seq, 0) + body


def messages(datagram: bytes) -> Iterator[Message]:
    """The messages of one datagram. Raises ValueError when a length makes no sense."""
    at, end = 0, len(datagram)
    while at + 16 <= end:
        length, kind, flags, seq, portid = _HEADER.unpack_from(datagram, at)
        if length < 16 or at + length > end:
            raise ValueError(f"cannot decode netlink message at byte {at}: length {length} of {end - at}")
        yield Message(kind, flags, seq, portid, datagram[at + 16 : at + length])
        at += (length + 3) & ~3


class Answer(NamedTuple):
    """An acknowledgement (`errno` 0) or a refusal, with the kernel's extended explanation."""

    errno: int
    words: str


def answer(reply: Message) -> Answer:
    """Decode an ERROR or DONE message of a socket that has CAP_ACK and EXT_ACK set."""
    (negative,) = _INT.unpack_from(reply.body)
    words = []
    if reply.flags & ACK_ATTRIBUTES:
        for kind, data in attrs(reply.body[20 if reply.kind == ERROR else 4 :]):
            if kind == 1:
                words.append(text(data))
            elif kind == 2:
                words.append(f"at byte {_INT.unpack(data)[0]}")
    return Answer(-negative, " ".join(words))
