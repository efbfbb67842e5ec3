"""The one owner of one pod's kernel state: a task that looks whenever it is woken, one visit at a time.

Being woken carries no data. A keeper works out afresh what should be, finds the netns, makes one
visit on a lane, says what came of it, and sleeps until the next wake or retry. It ends when the pod
has no object and its netns is gone. A pod that fails is retried for ever and delays nobody: between
visits it holds no thread.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from agent.core.lifecycle import FIRST_RETRY, Finding, Redirection, after, retry_in
from agent.core.names import PodKey
from agent.core.objects import Pod
from agent.core.plan import Goal, InitState, Plan
from agent.core.reasons import Complaint, Phase, Reason
from agent.core.ruleset import drain, element_count, render
from agent.core.spec import Derivation, RedirectSpec
from agent.core.tally import Counters
from agent.node.contest import Contest
from agent.node.duty import Duty
from agent.node.hold import NOWHERE, Hold
from agent.node.kernel import Kernel
from agent.node.leftovers import LegacyToolFailed, LegacyToolMissing
from agent.node.lookout import Lookout
from agent.node.netns import NetnsMissing
from agent.node.nft.channel import NftError
from agent.node.nft.datapath import OwnedByAnother
from agent.node.notes import Blocked, Changed, Closed, Note, Opened, Visited
from agent.node.outcome import failed, found, init_mismatch
from agent.node.visit import Order, Sight

PLACE_RETRY = 1.0
"""Longest wait between two looks for a netns that is not there, or for the end of another owner: a look
costs little, and no event tells of either."""
LAST_RETRY = 30.0
ORPHANED = "its object is gone and its network namespace is not; left as it is"


class CannotClean(Exception):  # noqa: N818
    """The leftovers of linkerd-init must stay: nothing of ours is verified that would redirect instead."""


class Keeper:
    """Keeps one pod UID. What others need to know of it goes through `tell`, called on the loop."""

    def __init__(self, uid: str, duty: Duty, kernel: Kernel, tell: Callable[["Keeper", Note], None]) -> None:
        self.uid = uid
        self.key = PodKey("", uid)
        self.derivation: Derivation | None = None
        self.spec: RedirectSpec | None = None
        self.status = Redirection(since=time.time())
        self.hold: Hold | None = None
        self._duty = duty
        self._kernel = kernel
        self._tell = tell
        self.busy = asyncio.Lock()
        """Held by whoever looks at the pod, or asks about it."""
        self._wanted = False
        self._stirred = asyncio.Event()
        self._changed = asyncio.Event()
        self._full = False
        self._misses = 0
        self._due: float | None = None
        self._lookout = Lookout(duty.policy.listener_period)
        self._contest = Contest(duty.policy.repair_burst, duty.policy.repair_rate)
        self._takeover = False
        self._clean_due = 0.0
        self._uncleaned: tuple[Complaint, ...] = ()
        self._around: tuple[Complaint, ...] = ()
        self._noted: tuple[Complaint, ...] = ()

    def wake(self, full: bool = False) -> None:
        """Look again soon. `full`: compare the table even if its generation has not moved."""
        self._full |= full
        self._wanted = True
        self._stirred.set()

    async def run(self) -> None:
        """Until the pod is no more. Cancel it to stop keeping: the kernel state stays as it is."""
        try:
            while True:
                async with self.busy:
                    if not await self._look():
                        return
                await self._sleep()
        finally:
            await self._let_go(last_words=False)

    async def look_now(self) -> Redirection:
        """One round now, for somebody who waits for it: the status that it came to."""
        async with self.busy:
            await self._look()
        self._stirred.set()
        return self.status

    async def changed(self) -> Redirection:
        """The next status that is another than the present one."""
        await self._changed.wait()
        return self.status

    async def compare(self) -> Sight | None:
        """What the kernel has now, compared in full, and nothing written; None while no netns is held."""
        async with self.busy:
            pod = self._duty.cluster.pod(self.uid)
            if self.hold is None or self.derivation is None or pod is None:
                return None
            planned = self._duty.plan(pod, self.derivation, self._takeover)
            order = msgspec.structs.replace(await self._order(planned), write=False, full=True)
            sight = await self._kernel.visit(self.hold, order, self._elements())
            # What it has seen is to be put right by a visit that may write.
            self.wake(full=True)
            return sight

    async def visit_now(self) -> None:
        """One full comparison now, with a survey if the pod is redirected, for somebody who waits for it."""
        async with self.busy:
            if self.status.reason is Reason.REDIRECTED:
                self._lookout.hurry()
            await self._look_closely()

    async def clean(self) -> tuple[str, ...]:
        """Remove linkerd-init's leftovers, once our own table is verified. Returns what was removed.

        Where its rules are complete and left alone, ours are installed first: from now on this pod is
        ours, as with the setting takeover. Raises CannotClean and what the kernel's `clean` raises.
        """
        async with self.busy:
            if not self._duty.writes:
                raise CannotClean(f"cannot clean up {self.key}: this agent does not write")
            self._takeover |= self.status.reason is Reason.IPTABLES
            await self._look_closely()
            if self.hold is None or self.status.reason is not Reason.REDIRECTED:
                reason, message = self.status.reason, self.status.message
                raise CannotClean(
                    f"cannot clean up {self.key}: it is not redirected by verified rules of ours ({reason}"
                    f"{f': {message}' if message else ''}); only then may linkerd-init's rules go"
                )
            removed = await self._kernel.clean(self.hold)
            # A legacy table changes without an event, so nothing else would wake us.
            await self._look_closely()
            return removed

    async def _look_closely(self) -> None:
        self._full = True
        await self._look()

    async def _sleep(self) -> None:
        """Until it is time to look, which a look by somebody else may have put off."""
        await asyncio.sleep(self._contest.pause())
        while not self._wanted:
            due = min((at for at in (self._due, self._lookout.due) if at is not None), default=None)
            try:
                async with asyncio.timeout_at(due):
                    await self._stirred.wait()
            except TimeoutError:
                break
            self._stirred.clear()
        self._wanted = False

    async def _look(self) -> bool:
        """One round. False when there is nothing left to keep."""
        self._due = None
        if self.hold is not None and self._ended(self.hold):
            await self._let_go()
            message = "its network namespace has ended"
            self._report(Finding(phase=Phase.EXCLUDED, reason=Reason.NETNS_GONE, message=message))
            self._due = _in(PLACE_RETRY)
        pod = self._duty.cluster.pod(self.uid)
        if pod is None:
            return self._orphan()
        self.key = pod.key
        self.derivation = self._duty.derive(pod)
        planned = self._duty.plan(pod, self.derivation, self._takeover)
        self.spec = self._spec_now(self.derivation, planned)
        try:
            await self._pursue(pod, planned)
            self._misses = 0
        except Exception as error:  # noqa: BLE001 - a pod that fails is retried, whatever it was
            self._fail(error)
        return True

    def _spec_now(self, derivation: Derivation, planned: Plan) -> RedirectSpec | None:
        """The pod's spec, with outbound held back while its proxy is still to come, if that is wished."""
        wished = planned.before_proxy and self._duty.policy.defaults.hold_before_proxy
        if derivation.spec is None or not wished or self._lookout.proxy_listened:
            return derivation.spec
        return msgspec.structs.replace(derivation.spec, hold_outbound=True)

    def _fail(self, error: Exception) -> None:
        gone = self.status.reason is Reason.NETNS_GONE and isinstance(error, NetnsMissing)
        if not gone:
            self._report(failed(error, self.key, self._complaints()))
        # Beside `attempts`, which counts phase Failed only: a pod may be Pending for days.
        self._misses += 1
        short = self.status.phase is not Phase.FAILED or isinstance(error, OwnedByAnother)
        self._due = _in(PLACE_RETRY if gone else retry_in(self._misses, PLACE_RETRY if short else LAST_RETRY))

    def _ended(self, hold: Hold) -> bool:
        return hold.ended() or self._duty.moved(self.uid, self.key, hold.place, hold.netns)

    def _orphan(self) -> bool:
        """The object is gone. Its rules stay as they are until the netns ends."""
        if self.hold is None:
            return False
        self._report(Finding(phase=Phase.EXCLUDED, reason=Reason.ORPHANED, message=ORPHANED))
        self._lookout.stop()
        return True

    async def _pursue(self, pod: Pod, planned: Plan) -> None:
        if planned.goal is Goal.RELEASE:
            await self._let_go()
            self._report(Finding(phase=Phase.EXCLUDED, reason=planned.reason, message=planned.message))
            return
        if planned.goal is Goal.WAIT and self.hold is None:
            self._report(Finding(phase=Phase.PENDING, reason=planned.reason, message=planned.message))
            return
        if self.hold is not None:
            await self._attend(pod, planned)
            return
        if not await self._open(pod, planned):
            return
        hold = self.hold
        try:
            await self._attend(pod, planned)
        finally:
            # Only now: until the socket has done its first work, each answer on it would look like news.
            if hold is not None and self.hold is hold:
                self._tell(self, Opened(hold))

    async def _attend(self, pod: Pod, planned: Plan) -> None:
        if self._over_budget():
            return
        await self._visit(planned)
        await self._take_over(planned)
        await self._survey(pod)

    async def _open(self, pod: Pod, planned: Plan) -> bool:
        place = self._duty.place(pod)
        if planned.goal is Goal.CLEAR and not place.exists():
            self._report(Finding(phase=Phase.EXCLUDED, reason=planned.reason, message=planned.message))
            return False
        if place.unknown:
            # Whoever learns of it wakes us: CNI, or the scan of /proc.
            self._due = _in(LAST_RETRY)
            if self.status.reason is not Reason.NETNS_GONE:
                missing = Reason.NETNS_MISSING
                self._report(Finding(phase=Phase.PENDING, reason=missing, message=NOWHERE))
            return False
        hold = await self._kernel.open(place)
        owner = self._duty.claim(self.uid, hold.netns)
        if owner != self.uid:
            await self._kernel.close(hold)
            if self._duty.cluster.pod(owner) is None:
                self._tell(self, Blocked(owner))
                self._due = _in(FIRST_RETRY)
                return False
            message = f"network namespace {place} is already kept for pod UID {owner}"
            self._report(Finding(phase=Phase.FAILED, reason=Reason.NETNS_MISMATCH, message=message))
            self._due = _in(retry_in(self.status.attempts, LAST_RETRY))
            return False
        self.hold = hold
        if self.spec is not None and self.spec.hold_outbound and self.derivation is not None:
            # A proxy that listens already must not lose its outbound rules for a moment.
            self._lookout.hurry()
            await self._survey(pod)
            self.spec = self._spec_now(self.derivation, planned)
        return True

    async def _visit(self, planned: Plan) -> None:
        assert self.hold is not None
        order = await self._order(planned)
        sight: Sight | None = None
        self._full = False
        began = time.monotonic()
        try:
            sight = await self._kernel.visit(self.hold, order, self._elements())
        finally:
            # A wake that wants a full look may have come meanwhile: only ever add to it here.
            self._full |= order.full and sight is None
            self._tell(self, Visited(sight, time.monotonic() - began))
        if self.hold.nft.pending:
            self.wake()
        self._contest.spend(sight.drift, bool(sight.foreign))
        if sight.around:
            self._around = sight.complaints
        # What became of the container may be told after a look by its older word.
        noted = self._noted if planned.init is InitState.SUCCEEDED else ()
        self._noted = noted or init_mismatch(planned, sight)
        if sight.result == "nothing":
            await self._let_go()
        if sight.result != "unchanged" or sight.foreign or order.full or self._settling():
            finding = found(planned, sight, self._duty.writes, self._complaints())
            finding, later = self._contest.judge(finding, self.status.message)
            self._report(finding)
            self._due = _in(later) if later is not None else self._due
        elif self.hold is not None and self._complaints() != self.status.complaints:
            self._set(msgspec.structs.replace(self.status, complaints=self._complaints()))
        if self.status.reason is Reason.REDIRECTED:
            self._lookout.start(self.spec)

    async def _order(self, planned: Plan) -> Order:
        spec = self.spec
        text = render(spec) if spec is not None and planned.goal is not Goal.CLEAR else drain()
        return Order(
            goal=planned.goal,
            template=await self._kernel.template(text),
            flags=self._kernel.flags or 0,
            write=self._duty.writes,
            add_only=not self._duty.listed,
            full=self._full,
            ipv6=spec.ipv6 if spec is not None else False,
            remove=self._duty.removing,
        )

    def _elements(self) -> int:
        return element_count(self.spec) if self.spec is not None else 0

    async def _take_over(self, planned: Plan) -> None:
        """With the setting takeover, linkerd-init's rules go once ours are verified in their place. Where
        it is `clean` that takes over, it removes them itself, and says what."""
        verified = self.status.reason is Reason.REDIRECTED and self._duty.writes
        wished = planned.takes_over and not self._takeover and verified
        left = any(complaint.reason is Reason.LEFTOVER for complaint in self._around)
        now = asyncio.get_running_loop().time()
        if self.hold is None or not wished or not left or now < self._clean_due:
            return
        try:
            await self._kernel.clean(self.hold)
        except (NftError, LegacyToolFailed, LegacyToolMissing) as error:
            self._uncleaned = (Complaint(Reason.LEFTOVER, "takeover", str(error)),)
            self._clean_due = self._due = now + LAST_RETRY
            self._set(msgspec.structs.replace(self.status, complaints=self._complaints()))
        else:
            self._uncleaned = ()
            self.wake(full=True)

    def _settling(self) -> bool:
        """The status still speaks of a failure or of the time before, and the kernel is right."""
        return self.status.reason not in (Reason.REDIRECTED, Reason.DRAINING, Reason.IPTABLES)

    async def _survey(self, pod: Pod) -> None:
        if self.hold is None or self.spec is None or self.derivation is None:
            return
        wait = self.derivation.close_wait
        if await self._lookout.look(self._kernel, self.hold, self.spec, pod, wait):
            self._set(msgspec.structs.replace(self.status, complaints=self._complaints()))
            self.wake()

    def _complaints(self) -> tuple[Complaint, ...]:
        derived = self.derivation.complaints if self.derivation else ()
        return (*derived, *self._noted, *self._uncleaned, *self._around, *self._lookout.complaints)

    def _over_budget(self) -> bool:
        """Somebody undoes our work in a loop: repairs go on at a bounded rate, and it is said once."""
        wait = self._contest.exhausted()
        if wait <= 0:
            return False
        self._report(self._contest.finding(self.status, self._complaints()))
        self._due = _in(wait)
        return True

    async def _let_go(self, last_words: bool = True) -> None:
        """Give back all descriptors of the netns. The kernel state in it stays."""
        hold, self.hold = self.hold, None
        if hold is None:
            return
        self._around, self._noted, self._uncleaned, self._clean_due = (), (), (), 0.0
        self._lookout.stop()
        counters: Counters = {}
        try:
            if last_words:
                counters = await self._kernel.last_counters(hold)
        finally:
            self._tell(self, Closed(hold, counters))
            try:
                await self._kernel.close(hold)
            finally:
                # The kernel gives the number of an ended netns to the next, which may be another pod's.
                self._duty.release(self.uid)

    def _report(self, finding: Finding) -> None:
        self._set(after(self.status, finding, time.time()))

    def _set(self, status: Redirection) -> None:
        before, self.status = self.status, status
        if status != before:
            self._changed.set()
            self._changed = asyncio.Event()
            self._tell(self, Changed(before))


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
