"""What the clients of one listener may cost: so many streams, so many bytes under way, so long a write.

A client that does not read costs its kernel's and its own buffers, and here no more than what is being
written to it. All its streams together are bounded as well, so that a pod that opens thousands of them and
reads none cannot have the agent hold a large answer for each.
"""

import asyncio
from collections import deque
from typing import Protocol

import msgspec

from agent.destination.metrics import Code, Metrics
from agent.destination.topic import CallEnded


class Limits(msgspec.Struct, frozen=True):
    """Per listener: open streams, bytes of messages being written at a time, and seconds for one write."""

    streams: int = 20_000
    bytes: int = 32 << 20
    write_timeout: float = 30.0


class Call(Protocol):
    """A call of the HTTP/2 engine. `drop` ends it at once, without a word to a client that does not read."""

    async def write(self, message: bytes) -> None: ...

    def drop(self) -> None: ...


class Budget:
    """The calls of one listener. One that enters leaves again."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._streams = 0
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        # In the order of their beginnings, which is that of their ends, since all may take as long.
        self._writing: dict[Call, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> None:
        """Take a call in. CallEnded when there are as many as there may be."""
        if self._streams >= self._limits.streams:
            self._metrics.refused.inc()
            raise CallEnded(
                Code.UNAVAILABLE, f"cannot take more than {self._limits.streams} streams of one pod"
            )
        self._streams += 1

    def leave(self) -> None:
        self._streams -= 1

    async def write(self, call: Call, message: bytes) -> None:
        """Write one message of a call. A call that takes too long over it is dropped."""
        size = len(message)
        while self._bytes and self._bytes + size > self._limits.bytes:
            await self._room()
        self._bytes += size
        self._writing[call] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.write_timeout, self._expire)
        if self._waiting:
            self._invite()
        try:
            await call.write(message)
        finally:
            self._writing.pop(call, None)
            self._bytes -= size
            if self._waiting:
                self._invite()

    async def _room(self) -> None:
        """Wait until there may be room. One is woken at a time, and wakes the next."""
        turn = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._invite()
            raise

    def _invite(self) -> None:
        if self._waiting and self._bytes < self._limits.bytes:
            self._waiting.popleft().set_result(None)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._writing:
            call, began = next(iter(self._writing.items()))
            due = began + self._limits.write_timeout
            if due > now:
                self._timer = self._loop.call_at(due, self._expire)
                return
            del self._writing[call]
            self._metrics.dropped.inc()
            call.drop()
