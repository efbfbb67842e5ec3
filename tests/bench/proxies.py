"""Connections of proxies, in a process of their own: many calls at once, and no more work than to count.

The plan is a line of JSON on stdin, `[[port, [[method, path], ...]], ...]`; then a command a line, each
answered by a line of JSON. `open`: all calls at once, {"ms", "lost"}; `reach N`: until N messages have come
since then; `close`: all connections, without a word; `seen`: when a message named which zone, as a list of
[number, time].
"""

import asyncio
import json
import re
import struct
import sys
import time
from typing import Any

from agent.destination.metrics import Method
from tests.destination.http2 import (
    ACK,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    frame,
    setting,
)

HEAD = struct.Struct(">IBI")
PATIENCE = 20.0
ZONE = re.compile(rb"zone-(\d+)")
WIDEST = (1 << 31) - 1


class Tally:
    """Of all connections together. `moved` is set with each read."""

    def __init__(self) -> None:
        self.messages = 0
        self.ended = 0
        self.seen: list[tuple[int, float]] = []
        self.moved = asyncio.Event()

    async def reach(self, messages: int) -> None:
        """Until there are so many, or PATIENCE is over."""
        deadline = time.monotonic() + PATIENCE
        while self.messages < messages and time.monotonic() < deadline:
            self.moved.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self.moved.wait()
            except TimeoutError:
                continue


class Connection(asyncio.Protocol):
    """One proxy. What comes is cut into frames, and messages are counted where they end."""

    def __init__(self, tally: Tally) -> None:
        self.transport: asyncio.Transport | None = None
        self._tally = tally
        self._rest = b""
        self._part: dict[int, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        wide = frame(WINDOW_UPDATE, struct.pack(">I", WIDEST - 65_535))
        transport.write(PREFACE + frame(SETTINGS, setting(2, 0) + setting(4, WIDEST)) + wide)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= 9:
            word, flags, stream = HEAD.unpack_from(data, at)
            size, kind = word >> 8, word & 255
            if len(data) - at - 9 < size:
                break
            at += 9
            self._take(kind, flags, stream, data[at : at + size])
            at += size
        self._rest = data[at:]
        self._tally.moved.set()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == DATA:
            self._data(stream, body)
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self._tally.ended += 1
        elif kind in (SETTINGS, PING) and not flags & ACK and self.transport is not None:
            self.transport.write(frame(kind, b"" if kind == SETTINGS else body, flags=ACK))

    def _data(self, stream: int, body: bytes) -> None:
        if found := ZONE.search(body):
            self._tally.seen.append((int(found[1]), time.monotonic()))
        data = self._part.pop(stream, b"") + body
        while len(data) >= 5 and len(data) >= (end := 5 + int.from_bytes(data[1:5], "big")):
            self._tally.messages += 1
            data = data[end:]
        if data:
            self._part[stream] = data


class Proxies:
    """All of them, as the plan says."""

    def __init__(self, plan: list[Any]) -> None:
        self._plan = [
            (
                port,
                b"".join(
                    call(1 + 2 * at, Method(method), path) for at, (method, path) in enumerate(questions)
                ),
            )
            for port, questions in plan
        ]
        self._calls = sum(len(questions) for _, questions in plan)
        self._tally = Tally()
        self._open: list[Connection] = []

    async def open(self) -> dict[str, float]:
        tally = self._tally = Tally()
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        made = await asyncio.gather(
            *(loop.create_connection(lambda: Connection(tally), "127.0.0.1", port) for port, _ in self._plan)
        )
        self._open = [connection for _, connection in made]
        for connection, (_, calls) in zip(self._open, self._plan, strict=True):
            assert connection.transport is not None
            connection.transport.write(calls)
        await tally.reach(self._calls)
        lost = max(self._calls - tally.messages, 0) + tally.ended
        return {"ms": (time.monotonic() - began) * 1e3, "lost": lost}

    async def reach(self, messages: int) -> dict[str, float]:
        await self._tally.reach(messages)
        return {"messages": self._tally.messages}

    async def close(self) -> dict[str, float]:
        for connection in self._open:
            if connection.transport is not None:
                connection.transport.abort()
        self._open.clear()
        return {}

    async def seen(self) -> list[tuple[int, float]]:
        return self._tally.seen


async def main() -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    proxies = Proxies(json.loads(await reader.readline()))
    while line := (await reader.readline()).split():
        answer = await getattr(proxies, line[0].decode())(*map(int, line[1:]))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
