"""Topics: each question that is asked has one answer, made once, however many streams ask it.

An event names the subjects that it touches; the topics that depend on one of them are made anew, and their
streams are woken when the answer is another one. Work per event is bounded by the topics that it touches.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import structlog

from agent.core.discovery.answers import Address, Ended, Endpoints, Lack, Profile, Subject, Twofold
from agent.core.discovery.config import Discovery
from agent.core.discovery.targets import Client, Invalid, Target, parse_authority
from agent.destination.address import Encoder
from agent.destination.budget import Budget
from agent.destination.encode import snapshot
from agent.destination.metrics import Code, Holdings, Method, Metrics
from agent.destination.profile import encode_profile
from agent.destination.stream import Call, Stream
from agent.destination.topic import Over, Question, State, Topic, Version

SLICE = 0.005
"""Seconds of work on topics before the event loop does other things, for as long again."""
LONGEST_REST = 0.05

log = structlog.get_logger("destination")


class Resolver(Protocol):
    """Who knows the answers, and the subjects on which each depends. Both raise Invalid."""

    @property
    def config(self) -> Discovery: ...

    def get(
        self, target: Target, client: Client
    ) -> tuple[Endpoints | Ended | Twofold, frozenset[Subject]]: ...

    def profile(
        self, target: Target, client: Client
    ) -> tuple[Profile | Ended | Twofold, frozenset[Subject]]: ...


class Hub:
    """The topics of all open streams. Until `open`, every call is held. To be used on the event loop."""

    def __init__(self, resolver: Resolver, metrics: Metrics) -> None:
        self._resolver = resolver
        self._metrics = metrics
        self._encoder = Encoder()
        self._loop = asyncio.get_running_loop()
        self._opened = False
        self._topics: dict[Question, Topic] = {}
        self._about: dict[Subject, set[Topic]] = {}
        self._stale: dict[Topic, float | None] = {}
        self._timer: asyncio.Handle | None = None
        self._rested = 0.0
        metrics.holdings = self._holdings

    def open(self) -> None:
        """All that answers are made of is listed: answer the calls that are held, and all that follow."""
        self._opened = True
        self._spoil(self._topics.values(), None)

    def refresh(self, touched: Iterable[Subject], seen: float | None = None) -> None:
        """Subjects whose answers may now be others, by an event that was seen at `seen` (loop's clock, None
        for now)."""
        moment = self._loop.time() if seen is None else seen
        for subject in touched:
            self._spoil(self._about.get(subject, ()), moment)

    def refresh_all(self) -> None:
        """The settings are others, so that any answer may be."""
        self._spoil(self._topics.values(), self._loop.time())

    def lacking(self) -> frozenset[Lack]:
        """What open streams wait for."""
        return frozenset().union(*(topic.lacking for topic in self._topics.values()))

    def subscribe(self, method: Method, path: str, client: Client, call: Call, budget: Budget) -> Stream:
        """A stream of answers to `call`, to be run. CallEnded when there is no answer, and never can be."""
        asker = Client(node=client.node) if method is Method.GET else Client(namespace=client.namespace)
        question = Question(method, path, asker)
        topic = self._topics.get(question)
        if topic is None:
            topic = Topic(question)
            if self._opened:
                self._make(topic, None)
                topic.version.state(None)
            self._topics[question] = topic
            self._note(topic, frozenset())
        elif topic in self._stale:
            # The picture has moved on already: a new client is not told what is no longer so.
            self._refresh(topic, self._stale.pop(topic))
        stream = Stream(topic, self._metrics.tallies[method], call, budget, self._unsubscribe)
        topic.streams.add(stream)
        return stream

    def _unsubscribe(self, stream: Stream) -> None:
        """A stream follows no more. The topic goes with its last one."""
        stream.topic.streams.discard(stream)
        if not stream.topic.streams:
            self._forget(stream.topic)

    def _forget(self, topic: Topic) -> None:
        self._stale.pop(topic, None)
        if self._topics.get(topic.question) is topic:
            del self._topics[topic.question]
        before, topic.subjects = topic.subjects, frozenset()
        self._note(topic, before)

    def _note(self, topic: Topic, before: frozenset[Subject]) -> None:
        """Index the topic under its subjects instead of those `before`."""
        for subject in before - topic.subjects:
            about = self._about.get(subject)
            if about is not None:
                about.discard(topic)
                if not about:
                    del self._about[subject]
        for subject in topic.subjects - before:
            self._about.setdefault(subject, set()).add(topic)

    def _spoil(self, topics: Iterable[Topic], seen: float | None) -> None:
        if not self._opened:
            return
        for topic in topics:
            self._stale.setdefault(topic, seen)
        if self._stale and self._timer is None:
            self._timer = self._loop.call_at(max(self._rested, self._loop.time()), self._work)

    def _work(self) -> None:
        self._timer = None
        began = now = self._loop.time()
        while self._stale and now - began < SLICE:
            topic = next(iter(self._stale))
            self._refresh(topic, self._stale.pop(topic))
            now = self._loop.time()
        # Events and streams get at least as much of the loop as this.
        self._rested = now + min(now - began, LONGEST_REST)
        if self._stale:
            self._timer = self._loop.call_at(self._rested, self._work)

    def _refresh(self, topic: Topic, seen: float | None) -> None:
        before = topic.subjects
        self._make(topic, seen)
        self._note(topic, before)
        if topic.version.over:
            # Streams that come now ask anew; those that are here end.
            self._forget(topic)

    def _make(self, topic: Topic, seen: float | None) -> None:
        """Have the topic hold the answer as it is now."""
        method = topic.question.method
        try:
            version = self._version(topic, seen)
        except Invalid as error:
            over = Over(str(error), Code.INVALID_ARGUMENT)
            version = Version(over, over)
        except Exception:
            # One answer that cannot be made takes no other down; who had an answer keeps it.
            log.exception("cannot answer", method=method.value, path=topic.question.path)
            self._metrics.failures.inc()
            if topic.version.later is not None:
                return
            version = Version(Over("cannot answer: a fault of pointsman", Code.INTERNAL))
        if not topic.publish(version):
            self._metrics.tallies[method].suppressed += 1

    def _version(self, topic: Topic, seen: float | None) -> Version:
        answer = self._ask(topic)
        if not isinstance(answer, Twofold):
            topic.lacking = frozenset()
            state = self._state(answer)
            return Version(state, state, seen, _withheld(answer))
        topic.lacking = answer.lacking
        first = self._state(answer.first)
        later = first if answer.later is answer.first else self._state(answer.later)
        return Version(first, later, seen, _withheld(answer.later or answer.first))

    def _ask(self, topic: Topic) -> Endpoints | Profile | Ended | Twofold:
        question = topic.question
        target = parse_authority(question.path, self._resolver.config.cluster_domain)
        ask = self._resolver.get if question.method is Method.GET else self._resolver.profile
        answer, topic.subjects = ask(target, question.client)
        return answer

    def _state(self, answer: Endpoints | Profile | Ended | None) -> State | Over | None:
        http2 = self._resolver.config.http2
        match answer:
            case Endpoints():
                self._encoder.use(http2)
                return snapshot(self._encoder, answer)
            case Profile():
                return encode_profile(answer, http2)
            case Ended(reason=reason, code=code):
                return Over(reason, Code[code])
            case None:
                return None

    def _holdings(self) -> Holdings:
        """Called by any thread: topics are copied at once, and what they hold is immutable."""
        kept = list(self._topics.items())
        topics, withheld = Counter({method.value: 0 for method in Method}), Counter[str]()
        for question, topic in kept:
            topics[question.method.value] += 1
            withheld.update(topic.version.withheld)
        return Holdings(topics, withheld, self._encoder.count)


def _withheld(answer: Endpoints | Profile | Ended | None) -> tuple[str, ...]:
    match answer:
        case Endpoints(addresses=addresses):
            return tuple(each.withheld for each in addresses if each.withheld)
        case Profile(endpoint=Address(withheld=withheld)) if withheld:
            return (withheld,)
        case _:
            return ()
