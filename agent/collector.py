"""Gauges and totals that are read off the daemon's state at each scrape, never kept beside it."""

from collections import Counter as Count
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import __version__
from agent.core.ruleset import COUNTERS
from agent.state import NodeState


class StateCollector(Collector):
    """Asks `snapshot` at each scrape; it may be called from any thread and raises TimeoutError when
    the loop is stuck, in which case these families are left out of the scrape."""

    def __init__(self, snapshot: Callable[[], NodeState]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("pointsman_build", "Version of this agent.", {"version": __version__})
        try:
            state = self._snapshot()
        except TimeoutError:
            return
        yield from _pods(state)
        yield from _connections(state)
        yield from _cni(state)
        yield _asking(state)


def _pods(state: NodeState) -> Iterator[Metric]:
    pods = GaugeMetricFamily(
        "pointsman_pods",
        "Pods of this node by the state of their redirection.",
        labels=["phase", "reason", "mode"],
    )
    counts = Count((p.status.phase.value, p.status.reason.value, p.status.mode) for p in state.pods)
    for labels, count in sorted(counts.items()):
        pods.add_metric(list(labels), count)
    yield pods
    complaints = GaugeMetricFamily(
        "pointsman_pod_complaints", "Complaints about pods of this node, by reason.", labels=["reason"]
    )
    reasons = Count(complaint.reason.value for pod in state.pods for complaint in pod.complaints)
    for reason, count in sorted(reasons.items()):
        complaints.add_metric([reason], count)
    yield complaints
    yield GaugeMetricFamily(
        "pointsman_netns_held", "Network namespaces of pods that are held open.", state.netns_held
    )
    yield GaugeMetricFamily(
        "pointsman_netns_live", "Held network namespaces that have not ended.", state.netns_live
    )
    yield GaugeMetricFamily(
        "pointsman_owned_tables",
        "1 when pods' tables are owned by this agent (owner and persist flags), 0 when they are plain.",
        int(state.owned_tables),
    )
    yield GaugeMetricFamily(
        "pointsman_writer", "1 while this agent may write to the kernel.", int(state.writer)
    )


def _asking(state: NodeState) -> Metric:
    pods = GaugeMetricFamily(
        "pointsman_destination_pods",
        "Meshed pods of this node by whom they ask for destinations, and whether this agent listens there.",
        labels=["asks", "listening"],
    )
    asking = [pod.destination for pod in state.pods if pod.destination is not None]
    counts = Count((one.asks, str(bool(one.port)).lower()) for one in asking)
    for labels, count in sorted(counts.items()):
        pods.add_metric(list(labels), count)
    return pods


def _cni(state: NodeState) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "pointsman_cni_answering",
        "1 while this agent answers the CNI shim, 0 while another does, or nobody.",
        int(state.cni.answering),
    )
    yield GaugeMetricFamily(
        "pointsman_cni_attachments",
        "Sandboxes that the container runtime has told of and not ended.",
        state.cni.attachments,
    )
    yield GaugeMetricFamily(
        "pointsman_cni_unknown_pods",
        "Pods that the gate let through, and that their source does not know still.",
        len(state.cni.strangers),
    )
    if state.cni.chain is not None:
        yield GaugeMetricFamily(
            "pointsman_cni_installed",
            "1 while new pods of this node come by our shim, 0 while they do not.",
            int(state.cni.chain.installed),
        )


def _connections(state: NodeState) -> Iterator[Metric]:
    redirected = CounterMetricFamily(
        "pointsman_redirected_connections",
        "TCP connections that the kernel redirected to a proxy.",
        labels=["direction"],
    )
    skipped = CounterMetricFamily(
        "pointsman_skipped_connections",
        "TCP connections that the kernel left alone, by the rule that said so.",
        labels=["direction", "reason"],
    )
    for counter in COUNTERS:
        direction = "inbound" if counter.direction == "in" else "outbound"
        value = state.totals.get(counter.name, 0)
        if counter.reason == "redirect":
            redirected.add_metric([direction], value)
        else:
            skipped.add_metric([direction, counter.reason], value)
    yield redirected
    yield skipped
