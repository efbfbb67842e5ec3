"""One open call: what its client has been sent, and what is still to be sent.

Level-triggered: a stream holds no queue. It remembers the version that its client was sent last, and is
woken when its topic has another. However many versions came and went while the client was slow, it is sent
the one difference that is left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from agent.destination.budget import Budget
from agent.destination.metrics import Code, Tally
from agent.destination.topic import CallEnded, State, Topic, Version


class Call(Protocol):
    """A call of the HTTP/2 engine.

    `write` returns when the message has gone to the client's window; one is written at a time. `end` says the
    status, behind all that was written.
    """

    def write(self, message: bytes) -> Awaitable[None]: ...

    async def end(self, code: Code, text: str) -> None: ...


class Stream:
    """An open call on a topic, paid for by `budget`. `leave` takes it off its topic; twice is no harm."""

    # There are thousands, and one update goes through them all.
    __slots__ = (
        *("topic", "writing", "since", "late"),
        *("_budget", "_call", "_ending", "_known", "_leave", "_loop", "_sent", "_sleep", "_tally"),
    )

    def __init__(
        self, topic: Topic, tally: Tally, call: Call, budget: Budget, leave: Callable[["Stream"], None]
    ) -> None:
        self.topic = topic
        self.writing = 0
        self.since = 0.0
        self.late = False
        self._tally = tally
        self._call = call
        self._budget = budget
        self._leave = leave
        self._ending = ""
        self._known: Version | None = None
        self._sent: State | None = None
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

    def give_up(self) -> None:
        """The client has not taken for too long what is being written to it: keep nothing for it any more."""
        self.late = True
        self._known = self._sent = None
        self.end("cannot go on: the client has not read for too long")
        self._leave(self)

    async def run(self) -> None:
        """Send what there is to be sent, for ever. Ends with CallEnded, or by cancellation."""
        try:
            while True:
                if self._ending:
                    raise CallEnded(Code.UNAVAILABLE, self._ending)
                version = self.topic.version
                if version is self._known:
                    # A future of its own: that of a cancelled task is cancelled with it.
                    self._sleep = self._loop.create_future()
                    await self._sleep
                    continue
                self._known = version
                state = version.state(self._sent)
                if state is not None:
                    await self._send(version, state)
        finally:
            self._leave(self)

    async def _send(self, version: Version, state: State) -> None:
        """Bring the client to a state of a version."""
        messages = self.topic.messages(self._sent, state)
        if not messages:
            return
        budget, clock = self._budget, self._loop.time
        for message in messages:
            size = len(message)
            if budget.bytes and budget.bytes + size > budget.limits.bytes:
                await budget.room(size)
            budget.bytes += size
            self.writing, self.since = size, clock()
            if not budget.watched:
                budget.watch()
            if budget.waiting:
                budget.invite()
            await self._call.write(message)
            self.writing = 0
            budget.bytes -= size
            if budget.waiting:
                budget.invite()
            if self.late:
                return
        tally = self._tally
        if version.seen is not None and self._sent is not None:
            tally.waited(clock() - version.seen)
        tally.messages += len(messages)
        self._sent = state
