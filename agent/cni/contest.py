"""How often our entry is fought over, and what that may cost the node: a bounded number of writes."""

import msgspec

BURST, WINDOW = 5, 10.0
"""So many times in so many seconds it is put back at once."""
FIRST_PAUSE, LAST_PAUSE = 1.0, 30.0
QUIET = 60.0
"""Seconds without a write after which a contest is over. Longer than any pause."""


class Contest(msgspec.Struct, frozen=True):
    """`writes`: when it was put back of late. `rounds`: of a contest, 0 when there is none."""

    writes: tuple[float, ...] = ()
    rounds: int = 0

    def wrote(self, now: float) -> "Contest":
        """After our entry was put back."""
        recent = (*(at for at in self.writes if now - at < WINDOW), now)
        contested = self.rounds > 0 or len(recent) > BURST
        return Contest(recent, self.rounds + contested)

    def pause(self, now: float) -> float:
        """Seconds until it may be put back again."""
        if not self.rounds:
            return 0.0
        pause = min(FIRST_PAUSE * 2.0 ** min(self.rounds - 1, 10), LAST_PAUSE)
        return max(0.0, self.writes[-1] + pause - now)

    def calmed(self, now: float) -> "Contest":
        """Without a contest that is over."""
        return Contest() if self.writes and now - self.writes[-1] > QUIET else self
