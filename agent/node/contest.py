"""How often one pod's nf_tables is fought over, and what that may cost the node.

Two budgets: of repairs, so that two programs that undo each other's work end as `Contested`, said once,
with repairs at a bounded rate; and of visits that foreign changes cause, so that a container that changes
its own tables thousands of times a second gets its share of the kernel lane and no more.
"""

import time

import msgspec

from agent.core.lifecycle import Budget, Finding, Redirection
from agent.core.reasons import Complaint, Phase, Reason

VISITS_BURST, VISITS_RATE = 200.0, 50.0


class Contest:
    """The budgets of one pod: `burst` repairs at once, then `rate` per second."""

    def __init__(self, burst: float, rate: float) -> None:
        now = time.monotonic()
        self._repairs = Budget.full(now, burst, rate)
        self._visits = Budget.full(now, VISITS_BURST, VISITS_RATE)
        self._contested = False

    def spend(self, drift: bool, foreign: bool) -> None:
        """Count a visit that repaired a drift, or that a foreign change caused."""
        now = time.monotonic()
        if drift:
            self._repairs = self._repairs.spend(now)
        if foreign:
            self._visits = self._visits.spend(now)

    def pause(self) -> float:
        """Seconds to wait before the next visit, however it is woken; 0 in daily life."""
        return self._visits.wait(time.monotonic())

    def exhausted(self) -> float:
        """Seconds until a repair is allowed again; 0 while there is budget. Above 0, it is a contest."""
        wait = self._repairs.wait(time.monotonic())
        self._contested |= wait > 0
        return wait

    def finding(self, status: Redirection, complaints: tuple[Complaint, ...]) -> Finding:
        """What is said of a pod whose repairs have to wait."""
        message = f"{status.culprit or 'another program'} changes the table in a loop; repairs are capped"
        if status.reason is Reason.CONTESTED:
            # A script that starts a program again and again has many names, and is said once.
            message = status.message
        return Finding(
            phase=Phase.FAILED,
            reason=Reason.CONTESTED,
            message=message,
            mode=status.mode,
            complaints=complaints,
        )

    def judge(self, finding: Finding, message: str) -> tuple[Finding, float | None]:
        """The finding as it is to be said, and when to look again (seconds) to say that it is over.

        A contest is over once half of the budget is back, so that the status does not flap."""
        repairs = self._repairs.filled(time.monotonic())
        missing = repairs.burst / 2 - repairs.tokens
        self._contested &= missing > 0
        if not self._contested:
            return finding, None
        contested = msgspec.structs.replace(
            finding, phase=Phase.FAILED, reason=Reason.CONTESTED, message=message
        )
        return contested, missing / repairs.per_second
