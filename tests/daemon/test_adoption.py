"""Adoption: pods that a real linkerd-init has set up, in full, half way or twice, come under our agent.

`redirections` tells them apart, and `cleanup` moves them over without a byte lost on open connections.
"""

import contextlib
import itertools
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from agent.cli import main
from tests.lab.addresses import Family
from tests.lab.agent import JSON, Agent, agent, pod_manifest
from tests.lab.flow import Stage, staged
from tests.lab.netns import netns, run
from tests.linkerd_init import COMMANDS, Command, rerun
from tests.node.test_leftovers import needs_legacy

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
    """A first run that was killed after each of its last family's commands, and for IPv4 alone a later run
    that was killed after each of its own, when the first had come to its middle or its end."""
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
    run (None: there was none; 0: it was of an old release); its exit code, and what `redirections` says
    then. IPv4 is complete where it is not the last family.

    `past_the_proxy`: directions in which connections of the last family escaped before the agent came.
    """

    first: int | None
    later: int | None
    exit_code: int
    reason: str
    said: tuple[str, ...]
    past_the_proxy: tuple[str, ...] = ()


IN_FORCE = ("complete, in force",)
OUT, BOTH = ("outbound",), ("inbound", "outbound")
PASTS = {
    "complete": Past(None, None, 0, "RedirectedByIptables", IN_FORCE),
    "killed-at-its-end": Past(11, None, KILLED, "Redirected", ("complete",)),
    "half-done": Past(7, None, KILLED, "Redirected", ("half done (inboundOnly)",), OUT),
    "half-done-then-skipped": Past(
        7, 0, 0, "Redirected", ("half done (inboundOnly)", "reported success"), OUT
    ),
    "killed-twice": Past(
        7, 3, KILLED, "Redirected", ("half done by a later run (partial, redirects nothing)",), BOTH
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
    ipv6 = init.families[-1] == 6
    before, last = [], []
    for command in commands:
        (last if command[0].startswith("ip6") == ipv6 else before).append(command)
    return [*before, *last[:count]]


def told(init: Init, past: Past) -> list[str]:
    """What `redirections` has to say of a pod with this past."""
    if past.reason == "RedirectedByIptables":
        return list(past.said)
    *complete, last = init.families
    state, *more = past.said
    named = [f"IPv{family} ({init.flavour}): complete" for family in complete]
    return [*named, f"IPv{last} ({init.flavour}): {state}", *more]


def ours_decide(one: Agent, stage: Stage) -> None:
    """New connections of every kind go to the proxy, by our own rules."""
    accepted, counted = stage.accepted, one.pod("default/web")["counters"]
    made = Counter(BOTH * (len(stage.flows()) // 2))
    assert stage.accepted - accepted == made
    now = one.pod("default/web")["counters"]
    for counter, direction in (("in_redirect", "inbound"), ("out_redirect", "outbound")):
        assert now[counter] - counted.get(counter, 0) == made[direction]


@each_init
@pytest.mark.parametrize("past", [pytest.param(past, id=name) for name, past in PASTS.items()])
def test_cleanup_moves_a_pod_over_with_its_connections(tmp_path: Path, init: Init, past: Past) -> None:
    with staged(init.families, tmp_path) as stage, agent(tmp_path, start=False) as one:
        carry_out(stage.pod.name, first_run(init, past))
        # A flush of the only redirect ends connection tracking, and so what was redirected: where a later
        # run does so, it harms connections before we come.
        early = stage.flows() if past.first is None else []
        carry_out(stage.pod.name, later_run(init, past))
        flows = early or stage.flows()
        every = Counter(BOTH * len(init.families))
        assert stage.accepted == every - Counter(past.past_the_proxy)
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
        assert (cleaned.exit_code, cleaned.stdout.count("\n  removed ")) == (0, every.total()), cleaned.stdout
        for flow in flows:
            flow.goes_on()

        assert remains(stage.pod.name, init) == ""
        row = rows(one)["web"]
        assert (row["reason"], row["mode"], row["linkerdInit"]) == ("Redirected", "nftables", [])
        assert "LINKERD-INIT" not in pointsman(one, "redirections").stdout
        ours_decide(one, stage)
        again = pointsman(one, "cleanup", "default/web", "--yes")
        assert (again.exit_code, again.stdout) == (0, "default/web\n  nothing of linkerd-init is there\n")


@each_init
@pytest.mark.parametrize("past", ["complete", "half-done-then-skipped"])
def test_takeover_moves_pods_over_by_itself(tmp_path: Path, init: Init, past: str) -> None:
    with staged(init.families, tmp_path) as stage, agent(tmp_path, "--takeover", start=False) as one:
        carry_out(stage.pod.name, first_run(init, PASTS[past]))
        flows = stage.flows()
        one.put(manifest("web", stage.pod.name, init))
        one.start()
        one.wait(lambda: rows(one)["web"]["linkerdInit"] == [], "end of linkerd-init's rules")
        assert (one.reason("default/web"), remains(stage.pod.name, init)) == ("Redirected", "")
        for flow in flows:
            flow.goes_on()
        ours_decide(one, stage)


@each_init
def test_the_same_removal_without_ours_resets(tmp_path: Path, init: Init) -> None:
    """What the others would see if cleanup came too early: no rule tracks connections any more."""
    with staged(init.families, tmp_path) as stage:
        carry_out(stage.pod.name, init.commands)
        flows = stage.flows()
        chains = [(command[0], command[4]) for command in init.commands if "-N" in command]
        carry_out(stage.pod.name, [(binary, "-t", "nat", "-F", chain) for binary, chain in chains])
        for flow in flows:
            with pytest.raises(AssertionError):
                flow.goes_on()
            assert isinstance(flow.failure, ConnectionResetError)
            flow.failure = None


@each_init
def test_a_later_run_harms_nothing_beside_ours(tmp_path: Path, init: Init) -> None:
    """The kubelet starts linkerd-init again in a pod that was moved over, and it is killed again."""
    with staged(init.families, tmp_path) as stage, agent(tmp_path) as one:
        past = PASTS["killed-twice"]
        carry_out(stage.pod.name, first_run(init, past))
        one.put(manifest("web", stage.pod.name, init, KILLED))
        one.wait_reason("default/web", "Redirected")
        flows = stage.flows()
        carry_out(stage.pod.name, later_run(init, past))
        for flow in flows:
            flow.goes_on()
        ours_decide(one, stage)
        one.ask("POST", "/visit?pod=default/web")
        assert rows(one)["web"]["linkerdInit"] == told(init, past)
        assert rows(one)["web"]["drifts"] == 0


@each_init
def test_a_later_run_that_undoes_complete_rules_is_joined(tmp_path: Path, init: Init) -> None:
    """Rules that were left alone are half gone: ours go in, and connections stay."""
    with staged(init.families, tmp_path) as stage, agent(tmp_path) as one:
        past = PASTS["complete-then-killed"]
        carry_out(stage.pod.name, init.commands)
        one.put(manifest("web", stage.pod.name, init))
        one.wait_reason("default/web", "RedirectedByIptables")
        flows = stage.flows()
        carry_out(stage.pod.name, later_run(init, past))
        if init.flavour == "legacy":
            # No event tells of a legacy table. The kubelet does, of the container.
            one.put(manifest("web", stage.pod.name, init, KILLED))
        one.wait_reason("default/web", "Redirected")
        want = told(init, past) + (["reported success"] if init.flavour == "nft" else [])
        # Of legacy rules the agent may have known before the kubelet's word came.
        one.wait(lambda: rows(one)["web"]["linkerdInit"] == want, f"{want}")
        for flow in flows:
            flow.goes_on()
        ours_decide(one, stage)


@pytest.mark.parametrize("flavour", ["nft", pytest.param("legacy", marks=needs_legacy)])
def test_ipv6_rules_of_a_pod_whose_proxy_has_none(tmp_path: Path, flavour: str) -> None:
    """linkerd-init sets up IPv6 unless told not to. Ours never redirect it in such a pod: cleanup ends
    new IPv6 connections' way through the proxy, and keeps those that are open."""
    ipv4, both = Init(flavour, (4,)), Init(flavour, (4, 6))
    with staged(both.families, tmp_path) as stage, agent(tmp_path) as one:
        carry_out(stage.pod.name, both.commands)
        flows = stage.flows()
        one.put(manifest("web", stage.pod.name, ipv4))
        one.wait_reason("default/web", "RedirectedByIptables")
        assert pointsman(one, "cleanup", "default/web", "--yes").exit_code == 0
        assert remains(stage.pod.name, both) == ""
        for flow in flows:
            flow.goes_on()


@pytest.mark.parametrize("flavour", ["nft", pytest.param("legacy", marks=needs_legacy)])
def test_half_a_rule_set_is_named_beside_a_complete_one(tmp_path: Path, flavour: str) -> None:
    init = Init(flavour, (4, 6))
    with netns() as pod, agent(tmp_path) as one:
        carry_out(pod, first_run(init, PASTS["half-done"]))
        one.put(manifest("web", pod, Init(flavour, (4,))))
        one.wait_reason("default/web", "RedirectedByIptables")
        row = rows(one)["web"]
        assert row["linkerdInit"] == [*IN_FORCE, f"IPv6 ({flavour}): half done (inboundOnly)"]
        assert f"are complete (IPv4 {flavour}) and left alone" in row["message"]
        assert pointsman(one, "cleanup", "--all", "--yes").exit_code == 0
        assert remains(pod, init) == ""


@pytest.mark.parametrize("past", [pytest.param(past, id=name) for name, past in PASTS.items()])
def test_an_agent_that_was_started_anew_says_the_same(tmp_path: Path, past: Past) -> None:
    init = Init("nft", (4,))
    with netns() as pod, agent(tmp_path) as one:
        carry_out(pod, [*first_run(init, past), *later_run(init, past)])
        one.put(manifest("web", pod, init, past.exit_code))
        for _ in range(2):
            one.wait_reason("default/web", past.reason)
            assert rows(one)["web"]["linkerdInit"] == told(init, past)
            one.stop()
            one.start()


def test_a_report_of_success_that_is_taken_back_is_no_complaint_any_more(tmp_path: Path) -> None:
    """The kubelet's word on the container may come after a look at what it left."""
    init = Init("nft", (4,))
    with staged(init.families, tmp_path) as stage, agent(tmp_path) as one:
        carry_out(stage.pod.name, init.commands[:4])
        one.put(manifest("web", stage.pod.name, init))
        one.wait(lambda: "InitResultMismatch" in str(one.pod("default/web")["status"]), "the complaint")
        one.put(manifest("web", stage.pod.name, init, KILLED))
        one.wait(lambda: "InitResultMismatch" not in str(one.pod("default/web")["status"]), "its end")
