"""The frames between shim and agent, on one unix stream connection per call.

| request | reply |
|---|---|
| magic, 8 bytes | magic, 8 bytes |
| length of the environment, u32 | exit code, u32: 0 or 1 |
| length of stdin, u32 | length of the body, u32 |
| environment: `KEY=VALUE` and a zero byte, each | body: the error object, empty with exit code 0 |
| stdin | |

Integers are little-endian. The shim prints the result itself, since it has prevResult byte for byte.
"""

import struct

import msgspec

MAGIC = b"PMCNI\0\0\x01"
HEADER = struct.Struct("<8sII")
LARGEST_ENVIRONMENT = 64 << 10
LARGEST_STDIN = 1 << 20
LARGEST_BODY = 64 << 10


class Garbled(Exception):  # noqa: N818
    """The peer does not speak this protocol."""


class Call(msgspec.Struct, frozen=True):
    """One request, and its frame as it came, to be passed on."""

    environment: dict[str, str]
    stdin: bytes
    frame: bytes


def call_in(received: bytes) -> Call | None:
    """The request in what has been received, None while there is not all of it. Raises Garbled."""
    if len(received) < HEADER.size:
        return None
    magic, environment_size, stdin_size = HEADER.unpack_from(received)
    if magic != MAGIC or environment_size > LARGEST_ENVIRONMENT or stdin_size > LARGEST_STDIN:
        raise Garbled("cannot read a call: it does not begin as a shim's does")
    stdin_at = HEADER.size + environment_size
    end = stdin_at + stdin_size
    if len(received) < end:
        return None
    return Call(_pairs(received[HEADER.size : stdin_at]), received[stdin_at:end], received[:end])


def body_in(received: bytes) -> bytes | None:
    """The body of the reply in what has been received, b"" for success, None while there is not all of it.
    Raises Garbled."""
    if len(received) < HEADER.size:
        return None
    magic, code, size = HEADER.unpack_from(received)
    if magic != MAGIC or code not in (0, 1) or size > LARGEST_BODY or (code == 0) != (size == 0):
        raise Garbled("cannot read a reply: it does not begin as an agent's does")
    end = HEADER.size + int(size)
    return received[HEADER.size : end] if len(received) >= end else None


def reply(body: bytes) -> bytes:
    """The frame of an answer: success for an empty body, else failure with the error object in it."""
    return HEADER.pack(MAGIC, 1 if body else 0, len(body)) + body


def call(environment: dict[str, str], stdin: bytes) -> bytes:
    """The frame of a request."""
    pairs = (f"{key}={value}\0" for key, value in environment.items())
    packed = "".join(pairs).encode(errors="surrogateescape")
    return HEADER.pack(MAGIC, len(packed), len(stdin)) + packed + stdin


def _pairs(packed: bytes) -> dict[str, str]:
    # What is no UTF-8 could be held here as well, but not be written as JSON, to a file or to who asks.
    pairs = (entry.partition("=") for entry in packed.decode(errors="replace").split("\0"))
    return {key: value for key, equals, value in pairs if equals}
