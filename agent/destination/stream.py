"""One open call: what its client has been sent, and what is still to be sent.

Level-triggered: a stream holds no queue. It remembers the version that its client was sent last, and is
woken when its topic has another. However many versions came and went while the client was slow, it is sent
the one difference that is left.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from agent.destination.budget import Budget
from agent.destination.metrics import Code, Tally
from agent.destination.topic import CallEnded, State, Topic, Version


class Call(Protocol):
    """A call of the HTTP/2 engine.

    `write` returns when the message has gone to the client's window; one is written at a time. `drop` ends
    the call at once, by cancelling what handles it.
    """

    def write(self, message: bytes) -> Awaitable[None]: ...

    def drop(self) -> None: ...


class Stream:
    """An open call on a topic, paid for by `budget`."""

    def __init__(self, topic: Topic, tally: Tally, call: Call, budget: Budget) -> None:
        self.topic = topic
        self.writing = 0
        self.since = 0.0
        self.drop = call.drop
        self._tally = tally
        self._call = call
        self._budget = budget
        self._ending = ""
        self._sleep: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """There may be something to be sent."""
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)

    def end(self, reason: str) -> None:
        """Have the call end with UNAVAILABLE, so that the proxy asks again, perhaps elsewhere."""
        self._ending = reason
        self.wake()

    async def run(self) -> None:
        """Send what there is to be sent, for ever. Ends with CallEnded, or by cancellation."""
        try:
            await self._follow()
        finally:
            self._budget.bytes -= self.writing
            self._budget.invite()

    async def _follow(self) -> None:
        topic, tally, clock = self.topic, self._tally, self._loop.time
        known: Version | None = None
        sent: State | None = None
        while True:
            version = topic.version
            if self._ending:
                raise CallEnded(Code.UNAVAILABLE, self._ending)
            if version is known:
                # A future of its own: that of a cancelled task is cancelled with it.
                self._sleep = self._loop.create_future()
                await self._sleep
                continue
            known = version
            state = version.state(sent)
            if state is None:
                continue
            messages = topic.messages(sent, state)
            if not messages:
                continue
            for message in messages:
                await self._write(message)
            if version.seen is not None and sent is not None:
                tally.waited(clock() - version.seen)
            tally.messages += len(messages)
            sent = state

    async def _write(self, message: bytes) -> None:
        budget, size = self._budget, len(message)
        if budget.bytes and budget.bytes + size > budget.limits.bytes:
            await budget.room(size)
        budget.bytes += size
        self.writing, self.since = size, self._loop.time()
        if not budget.watched:
            budget.watch()
        if budget.waiting:
            budget.invite()
        await self._call.write(message)
        self.writing = 0
        budget.bytes -= size
        if budget.waiting:
            budget.invite()
