"""What the CNI gate answers, by what is known of a pod: the decisions, without any waiting.

| the pod's redirection | ADD |
|---|---|
| verified in the kernel; linkerd-init's own, or still to come; draining | pass |
| excluded: not meshed, disabled, its namespace excluded | pass |
| this agent only looks | pass |
| its netns is not there, or is not its own | refuse |
| anything else: missing, failing, contested | look again, and refuse when patience ends |

A refused ADD is retried by the kubelet: a meshed pod never starts without its redirection, and one
that is not meshed is never held up.
"""

from enum import Enum, auto

from agent.core.attachments import Attachment
from agent.core.lifecycle import Redirection
from agent.core.names import PROXY_CONTAINER, PROXY_VERSION, PodKey
from agent.core.objects import Container, Metadata, Pod, PodIP, PodSpec, PodStatus
from agent.core.reasons import MEANINGS, Phase, Reason

PASSED = frozenset(
    {Reason.REDIRECTED, Reason.IPTABLES, Reason.DRAINING, Reason.INIT_RUNNING, Reason.OBSERVED}
)
DECIDED = frozenset({Reason.REDIRECTED, Reason.IPTABLES})
"""Told of the rules that were found in one netns, and true of that one alone."""
UNMESHED = frozenset(
    {Reason.NOT_MESHED, Reason.HOST_NETWORK, Reason.NAMESPACE_EXCLUDED, Reason.DISABLED, Reason.FINISHED}
)
NO_NETNS = (
    "the kubelet tries again; if it lasts, the agent does not see the node's network namespaces: mount "
    "/run/netns into its container, with mountPropagation HostToContainer"
)
"""Of a path that the runtime has named: the remedies of a missing annotation or process are none here."""
HOPELESS = frozenset({Reason.NETNS_MISSING, Reason.NETNS_MISMATCH})


class Answer(Enum):
    PASS = auto()
    WAIT = auto()
    REFUSE = auto()


def judge(status: Redirection) -> Answer:
    """The answer to ADD for a pod that has just been looked at."""
    if status.reason in PASSED or status.reason in UNMESHED:
        return Answer.PASS
    return Answer.REFUSE if status.reason in HOPELESS else Answer.WAIT


def refusal(pod: PodKey, status: Redirection) -> tuple[str, str]:
    """Message and details for the kubelet, which shows them as an Event of the pod."""
    words = status.message or MEANINGS[status.reason].meaning
    remedy = NO_NETNS if status.reason is Reason.NETNS_MISSING else MEANINGS[status.reason].remedy
    return f"cannot redirect pod {pod} ({status.reason}): {words}", remedy


def sandbox_ended(pod: PodKey) -> tuple[str, str]:
    """The same for a pod whose DEL has come before its ADD was answered."""
    return f"cannot redirect pod {pod}: its sandbox has ended", "nothing to do: the kubelet makes another one"


def stopping(pod: PodKey) -> tuple[str, str]:
    """The same while the agent ends."""
    return f"cannot redirect pod {pod}: the agent is stopping", "nothing to do: the next agent will be asked"


def elsewhere(pod: PodKey, netns: str) -> tuple[str, str]:
    """The same for a pod that is known to have its rules in another sandbox, and not yet in this one."""
    remedy = f"nothing, if it passes: the kubelet tries again; else `pointsman explain {pod}`"
    return f"cannot redirect pod {pod}: its rules are not verified in network namespace {netns}", remedy


def injected(attachment: Attachment) -> bool:
    """Whether the runtime's annotations alone prove that the pod is meshed."""
    return PROXY_VERSION in (attachment.annotations or {})


def announced(attachment: Attachment) -> Pod:
    """The pod as far as its runtime tells: name, annotations and addresses, and a proxy container of which
    nothing is known, so that ports and user are the annotations' or the node's. For an injected pod."""
    assert attachment.pod is not None
    return Pod(
        metadata=Metadata(
            name=attachment.pod.name,
            namespace=attachment.pod.namespace,
            uid=attachment.pod_uid,
            annotations=attachment.annotations,
        ),
        spec=PodSpec(containers=(Container(PROXY_CONTAINER),)),
        status=PodStatus(pod_ips=tuple(PodIP(ip) for ip in attachment.ips) or None),
    )


def failing(status: Redirection) -> bool:
    """Whether CHECK must complain: the pod is meant to be redirected, and is not."""
    return status.phase in (Phase.FAILED, Phase.PENDING) and judge(status) is not Answer.PASS
