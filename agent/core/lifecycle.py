"""A pod's redirection as a small state machine: what a look found -> what to say, and when to look again.

Nothing here touches a kernel or a clock: `now` is seconds on any clock that only goes forward for
`since`, wall clock. The rules:

* a status changes only through `after`, so `since` moves exactly when phase or reason do;
* failure is retried for ever, with a capped backoff (`retry_in`), as long as the pod exists;
* repairs of a contested table are capped in rate (`Budget`), so that two programs that fight over
  one netns cost a bounded share of the node.
"""

import msgspec

from agent.core.reasons import Complaint, Phase, Reason

FIRST_RETRY = 0.05
LAST_RETRY = 30.0


class Redirection(msgspec.Struct, frozen=True, rename="camel"):
    """Status of one pod's redirection.

    `since`: wall clock (s) of the last change of phase or reason. `attempts`: failures in a row.
    `drifts`: times that the kernel was found changed by others. `culprit`: program and pid that the
    kernel named for the last foreign change, if it did. `how`: last thing done to the table.
    `install_ms`, `verify_ms`: wall time of the last commit, and of its read-back and comparison.
    `exposed_s`: how long the pod had run without rules, where that is known and they came late.
    """

    phase: Phase = Phase.PENDING
    reason: Reason = Reason.NOT_YET_SEEN
    message: str = ""
    since: float = 0.0
    attempts: int = 0
    drifts: int = 0
    foreign_changes: int = 0
    culprit: str = ""
    mode: str = ""
    how: str = ""
    install_ms: float | None = None
    verify_ms: float | None = None
    exposed_s: float | None = None
    differences: tuple[str, ...] = ()
    complaints: tuple[Complaint, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one visit came to. `drift`: others had changed the table since it was last right."""

    phase: Phase
    reason: Reason
    message: str = ""
    mode: str = ""
    how: str = ""
    drift: bool = False
    foreign_changes: int = 0
    culprit: str = ""
    install_ms: float | None = None
    verify_ms: float | None = None
    exposed_s: float | None = None
    differences: tuple[str, ...] = ()
    complaints: tuple[Complaint, ...] = ()


def after(before: Redirection, finding: Finding, now: float) -> Redirection:
    """The status after a visit. Numbers of a commit stay until the next commit."""
    same = (before.phase, before.reason) == (finding.phase, finding.reason)
    return Redirection(
        phase=finding.phase,
        reason=finding.reason,
        message=finding.message,
        since=before.since if same else now,
        attempts=before.attempts + 1 if finding.phase is Phase.FAILED else 0,
        drifts=before.drifts + finding.drift,
        foreign_changes=before.foreign_changes + finding.foreign_changes,
        culprit=finding.culprit or before.culprit,
        mode=finding.mode,
        how=finding.how or before.how,
        install_ms=before.install_ms if finding.install_ms is None else finding.install_ms,
        verify_ms=before.verify_ms if finding.verify_ms is None else finding.verify_ms,
        exposed_s=before.exposed_s if finding.exposed_s is None else finding.exposed_s,
        differences=finding.differences,
        complaints=finding.complaints,
    )


def retry_in(attempts: int, last: float = LAST_RETRY) -> float:
    """Seconds until the next try after `attempts` failures in a row: doubling, capped."""
    return float(min(FIRST_RETRY * 2.0 ** min(max(attempts, 1) - 1, 20), last))


class Budget(msgspec.Struct, frozen=True):
    """Token bucket for repairs of one pod: `burst` at once, then `per_second`."""

    tokens: float
    at: float
    burst: float = 100.0
    per_second: float = 5.0

    @staticmethod
    def full(now: float, burst: float = 100.0, per_second: float = 5.0) -> "Budget":
        return Budget(burst, now, burst, per_second)

    def filled(self, now: float) -> "Budget":
        tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.per_second)
        return msgspec.structs.replace(self, tokens=tokens, at=now)

    def spend(self, now: float) -> "Budget":
        filled = self.filled(now)
        return msgspec.structs.replace(filled, tokens=filled.tokens - 1)

    def wait(self, now: float) -> float:
        """Seconds until one repair is allowed; 0 when it is now."""
        missing = 1 - self.filled(now).tokens
        return max(0.0, missing / self.per_second)
