"""How a pod came to be kept: by the CNI gate, in time or let through, or found by other means."""

from typing import Literal

import msgspec

from agent.cli.kernel_state import wrong
from agent.state import PodState

Way = Literal["", "cni", "let-through", "manifest", "proc"]


class Arrival(msgspec.Struct, frozen=True, rename="camel"):
    """`way`: "cni" when its first container waited for us, "let-through" when it did not wait because the
    source did not know the pod yet, "manifest" and "proc" when CNI did not tell of it, "" while nobody has
    told where its netns is. `container`: id of its sandbox, of CNI. `sentence`: the same in words."""

    way: Way
    container: str
    sentence: str


def arrival(pod: PodState) -> Arrival:
    way = _way(pod)
    return Arrival(way, pod.container, _sentence(way, pod))


def _way(pod: PodState) -> Way:
    if pod.let_through:
        return "let-through"
    return "cni" if pod.container else pod.netns_from


def _sentence(way: Way, pod: PodState) -> str:
    match way:
        case "cni":
            return f"came by CNI, as container {pod.container}: nothing in it started before we had answered"
        case "let-through":
            then = "; it is not redirected yet" if wrong(pod.status) else _late(pod)
            return f"let through by CNI, as container {pod.container}, since its source did not know it{then}"
        case "proc":
            return (
                "found in /proc, since CNI did not tell of it: it is older than our entry, or no agent was "
                f"there{_late(pod)}"
            )
        case "manifest":
            return f"its manifest names its network namespace; CNI did not tell of it{_late(pod)}"
    return "nobody has told where its network namespace is"


def _late(pod: PodState) -> str:
    exposed = pod.status.exposed_s
    return "" if exposed is None else f"; it had run {exposed:.1f} s without rules when it got them"
