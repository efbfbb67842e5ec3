"""What enforcement counts as it goes. Gauges that can be read off the state are collected from it
instead (agent/collector.py)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent.node.visit import Sight

MILLISECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """The instruments of one enforcer, registered with the registry that it is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconcile = Counter(
            "pointsman_reconcile",
            "Visits to pods' kernel state, by what came of them.",
            ["result"],
            registry=registry,
        )
        self.duration = Histogram(
            "pointsman_reconcile_duration_seconds",
            "Time of a visit that compared or wrote, waiting for its lane included.",
            buckets=MILLISECONDS,
            registry=registry,
        )
        self.drift = Counter(
            "pointsman_drift",
            "Times that a pod's table was found changed by others, by what was changed.",
            ["kind"],
            registry=registry,
        )
        self.foreign = Counter(
            "pointsman_foreign_changes",
            "Changes of nf_tables in pods' network namespaces by other programs, refused attempts included.",
            registry=registry,
        )
        self.install = Histogram(
            "pointsman_install_duration_seconds",
            "Time of the commit alone, when rules were written.",
            buckets=MILLISECONDS,
            registry=registry,
        )
        self.exposed = Histogram(
            "pointsman_unprotected_seconds",
            "How long pods had run without rules, when the first ones came after their start.",
            buckets=(0.1, 0.5, 1, 5, 10, 30, 60, 300, 3600),
            registry=registry,
        )
        self.full_sync = Gauge(
            "pointsman_full_sync_timestamp_seconds",
            "When the last full comparison of all pods began, as unix time.",
            registry=registry,
        )
        self.unreadable = Gauge(
            "pointsman_proc_unreadable",
            "Processes that the last scan of /proc was not allowed to look at.",
            registry=registry,
        )

    def visited(self, sight: Sight | None, seconds: float) -> None:
        """Count one visit; `sight` is None when it raised."""
        self.reconcile.labels("failed" if sight is None else sight.result).inc()
        if sight is None:
            return
        if sight.around:
            self.duration.observe(seconds)
        if sight.install_ms is not None:
            self.install.observe(sight.install_ms / 1000)
        if sight.exposed_s is not None:
            self.exposed.observe(sight.exposed_s)
        if sight.drift:
            self.drift.labels(drift_kind(sight.differences)).inc()
        self.foreign.inc(len(sight.foreign))


def drift_kind(differences: tuple[str, ...]) -> str:
    """The largest kind of object among the differences: table, chain, set, counter, rule, element."""
    words = {word for text in differences for word in text.split()[:2]}
    for kind in ("table", "chain", "set", "counter", "rule", "element"):
        if kind in words:
            return kind
    return "other"
