"""The flap guard: a failure counts once it has lasted, from its beginning on; all else at once."""

import asyncio

import pytest

from agent import flap_guard
from agent.core.lifecycle import Redirection
from agent.core.reasons import Phase, Reason
from agent.flap_guard import FlapGuard

GUARD = 0.2
FINE = Redirection(Phase.APPLIED, Reason.REDIRECTED)
DRAINING = Redirection(Phase.APPLIED, Reason.DRAINING)


def failing(attempts: int = 1, reason: Reason = Reason.COMMIT_REFUSED) -> Redirection:
    return Redirection(Phase.FAILED, reason, attempts=attempts)


class Told:
    """What the guard passes on: UID, reason, and whether it turned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flap_guard, "FLAP_GUARD", GUARD)
        self.all: list[tuple[str, Reason, bool]] = []
        self.guard = FlapGuard(lambda uid, status, turned: self.all.append((uid, status.reason, turned)))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


async def test_a_moment_is_nothing(told: Told) -> None:
    told.guard.seen("a", FINE)
    told.guard.seen("a", failing())
    await asyncio.sleep(GUARD / 2)
    told.guard.seen("a", FINE)
    await asyncio.sleep(GUARD * 2)
    assert told.all == [("a", Reason.REDIRECTED, False)] * 2


async def test_words_that_change_do_not_put_it_off(told: Told) -> None:
    for attempt in range(6):
        told.guard.seen("a", failing(attempt, Reason.OWNED_BY_ANOTHER if attempt else Reason.COMMIT_REFUSED))
        await asyncio.sleep(GUARD / 4)
    assert told.all[0] == ("a", Reason.OWNED_BY_ANOTHER, True)
    assert [turned for _, _, turned in told.all[1:]] == [False] * (len(told.all) - 1)


async def test_it_begins_anew_after_health(told: Told) -> None:
    for _ in range(4):
        told.guard.seen("a", failing())
        await asyncio.sleep(GUARD * 0.6)
        told.guard.seen("a", FINE)
    assert {reason for _, reason, _ in told.all} == {Reason.REDIRECTED}


async def test_health_and_purpose_are_passed_on_at_once(told: Told) -> None:
    told.guard.seen("a", DRAINING)
    told.guard.seen("a", FINE)
    assert told.all == [("a", Reason.DRAINING, True), ("a", Reason.REDIRECTED, True)]


async def test_a_failure_that_is_known_changes_its_reason_at_once(told: Told) -> None:
    told.guard.seen("a", failing())
    await asyncio.sleep(GUARD * 1.5)
    told.guard.seen("a", failing(2, Reason.UNVERIFIED))
    assert told.all == [("a", Reason.COMMIT_REFUSED, True), ("a", Reason.UNVERIFIED, False)]


async def test_each_pod_is_on_its_own(told: Told) -> None:
    told.guard.seen("a", failing())
    told.guard.seen("b", failing())
    told.guard.seen("a", FINE)
    await asyncio.sleep(GUARD * 1.5)
    assert told.all == [("a", Reason.REDIRECTED, False), ("b", Reason.COMMIT_REFUSED, True)]


async def test_of_pods_that_are_no_more_nothing_is_kept(told: Told) -> None:
    told.guard.seen("a", failing())
    told.guard.seen("b", failing())
    await asyncio.sleep(GUARD * 1.5)
    told.guard.seen("c", failing())
    told.all.clear()
    told.guard.retain({"b"})
    assert sorted(told.all) == [("a", Reason.NOT_YET_SEEN, True), ("c", Reason.NOT_YET_SEEN, False)]
    await asyncio.sleep(GUARD * 1.5)
    assert len(told.all) == 2


async def test_nothing_is_passed_on_after_the_end(told: Told) -> None:
    told.guard.seen("a", failing())
    told.guard.close()
    await asyncio.sleep(GUARD * 1.5)
    assert told.all == []
