"""python -m tests.bench.drift [--events N] [--pods N]: from a foreign change to the healed table.

A real agent keeps some pods, first with plain tables, then with another agent and tables that it owns.
In one pod after the other somebody runs `nft flush ruleset`, deletes our table or one of our rules, or
inserts a rule; half of the changes are made by an nft that ends at once, as on a command line, the other
half by an `nft -i` that stays. They differ by what no agent can help: while the socket of a program that
has just deleted something is closed, the kernel keeps the namespace's nf_tables locked until an RCU grace
period has passed (ten milliseconds or more), and a repair that has not won the race waits for it.

**How the time is taken**: by a netlink socket of our own in the pod, subscribed to nf_tables, and read at
once by a real-time thread. It runs from the arrival of nft's commit to the arrival of the agent's commit
after which the table reads back as it was before. The kernel reports each commit, with the name of the
program, while it is carried out.

**Escapes**: meanwhile uid 1000 of each pod connects to a peer all the time (see `connector`).
"""

import argparse
import contextlib
import itertools
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from agent.core.names import TABLE
from agent.node.netns import open_netns, run_in
from agent.node.nft.records import Record
from agent.node.nft.socket import Nft
from tests.bench.connector import Count
from tests.bench.stage import agent, conclude, interruptible, percentile, positive, progress, verdict
from tests.lab.netns import inside
from tests.lab.pod import Pod, pod_and_world

CHANGES = ("flush ruleset", "delete table", "delete rule", "insert rule")
CULPRITS = ("nft", "nft -i")
HEAL_DEADLINE = 5.0
PAUSE = (0.01, 0.02)
"""Seconds between two changes, least and most."""
WATCH_PRIORITY = 10


class Heal(msgspec.Struct, frozen=True):
    """One foreign change, and the milliseconds from its commit to the healed table."""

    culprit: str
    change: str
    ms: float


class Result(msgspec.Struct, frozen=True):
    """What came of the changes to one kind of table. Owned tables never need to heal: `heals` is empty."""

    heals: tuple[Heal, ...]
    count: Count


class Victim:
    """A pod under attack: our eyes on its nf_tables, and the nft that stays in it."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        fd = open_netns(pod.path)
        try:
            self.nft = run_in(fd, lambda: Nft(events=True))
        finally:
            os.close(fd)
        self.right: tuple[Record, ...] = self.nft.read(TABLE).records
        self._poll = select.poll()
        self._poll.register(self.nft.fileno(), select.POLLIN)
        self._staying = self._spawn("nft", "-i")

    def close(self) -> None:
        self._staying.kill()
        self._staying.communicate()
        self.nft.close()

    @property
    def intact(self) -> bool:
        """The table is as it was at the beginning."""
        return self.nft.read(TABLE).records == self.right

    def strike(self, culprit: str, change: str) -> subprocess.Popen[bytes] | None:
        """Start the change; returns the process if it is one that ends."""
        command = self._command(change)
        self.nft.events()
        if culprit == "nft":
            return self._spawn("nft", command)
        assert self._staying.stdin is not None
        self._staying.stdin.write(f"{command}\n".encode())
        return None

    def watch(self, what: str) -> float:
        """Milliseconds from nft's commit to the healed table. RuntimeError when it does not heal."""
        deadline = time.monotonic() + HEAL_DEADLINE
        struck: float | None = None
        while (left := deadline - time.monotonic()) > 0:
            asleep = time.perf_counter()
            self._poll.poll(left * 1000)
            now = time.perf_counter()
            for change in self.nft.events():
                if change.comm == "nft":
                    struck = now
                elif struck is not None and self.intact:
                    # Both with one wake: the time between them is not known, but it is no more than this.
                    return (now - (asleep if struck == now else struck)) * 1e3
        raise RuntimeError(f"cannot see {self.pod.name} healed {HEAL_DEADLINE:g} s after {what}")

    def _command(self, change: str) -> str:
        if change == "delete rule":
            rules = [rule for rule in self.nft.table_rules("inet", TABLE) if rule.chain == "output"]
            return f"delete rule inet {TABLE} output handle {rules[-1].handle}"
        if change == "insert rule":
            return f"insert rule inet {TABLE} output tcp dport 1-65535 return"
        return f"{change} inet {TABLE}" if change == "delete table" else change

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        # From a thread that is inside already: nothing but nft itself has to start.
        return inside(
            self.pod.name,
            lambda: subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ),
        )


@contextlib.contextmanager
def connecting(pods: Sequence[Pod], count: Count) -> Iterator[None]:
    """Connections in all pods for as long as the context lasts; `count` is filled in at its end."""
    command = [sys.executable, "-m", "tests.bench.connector"]
    command += [f"{pod.name},{pod.world},{pod.link('eth0').there[4]}" for pod in pods]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("cannot open connections: the connector has ended")
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise
    totals = msgspec.json.decode(process.communicate()[0], type=Count)
    for name in Count.__struct_fields__:
        setattr(count, name, getattr(totals, name))


def attack(events: int, pods: int, ownership: str) -> Result | None:
    """All changes, spread over the pods, against one agent. None when it should own tables and cannot."""
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(pod_and_world()) for _ in range(pods)]
        keeper = stack.enter_context(agent([each.path for each in places], "--table-ownership", ownership))
        owned = keeper.wait_until_redirected(pods).owned_tables
        if ownership == "auto" and not owned:
            return None
        victims = [stack.enter_context(contextlib.closing(Victim(place))) for place in places]
        count = Count()
        heals: list[Heal] = []
        with connecting(places, count):
            rounds = itertools.cycle(itertools.product(CHANGES, CULPRITS))
            for victim, (change, culprit) in itertools.islice(zip(itertools.cycle(victims), rounds), events):
                process = victim.strike(culprit, change)
                if not owned:
                    heals.append(Heal(culprit, change, victim.watch(f"`{change}` by {culprit}")))
                if process is not None:
                    process.communicate()
                time.sleep(random.uniform(*PAUSE))
                if owned and not victim.intact:
                    raise RuntimeError(
                        f"cannot go on: `{change}` has changed the owned table of {victim.pod.name}"
                    )
        return Result(tuple(heals), count)


def main() -> None:
    arguments = _arguments()
    with interruptible():
        _hurry()
        results: dict[str, Result | None] = {}
        for ownership in ("off", "auto"):
            progress(f"{arguments.events} changes in {arguments.pods} pods, --table-ownership {ownership}")
            results[ownership] = attack(arguments.events, arguments.pods, ownership)
        plain = results["off"]
        assert plain is not None
        report(plain, results["auto"])


def report(plain: Result, owned: Result | None) -> None:
    """The table, the goals, and the last line."""
    print(f"{'plain tables':<18}{'by':<8}{'events':>8}{'p50 ms':>9}{'p99 ms':>9}{'most ms':>9}")
    for change in (*CHANGES, "all"):
        for culprit in (*CULPRITS, "all"):
            times = [
                heal.ms
                for heal in plain.heals
                if change in (heal.change, "all") and culprit in (heal.culprit, "all")
            ]
            if times and (change == "all" or culprit != "all"):
                shares = "".join(f"{percentile(times, share):>9.2f}" for share in (0.5, 0.99, 1))
                print(f"{change:<18}{culprit:<8}{len(times):>8}{shares}")
    for name, result in (("plain", plain), ("owned", owned)):
        print(f"{name} tables: {_connections(result)}")
    p50, p99 = (percentile([heal.ms for heal in plain.heals], share) for share in (0.5, 0.99))
    escaped_owned = owned.count.escaped if owned else None
    print("goals:")
    print(verdict("p50 of plain tables", p50, 5, " ms"))
    print(verdict("connections that escaped from owned tables", escaped_owned, 0))
    conclude(
        bench="drift",
        p50_ms=p50,
        p99_ms=p99,
        events=len(plain.heals),
        escaped_plain=plain.count.escaped,
        escaped_owned=escaped_owned,
        connections=plain.count.opened + (owned.count.opened if owned else 0),
    )


def _connections(result: Result | None) -> str:
    if result is None:
        return "not measured, this kernel has no owner and persist flags"
    count = result.count
    return f"{count.opened} connections, {count.escaped} escaped, {count.lost} arrived nowhere"


def _hurry() -> None:
    """Read events the moment they come, however busy the machine is. Children stay ordinary."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(WATCH_PRIORITY))
    except PermissionError:
        progress("real-time scheduling is refused here: times are less exact")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.drift",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", type=positive, default=400, help="changes to each kind of table")
    parser.add_argument("--pods", type=positive, default=5, help="pods that they are spread over")
    return parser.parse_args()


if __name__ == "__main__":
    main()
