"""Topics and streams, with calls that write to a list: no gRPC, so every turn of the loop is the test's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from agent.core.discovery.answers import Ended, Endpoints, Lack, Profile, RetryBudget, Subject, Twofold
from agent.core.discovery.targets import Client, Invalid
from agent.destination.budget import Budget, Limits
from agent.destination.hub import Hub
from agent.destination.metrics import Code, Method, Metrics
from agent.destination.proto.destination_pb2 import Update
from agent.destination.topic import CallEnded
from tests.destination.stage import Answers, address, endpoints, path
from tests.destination.test_encode import kinds, play

DEFAULT = Profile(name="web", retry_budget=RetryBudget())
GOOD = Profile(name="web", retry_budget=RetryBudget(0.5))


class Written:
    """A call whose client reads when it is let: `gate` closed is a client that does not."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.task: asyncio.Task[Any] | None = None

    async def write(self, message: bytes) -> None:
        await self.gate.wait()
        self.messages.append(message)

    async def end(self, code: Code, text: str) -> None:
        raise AssertionError(f"a stream tells nobody how it ends, its audience does: {code}, {text}")


class Room:
    """A hub, its answers, and calls."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.answers = Answers()
        self.hub = self.answers.hub = Hub(self.answers, self.metrics)
        self.budget = Budget(limits or Limits(), self.metrics)
        self.tasks: set[asyncio.Task[Any]] = set()

    def ask(
        self, question: str, method: Method = Method.GET, *, client: Client | None = None, gate: bool = True
    ) -> Written:
        call = Written()
        if not gate:
            call.gate.clear()
        stream = self.hub.subscribe(method, question, client or Client(), call, self.budget)
        self.budget.streams.add(stream)
        call.task = asyncio.ensure_future(stream.run())
        call.task.add_done_callback(lambda _: self.budget.leave(stream))
        self.tasks.add(call.task)
        return call

    async def cancel(self, *calls: Written) -> None:
        for call in calls:
            assert call.task is not None
            call.task.cancel()
        await asyncio.gather(*(call.task for call in calls if call.task), return_exceptions=True)


@pytest_asyncio.fixture(loop_scope="package")
async def room() -> AsyncIterator[Room]:
    made = Room()
    made.hub.open()
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(3):
        await asyncio.sleep(0.01)


async def ended(call: Written) -> tuple[Code, str]:
    assert call.task is not None
    with pytest.raises(CallEnded) as caught:
        await asyncio.wait_for(call.task, 1)
    return caught.value.code, str(caught.value)


async def test_equal_answers_are_sent_once(room: Room) -> None:
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    call = room.ask(path("web"))
    await settle()
    for _ in range(20):
        room.answers.tell(Method.GET, "web", endpoints(address(1)))
        await settle()
    assert len(call.messages) == 1
    assert room.metrics.tallies[Method.GET].suppressed == 20


async def test_one_answer_is_made_for_all_that_ask_the_same(room: Room) -> None:
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    calls = [room.ask(path("web"), client=Client("shop", "n1", f"pod-{n}")) for n in range(100)]
    await settle()
    assert room.answers.asked == 1
    room.answers.tell(Method.GET, "web", endpoints(address(2)))
    await settle()
    assert room.answers.asked == 2
    assert all(call.messages[1] is calls[0].messages[1] for call in calls)


async def test_the_client_counts_where_the_answer_depends_on_it(room: Room) -> None:
    room.answers.tell(Method.GET, "web", lambda client: endpoints(address(int(client.node[1:]))))
    room.answers.tell(Method.PROFILE, "web", lambda client: Profile(name=client.namespace))
    gets = [room.ask(path("web"), client=Client("x", node)) for node in ("n1", "n2")]
    profiles = [room.ask(path("web"), Method.PROFILE, client=Client(ns, "n1")) for ns in ("a", "b", "b")]
    await settle()
    assert gets[0].messages != gets[1].messages
    assert profiles[0].messages != profiles[1].messages
    assert profiles[1].messages == profiles[2].messages
    assert room.answers.asked == 4


async def test_a_burst_is_one_message(room: Room) -> None:
    room.answers.tell(Method.GET, "web", endpoints(address(0)))
    call = room.ask(path("web"))
    await settle()
    for number in range(1, 100):
        room.answers.tell(Method.GET, "web", endpoints(address(number)))
    await settle()
    assert kinds(tuple(call.messages)) == ["add", "add", "remove"]


async def test_what_came_and_went_while_a_client_slept_is_never_sent(room: Room) -> None:
    room.answers.tell(Method.GET, "web", endpoints(address(0)))
    slow = room.ask(path("web"))
    await settle()
    slow.gate.clear()
    for number in (1, 2, 3, 0):
        room.answers.tell(Method.GET, "web", endpoints(address(number)))
        await settle()
    slow.gate.set()
    await settle()
    # It was at the message for 1 when it fell asleep; back at 0, it is brought there from 1.
    assert play(None, tuple(slow.messages)) == play(None, tuple(slow.messages[:1]))
    assert len(slow.messages) == 5


async def test_m06_held_until_all_is_listed() -> None:
    room = Room()
    calls = [room.ask(path("web")), room.ask("nonsense"), room.ask("10.1.1.1:80", Method.PROFILE)]
    await settle()
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    await settle()
    assert not any(call.messages for call in calls)
    assert room.answers.asked == 0
    room.hub.open()
    await settle()
    assert kinds(tuple(calls[0].messages)) == ["add"]
    assert (await ended(calls[1]))[0] is Code.INVALID_ARGUMENT
    assert calls[2].messages == [b""]
    await room.cancel(calls[0], calls[2])


async def test_held_until_nothing_lacks(room: Room) -> None:
    lack = frozenset({Lack("pod", "web-0", "shop")})
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    old = room.ask(path("web"))
    await settle()
    room.answers.tell(Method.GET, "web", Twofold(None, endpoints(address(1), address(2)), lack))
    await settle()
    assert room.hub.lacking() == lack
    new = room.ask(path("web"))
    await settle()
    assert kinds(tuple(old.messages)) == ["add", "add"]
    assert new.messages == []
    room.answers.tell(Method.GET, "web", endpoints(address(1), address(2), address(3)))
    await settle()
    assert [len(Update.FromString(m).add.addrs) for m in old.messages] == [1, 1, 1]
    assert [len(Update.FromString(m).add.addrs) for m in new.messages] == [3]
    assert room.hub.lacking() == frozenset()


async def test_an_unreadable_profile_changes_nothing_for_who_has_one(room: Room) -> None:
    room.answers.tell(Method.PROFILE, "web", GOOD)
    old = room.ask(path("web"), Method.PROFILE)
    await settle()
    room.answers.tell(Method.PROFILE, "web", Twofold(DEFAULT, None))
    await settle()
    new = room.ask(path("web"), Method.PROFILE)
    await settle()
    assert (len(old.messages), len(new.messages)) == (1, 1)
    assert old.messages != new.messages
    room.answers.tell(Method.PROFILE, "web", GOOD)
    await settle()
    assert (len(old.messages), len(new.messages)) == (1, 2)
    assert new.messages[1] == old.messages[0]


async def test_a_final_answer_is_final_for_a_new_call_only(room: Room) -> None:
    over = Ended("it is an ExternalName", "FAILED_PRECONDITION")
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    old = room.ask(path("web"))
    await settle()
    room.answers.tell(Method.GET, "web", over)
    assert await ended(old) == (Code.UNAVAILABLE, "it is an ExternalName")
    with pytest.raises(CallEnded, match="ExternalName") as caught:
        room.ask(path("web"))
    assert caught.value.code is Code.FAILED_PRECONDITION


async def test_an_answer_that_cannot_be_made_takes_no_other_down(room: Room) -> None:
    def broken(client: Client) -> Endpoints:
        raise ZeroDivisionError

    for name in ("web", "api"):
        room.answers.tell(Method.GET, name, endpoints(address(1)))
    web, api = room.ask(path("web")), room.ask(path("api"))
    await settle()
    room.answers.tell(Method.GET, "web", broken)
    room.answers.tell(Method.GET, "api", endpoints(address(2)))
    async with asyncio.timeout(5):  # a traceback is logged, which takes its time
        while len(api.messages) < 3:
            await asyncio.sleep(0.01)
    assert (len(web.messages), len(api.messages)) == (1, 3)
    with pytest.raises(CallEnded) as caught:
        room.ask(path(["other", "web"][1], 81))
    assert caught.value.code is Code.INTERNAL
    room.answers.tell(Method.GET, "web", endpoints(address(2)))
    await settle()
    assert len(web.messages) == 3
    assert room.registry.get_sample_value("pointsman_destination_failures_total") == 2


async def test_invalid_questions(room: Room) -> None:
    def invalid(client: Client) -> Endpoints:
        raise Invalid("cannot resolve it: an IP has no endpoints")

    room.answers.tell(Method.GET, "10.0.0.1", invalid)
    for question in ("10.0.0.1:80", "www.example.org:80", "web:x", "", "[::1", "a.b.c.d.svc.cluster.test:80"):
        with pytest.raises(CallEnded, match="cannot") as caught:
            room.ask(question)
        assert caught.value.code is Code.INVALID_ARGUMENT
    assert room.hub.lacking() == frozenset()


async def test_a_new_call_is_never_told_what_is_no_longer_so(room: Room) -> None:
    """It comes between the event and the work that the event is."""
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    room.ask(path("web"))
    await settle()
    room.answers.tell(Method.GET, "web", endpoints(address(2)))
    call = room.ask(path("web"))
    await settle()
    assert kinds(tuple(call.messages)) == ["add"]
    assert list(play(None, tuple(call.messages)) or {}) == ["10.1.0.2:8080"]


async def test_nothing_is_left_of_what_was_asked(room: Room) -> None:
    for round_ in range(20):
        calls = [
            room.ask(f"10.{n}.0.{round_}:80", Method.PROFILE) if n % 2 else room.ask(path(f"s{n}"))
            for n in range(200)
        ]
        room.answers.hub = room.hub
        await asyncio.sleep(0)
        await room.cancel(*calls)
    hub: Any = room.hub
    assert (hub._topics, hub._about, hub._stale) == ({}, {}, {})
    assert not room.budget.streams


async def test_a_cancelled_call_leaves_the_others_alone(room: Room) -> None:
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    calls = [room.ask(path("web")) for _ in range(3)]
    await settle()
    await room.cancel(calls[1])
    room.answers.tell(Method.GET, "web", endpoints(address(2)))
    await settle()
    assert [len(call.messages) for call in calls] == [3, 1, 3]


async def test_work_goes_by_what_is_touched(room: Room) -> None:
    for n in range(1000):
        room.ask(path(f"s{n}"))
    await settle()
    asked = room.answers.asked
    room.hub.refresh({Subject("service", "s7"), Subject("service", "nobody")})
    await settle()
    assert room.answers.asked == asked + 1
    room.hub.refresh_all()
    await asyncio.sleep(0.5)
    assert room.answers.asked == asked + 1001


async def test_much_work_is_done_in_slices(room: Room) -> None:
    def slow(client: Client) -> Endpoints:
        end = loop.time() + 0.001
        while loop.time() < end:
            pass
        return endpoints(address(1))

    loop = asyncio.get_running_loop()
    for n in range(200):
        room.answers.tell(Method.GET, f"s{n}", slow)
        room.ask(path(f"s{n}"))
        await asyncio.sleep(0)
    room.hub.refresh_all()
    turns = 0
    async with asyncio.timeout(20):
        while room.answers.asked < 400:
            await asyncio.sleep(0)
            turns += 1
    # 200 answers of a millisecond, in slices of a few: others have had their turns in between.
    assert turns >= 20
    assert room.answers.asked == 400


async def test_streams_are_budgeted() -> None:
    room = Room(Limits(streams=2))
    room.hub.open()
    calls = [room.ask(path("web")) for _ in range(2)]
    await settle()
    with pytest.raises(CallEnded, match="cannot take more than 2 streams") as caught:
        room.budget.check()
    assert caught.value.code is Code.UNAVAILABLE
    await room.cancel(calls[0])
    room.budget.check()
    await room.cancel(calls[1])


async def test_bytes_under_way_are_budgeted() -> None:
    """A thousand clients that do not read are as one."""
    room = Room(Limits(bytes=3000))
    room.hub.open()
    room.answers.tell(Method.GET, "web", endpoints(*map(address, range(50))))
    calls = [room.ask(path("web"), gate=False) for _ in range(1000)]
    await settle()
    size = room.budget.bytes
    assert 0 < size <= 3000
    started = [call for call in calls if room.budget.bytes]
    for call in started:
        call.gate.set()
    await settle()
    assert all(len(call.messages) == 1 for call in calls)
    assert room.budget.bytes == 0
    await room.cancel(*calls)


async def test_one_that_waits_for_room_may_go() -> None:
    room = Room(Limits(bytes=3000))
    room.hub.open()
    room.answers.tell(Method.GET, "web", endpoints(*map(address, range(50))))
    calls = [room.ask(path("web"), gate=False) for _ in range(100)]
    await settle()
    await room.cancel(*calls[1:99])
    calls[0].gate.set()
    calls[99].gate.set()
    await settle()
    assert len(calls[99].messages) == 1
    assert len(calls[0].messages) == 1
    await room.cancel(calls[0], calls[99])
    assert room.budget.bytes == 0


async def test_a_message_larger_than_the_budget_is_written_alone() -> None:
    room = Room(Limits(bytes=10))
    room.hub.open()
    room.answers.tell(Method.GET, "web", endpoints(*map(address, range(50))))
    calls = [room.ask(path("web")) for _ in range(10)]
    await settle()
    assert all(len(call.messages) == 1 for call in calls)
    await room.cancel(*calls)


async def test_a_client_that_does_not_read_is_given_up_in_time() -> None:
    room = Room(Limits(write_timeout=0.2))
    room.hub.open()
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    good, bad, late = room.ask(path("web")), room.ask(path("web"), gate=False), room.ask(path("web"))
    await asyncio.sleep(0.1)
    late.gate.clear()
    room.answers.tell(Method.GET, "web", endpoints(address(2)))
    await asyncio.sleep(0.15)
    assert room.registry.get_sample_value("pointsman_destination_dropped_total") == 1
    late.gate.set()
    await asyncio.sleep(0.3)
    assert len(late.messages) == 3
    assert room.registry.get_sample_value("pointsman_destination_dropped_total") == 1
    # It is counted until it has read what was on its way, and then it is told.
    assert room.budget.bytes > 0
    assert bad.task is not None
    assert not bad.task.done()
    bad.gate.set()
    assert (await ended(bad)) == (Code.UNAVAILABLE, "cannot go on: the client has not read for too long")
    assert room.budget.bytes == 0
    assert len(bad.messages) == 1
    await room.cancel(good, late)


async def test_nothing_is_kept_for_a_stream_that_was_given_up() -> None:
    room = Room(Limits(write_timeout=0.1))
    room.hub.open()
    room.answers.tell(Method.GET, "web", endpoints(address(1)))
    call = room.ask(path("web"), gate=False)
    await asyncio.sleep(0.2)
    asked = room.answers.asked
    room.answers.tell(Method.GET, "web", endpoints(address(2)))
    await settle()
    assert room.answers.asked == asked
    await room.cancel(call)
    assert not room.budget.streams


Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["tell", "ask", "cancel", "stall", "resume", "turn", "end", "hold"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_every_view_ends_where_a_new_one_begins(plan: list[Step]) -> None:
    asyncio.run(_played(plan))


async def _played(plan: list[Step]) -> None:
    room = Room()
    room.hub.open()
    calls: list[Written] = []
    do: dict[str, Callable[[int], Any]] = {
        "tell": lambda n: room.answers.tell(Method.GET, "web", endpoints(*map(address, range(n, 2 * n)))),
        "hold": lambda n: room.answers.tell(
            Method.GET, "web", Twofold(None, endpoints(address(n)) if n % 2 else None)
        ),
        "end": lambda n: room.answers.tell(Method.GET, "web", Endpoints(bool(n % 2))),
        "ask": lambda _: calls.append(room.ask(path("web"))),
        "cancel": lambda n: [call.task.cancel() for call in calls[n : n + 1] if call.task],
        "stall": lambda n: [call.gate.clear() for call in calls[n : n + 1]],
        "resume": lambda n: [call.gate.set() for call in calls[n : n + 1]],
    }
    for step, number in plan:
        if step == "turn":
            await asyncio.sleep(0)
        else:
            do[step](number)
    room.answers.tell(Method.GET, "web", endpoints(address(9)))
    for call in calls:
        call.gate.set()
    await settle()
    for call in (call for call in calls if call.task and not call.task.done()):
        assert list(play(None, tuple(call.messages)) or {}) == ["10.1.0.9:8080"]
        assert all(one != other for one, other in zip(call.messages, call.messages[1:], strict=False))
    await room.cancel(*calls)
    assert room.budget.bytes == 0
    assert not room.budget.streams
