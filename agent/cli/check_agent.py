"""Checks of the running agent and of the pods that it keeps."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.cli.check_cni import check_cni
from agent.cli.client import Agent, AgentDeniedError, AgentError
from agent.cli.kernel_state import wrong
from agent.cli.report import Category, Check, failed, passed, warning
from agent.cni.install import CniSettings
from agent.core.discovery.asked import Asks
from agent.core.reasons import MEANINGS, Complaint, Phase, Reason
from agent.node.lock import WriterLock
from agent.node.sweep import namespaces, search
from agent.state import NodeState, PodState

YOUNG = 10.0
"""Seconds for which a pod may be Pending without harm: it has only just been seen."""

PROMISES = {
    Reason.PROXY_UID_SHARED: "no container shares the proxy's user",
    Reason.SHADOWED: "no chain of others decides before our rules",
    Reason.PROXY_NOT_LISTENING: "every proxy listens where its pod's connections go",
    Reason.IPV6_NOT_REDIRECTED: "no pod has IPv6 that bypasses its proxy",
    Reason.LEFTOVER: "no rules of linkerd-init are left",
    Reason.PORT_CLASH: "every proxy that asks this agent for destinations finds it",
    Reason.NOT_ANSWERING: "the agent can answer for destinations",
}
"""What holds when no pod has this complaint. All other complaints are about what people wrote."""

HARMFUL = PROMISES.keys() - {Reason.LEFTOVER}
"""Complaints that mean clear text, or connections that are refused or hang; the others are warnings."""

ASKED: dict[Asks, str] = {
    "us": "this agent",
    "central": "the central controller",
    "nobody": "nobody that their manifests name",
}

OBSERVATIONS = {Reason.FOREIGN_RULES}
"""Complaints that are no reason to do anything."""


def check_agent(run_dir: Path, netns_dir: Path, cni: CniSettings) -> Iterator[Category]:
    """Without an agent: a category that says so, and what that means for new pods. `cni`: how this node is
    set up, as far as the agent does not say."""
    agent = Agent(run_dir)
    description = f"the agent answers at {agent.path}"
    try:
        state = agent.state()
    except AgentError as error:
        denied = isinstance(error, AgentDeniedError)
        hint = "run this command as root" if denied else "start `pointsman run`, or give its --run-dir"
        yield Category("pointsman-agent", (failed(description, error.message, hint),))
        yield from check_cni(agent, None, cni)
        return
    duties = (_ready(state), _writer(state, WriterLock(run_dir / "writer.lock").holder()))
    yield Category("pointsman-agent", (passed(description), *duties))
    yield from check_cni(agent, state, cni)
    yield Category("pointsman-pods", (*_pods(state.pods), _orphans(state.pods, netns_dir)))


def _ready(state: NodeState) -> Check:
    description = "the agent is ready"
    if state.not_ready:
        return failed(description, "; ".join(state.not_ready), "wait a moment; if it stays, look at its log")
    return passed(description)


def _writer(state: NodeState, holder: str) -> Check:
    description = "the agent writes pods' rules"
    if state.draining:
        return failed(description, "it was told to drain every pod", "restart it to redirect again")
    if state.observe:
        return warning(description, "it was started with --observe", "start it without --observe")
    if not state.writer:
        return warning(
            description,
            f"process {holder or 'unknown'} holds the writer's lock, and this one only compares",
            "nothing during an upgrade; else end the other agent",
        )
    return passed(description)


def _pods(pods: tuple[PodState, ...]) -> Iterator[Check]:
    meshed = [pod for pod in pods if pod.status.phase is not Phase.EXCLUDED]
    astray = [pod for pod in meshed if wrong(pod.status)]
    description = f"all meshed pods are redirected ({len(meshed) - len(astray)} of {len(meshed)})"
    if not astray:
        yield passed(description)
    for pod in astray:
        yield _astray(pod, description)
    yield from _asking(pods)
    for reason, promise in PROMISES.items():
        yield from _promise(promise, [(pod, one) for pod, one in _complaints(pods) if one.reason is reason])
    rest = [(pod, one) for pod, one in _complaints(pods) if one.reason not in PROMISES.keys() | OBSERVATIONS]
    yield from _promise("all settings of pods have effect", rest)


def _asking(pods: Iterable[PodState]) -> Iterator[Check]:
    asking = Counter(pod.destination.asks for pod in pods if pod.destination is not None)
    if asking:
        counts = ", ".join(f"{asking[word]} {whom}" for word, whom in ASKED.items() if asking[word])
        yield passed(f"proxies ask for destinations: {counts}")


def _astray(pod: PodState, description: str) -> Check:
    status = pod.status
    young = status.phase is Phase.PENDING and time.time() - status.since < YOUNG
    message = f": {status.message}" if status.message else ""
    return (warning if young else failed)(
        description,
        f"{_name(pod)}: {status.phase} ({status.reason}){message}",
        MEANINGS[status.reason].remedy,
    )


def _promise(promise: str, broken: list[tuple[PodState, Complaint]]) -> Iterator[Check]:
    """One check that holds, or one per complaint, since each has a remedy of its own."""
    if not broken:
        yield passed(promise)
    for pod, complaint in broken:
        mark = failed if complaint.reason in HARMFUL else warning
        yield mark(
            promise,
            f"{_name(pod)}: {complaint.reason} {complaint.subject}: {complaint.message}",
            complaint.remedy or MEANINGS[complaint.reason].remedy,
        )


def _complaints(pods: Iterable[PodState]) -> Iterator[tuple[PodState, Complaint]]:
    return ((pod, complaint) for pod in pods for complaint in pod.complaints)


def _orphans(pods: tuple[PodState, ...], netns_dir: Path) -> Check:
    """Namespaces that hold our table, and that belong to no pod of the agent."""
    description = f"every namespace in {netns_dir} that holds our table has a pod"
    known = {pod.netns_inode for pod in pods if pod.status.reason is not Reason.ORPHANED}
    try:
        swept = search(namespaces(netns_dir))
    except OSError as error:
        return warning(description, f"cannot list {netns_dir}: {error.strerror}", "run as root")
    orphans = [one.path for one in swept.held if one.netns.ino not in known]
    orphans += [
        _name(pod) for pod in pods if pod.status.reason is Reason.ORPHANED and pod.netns not in orphans
    ]
    if orphans or swept.unreadable:
        lines = [f"{path}: no pod of the agent lives there" for path in orphans]
        lines += [f"{path}: {why}" for path, why in swept.unreadable.items()]
        return warning(description, "\n".join(lines), MEANINGS[Reason.ORPHANED].remedy)
    return passed(description)


def _name(pod: PodState) -> str:
    return f"{pod.namespace}/{pod.name}"
