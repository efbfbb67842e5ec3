"""The CNI gate: no meshed pod's first container starts before its redirection is verified in the kernel.

A call comes with what the runtime knows of a pod; the picture has what its source knows. Both are needed:
the first says where the netns is, the second what should be in it. The call waits for the picture, a while.
What is decided is in core/gate.py; here it is awaited.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog

from agent.cni.ledger import Ledger, all_ended, inode_of
from agent.core import gate
from agent.core.attachments import Attachment
from agent.core.cni import CniError, Code, Request
from agent.core.names import made_from_name
from agent.core.objects import Pod
from agent.core.reasons import Reason
from agent.node.enforcer import Enforcer
from agent.node.keeper import Keeper
from agent.node.nft.channel import NftError

PATIENCE = 8.0
"""Seconds that an ADD may take in all; the shim gives up after ten."""

log = structlog.get_logger("cni")


class Gate:
    """Answers the verbs of CNI. Each gives the word by which it is counted, and raises CniError to refuse.

    `unknown_wait`: seconds that a pod is waited for which the source does not know. `prepare`: what else a
    redirected pod needs before it starts.
    """

    def __init__(
        self,
        enforcer: Enforcer,
        ledger: Ledger,
        unknown_wait: float,
        prepare: Callable[[Keeper], Awaitable[None]],
    ) -> None:
        self._enforcer = enforcer
        self._duty = enforcer.duty
        self._ledger = ledger
        self._unknown_wait = unknown_wait
        self._prepare = prepare
        self._news = asyncio.Event()

    def news(self) -> None:
        """The picture has changed: who waits for a pod looks again."""
        self._news.set()
        self._news = asyncio.Event()

    def restore(self) -> None:
        """Take up what earlier agents were told. Again when this one becomes the writer, since the one before
        it may have been told more, and has answered what was relayed."""
        told = {attachment.key: attachment for attachment in self._duty.attachments}
        for attachment in self._ledger.load():
            if attachment.key not in told or attachment.let_through:
                told[attachment.key] = attachment
        # The last one of a pod stands, whoever was told of it.
        for attachment in sorted(told.values(), key=lambda one: one.since):
            self._duty.attachments.put(attachment)
        for keeper in self._enforcer.keepers.values():
            keeper.wake()

    async def add(self, request: Request, deadline: float) -> str:
        """`deadline`: the loop's time by which there is an answer."""
        attachment = self.admit(request)
        if attachment.pod is None:
            return "foreign"
        self._ledger.save(attachment)
        if self._duty.policy.observe:
            return "waived"
        pod = await self._known(attachment, deadline)
        if pod is None and gate.injected(attachment):
            if not self._duty.attachments.of_container(*attachment.key):
                # To announce it now would be for ever: its DEL has been.
                raise CniError(Code.LATER, *gate.sandbox_ended(attachment.pod))
            pod = self._announce(attachment)
        if pod is None:
            self._let_through(attachment)
            return "unknown"
        self._mark_known(attachment)
        return await self._redirected(pod, attachment, deadline)

    async def delete(self, request: Request) -> str:
        gone = self._duty.attachments.of_container(request.attachment.container_id, request.attachment.ifname)
        self._forget(gone)
        if not self._duty.attachments.of_container(request.attachment.container_id):
            # A pod that was found by other means has this netns, and no attachment.
            self._enforcer.release(gone, inode_of(request.attachment.netns))
        return "done"

    async def check(self, request: Request) -> str:
        pod = self._find(request.attachment)
        keeper = self._enforcer.keepers.get(pod.uid) if pod is not None else None
        if pod is None or keeper is None or self._duty.policy.observe:
            return "done"
        if gate.failing(keeper.status):
            raise CniError(Code.LATER, *gate.refusal(pod.key, keeper.status))
        if keeper.status.reason is Reason.REDIRECTED:
            try:
                sight = await keeper.compare()
            except (OSError, NftError) as error:
                raise CniError(Code.LATER, f"cannot compare the rules of pod {pod.key}: {error}") from error
            if sight is not None and sight.result in ("absent", "differs"):
                differences = "; ".join(sight.differences[:3]) or "they are gone"
                raise CniError(Code.LATER, f"cannot confirm the rules of pod {pod.key}: {differences}")
        return "done"

    async def status(self) -> str:
        """Refused only when no meshed pod can be redirected: a runtime makes the node NotReady for it."""
        if self._enforcer.kernel.flags is None and not self._duty.policy.observe:
            raise CniError(
                Code.UNAVAILABLE,
                "cannot redirect pods: rule sets cannot be compiled, or the kernel has not been probed yet",
                "run `pointsman check` on the node; is Debian's python3-nftables installed?",
            )
        return "done"

    async def collect(self, request: Request) -> str:
        """GC: forget every attachment that the runtime does not list."""
        if (valid := request.valid) is not None:
            gone = [attachment for attachment in self._duty.attachments if attachment.key not in valid]
            self._forget(gone)
            self._enforcer.release(gone)
        return "done"

    def strangers(self) -> tuple[Attachment, ...]:
        """Who was let through, and is unknown to the source to this day."""
        return tuple(one for one in self._duty.attachments if one.let_through and self._find(one) is None)

    async def prune(self) -> None:
        """Forget attachments whose netns is gone: their DEL came while no agent ran."""
        ended = await asyncio.to_thread(all_ended, list(self._duty.attachments))
        # Another ADD of the same container may have come meanwhile, with another netns.
        gone = [one for one in ended if one in self._duty.attachments.of_container(*one.key)]
        self._forget(gone)
        self._enforcer.release(gone)

    def close(self) -> None:
        """Have all written down that the next agent will want to know."""
        self._ledger.close()

    def admit(self, request: Request) -> Attachment:
        """Take in where the pod is, before anything that may take time."""
        inode, known = inode_of(request.attachment.netns), self._has_object(request.attachment)
        attachment = msgspec.structs.replace(request.attachment, inode=inode, since=time.time(), known=known)
        if attachment.pod is not None:
            self._duty.attachments.put(attachment)
        return attachment

    def unmeshed(self, attachment: Attachment) -> bool:
        """Whether the pod is known, and known to need nothing: an agent that does not write may say so."""
        pod = self._find(attachment)
        return pod is not None and self._duty.derive(pod).excluded is not None

    def announce_again(self) -> None:
        """Meshed pods that an earlier agent was told of, and that their source still does not know. Not those
        whose object has come and gone: what it said is in their rules, and stays."""
        for attachment in list(self._duty.attachments) if self._duty.listed else ():
            self._mark_known(attachment)
            young = 0 <= time.time() - attachment.since < self._unknown_wait
            found = attachment.known or young or self._find(attachment) is not None
            if gate.injected(attachment) and not found:
                self._enforcer.wake({self._announce(attachment).uid})

    def _announce(self, attachment: Attachment) -> Pod:
        pod = gate.announced(attachment)
        log.info("pod redirected by what its runtime tells; its source does not know it", pod=str(pod.key))
        self._duty.cluster.announce(pod)
        return pod

    def _forget(self, gone: Iterable[Attachment]) -> None:
        if not (gone := list(gone)):
            return
        self._duty.attachments.forget(gone)
        for attachment in gone:
            self._ledger.forget(attachment)
            # Unless the pod lives on, in a sandbox that was made anew.
            if not any(one.pod_uid == attachment.pod_uid for one in self._duty.attachments):
                self._duty.cluster.withdraw(attachment.pod_uid)

    async def _known(self, attachment: Attachment, deadline: float) -> Pod | None:
        deadline = min(deadline, asyncio.get_running_loop().time() + self._unknown_wait)
        while (pod := self._find(attachment)) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return None
        return pod

    def _find(self, attachment: Attachment) -> Pod | None:
        """The pod in the picture. By name only where one of both sides has no UID of its own: a pod of the
        same name with another UID is its predecessor."""
        pod = self._duty.cluster.pod(attachment.uid)
        if pod is not None or attachment.pod is None:
            return pod
        named = self._duty.cluster.find(attachment.pod)
        return named if named is not None and (not attachment.uid or made_from_name(named.uid)) else None

    def _has_object(self, attachment: Attachment) -> bool:
        pod = self._find(attachment)
        return pod is not None and pod.uid in self._duty.cluster.pods

    def _mark_known(self, attachment: Attachment) -> None:
        """For the next agent; of a pod that is not injected, nothing follows from it."""
        if gate.injected(attachment) and not attachment.known and self._has_object(attachment):
            self._note(msgspec.structs.replace(attachment, known=True))

    def _let_through(self, attachment: Attachment) -> None:
        log.warning(
            "pod let through: its source does not know it; it is redirected as soon as it does",
            pod=str(attachment.pod),
            waited_s=self._unknown_wait,
        )
        self._note(msgspec.structs.replace(attachment, let_through=True))

    def _note(self, attachment: Attachment) -> None:
        """More is known of an attachment, unless its DEL has come."""
        if self._duty.attachments.note(attachment):
            self._ledger.save(attachment)

    async def _redirected(self, pod: Pod, attachment: Attachment, deadline: float) -> str:
        keeper = self._enforcer.keeper(pod.uid)
        if self._duty.derive(pod).excluded is not None:
            # Nothing that may be wrong with it is a reason to hold it up.
            self._enforcer.wake({pod.uid})
            return "unmeshed"
        if keeper is None:
            raise CniError(Code.LATER, *gate.stopping(pod.key))
        status = keeper.status
        try:
            async with asyncio.timeout_at(deadline):
                status = await keeper.look_now()
                while gate.judge(status) is gate.Answer.WAIT:
                    status = await keeper.changed()
                if status.reason is Reason.REDIRECTED:
                    await self._prepare(keeper)
        except TimeoutError:
            status = keeper.status
        if gate.judge(status) is not gate.Answer.PASS:
            raise CniError(Code.LATER, *gate.refusal(pod.key, status))
        # The status may be of the sandbox before this one, or of one after it.
        held = keeper.hold.netns if keeper.hold is not None else None
        if status.reason in gate.DECIDED and (held is None or held != inode_of(attachment.netns)):
            raise CniError(Code.LATER, *gate.elsewhere(pod.key, attachment.netns))
        if status.reason is Reason.REDIRECTED:
            return "redirected"
        return "unmeshed" if status.reason in gate.UNMESHED else "waived"
