"""When to look at a pod's listeners and addresses, and what was seen last. No event tells of these."""

import asyncio

from agent.core.objects import Pod
from agent.core.reasons import Complaint, Reason
from agent.core.spec import RedirectSpec
from agent.node.hold import Hold
from agent.node.kernel import Kernel

FIRST = 2.0
"""Seconds from the first redirect to the first look: a proxy needs a moment to listen."""
HELD_PERIOD = 0.2
"""Seconds between two looks for a proxy for which outbound redirection is held back."""


class Lookout:
    """One pod's. `due`: loop time of the next look, None while there is nothing to look for."""

    def __init__(self, period: float) -> None:
        self.due: float | None = None
        self.complaints: tuple[Complaint, ...] = ()
        self.proxy_listened = False
        self._period = period

    def start(self, spec: RedirectSpec | None) -> None:
        """The pod is redirected: look soon, unless a look is due already."""
        if self.due is None:
            self._next(HELD_PERIOD if spec and spec.hold_outbound else FIRST)

    def hurry(self) -> None:
        """Somebody waits for a fresh look."""
        self._next(0)

    def stop(self) -> None:
        self.due, self.complaints, self.proxy_listened = None, (), False

    async def look(self, kernel: Kernel, hold: Hold, spec: RedirectSpec, pod: Pod, wait: int | None) -> bool:
        """Look if it is time; True when something is another than before. Raises what `survey` raises."""
        if self.due is None or asyncio.get_running_loop().time() < self.due:
            return False
        self._next(HELD_PERIOD if spec.hold_outbound else self._period)
        before = self.complaints
        self.complaints = await kernel.survey(hold, spec, pod.ips, wait)
        listens = not any(one.reason is Reason.PROXY_NOT_LISTENING for one in self.complaints)
        came = spec.hold_outbound and listens and not self.proxy_listened
        self.proxy_listened |= listens
        return came or self.complaints != before

    def _next(self, seconds: float) -> None:
        self.due = asyncio.get_running_loop().time() + seconds
