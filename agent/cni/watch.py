"""Keeps shim and entry in place: looks when inotify says so, and every few seconds as the net under it.

The watch begins before the look, so that nothing comes between the two. Events carry no data: each look
reads everything afresh and compares it as JSON, so our own writes lead to one more look, and to nothing else.

* A file that is half written, or away for a moment, is given SETTLING to be whole again.
* What was ours and is gone is put back at once; when that happens too often, at growing intervals.
* One process of a node does this, so that during an upgrade two versions with two settings do not undo each
  other's work: the next one looks on until the one before it has ended.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from agent.cni.contest import Contest
from agent.cni.events import Events
from agent.cni.install import CannotInstallError, Inspection, Installer, Outcome
from agent.core.chain import TYPE
from agent.core.lifecycle import retry_in
from agent.core.reasons import MEANINGS, Reason

PERIOD = 3.0
"""Seconds between two looks without an event."""
ABSENT_PERIOD = 0.25
"""The same while the directory is missing, whose arrival is no event."""
SETTLING = 0.4
REST = 0.02
"""Seconds between two looks, however many events there are."""
LAST_RETRY = 5.0
TENANCY_RETRY = 0.1

log = structlog.get_logger("cni")

T = TypeVar("T")
Words = tuple[Reason, str]


class Watch:
    """One node's watch. `tell` is called on the loop with each reason to report, once per change.

    `inspection` is the last look, None before the first. `left`: it was told to leave, and did.
    """

    def __init__(self, installer: Installer, tell: Callable[[Reason, str], object]) -> None:
        self.inspection: Inspection | None = None
        self.writer = False
        self.left = False
        self._installer = installer
        self._tell = tell
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        self._standing = Standing(self._say)
        self._contest = Contest()
        self._stood: Inspection | None = None
        self._file: str | None = None
        self._candidate: tuple[str, float] = ("", 0.0)
        self._failures = 0
        self._look_due = 0.0

    async def run(self) -> None:
        """Until it is cancelled. Everything stays in place then."""
        while True:
            try:
                with self._installer.tenancy() as mine:
                    if mine:
                        await self._keep()
                    await self._look_on()
            except CannotInstallError as error:
                self._standing.update({(Reason.CNI_UNWRITABLE, str(error))})
            await asyncio.sleep(TENANCY_RETRY)

    async def leave(self) -> tuple[str, ...]:
        """Take shim and entry out, and put nothing back until this process has ended; what comes then may.
        Paths of what was written or removed. CannotInstallError, after which everything is kept as before."""
        async with self._turn:
            if not self.writer:
                raise CannotInstallError(
                    f"cannot leave the CNI configuration in {self._installer.settings.conf_dir}: another "
                    "process keeps it; end that one, and try again"
                )
            outcome = await _in_thread(self._installer.remove)
            self.left, self.inspection = True, outcome.inspection
        log.info("left the CNI configuration", files=list(outcome.written))
        return outcome.written

    async def _look_on(self) -> None:
        """Another process keeps this node; for the state, and for readiness, it is enough to know."""
        if self.inspection is None:
            log.info("another process keeps the CNI configuration; looking on until it ends")
        if time.monotonic() >= self._look_due:
            self._look_due = time.monotonic() + PERIOD
            self.inspection = await _in_thread(self._installer.inspect)

    async def _keep(self) -> None:
        self.writer = True
        settings = self._installer.settings
        events = Events((settings.conf_dir, settings.bin_dir), self._woken.set)
        try:
            while True:
                self._woken.clear()
                events.renew()
                rest, period = await self._round(events.fault)
                await asyncio.sleep(rest)
                await self._woken_within(period)
        finally:
            self.writer = False
            events.close()

    async def _woken_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _round(self, fault: str) -> tuple[float, float]:
        """One look and what it takes. Seconds to rest whatever happens, and then to wait for an event."""
        began = time.monotonic()
        complaints = {(Reason.CNI_UNWRITABLE, fault)} if fault else set()
        try:
            async with self._turn:
                rest, period = await self._look(began)
            self._failures = 0
        except CannotInstallError as error:
            # An attempt is an event of its own, so that it must not be woken by it.
            self._failures += 1
            rest, period = retry_in(self._failures, LAST_RETRY), 0.0
            complaints.add((Reason.CNI_UNWRITABLE, str(error)))
        if self.inspection is not None:
            complaints |= _complaints(self.inspection)
        due = self._standing.update(complaints)
        busy = time.monotonic() - began
        return max(rest, REST, 5 * busy), min(period, due)

    async def _look(self, now: float) -> tuple[float, float]:
        found = self.inspection = await _in_thread(self._installer.inspect)
        period = PERIOD if self._installer.settings.conf_dir.is_dir() else ABSENT_PERIOD
        if self.left:
            return 0.0, period
        self._calm(now)
        if (wait := self._unsettled(found, now)) > 0:
            return 0.0, wait
        if found.right:
            self._stood = found if found.file else self._stood
            return 0.0, period
        if (pause := self._contest.pause(now)) > 0:
            return pause, 0.0
        outcome = await _in_thread(self._installer.install, found.file)
        self.inspection = outcome.inspection
        if outcome.written:
            self._report(found, outcome)
        return 0.0, period if outcome.inspection.right else SETTLING

    def _unsettled(self, found: Inspection, now: float) -> float:
        """Seconds for which the runtime's choice may still change back: its file is being written, or put in
        the place of one that was moved away."""
        if found.file == self._file:
            self._candidate = (found.file, now)
            return 0.0
        if self._candidate[0] != found.file or not self._candidate[1]:
            self._candidate = (found.file, now)
        left = self._candidate[1] + SETTLING - now
        if left > 0 and (self._file or found.broken):
            return left
        self._file = found.file
        return 0.0

    def _report(self, before: Inspection, outcome: Outcome) -> None:
        """Something was written: why, and how often of late?"""
        written, stood = list(outcome.written), self._stood
        if outcome.inspection.file:
            self._stood = outcome.inspection
        if stood is None:
            log.info(
                "installed in the CNI configuration", files=written, chain=list(outcome.inspection.chain)
            )
            return
        now, contested = time.monotonic(), self._contest.rounds > 0
        self._contest = self._contest.wrote(now)
        where = f"{before.conf_dir}/{outcome.inspection.holder}"
        if before.shim != "current":
            self._say(
                Reason.CNI_OVERWRITTEN, f"the shim {before.bin_dir}/{TYPE} was changed or removed; it is back"
            )
        if before.file != stood.file or before.follows:
            log.info("followed a change of the CNI configuration", files=written, file=before.file)
        elif not before.current:
            self._say(Reason.CNI_OVERWRITTEN, f"our entry in {where} was overwritten; it is back")
        if self._contest.rounds and not contested:
            message = (
                f"our entry in {where} is overwritten again and again; it is put back at growing intervals"
            )
            self._say(Reason.CNI_CONTESTED, message)

    def _calm(self, now: float) -> None:
        contested = self._contest.rounds > 0
        self._contest = self._contest.calmed(now)
        if contested and not self._contest.rounds:
            log.info("the CNI configuration is no longer contested")

    def _say(self, reason: Reason, message: str) -> None:
        log.warning("CNI configuration", reason=reason.value, message=message, remedy=MEANINGS[reason].remedy)
        self._tell(reason, message)


class Standing:
    """Complaints that stand: each is said once when it has lasted for SETTLING, and its end is logged."""

    def __init__(self, say: Callable[[Reason, str], None]) -> None:
        self._say = say
        self._since: dict[Words, float] = {}
        self._said: set[Words] = set()

    def update(self, found: set[Words]) -> float:
        """Take up what is found now. Seconds until one of it is due, infinite when none is."""
        now = time.monotonic()
        for words in self._said - found:
            log.info("CNI configuration settled", reason=words[0].value, message=words[1])
        self._since = {words: self._since.get(words, now) for words in found}
        self._said &= found
        for words, since in sorted(self._since.items()):
            if words not in self._said and now - since >= SETTLING:
                self._said.add(words)
                self._say(*words)
        waiting = (since for words, since in self._since.items() if words not in self._said)
        return min((since + SETTLING - now for since in waiting), default=float("inf"))


def _complaints(found: Inspection) -> set[Words]:
    """What a person should know of the node's configuration, beside our entry."""
    words = {
        (Reason.CNI_BROKEN, f"cannot use {found.conf_dir}/{fault.file}: {fault.why}; left as it is")
        for fault in found.broken
    }
    if not found.file and not found.broken:
        words.add((Reason.CNI_MISSING, f"no CNI configuration is in {found.conf_dir} yet"))
    for name in found.neighbours:
        words.add((Reason.CNI_NEIGHBOUR, f"{name} is in the chain of {found.conf_dir}/{found.file} as well"))
    return words


async def _in_thread(work: Callable[..., T], *arguments: str) -> T:
    """Disks may stand still for seconds. What has begun is waited for, also when this is cancelled: the next
    process must not come between its steps."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
