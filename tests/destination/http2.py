"""A peer that speaks HTTP/2 frame by frame, so that it can do what no client library does."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

from agent.destination.metrics import SERVICE, Method
from agent.destination.proto.destination_pb2 import GetDestination

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    body: bytes


def frame(kind: int, body: bytes = b"", *, stream: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def setting(identifier: int, value: int) -> bytes:
    return struct.pack(">HI", identifier, value)


def header(name: str, value: str) -> bytes:
    """A literal header field that leaves no trace in HPACK's table; each below 127 bytes, or longer."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text.encode()
    rest, encoded = size - 127, b"\x7f"
    while rest > 127:
        encoded += bytes((rest & 127 | 128,))
        rest >>= 7
    return encoded + bytes((rest,)) + text.encode()


def call_headers(method: Method, *more: bytes) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{SERVICE}/{method.value}",
        ":authority": "127.0.0.1:4186",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(header(*each) for each in fields.items()) + b"".join(more)


def call(stream: int, method: Method, path: str, token: str = "") -> bytes:
    """The frames of one call."""
    request = GetDestination(path=path, context_token=token).SerializeToString()
    body = b"\x00" + struct.pack(">I", len(request)) + request
    headers = frame(HEADERS, call_headers(method), stream=stream, flags=END_HEADERS)
    return headers + frame(DATA, body, stream=stream, flags=END_STREAM)


class Peer:
    """One connection. Frames are counted by kind, gRPC's messages by stream; GOAWAY and RST_STREAM are kept.

    Once `deaf`, it answers no pings.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.counts: Counter[int] = Counter()
        self.messages: Counter[int] = Counter()
        self._partial: dict[int, bytes] = {}
        self.goaway: Frame | None = None
        self.resets: dict[int, int] = {}
        self.deaf = False
        self.closed = asyncio.Event()
        self.news = asyncio.Event()
        self._reader = reader
        self._reading = asyncio.ensure_future(self._read())

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def until(self, seconds: float, expected: object) -> None:
        """Wait for `expected`, a function of no arguments, to be true."""
        assert callable(expected)
        async with asyncio.timeout(seconds):
            while not expected():
                self.news.clear()
                await self.news.wait()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._frame())
                self.news.set()
        except (OSError, asyncio.IncompleteReadError):
            self.closed.set()
            self.news.set()

    async def _frame(self) -> Frame:
        head = await self._reader.readexactly(9)
        size = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return Frame(kind, flags, stream, await self._reader.readexactly(size))

    def _take(self, got: Frame) -> None:
        self.counts[got.kind] += 1
        match got.kind:
            case 0:
                self._data(got)
            case 4 if not got.flags & ACK:
                self.send(frame(SETTINGS, flags=ACK))
            case 6 if not got.flags & ACK and not self.deaf:
                self.send(frame(PING, got.body, flags=ACK))
            case 7:
                self.goaway = got
            case 3:
                self.resets[got.stream] = int.from_bytes(got.body, "big")

    def _data(self, got: Frame) -> None:
        """A message may come in several frames, and a frame may end one and begin the next."""
        data = self._partial.pop(got.stream, b"") + got.body
        while len(data) >= 5 and len(data) >= (end := 5 + int.from_bytes(data[1:5], "big")):
            self.messages[got.stream] += 1
            data = data[end:]
        if data:
            self._partial[got.stream] = data


@contextlib.asynccontextmanager
async def peer(
    port: int = 0, *, window: int = (1 << 31) - 1, sock: socket.socket | None = None
) -> AsyncIterator[Peer]:
    """A connection whose preface is sent: to `port`, or `sock` as it is.

    Its own window is as wide as it goes, and those of its streams are `window`: with a small one it is a
    client that does not read.
    """
    if sock is None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    else:
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
    made = Peer(reader, writer)
    made.send(PREFACE + frame(SETTINGS, setting(2, 0) + setting(4, window)))
    made.send(frame(WINDOW_UPDATE, struct.pack(">I", (1 << 31) - 1 - 65_535)))
    try:
        yield made
    finally:
        await made.close()
