"""What should be true in a pod's kernel state, given its objects: the decision before any look.

| pod | goal |
|---|---|
| gone or finished, host network | RELEASE: hold nothing of it, touch nothing |
| excluded (no proxy, disabled, namespace) | CLEAR: if our table is there, drain it; else nothing |
| its linkerd-init is still to run or running | WAIT: two writers at once help nobody |
| its linkerd-init ended well | REDIRECT_UNLESS_IPTABLES: a complete foreign rule set is left alone |
| any other meshed pod | REDIRECT |
"""

from enum import Enum, auto

import msgspec

from agent.core.names import INIT_CONTAINER, PROXY_CONTAINER
from agent.core.objects import Pod
from agent.core.reasons import Reason
from agent.core.spec import Derivation


class Goal(Enum):
    RELEASE = auto()
    CLEAR = auto()
    WAIT = auto()
    REDIRECT = auto()
    REDIRECT_UNLESS_IPTABLES = auto()


class InitState(Enum):
    """linkerd-init of a pod, as its status tells. UNKNOWN: there is one, but no status to say."""

    NONE = auto()
    UNKNOWN = auto()
    TO_RUN = auto()
    SUCCEEDED = auto()
    FAILED = auto()


class Plan(msgspec.Struct, frozen=True):
    goal: Goal
    reason: Reason
    message: str
    init: InitState = InitState.NONE
    before_proxy: bool = False
    """Init containers of the application run before the pod's proxy does."""
    takes_over: bool = False
    """A complete rule set of linkerd-init is to give way to ours, and to go."""


MESSAGES = {
    Reason.NOT_MESHED: "it has no container linkerd-proxy",
    Reason.HOST_NETWORK: "it uses the node's network, which is never touched",
    Reason.NAMESPACE_EXCLUDED: "its namespace is excluded by the agent's settings",
    Reason.DISABLED: "annotation pointsman.io/redirect is `disabled`",
    Reason.FINISHED: "all its containers have ended",
}


def plan(pod: Pod, derivation: Derivation, takeover: bool = False) -> Plan:
    """The goal for one pod. `takeover`: a complete linkerd-init rule set is replaced as well."""
    excluded = derivation.excluded
    if excluded is not None:
        release = excluded in (Reason.HOST_NETWORK, Reason.FINISHED)
        return Plan(Goal.RELEASE if release else Goal.CLEAR, excluded, MESSAGES[excluded])
    init = init_state(pod)
    if init is InitState.TO_RUN:
        return Plan(Goal.WAIT, Reason.INIT_RUNNING, "waiting for its container linkerd-init to end", init)
    if init in (InitState.SUCCEEDED, InitState.UNKNOWN) and not takeover:
        return Plan(Goal.REDIRECT_UNLESS_IPTABLES, Reason.REDIRECTED, "", init)
    takes_over = takeover and init in (InitState.SUCCEEDED, InitState.UNKNOWN)
    return Plan(Goal.REDIRECT, Reason.REDIRECTED, "", init, runs_before_proxy(pod), takes_over)


def runs_before_proxy(pod: Pod) -> bool:
    """Whether init containers of the application run before the proxy: it is no native sidecar."""
    native = any(container.name == PROXY_CONTAINER for container in pod.spec.init_containers or ())
    others = any(not container.name.startswith("linkerd-") for container in pod.spec.init_containers or ())
    return others and not native


def init_state(pod: Pod) -> InitState:
    """What became of the pod's linkerd-init.

    A manifest without any status (files) tells nothing: UNKNOWN. A pod that the kubelet has not
    started yet shows phase Pending and no init statuses: TO_RUN.
    """
    if not any(container.name == INIT_CONTAINER for container in pod.spec.init_containers or ()):
        return InitState.NONE
    statuses = pod.status.init_container_statuses or ()
    status = next((entry for entry in statuses if entry.name == INIT_CONTAINER), None)
    if status is None:
        return InitState.TO_RUN if pod.status.phase == "Pending" else InitState.UNKNOWN
    if status.state is None or status.state.terminated is None:
        return InitState.TO_RUN
    return InitState.SUCCEEDED if status.state.terminated.exit_code == 0 else InitState.FAILED
