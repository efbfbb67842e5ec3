"""What the destination service counts. Labels hold methods and words of ours, never a pod or an address.

What is counted for every message is kept as plain numbers and read at each scrape: an instrument of the
client library costs a good part of what writing a message does.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

SERVICE = "io.linkerd.proxy.destination.Destination"

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HANDLING = (0.1, 1.0, 300.0, 3600.0)


class Method(StrEnum):
    """The RPCs. Every call is a server stream."""

    GET = "Get"
    PROFILE = "GetProfile"


class Code(StrEnum):
    """How calls end, in the words that gRPC's metrics have."""

    CANCELLED = "Canceled"
    INVALID_ARGUMENT = "InvalidArgument"
    FAILED_PRECONDITION = "FailedPrecondition"
    UNAVAILABLE = "Unavailable"
    INTERNAL = "Internal"


class Tally:
    """Numbers of one method. `latency` counts messages by the bucket of LATENCY that they fell into."""

    def __init__(self) -> None:
        self.streams = 0
        self.messages = 0
        self.suppressed = 0
        self.latency = [0] * (len(LATENCY) + 1)
        self.latency_sum = 0.0

    def waited(self, seconds: float) -> None:
        """A message was written that long after the event behind it was seen."""
        self.latency[bisect_left(LATENCY, seconds)] += 1
        self.latency_sum += seconds


class Holdings:
    """What is held at this moment: topics by method, and addresses without identity by reason."""

    def __init__(self, topics: Mapping[str, int], withheld: Mapping[str, int], encoded: int) -> None:
        self.topics = topics
        self.withheld = withheld
        self.encoded = encoded


class Metrics(Collector):
    """The instruments of the service, registered with the registry that it is given.

    `holdings` is asked at each scrape, from any thread.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tallies = {method: Tally() for method in Method}
        self.holdings: Callable[[], Holdings] = lambda: Holdings({}, {}, 0)
        self.listeners = 0
        self._endings: Counter[tuple[str, str]] = Counter()
        self._started: Counter[str] = Counter()
        self.refused = CounterMetric(
            "pointsman_destination_refused",
            "Calls turned away because their listener had as many streams as it may.",
            registry=registry,
        )
        self.dropped = CounterMetric(
            "pointsman_destination_dropped",
            "Streams ended because their client did not take a message in time.",
            registry=registry,
        )
        self.failures = CounterMetric(
            "pointsman_destination_failures",
            "Answers that could not be made, for a fault of pointsman itself; the last one stands.",
            registry=registry,
        )
        self._handling = Histogram(
            "grpc_server_handling_seconds",
            "How long calls lasted.",
            ["grpc_type", "grpc_service", "grpc_method"],
            buckets=HANDLING,
            registry=registry,
        )
        registry.register(self)

    def started(self, method: Method) -> None:
        self._started[method.value] += 1
        self.tallies[method].streams += 1

    def handled(self, method: Method, code: Code, seconds: float) -> None:
        self._endings[method.value, code.value] += 1
        self.tallies[method].streams -= 1
        self._handling.labels(*_call(method)).observe(seconds)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        holdings = self.holdings()
        yield from self._streams()
        yield _gauges("topics", "Answers that are kept for open streams.", "method", holdings.topics)
        yield _gauges(
            "withheld",
            "Addresses of kept answers that have no identity although their pod is meshed, by reason.",
            "reason",
            holdings.withheld,
        )
        yield CounterMetricFamily(
            "pointsman_destination_encoded",
            "Addresses that were encoded; those that are known already are not.",
            holdings.encoded,
        )
        yield GaugeMetricFamily(
            "pointsman_destination_listeners", "Listeners that take calls.", self.listeners
        )
        yield from self._grpc()

    def _streams(self) -> Iterator[Metric]:
        streams, suppressed = (
            _gauges("streams", "Calls that are open.", "method", {}),
            CounterMetricFamily(
                "pointsman_destination_suppressed",
                "Answers that were made anew and not sent, since they were equal.",
                labels=["method"],
            ),
        )
        updates = CounterMetricFamily(
            "pointsman_destination_updates", "Messages written to proxies.", labels=["method"]
        )
        latency = HistogramMetricFamily(
            "pointsman_destination_update_latency_seconds",
            "Time from an event being seen to the message that it caused being written.",
            labels=["method"],
        )
        for method, tally in self.tallies.items():
            streams.add_metric([method.value], tally.streams)
            suppressed.add_metric([method.value], tally.suppressed)
            updates.add_metric([method.value], tally.messages)
            latency.add_metric([method.value], list(_buckets(tally)), tally.latency_sum)
        yield from (streams, updates, suppressed, latency)

    def _grpc(self) -> Iterator[Metric]:
        labels = ["grpc_type", "grpc_service", "grpc_method"]
        started = CounterMetricFamily("grpc_server_started", "Calls begun.", labels=labels)
        received = CounterMetricFamily("grpc_server_msg_received", "Messages received.", labels=labels)
        sent = CounterMetricFamily("grpc_server_msg_sent", "Messages sent.", labels=labels)
        for method, tally in self.tallies.items():
            started.add_metric(_call(method), self._started[method.value])
            received.add_metric(_call(method), self._started[method.value])
            sent.add_metric(_call(method), tally.messages)
        handled = CounterMetricFamily("grpc_server_handled", "Calls ended.", labels=[*labels, "grpc_code"])
        for (method_name, code), count in sorted(self._endings.copy().items()):
            handled.add_metric([*_call(Method(method_name)), code], count)
        yield from (started, received, sent, handled)


def _call(method: Method) -> list[str]:
    return ["server_stream", SERVICE, method.value]


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"pointsman_destination_{name}", text, labels=[label])
    for word, value in sorted(values.items()):
        family.add_metric([word], value)
    return family


def _buckets(tally: Tally) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(str, LATENCY), "+Inf"), tally.latency, strict=True):
        total += count
        yield bound, total
