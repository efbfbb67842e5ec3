"""Adoption: pods that a real linkerd-init has set up, in full, half way or twice, come under our agent.

`redirections` tells them apart, and `cleanup` moves them over without a byte lost on open connections.
"""

import contextlib
import functools
import itertools
import json
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from agent.cli import main
from tests.lab.addresses import Family
from tests.lab.agent import JSON, PATIENCE, Agent, agent, pod_manifest
from tests.lab.netns import inside, netns, run
from tests.lab.pod import Pod, pod_and_world
from tests.lab.standin import Endpoint, bind
from tests.linkerd_init import COMMANDS, Command, rerun
from tests.node.test_leftovers import needs_legacy

ROOT = Path(__file__).parents[2]
APPLICATION_UID, PORT = 1000, 8080
BLOCK, IN_FLIGHT = 1024, 8
"""Bytes of a block, and blocks that are on their way at any time."""

INBOUND, OUTBOUND = "PROXY_INIT_REDIRECT", "PROXY_INIT_OUTPUT"
KILLED = 137


class Init(NamedTuple):
    """A linkerd-init by its iptables and by the families that it sets up, IPv4 first."""

    flavour: str
    families: tuple[Family, ...]

    @property
    def commands(self) -> tuple[Command, ...]:
        return tuple(itertools.chain.from_iterable(map(self.of, self.families)))

    def of(self, family: Family) -> tuple[Command, ...]:
        return COMMANDS(f"{'ip6tables' if family == 6 else 'iptables'}-{self.flavour}")


INITS = [
    pytest.param(
        Init(flavour, families),
        id=f"{flavour}-{'dual' if 6 in families else 'v4'}",
        marks=[needs_legacy] if flavour == "legacy" else [],
    )
    for flavour in ("nft", "legacy")
    for families in ((4,), (4, 6))
]
each_init = pytest.mark.parametrize("init", INITS)


def carry_out(name: str, commands: Iterable[Command]) -> None:
    script = "\n".join(map(shlex.join, commands))
    run("ip", "netns", "exec", name, "sh", "-e", "-s", script=script)


def manifest(name: str, pod: str, init: Init, exit_code: int = 0) -> JSON:
    """A pod whose linkerd-init has ended so, and whose proxy listens on the families that it set up."""
    listen = ",".join(["127.0.0.1:4140", "[::1]:4140"][: len(init.families)])
    env = [{"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": listen}]
    ended = {"name": "linkerd-init", "state": {"terminated": {"exitCode": exit_code}}}
    return pod_manifest(
        name,
        pod,
        containers=[{"name": "app"}, {"name": "linkerd-proxy", "env": env}],
        initContainers=[{"name": "linkerd-init"}],
        status={"phase": "Running", "initContainerStatuses": [ended]},
    )


def pointsman(one: Agent, *arguments: str) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--run-dir", str(one.run_dir)], prog_name="pointsman")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def rows(one: Agent) -> dict[str, JSON]:
    listed: list[JSON] = json.loads(pointsman(one, "redirections", "-o", "json").stdout)
    return {row["name"]: row for row in listed}


def remains(name: str, init: Init) -> str:
    """Every rule of iptables in a pod that has to do with linkerd-init."""
    tools = sorted({command[0] for command in init.commands if command[0].endswith("-save")})
    lines = "".join(run("ip", "netns", "exec", name, tool, "-t", "nat") for tool in tools).splitlines()
    return "\n".join(line for line in lines if "PROXY_INIT" in line)


def replayed(init: Init, commands: Iterable[Command]) -> list[str]:
    """What `redirections` has to say of rules that these commands made, by what each of them does."""
    chains: dict[tuple[Family, str], bool] = {}
    entered = set()
    for command in commands:
        family: Family = 6 if command[0].startswith("ip6") else 4
        match command[3:]:
            case ("-N" | "-F", chain, *_):
                chains[family, chain] = False
            case ("-A", "PREROUTING" | "OUTPUT", "-j", chain, *_):
                entered.add((family, chain))
            case ("-A", chain, *rest) if "REDIRECT" in rest:
                chains[family, chain] = True
    said = []
    for family in dict.fromkeys(family for family, _ in chains):
        works = {
            chain for chain in (INBOUND, OUTBOUND) if (family, chain) in entered and chains[family, chain]
        }
        again = any(of == family and chain not in works for of, chain in entered)
        state = {(True, False): "inboundOnly", (False, True): "outboundOnly"}.get(
            (INBOUND in works, OUTBOUND in works), "partial, redirects nothing"
        )
        half = f"half done{' by a later run' if again else ''} ({state})"
        said.append(f"IPv{family} ({init.flavour}): {'complete' if len(works) == 2 else half}")
    return said


def pasts(init: Init) -> Iterator[tuple[str, list[Command]]]:
    """Every first run that was killed, and for IPv4 alone every later run that was killed as well.

    Where the first run is done with IPv4, its IPv6 part goes the same way.
    """
    commands = init.commands
    per_family = len(COMMANDS())
    for count in range(len(commands) - per_family + 1, len(commands) + 1):
        yield f"first-{count}", list(commands[:count])
    for done in (7, per_family) if init.families == (4,) else ():
        later = list(rerun(commands, done))
        for count in range(1, len(later) + 1):
            yield f"first-{done}-later-{count}", [*commands[:done], *later[:count]]


@each_init
def test_a01_every_kill_is_told_apart_and_cleaned_up(tmp_path: Path, init: Init) -> None:
    """Killed after each command, of the first run and of a later one: each is joined by ours, and named."""
    with contextlib.ExitStack() as stack:
        made = {name: (stack.enter_context(netns()), commands) for name, commands in pasts(init)}
        one = stack.enter_context(agent(tmp_path, start=False))
        for name, (pod, commands) in made.items():
            carry_out(pod, commands)
            one.put(manifest(name, pod, init, KILLED))
        one.start()
        for name in made:
            one.wait_reason(f"default/{name}", "Redirected")
        seen = rows(one)
        assert {row["mode"] for row in seen.values()} == {"nftables"}
        expected = {name: replayed(init, commands) for name, (_, commands) in made.items()}
        assert {name: row["linkerdInit"] for name, row in seen.items()} == expected
        assert len({tuple(each) for each in expected.values()}) == (7 if init.families == (4,) else 4)
        assert pointsman(one, "cleanup", "--all", "--yes").exit_code == 0
        assert {pod: remains(pod, init) for pod, _ in made.values()} == {pod: "" for pod, _ in made.values()}
        assert {tuple(row["linkerdInit"]) for row in rows(one).values()} == {()}
        assert pointsman(one, "cleanup", "--all").stderr == "No leftovers of linkerd-init found.\n"


class Past(NamedTuple):
    """What linkerd-init did: `first` commands of the last family (None: all), then `later` ones of a later
    run; its exit code, and what `redirections` says then. IPv4 is complete where it is not the last family."""

    first: int | None
    later: int | None
    exit_code: int
    reason: str
    said: tuple[str, ...]


PASTS = {
    "complete": Past(None, None, 0, "RedirectedByIptables", ("complete, in force",)),
    "killed-at-its-end": Past(11, None, KILLED, "Redirected", ("complete",)),
    "half-done": Past(7, None, KILLED, "Redirected", ("half done (inboundOnly)",)),
    "half-done-then-skipped": Past(7, 0, 0, "Redirected", ("half done (inboundOnly)", "reported success")),
    "killed-twice": Past(
        7, 3, KILLED, "Redirected", ("half done by a later run (partial, redirects nothing)",)
    ),
    "complete-then-killed": Past(None, 8, KILLED, "Redirected", ("half done by a later run (inboundOnly)",)),
}


def first_run(init: Init, past: Past) -> list[Command]:
    return _cut(init, init.commands, past.first)


def later_run(init: Init, past: Past) -> list[Command]:
    if past.later == 0:
        # An old release lists the table, finds its chains, and ends well.
        return [init.commands[0]]
    again = rerun(init.commands, len(first_run(init, past)))
    return _cut(init, again, past.later) if past.later else []


def _cut(init: Init, commands: Iterable[Command], count: int | None) -> list[Command]:
    """The commands of the last family, or so many of them, after all those of the other."""
    of_last = {True: [], False: []}  # type: dict[bool, list[Command]]
    for command in commands:
        of_last[command[0].startswith("ip6") == (init.families[-1] == 6)].append(command)
    return [*of_last[False], *of_last[True][:count]]


def told(init: Init, past: Past) -> list[str]:
    """What `redirections` has to say of a pod with this past."""
    if past.reason == "RedirectedByIptables":
        return list(past.said)
    *complete, last = init.families
    state, *more = past.said
    named = [f"IPv{family} ({init.flavour}): complete" for family in complete]
    return [*named, f"IPv{last} ({init.flavour}): {state}", *more]


class Flow:
    """A connection on which bytes go both ways all the time: blocks, no two alike, that are echoed."""

    def __init__(self, start: str, destination: Endpoint, uid: int) -> None:
        connect = functools.partial(socket.create_connection, destination, PATIENCE)
        self._client = inside(start, connect, uid=uid, gid=uid)
        self._echoed = 0
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def goes_on(self) -> None:
        """Blocks that are sent from now on come back."""
        wanted = self._echoed + 2 * IN_FLIGHT
        deadline = time.monotonic() + PATIENCE
        while self._echoed < wanted and time.monotonic() < deadline and not self._failure:
            time.sleep(0.005)
        assert self._failure is None
        assert self._echoed >= wanted, "the connection stands still"

    def close(self) -> None:
        """Every byte has come back, and the other end closes in its turn."""
        self._ended.set()
        self._thread.join()
        self._client.close()
        assert self._failure is None

    def _run(self) -> None:
        try:
            self._talk()
        except (OSError, AssertionError) as failure:
            self._failure = failure

    def _talk(self) -> None:
        sent = 0
        while self._echoed < sent or not self._ended.is_set():
            if sent - self._echoed < IN_FLIGHT and not self._ended.is_set():
                self._client.sendall(_block(sent))
                sent += 1
                continue
            assert self._receive(BLOCK) == _block(self._echoed), f"block {self._echoed} is another"
            self._echoed += 1
            time.sleep(0.001)
        self._client.shutdown(socket.SHUT_WR)
        assert self._receive(1) == b"", "more has come back than was sent"

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size and (data := self._client.recv(size - len(received))):
            received += data
        return received


def _block(number: int) -> bytes:
    return number.to_bytes(8, "big") * (BLOCK // 8)


class Stage:
    """A pod with its proxy, a process of the proxy's user that carries the bytes on; an application in the
    pod and one in the world echo what they get. `accepted`: connections that the proxy has taken."""

    def __init__(self, pod: Pod, init: Init, log: Path) -> None:
        self.pod = pod
        self._families = init.families
        self._log = log
        self._stack = contextlib.ExitStack()
        self._start_proxy()
        for name, family, uid in itertools.product((pod.name, pod.world), self._families, (APPLICATION_UID,)):
            self._stack.enter_context(_echoing(name, family, uid))

    @property
    def accepted(self) -> Counter[str]:
        lines = map(json.loads, self._log.read_text().splitlines())
        return Counter(line["listener"] for line in lines if "peer" in line)

    def flows(self) -> list[Flow]:
        """One into the pod and one out of it for each family, each under way."""
        pod, made = self.pod, []
        for family in self._families:
            into, out = pod.address[family], pod.link("eth0").there[family]
            made += [Flow(pod.world, (into, PORT), 0), Flow(pod.name, (out, PORT), APPLICATION_UID)]
        for flow in made:
            flow.goes_on()
            self._stack.callback(flow.close)
        return made

    def close(self) -> None:
        """Flows first: each must end well."""
        self._stack.close()

    def _start_proxy(self) -> None:
        command = [sys.executable, "-m", "tests.lab.standin", "--netns", self.pod.name, "--forward"]
        with self._log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        deadline = time.monotonic() + PATIENCE
        while "ready" not in self._log.read_text():
            assert time.monotonic() < deadline, "the stand-in for the proxy is not ready"
            time.sleep(0.02)


@contextlib.contextmanager
def staged(init: Init, directory: Path) -> Iterator[Stage]:
    with pod_and_world() as pod, contextlib.closing(Stage(pod, init, directory / "proxy.log")) as stage:
        yield stage


@contextlib.contextmanager
def _echoing(name: str, family: Family, uid: int) -> Iterator[None]:
    any_address = {4: "0.0.0.0", 6: "::"}[family]
    with inside(name, lambda: bind(family, any_address, PORT), uid=uid, gid=uid) as listener:
        listener.setblocking(True)
        thread = threading.Thread(target=_accept, args=(listener,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(listener: socket.socket) -> None:
    # Until it is shut down.
    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=_echo, args=(listener.accept()[0],)).start()


def _echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def ours_decide(one: Agent, stage: Stage) -> None:
    """New connections of every kind go to the proxy, by our own rules."""
    accepted, counted = stage.accepted, one.pod("default/web")["counters"]
    made = Counter({"inbound": 0, "outbound": 0})
    made.update({"inbound": len(stage.flows()) // 2})
    made["outbound"] = made["inbound"]
    assert stage.accepted - accepted == made
    now = one.pod("default/web")["counters"]
    for counter, direction in (("in_redirect", "inbound"), ("out_redirect", "outbound")):
        assert now[counter] - counted.get(counter, 0) == made[direction]


@each_init
@pytest.mark.parametrize("past", [pytest.param(past, id=name) for name, past in PASTS.items()])
def test_cleanup_moves_a_pod_over_with_its_connections(tmp_path: Path, init: Init, past: Past) -> None:
    with staged(init, tmp_path) as stage, agent(tmp_path, start=False) as one:
        carry_out(stage.pod.name, first_run(init, past))
        flows = stage.flows()
        every = len(init.families)
        assert stage.accepted == Counter(inbound=every, outbound=every - (past.first == 7))
        carry_out(stage.pod.name, later_run(init, past))
        one.put(manifest("web", stage.pod.name, init, past.exit_code))
        one.start()
        one.wait_reason("default/web", past.reason)
        row = rows(one)["web"]
        assert row["linkerdInit"] == told(init, past)
        assert row["mode"] == ("iptables" if past.reason == "RedirectedByIptables" else "nftables")
        table = pointsman(one, "redirections").stdout.splitlines()
        assert table[0].endswith("   LINKERD-INIT")
        assert table[1].endswith(f"   {'; '.join(told(init, past))}")

        for flow in flows:
            flow.goes_on()
        cleaned = pointsman(one, "cleanup", "default/web", "--yes")
        assert (cleaned.exit_code, cleaned.stdout.count("\n  removed ")) == (0, 2 * every), cleaned.stdout
        for flow in flows:
            flow.goes_on()

        assert remains(stage.pod.name, init) == ""
        row = rows(one)["web"]
        assert (row["reason"], row["mode"], row["linkerdInit"]) == ("Redirected", "nftables", [])
        assert "LINKERD-INIT" not in pointsman(one, "redirections").stdout
        ours_decide(one, stage)
        again = pointsman(one, "cleanup", "default/web", "--yes")
        assert (again.exit_code, again.stdout) == (0, "default/web\n  nothing of linkerd-init is there\n")
