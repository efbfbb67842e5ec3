"""python -m tests.bench.destination: the destination service of one node in a cluster of 10,000 pods.

2,000 Services, 5,000 slices of four endpoints; 110 pods of them are on the node, and each asks 46 questions
on a connection of its own: 5,060 streams. The service is wired as the agent wires it, with what a
list-and-watch source would hold: all Services and slices, the node's own pods, and those that the answers
name. The proxies are another process, which counts and no more.

**One update to all streams**: all ask for one Service, whose endpoints, one or a hundred, all change by one
event. Beside it, in turns, a process that writes the same bytes to as many streams in the barest loop of
grpc.aio. The figure is CPU time of the whole process for each stream.
**Opening**: all calls at once, then all connections break at once and come again; the longer of the two.
**Latency**: fifty events a second; from before an event is decoded until the proxies have the message.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.cluster import PORT, Cluster, Size, lines
from tests.bench.stage import conclude, interruptible, percentile, positive, progress, verdict

RATE = 50
CENTRAL = "the central controller took 11.2 us, 673 MiB with the streams, about 1 s to open them"


class Process:
    """A process that answers a command a line by JSON."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, *words: object) -> Any:
        """RuntimeError when it has ended."""
        self.say(" ".join(map(str, words)))
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"cannot go on: {self._process.args} has ended")
        return json.loads(answer)


@contextlib.contextmanager
def process(module: str, *arguments: object) -> Iterator[Process]:
    command = [sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as made:
        try:
            yield Process(made)
        finally:
            made.kill()


@contextlib.contextmanager
def proxies(ports: list[int], questions: list[list[tuple[str, str]]]) -> Iterator[Process]:
    """Nothing is open yet."""
    with process("proxies") as made:
        made.say(json.dumps(list(zip(ports, questions, strict=True))))
        yield made


class Figures(msgspec.Struct):
    """What was measured. Microseconds of CPU by the number of endpoints; MiB; ms; seconds."""

    ours: dict[int, float] = {}
    bare: dict[int, float] = {}
    load: float = 0.0
    rss: float = 0.0
    rss_streams: float = 0.0
    open: float = 0.0
    lost: int = 0
    latencies: list[float] = []
    scale: dict[int, float] = {}


def main() -> None:
    given = _arguments()
    with interruptible():
        size = Size(given.pods, given.services, given.slices, given.own)
        figures = measure(Cluster(size), given)
    report(figures, given.own * len(Cluster(size).questions[0]))


def measure(cluster: Cluster, given: argparse.Namespace) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="pm-bench-") as directory:
        progress("making the cluster")
        for name in ("nodes", "services", "slices", "pods"):
            Path(directory, name).write_text(lines(getattr(cluster, name)()))
        Path(directory, "size").write_text(json.dumps(msgspec.structs.astuple(cluster.size)))
        with process("answering", "service", directory, given.own) as service:
            _life(service, cluster, given, figures)
        with process("answering", "service", directory, given.own) as service:
            service.ask("load")
            _updates(service, cluster, given, figures)
    for count in given.scale:
        progress(f"one event among {count} Services")
        command = [sys.executable, "-m", "tests.bench.answering", "scale", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        figures.scale[count] = json.loads(done.stdout) * 1e6
    return figures


def _life(service: Process, cluster: Cluster, given: argparse.Namespace, figures: Figures) -> None:
    progress("loading")
    figures.load = service.ask("load")["load_s"]
    ports = service.ask("listen")["ports"]
    figures.rss = service.ask("memory")["mib"]
    with proxies(ports, cluster.questions) as asking:
        progress("opening all streams")
        for _ in range(2):
            opened = asking.ask("open")
            figures.open, figures.lost = max(figures.open, opened["ms"]), figures.lost + opened["lost"]
            figures.rss_streams = max(figures.rss_streams, service.ask("memory")["mib"])
            if not _:
                asking.ask("close")
        progress(f"{RATE} events a second, for {given.seconds} s")
        moments = service.ask("events", RATE, given.seconds)["moments"]
        figures.latencies = [
            (came - moments[str(number)]) * 1e3
            for number, came in asking.ask("seen")
            if str(number) in moments
        ]


def _updates(service: Process, cluster: Cluster, given: argparse.Namespace, figures: Figures) -> None:
    """In turns, so that what else the machine does falls on both."""
    streams = len(cluster.questions[0])
    with process("answering", "bare", given.own) as bare:
        for count in (1, 100):
            progress(f"one update of {count} endpoints to all streams")
            path = f"hot-{count}.hot-{count}.svc.cluster.local:{PORT}"
            questions = [[("Get", path)] * streams] * given.own
            subjects: dict[str, tuple[Process, Process]] = {}
            with contextlib.ExitStack() as stack:
                for name, subject in (("ours", service), ("bare", bare)):
                    subject.ask("heat", count)
                    ports = subject.ask("listen")["ports"]
                    subjects[name] = (subject, stack.enter_context(proxies(ports, questions)))
                _rounds(subjects, count, given, figures)


def _rounds(
    subjects: dict[str, tuple[Process, Process]], count: int, given: argparse.Namespace, figures: Figures
) -> None:
    streams = 0
    for _, asking in subjects.values():
        opened = asking.ask("open")
        if opened["lost"]:
            raise RuntimeError(f"cannot open all streams: {opened['lost']} are lost")
    spent: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(given.rounds):
        for name, (subject, asking) in subjects.items():
            before = asking.ask("reach", 0)["messages"]
            streams = streams or before
            began = subject.ask("push", count)["cpu"]
            after = asking.ask("reach", before + streams)["messages"]
            if after < before + streams:
                raise RuntimeError(f"cannot see all updates: {after - before} of {streams} came")
            if number:
                spent[name].append((subject.ask("cpu")["cpu"] - began) / streams * 1e6)
    figures.ours[count] = statistics.median(spent["ours"])
    figures.bare[count] = statistics.median(spent["bare"])


def report(figures: Figures, streams: int) -> None:
    """The goals, and the last line."""
    ratio = figures.ours[1] / figures.bare[1]
    p50, p99 = (percentile(figures.latencies, share) for share in (0.5, 0.99))
    print(f"goals ({CENTRAL}):")
    print(verdict("one update to all streams, CPU against the barest loop", ratio, 1.25))
    print(verdict("latency, median", p50, 10, " ms"))
    print(verdict("latency, 99 %", p99, 100, " ms"))
    print(verdict("opening all streams", figures.open, 1500, " ms"))
    print(verdict("calls lost", figures.lost, 0))
    print(verdict("memory without streams", figures.rss, 120, " MiB"))
    print(verdict("memory with streams", figures.rss_streams, 260, " MiB"))
    least, most = min(figures.scale), max(figures.scale)
    share = figures.scale[most] / figures.scale[least]
    print(verdict(f"an event among {most} Services, against {least}", share, 1.5))
    conclude(
        bench="destination",
        streams=streams,
        us_per_stream=figures.ours[1],
        bare_us_per_stream=figures.bare[1],
        ratio_bare=ratio,
        us_per_stream_100ep=figures.ours[100],
        open_ms=figures.open,
        lost=figures.lost,
        latency_p50_ms=p50,
        latency_p99_ms=p99,
        rss_mib=figures.rss,
        rss_streams_mib=figures.rss_streams,
        load_s=figures.load,
        **{f"event_us_{count}": value for count, value in figures.scale.items()},
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.destination",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = Size()
    parser.add_argument("--pods", type=positive, default=size.pods, help="in the cluster")
    parser.add_argument("--services", type=positive, default=size.services)
    parser.add_argument("--slices", type=positive, default=size.slices)
    parser.add_argument("--own", type=positive, default=size.own, help="pods of the node")
    parser.add_argument("--seconds", type=positive, default=20, help="of events")
    parser.add_argument("--rounds", type=positive, default=21, help="updates to all streams, of each kind")
    parser.add_argument("--scale", type=positive, nargs="+", default=[100, 1000, 10_000], help="Services")
    return parser.parse_args()


if __name__ == "__main__":
    main()
