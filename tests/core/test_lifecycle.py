"""Status after a visit, retries, the budget of repairs, and totals that never go backwards."""

from hypothesis import given
from hypothesis import strategies as st

from agent.core.lifecycle import Budget, Finding, Redirection, after, retry_in
from agent.core.reasons import Phase, Reason
from agent.core.tally import Tally

FAILED = Finding(phase=Phase.FAILED, reason=Reason.COMMIT_REFUSED, message="no")
DONE = Finding(phase=Phase.APPLIED, reason=Reason.REDIRECTED, install_ms=0.3, how="installed")


def test_since_moves_with_the_reason_only() -> None:
    first = after(Redirection(), FAILED, 10.0)
    second = after(first, FAILED, 20.0)
    assert (first.since, second.since) == (10.0, 10.0)
    assert after(second, DONE, 30.0).since == 30.0


def test_attempts_count_failures_in_a_row() -> None:
    status = Redirection()
    for _ in range(3):
        status = after(status, FAILED, 1.0)
    assert status.attempts == 3
    assert after(status, DONE, 2.0).attempts == 0


def test_the_last_commit_stays_on_record_and_the_last_culprit_too() -> None:
    status = after(Redirection(), DONE, 1.0)
    drifted = Finding(
        phase=Phase.APPLIED, reason=Reason.REDIRECTED, drift=True, culprit="nft[7]", how="updated"
    )
    status = after(status, drifted, 2.0)
    quiet = after(status, Finding(phase=Phase.APPLIED, reason=Reason.REDIRECTED), 3.0)
    assert (quiet.drifts, quiet.culprit, quiet.install_ms, quiet.how) == (1, "nft[7]", 0.3, "updated")


@given(st.integers(0, 10_000), st.floats(0.1, 100))
def test_retry_is_monotone_and_capped(attempts: int, last: float) -> None:
    assert 0 < retry_in(attempts, last) <= last
    assert retry_in(attempts, last) <= retry_in(attempts + 1, last)


@given(st.lists(st.floats(0, 10), max_size=60))
def test_budget_never_allows_more_than_burst_and_rate(gaps: list[float]) -> None:
    now, budget, spent = 0.0, Budget.full(0.0, burst=5, per_second=2), 0
    for gap in gaps:
        now += gap
        if budget.wait(now) == 0:
            budget, spent = budget.spend(now), spent + 1
        assert spent <= 5 + 2 * now + 1e-6


def test_budget_says_how_long_to_wait() -> None:
    budget = Budget.full(0.0, burst=1, per_second=2).spend(0.0)
    assert budget.wait(0.0) == 0.5
    assert budget.wait(0.5) == 0


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["seen", "lost", "ended"]), st.integers(0, 9)))
)
def test_totals_never_decrease(steps: list[tuple[str, str, int]]) -> None:
    tally, last = Tally(), 0
    for uid, what, value in steps:
        if what == "ended":
            tally.ended(uid)
        elif what == "lost":
            tally.lost(uid, {"x": value})
        else:
            tally.seen(uid, {"x": value})
        now = tally.total().get("x", 0)
        assert now >= last
        last = now


def test_a_replacement_keeps_what_was_counted() -> None:
    tally = Tally()
    tally.seen("a", {"in": 5})
    tally.lost("a", {"in": 7})
    tally.seen("a", {"in": 2})
    tally.ended("a")
    assert tally.total() == {"in": 9}
