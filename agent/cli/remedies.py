"""What to do about a pod that is not redirected, by reason; and which complaints mean harm."""

from agent.core.lifecycle import Redirection
from agent.core.reasons import Phase, Reason

REMEDIES = {
    Reason.NOT_YET_SEEN: "wait a moment; if it stays, look at the agent's log",
    Reason.NETNS_MISSING: "is the pod running? Correct its annotation pointsman.io/netns; without one, the "
    "agent needs the node's /proc (hostPID) and CAP_SYS_PTRACE",
    Reason.INIT_RUNNING: "wait for linkerd-init; if it never ends, look at that container's log",
    Reason.OBSERVED: "start the agent without --observe, or end the other agent that holds the writer's lock",
    Reason.NOT_LISTED: "wait until the agent has read all objects; look at /ready and at its log",
    Reason.DRIFTED: "take CAP_NET_ADMIN from the program named as culprit",
    Reason.CONTESTED: "end the program named as culprit, or take CAP_NET_ADMIN from its container",
    Reason.OWNED_BY_ANOTHER: "end the other agent that still owns the pod's table",
    Reason.PERMISSION_DENIED: "give the agent NET_ADMIN and SYS_ADMIN; look for denials by AppArmor, SELinux",
    Reason.COMPILE_FAILED: "run `pointsman check` beside the agent: libnftables or the kernel refuses",
    Reason.COMMIT_REFUSED: "the message names what the kernel refused; does it have nf_tables with NAT?",
    Reason.UNVERIFIED: "report it, with the output of `pointsman explain NAMESPACE/POD -o json`",
    Reason.NETNS_MISMATCH: "correct the annotation pointsman.io/netns: it names another pod's namespace",
    Reason.INTERNAL_ERROR: "report it, with the traceback in the agent's log",
    Reason.ORPHANED: "nothing if the pod is about to end; else restore its manifest, or delete the namespace",
}
"""For reasons that are no pod's good end."""

HARMFUL = frozenset(
    {
        Reason.SHADOWED,
        Reason.PROXY_UID_SHARED,
        Reason.PROXY_NOT_LISTENING,
        Reason.IPV6_NOT_REDIRECTED,
    }
)
"""Complaints that mean clear text or refused connections; the others are warnings."""


def wrong(status: Redirection) -> bool:
    """Whether the pod should be redirected and is not, as far as anybody knows."""
    return status.phase in (Phase.FAILED, Phase.PENDING)
