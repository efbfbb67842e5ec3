"""What is asked by any number of streams: its present version, and the messages that lead to it."""

from typing import Protocol

import msgspec

from agent.core.discovery.answers import Lack, Subject
from agent.core.discovery.targets import Client
from agent.destination.encode import Snapshot, difference
from agent.destination.metrics import Code, Method

KEPT = 32
"""Differences to one version that are kept; streams that fell behind may each want another."""


class CallEnded(Exception):  # noqa: N818
    """The call is over, with this status. The message is for people."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Question(msgspec.Struct, frozen=True):
    """What is asked. Of the client, only what the answer depends on: its node for Get, its namespace for
    GetProfile."""

    method: Method
    path: str
    client: Client


class Over(msgspec.Struct, frozen=True):
    """There is no answer: the call ends with `code`, if it has had no message, else with UNAVAILABLE."""

    reason: str
    code: Code


State = Snapshot | bytes
"""What clients are brought to: a Get's set of endpoints, or a profile's message."""


class Version(msgspec.Struct, frozen=True, eq=False):
    """An answer of a topic; immutable, and shared by its streams.

    `first` is for a client that has had no message; None: its call is held. `later` is for one that has had
    any; None: it keeps what it has. `seen`: when the event behind it was seen (the loop's clock), None when
    there was none. `withheld`: for each address without the identity that it should have, the reason.
    """

    first: State | Over | None = None
    later: State | Over | None = None
    seen: float | None = None
    withheld: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Every stream ends."""
        return isinstance(self.first, Over) and isinstance(self.later, Over)

    def state(self, sent: State | None) -> State | None:
        """Where a client is brought to that was sent `sent` (None: nothing); None when it stays there.
        CallEnded when there is nothing to be told any more."""
        state = self.first if sent is None else self.later
        if isinstance(state, Over):
            raise CallEnded(state.code if sent is None else Code.UNAVAILABLE, state.reason)
        return state


class Waiting(Protocol):
    """A stream, as its topic sees it."""

    def wake(self) -> None: ...


class Topic:
    """A question with its streams. `subjects`: what the answer depends on; `lacking`: what it waits for."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.subjects: frozenset[Subject] = frozenset()
        self.lacking: frozenset[Lack] = frozenset()
        self.version = Version()
        self.streams: set[Waiting] = set()
        # Keyed by what a client was sent.
        self._messages: dict[State | None, tuple[bytes, ...]] = {}

    def publish(self, version: Version) -> bool:
        """Make `version` the present one and wake the streams. False when it says nothing new."""
        before = self.version
        if _same(before.first, version.first) and _same(before.later, version.later):
            return False
        self.version = version
        self._messages.clear()
        for stream in self.streams:
            stream.wake()
        return True

    def messages(self, sent: State | None, state: State) -> tuple[bytes, ...]:
        """What brings a client from `sent` (None: nothing) to `state` of the present version; made once for
        all that are alike."""
        known = self._messages.get(sent)
        if known is None:
            if len(self._messages) >= KEPT:
                self._messages.clear()
            known = self._messages[sent] = between(sent, state)
        return known


def between(sent: State | None, state: State) -> tuple[bytes, ...]:
    """The messages that bring a client from one state to another; none when they are alike."""
    if isinstance(state, Snapshot):
        return difference(sent if isinstance(sent, Snapshot) else None, state)
    return () if sent == state else (state,)


def _same(before: State | Over | None, now: State | Over | None) -> bool:
    if isinstance(before, Snapshot | bytes) and isinstance(now, Snapshot | bytes):
        return not between(before, now)
    return before == now
