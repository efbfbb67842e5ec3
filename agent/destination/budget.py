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


class Spender(Protocol):
    """A stream, as its budget sees it.

    `writing`: bytes of the message being written, 0 = none; `since`: when that began (the loop's clock).
    `end` has the call end with UNAVAILABLE once that is done. `give_up`, which makes it `late`, does so too,
    and keeps nothing for it any more.
    """

    writing: int
    since: float
    late: bool

    def end(self, reason: str) -> None: ...

    def give_up(self) -> None: ...


class Budget:
    """The streams of one listener, and what they are spending.

    Each of them counts its bytes itself, with no call in between: they are written tens of thousands of
    times a second. `bytes` are those under way, of at most `limits.bytes`. A stream that was given up counts
    until its client has read the rest, or is gone: gRPC cannot be made to forget it before.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.streams: set[Spender] = set()
        self.bytes = 0
        self.watched = False
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        """Whether one more stream may be opened. CallEnded when there are as many as there may be."""
        if len(self.streams) >= self.limits.streams:
            self._metrics.refused.inc()
            raise CallEnded(
                Code.UNAVAILABLE, f"cannot take more than {self.limits.streams} streams of one pod"
            )

    def leave(self, stream: Spender) -> None:
        """A stream's call is over, and nothing is held for it any more."""
        self.streams.discard(stream)
        self.bytes -= stream.writing
        self.invite()

    async def room(self, size: int) -> None:
        """Wait until a message of `size` may be written; one that is larger than the limit may alone."""
        while self.bytes and self.bytes + size > self.limits.bytes:
            turn = self._loop.create_future()
            self.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self.invite()
                raise

    def invite(self) -> None:
        """Bytes have become free: whoever waits first looks again, and has the next one look."""
        while self.waiting and self.bytes < self.limits.bytes:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def watch(self) -> None:
        """Drop every stream that is still at the message that it is writing now, once its time is up."""
        self.watched = True
        self._loop.call_later(self.limits.write_timeout, self._expire)

    def _expire(self) -> None:
        now, limit = self._loop.time(), self.limits.write_timeout
        writing = [stream for stream in self.streams if stream.writing and not stream.late]
        for stream in writing:
            if stream.since + limit <= now:
                self._metrics.dropped.inc()
                stream.give_up()
        left = [stream.since for stream in writing if not stream.late]
        self.watched = bool(left)
        if left:
            self._loop.call_at(min(left) + limit, self._expire)
