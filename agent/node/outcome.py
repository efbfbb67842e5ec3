"""From what a visit saw, or how it failed, to what is said about the pod."""

import errno

import structlog

from agent.core.lifecycle import Finding
from agent.core.names import PodKey
from agent.core.plan import Goal, InitState, Plan
from agent.core.reasons import Complaint, Phase, Reason
from agent.node.discovery import NetnsMismatch, NoAddressYet
from agent.node.netns import HostNetns, NetnsMissing
from agent.node.nft.channel import NftError
from agent.node.nft.compile import CompileError
from agent.node.nft.datapath import OwnedByAnother, Unverified
from agent.node.visit import Sight

log = structlog.get_logger("outcome")

FAILURES: tuple[tuple[type[Exception], Phase, Reason], ...] = (
    (NetnsMissing, Phase.PENDING, Reason.NETNS_MISSING),
    (NoAddressYet, Phase.PENDING, Reason.NETNS_MISSING),
    (HostNetns, Phase.FAILED, Reason.NETNS_MISMATCH),
    (NetnsMismatch, Phase.FAILED, Reason.NETNS_MISMATCH),
    (OwnedByAnother, Phase.FAILED, Reason.OWNED_BY_ANOTHER),
    (Unverified, Phase.FAILED, Reason.UNVERIFIED),
    (CompileError, Phase.FAILED, Reason.COMPILE_FAILED),
    (PermissionError, Phase.FAILED, Reason.PERMISSION_DENIED),
    (NftError, Phase.FAILED, Reason.COMMIT_REFUSED),
    (OSError, Phase.FAILED, Reason.COMMIT_REFUSED),
)
"""First match wins: the special before the general."""

WRITTEN = ("installed", "updated", "replaced", "claimed")
"""Results of a visit that wrote our table and read it back."""


def failed(error: Exception, pod: PodKey, complaints: tuple[Complaint, ...]) -> Finding:
    """The finding for a visit to `pod` that raised. What nobody expected is logged with its traceback, and
    the pod is retried like any other: a fault of ours in one is no reason to leave the others alone."""
    for kind, phase, reason in FAILURES:
        if isinstance(error, kind):
            return Finding(phase=phase, reason=reason, message=_words(error), complaints=complaints)
    log.error("unexpected failure of a visit", pod=str(pod), exc_info=error)
    return Finding(
        phase=Phase.FAILED,
        reason=Reason.INTERNAL_ERROR,
        message=f"{type(error).__name__}: {error}",
        complaints=complaints,
    )


def _words(error: Exception) -> str:
    """The message of an error. Ours say all; one that the system raised by itself needs a beginning, and
    a shortage of descriptors has the same remedy wherever it is met."""
    if not isinstance(error, OSError):
        return str(error)
    short = error.errno in (errno.EMFILE, errno.ENFILE)
    return _sentence(error) + ("; raise the agent's limit of open files" if short else "")


def _sentence(error: OSError) -> str:
    if not error.strerror:
        return str(error)
    if error.strerror.startswith("cannot "):
        return error.strerror
    what = f"cannot use {error.filename}" if error.filename else "cannot look at the pod"
    return f"{what}: {error.strerror}"


def found(plan: Plan, sight: Sight, writes: bool, complaints: tuple[Complaint, ...]) -> Finding:
    """The finding for a visit that came back."""
    phase, reason, message, mode = _verdict(plan, sight, writes)
    written = sight.result in WRITTEN
    return Finding(
        phase=phase,
        reason=reason,
        message=message,
        mode=mode,
        how=sight.result if written else "",
        drift=sight.drift,
        foreign_changes=len(sight.foreign),
        culprit=culprit(sight),
        install_ms=sight.install_ms if written else None,
        verify_ms=sight.verify_ms if written else None,
        exposed_s=sight.exposed_s,
        differences=sight.differences,
        complaints=complaints,
    )


def culprit(sight: Sight) -> str:
    """Program and pid of the last foreign change, as the kernel named them."""
    if not sight.foreign:
        return ""
    last = sight.foreign[-1]
    return f"{last.comm or 'unknown'}[{last.pid}]"


def _verdict(plan: Plan, sight: Sight, writes: bool) -> tuple[Phase, Reason, str, str]:
    if sight.result == "iptables":
        complete = [f"IPv{one.family} {one.flavour}" for one in sight.leftovers if one.state == "complete"]
        left_alone = f"linkerd-init's own rules are complete ({', '.join(complete)}) and left alone"
        message = f"{left_alone}; `pointsman cleanup` takes over"
        return Phase.APPLIED, Reason.IPTABLES, message, "iptables"
    if plan.goal is Goal.CLEAR:
        if sight.result == "nothing":
            return Phase.EXCLUDED, plan.reason, plan.message, ""
        if sight.result in ("differs", "absent"):
            return Phase.PENDING, _passive(writes), f"to be drained: {plan.message}", "nftables"
        message = f"{plan.message}: new connections are direct, old ones keep their proxy"
        return Phase.APPLIED, Reason.DRAINING, message, "nftables"
    if sight.result == "absent":
        return Phase.PENDING, _passive(writes), "the pod is not redirected", ""
    if sight.result == "differs":
        message = f"the table differs: {'; '.join(sight.differences[:3])}"
        phase = Phase.PENDING if writes else Phase.FAILED
        return phase, Reason.NOT_LISTED if writes else Reason.DRIFTED, message, "nftables"
    return Phase.APPLIED, Reason.REDIRECTED, "", "nftables"


def _passive(writes: bool) -> Reason:
    return Reason.NOT_LISTED if writes else Reason.OBSERVED


def init_mismatch(plan: Plan, sight: Sight) -> tuple[Complaint, ...]:
    """linkerd-init says that it succeeded, and this visit had to install our rules all the same, or finds
    them beside half a rule set of its own: an agent that was started anew says so too."""
    # Where its complete rules are taken over on purpose, the goal is another.
    incomplete = plan.goal is Goal.REDIRECT_UNLESS_IPTABLES and sight.result == "installed"
    ours_stand = sight.result in (*WRITTEN, "unchanged")
    half_done = ours_stand and any(entry.half_done for entry in sight.leftovers)
    if plan.init is not InitState.SUCCEEDED or not (incomplete or half_done):
        return ()
    return (
        Complaint(
            Reason.INIT_MISMATCH,
            "linkerd-init",
            "linkerd-init reports success, and its rules were not complete in the kernel; ours are",
            "",
        ),
    )
