"""What to do about a pod that is not redirected, by reason; and which complaints mean harm."""

from agent.core.lifecycle import Redirection
from agent.core.reasons import Phase, Reason

REMEDIES = {
    Reason.NOT_YET_SEEN: "wait a moment; if it stays, look at the agent's log",
    Reason.NETNS_MISSING: "is the pod running? With --source files: correct annotation pointsman.io/netns; else the "
    "agent needs the node's /proc (hostPID) and CAP_SYS_PTRACE",
    Reason.INIT_RUNNING: "wait for linkerd-init, or look at the log of that container if it never ends",
    Reason.OBSERVED: "start the agent without --observe, or end the other agent that holds the writer's lock",
    Reason.NOT_LISTED: "wait until the agent has read all objects; look at /ready and at its log",
    Reason.DRIFTED: "see who changes the pod's nf_tables, named as culprit, and take its CAP_NET_ADMIN",
    Reason.CONTESTED: "end the program named as culprit, or take CAP_NET_ADMIN from its container",
    Reason.OWNED_BY_ANOTHER: "end the other agent that still owns the pod's table",
    Reason.PERMISSION_DENIED: "give the agent NET_ADMIN and SYS_ADMIN, and look for denials of AppArmor or SELinux",
    Reason.COMPILE_FAILED: "run `pointsman check`: libnftables or the kernel refuses the rules",
    Reason.COMMIT_REFUSED: "look at the message: the kernel names what it refused; is nf_tables built in?",
    Reason.UNVERIFIED: "report it with `pointsman explain NAMESPACE/POD -o json`: the kernel reads back other rules",
    Reason.NETNS_MISMATCH: "correct annotation pointsman.io/netns: it names the namespace of another pod or the node",
    Reason.INTERNAL_ERROR: "report it with the traceback in the agent's log",
    Reason.ORPHANED: "nothing, if the pod is about to end; else write its manifest again, or delete the namespace",
}
"""For phases and reasons that are no pod's good end."""

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
