"""python -m tests.bench.cni [N]: what the CNI gate adds to the start and end of a pod, beside N pods.

Every figure is the time from the spawn of a process to its end, as a runtime sees it. ADD and DEL go through
the shim to a live agent that keeps N pods: one at a time, and 10 and 50 at once, each ADD for a new pod in a
fresh network namespace. Beside it run a static program that does nothing, and one that enters the namespace
and execs iptables for a single rule; linkerd-init runs twelve of these.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.cni.install import SHIM
from tests.bench.stage import (
    Agent,
    agent,
    conclude,
    interruptible,
    namespaces,
    percentile,
    positive,
    progress,
    verdict,
)
from tests.lab.cni import arguments, conf, environment

SINGLES = 100
TENS = 5
FIFTIES = 4


class Spawned(msgspec.Struct, frozen=True):
    """A program to run, with its environment and the file that is its stdin."""

    program: Path
    environment: dict[str, str]
    stdin: str = os.devnull


class Times(msgspec.Struct):
    """Milliseconds from spawn to end."""

    adds: list[float] = []
    tens: list[float] = []
    fifties: list[float] = []
    dels: list[float] = []
    nothing: list[float] = []
    iptables: list[float] = []


def main() -> None:
    pods = _count()
    with interruptible(), tempfile.TemporaryDirectory(prefix="pm-bench-") as directory:
        report(pods, measure(pods, Path(directory)))


def measure(pods: int, directory: Path) -> Times:
    if not SHIM.exists():
        raise RuntimeError(f"cannot find {SHIM.name}: run `make shim`")
    nothing, rule = _build(directory)
    progress(f"an agent with {pods} pods")
    with namespaces(pods) as kept, agent(kept) as running:
        running.wait_until_redirected(pods)
        times = Times()
        progress(f"{SINGLES} ADDs and DELs, one at a time; no-ops and iptables beside them")
        with namespaces(SINGLES, "single") as paths:
            calls = _calls(running, directory, paths)
            for add in calls:
                times.nothing += run([Spawned(nothing, {})])
                times.adds += run([add])
            for add, path in zip(calls, paths, strict=True):
                times.iptables += run([Spawned(rule, {"CNI_NETNS": str(path), "PATH": os.environ["PATH"]})])
                times.dels += run([_delete(add)])
        times.tens = _at_once(running, directory, 10, TENS)
        times.fifties = _at_once(running, directory, 50, FIFTIES)
        return times


def _at_once(running: Agent, directory: Path, size: int, batches: int) -> list[float]:
    progress(f"{batches} times {size} ADDs at once")
    times = []
    for _ in range(batches):
        with namespaces(size, "batch") as paths:
            calls = _calls(running, directory, paths)
            times += run(calls)
            run([_delete(add) for add in calls])
    return times


def run(programs: Sequence[Spawned]) -> list[float]:
    """Spawn all of them, then wait for all. RuntimeError when one fails."""
    began: dict[int, float] = {}
    for one in programs:
        start = time.perf_counter()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, one.stdin, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ]
        began[os.posix_spawn(one.program, [one.program.name], one.environment, file_actions=actions)] = start
    times = []
    for _ in programs:
        pid, status = os.wait()
        times.append((time.perf_counter() - began[pid]) * 1e3)
        if status:
            raise RuntimeError(f"cannot go on: {programs[0].program.name} ended with wait status {status}")
    return times


def _calls(running: Agent, directory: Path, paths: Sequence[Path]) -> list[Spawned]:
    """An ADD for a new pod in each namespace, once the agent knows these pods."""
    stdin = directory / "stdin.json"
    stdin.write_text(json.dumps(conf(socket=str(running.run_dir / "cni.sock"))))
    calls = []
    for path in paths:
        uid = str(uuid.uuid4())
        running.put(path.name, uid=uid)
        given = environment("ADD", f"c-{uid}", path, arguments(path.name, "bench", uid))
        calls.append(Spawned(SHIM, given, str(stdin)))
    running.wait_until_known(path.name for path in paths)
    return calls


def _delete(add: Spawned) -> Spawned:
    return Spawned(add.program, {**add.environment, "CNI_COMMAND": "DEL"}, add.stdin)


def _build(directory: Path) -> tuple[Path, Path]:
    source = Path(__file__).with_name("programs.c")
    built = directory / "nothing", directory / "rule"
    for program, flags in zip(built, ([], ["-DRULE"]), strict=True):
        subprocess.run(["musl-gcc", "-static", "-Os", "-s", *flags, "-o", program, source], check=True)
    return built


def report(pods: int, times: Times) -> None:
    """The table, the goals, and the last line."""
    print("ms from spawn to end".ljust(40) + f"{'p50':>9}{'p99':>9}{'most':>9}")
    for name, found in (
        ("ADD", times.adds),
        ("ADD, each of 10 at once", times.tens),
        ("ADD, each of 50 at once", times.fifties),
        ("DEL", times.dels),
        ("a static program that does nothing", times.nothing),
        ("one iptables rule, execed", times.iptables),
    ):
        figures = statistics.median(found), percentile(found, 0.99), max(found)
        print(name.ljust(40) + "".join(f"{figure:9.2f}" for figure in figures))
    print(f"goals, with {pods} pods (they are set for 250):")
    add, fifty = statistics.median(times.adds), max(times.fifties)
    print(verdict("ADD, median", add, 1.5, " ms"))
    print(verdict("fifty ADDs at once, the last", fifty, 150, " ms"))
    conclude(
        bench="cni",
        pods=pods,
        add_p50_ms=add,
        add_p99_ms=percentile(times.adds, 0.99),
        add50_p99_ms=percentile(times.fifties, 0.99),
        del_p50_ms=statistics.median(times.dels),
        noop_ms=statistics.median(times.nothing),
        shim_bytes=SHIM.stat().st_size,
    )


def _count() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.cni",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pods", nargs="?", type=positive, default=250, metavar="N", help="pods beside it")
    pods: int = parser.parse_args().pods
    return pods


if __name__ == "__main__":
    main()
