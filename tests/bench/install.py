"""python -m tests.bench.install [N ...]: what it costs to redirect N pods, and to keep them so.

Ours runs on the product's own path (see `ours`). Beside it, in namespaces of their own, runs what
linkerd-init executes, twelve times iptables-nft for IPv4 alone, and one `nft -f` of our own text; both are
started inside the namespace without a fork, so that nothing but the programs is measured.

install is the commit; verify is the read-back and comparison after it; update is the commit of a change in
place (other skip ports); compare is a whole visit to a pod that has not changed, with the look for
linkerd-init's leftovers and other people's chains; a round polls the generation of all pods. Memory is that
of `pointsman run` with its children, once it has come to rest.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

import msgspec

from agent.core.spec import NodeDefaults
from tests.bench.ours import ENOUGH, Ours, measure_ours, rule_text
from tests.bench.stage import Cost, agent, conclude, interruptible, namespaces, positive, progress, verdict
from tests.lab.netns import inside
from tests.linkerd_init import COMMANDS

SAMPLE = 50
"""Pods in which linkerd-init's commands and `nft -f` run, at most."""

_QUIET = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]


class Row(msgspec.Struct, frozen=True):
    """All that was measured with `pods` pods."""

    pods: int
    ours: Ours
    iptables: list[Cost]
    nft_f: list[Cost]


_LINES: tuple[tuple[str, Callable[[Row], list[Cost]]], ...] = (
    ("install: the commit", lambda row: row.ours.installs),
    ("verify: read-back and comparison", lambda row: row.ours.verifies),
    ("whole first visit, with a look around", lambda row: row.ours.visits),
    ("update in place: the commit", lambda row: row.ours.updates),
    ("compare: whole visit, nothing changed", lambda row: row.ours.compares),
    ("unchanged round, all pods together", lambda row: row.ours.rounds),
    ("linkerd-init: 12 iptables-nft, IPv4 only", lambda row: row.iptables),
    ("one nft -f", lambda row: row.nft_f),
)


def main() -> None:
    counts = _counts()
    with interruptible():
        rows = [measure(count) for count in counts]
        progress("memory of an agent without pods")
        empty = measure_rss(0)
        progress(f"memory of an agent with {counts[-1]} pods")
        full = measure_rss(counts[-1])
        report(rows, empty, full)


def measure(count: int) -> Row:
    progress(f"{count} pods: install, update, compare, poll")
    ours = measure_ours(count)
    progress(f"{count} pods: linkerd-init's commands and nft -f, in {min(count, SAMPLE)} of them")
    return Row(count, ours, *measure_programs(min(count, SAMPLE)))


def measure_programs(count: int) -> tuple[list[Cost], list[Cost]]:
    """linkerd-init's commands, and one `nft -f`, each in namespaces of its own."""
    iptables: list[Cost] = []
    nft_f: list[Cost] = []
    with tempfile.NamedTemporaryFile("w", suffix=".nft") as script:
        script.write(rule_text(NodeDefaults()))
        script.flush()
        while len(iptables) < ENOUGH:
            with namespaces(2 * count) as paths:
                for theirs, ours in zip(paths[::2], paths[1::2], strict=True):
                    iptables.append(run_all(theirs.name, COMMANDS()))
                    nft_f.append(run_all(ours.name, (("nft", "-f", script.name),)))
    return iptables, nft_f


def run_all(netns: str, commands: Sequence[tuple[str, ...]]) -> Cost:
    """Run programs one after the other in a namespace. RuntimeError when one fails."""

    def body() -> Cost:
        children = 0.0
        wall, cpu = time.perf_counter(), time.thread_time()
        for command in commands:
            try:
                pid = os.posix_spawnp(command[0], command, os.environ, file_actions=_QUIET)
            except FileNotFoundError as error:
                raise RuntimeError(
                    f"cannot run {command[0]}: install Debian's iptables and nftables"
                ) from error
            _, status, usage = os.wait4(pid, 0)
            if status:
                raise RuntimeError(f"cannot run {' '.join(command)!r} in {netns}: wait status {status}")
            children += usage.ru_utime + usage.ru_stime
        elapsed, own = time.perf_counter() - wall, time.thread_time() - cpu
        return Cost(elapsed * 1e3, (own + children) * 1e3)

    return inside(netns, body)


def measure_rss(count: int) -> float:
    """Resident memory in MiB of an agent that keeps `count` pods."""
    with namespaces(count) as paths, agent(paths) as running:
        running.wait_until_redirected(count)
        return running.settled_rss_mib()


def report(rows: Sequence[Row], empty: float, full: float) -> None:
    """The table, the goals, and the last line, which is about the largest number of pods."""
    print(
        "median ms per pod, CPU ms in brackets".ljust(44) + "".join(f"{f'N={row.pods}':>17}" for row in rows)
    )
    for name, costs in _LINES:
        print(name.ljust(44) + "".join(f"{_shown(_median(costs(row))):>17}" for row in rows))
    last = rows[-1]
    install, iptables = _median(last.ours.installs), _median(last.iptables)
    wall_ratio, cpu_ratio = iptables.wall / install.wall, iptables.cpu / install.cpu
    round_cpu = _median(last.ours.rounds).cpu
    print(f"memory of the agent, MiB: {empty:.1f} with no pod, {full:.1f} with {last.pods}")
    print(f"goals, with {last.pods} pods (they are set for 250):")
    print(verdict("linkerd-init's wall time / install", wall_ratio, 60, least=True))
    print(verdict("linkerd-init's CPU time / install", cpu_ratio, 100, least=True))
    print(verdict("CPU of an unchanged round", round_cpu, 5, " ms"))
    print(verdict("memory with no pod", empty, 70, " MiB"))
    print(verdict("memory with all pods", full, 85, " MiB"))
    conclude(
        bench="install",
        pods=last.pods,
        install_ms=install.wall,
        verify_ms=_median(last.ours.verifies).wall,
        iptables_ms=iptables.wall,
        nft_f_ms=_median(last.nft_f).wall,
        wall_ratio=wall_ratio,
        cpu_ratio=cpu_ratio,
        update_ms=_median(last.ours.updates).wall,
        compare_ms=_median(last.ours.compares).wall,
        round_cpu_ms=round_cpu,
        rss_mib_0=empty,
        rss_mib_250=full,
    )


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(cost.wall for cost in costs), statistics.median(cost.cpu for cost in costs))


def _shown(cost: Cost) -> str:
    return f"{cost.wall:.2f} ({cost.cpu:.2f})"


def _counts() -> list[int]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "pods", nargs="*", type=positive, default=[1, 50, 250], metavar="N", help="numbers of pods"
    )
    return sorted(set(parser.parse_args().pods))


if __name__ == "__main__":
    main()
