"""One open call: what its client has been sent, and what is still to be sent.

Level-triggered: a stream holds no queue. It remembers the version that its client was sent last, and is
woken when its topic has another. However many versions came and went while the client was slow, it is sent
the one difference that is left.
"""

import asyncio
from collections.abc import Awaitable, Callable

from agent.destination.metrics import Code, Tally
from agent.destination.topic import CallEnded, State, Topic, Version


class Stream:
    """An open call on a topic."""

    def __init__(self, topic: Topic, tally: Tally) -> None:
        self.topic = topic
        self._tally = tally
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

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what there is to be sent, for ever. Ends with CallEnded, or with what `write` raises."""
        topic, tally, loop = self.topic, self._tally, self._loop
        known: Version | None = None
        sent: State | None = None
        while True:
            version = topic.version
            if self._ending:
                raise CallEnded(Code.UNAVAILABLE, self._ending)
            if version is known:
                # A future of its own: that of a cancelled task is cancelled with it.
                self._sleep = loop.create_future()
                await self._sleep
                continue
            known = version
            state = version.state(sent)
            if state is None:
                continue
            messages = topic.messages(sent, state)
            for message in messages:
                await write(message)
            if messages:
                if version.seen is not None and sent is not None:
                    tally.waited(loop.time() - version.seen)
                tally.messages += len(messages)
                sent = state
