"""Rules that come to a pod, and all that must be given back when it goes."""

import contextlib
import random
import time
from collections.abc import Iterator

from agent.core.names import TABLE
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.stage import (
    all_redirected,
    expect,
    key,
    manifest,
    metric,
    rounds,
    running,
    settle,
    spec_of,
    wait,
)
from tests.cases.stories.traffic import (
    arrival,
    both_ways,
    live,
    ordinary_port,
    ordinary_uid,
    standin_of,
)
from tests.lab.agent import Agent, descriptors
from tests.lab.netns import configure, inside, netns, run
from tests.lab.pod import pod_and_world
from tests.lab.standin import bind
from tests.node.pods import socket_in

KILLS = 30
"""Agents that are killed in the middle of their installs; the environment may say another number."""
PODS_PER_KILL = 6
LEAK_PODS = 1000
"""Pods that come and go; the environment may say another number."""
AT_ONCE = 25


def killed_in_the_middle(case: Case) -> Findings:
    """C01: after SIGKILL each netns holds the whole table or none, and the next agent completes all."""
    findings = Findings()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    left: list[int] = []
    with contextlib.ExitStack() as stack:
        pods = {f"web-{n}": stack.enter_context(netns()) for n in range(PODS_PER_KILL)}
        looks = [stack.enter_context(socket_in(pod)) for pod in pods.values()]
        one = stack.enter_context(running(case))
        for name, pod in pods.items():
            one.put(manifest(case, pod, name))
        all_redirected(one, pods)
        one.kill()
        # The first record is the table itself, whose flags are another where nobody owns it.
        whole = looks[0].read(TABLE).records[1:]
        for _ in rounds("KILLS", KILLS, seconds=12):
            _kill_while_installing(one, looks, chance.uniform(0, 0.004))
            tables = [look.read(TABLE).records for look in looks]
            half = [len(records) for records in tables if records and records[1:] != whole]
            expect(findings, not half, f"tables with {half} objects are left, {len(whole) + 1} are whole")
            left.append(sum(1 for records in tables if records))
        one.start()
        all_redirected(one, pods)
        healed = all(look.read(TABLE).records[1:] == whole for look in looks)
        expect(findings, healed, "the next agent leaves a table that is not whole")
    counts = f"{sum(left)} tables were there, {len(left) * PODS_PER_KILL - sum(left)} were not"
    findings.notes.append(f"{len(left)} kills (seed {seed}): {counts}")
    return findings


def _kill_while_installing(one: Agent, looks: list[Nft], delay: float) -> None:
    """Remove all tables, start the agent, and kill it `delay` seconds after its first install."""
    for look in looks:
        NftDatapath().remove(look)
    before = [look.generation() for look in looks]
    one.start(wait=False)
    wait(lambda: [look.generation() for look in looks] != before, "begin of the installs", pause=0.0003)
    time.sleep(delay)
    one.kill()


def started_before_the_agent(case: Case) -> Findings:
    """C05: what was open stays open and direct; what is opened from now on goes through the proxy."""
    findings = Findings()
    spec = spec_of(case)
    port, user = ordinary_port(spec), ordinary_uid(spec)
    with contextlib.ExitStack() as stack:
        pod = stack.enter_context(pod_and_world())
        here, there = pod.address[4], pod.link("eth0").there[4]
        application = stack.enter_context(inside(pod.name, lambda: bind(4, here, port)))
        peer = stack.enter_context(inside(pod.world, lambda: bind(4, there, port)))
        old = {
            "inbound": stack.enter_context(live(pod.world, (here, port), application)),
            "outbound": stack.enter_context(live(pod.name, (there, port), peer, uid=user)),
        }
        one = stack.enter_context(running(case, start=False))
        one.put(manifest(case, pod.name))
        one.start()
        one.wait_reason(str(case.pod.key), "Redirected")
        for name, connection in old.items():
            expect(findings, connection.works(), f"the {name} connection that was there before is dead")
        standin = stack.enter_context(standin_of(pod, spec))
        # Another port: at this one the application and the peer listen already.
        for probe in both_ways(spec, ordinary_port(spec, port + 1)):
            seen = arrival(pod, standin, probe).place
            expect(findings, seen == probe.direction, f"a new {probe.direction}bound connection is {seen}")
        for name, connection in old.items():
            expect(findings, connection.works(), f"the old {name} connection has died since")
    return findings


def leak(case: Case) -> Findings:
    """C19: pods come and go; descriptors and namespaces are what they were at the start."""
    findings = Findings(notes=["that close() is never on the event loop cannot be seen from outside"])
    pods = 0
    with netns() as yard, running(case) as one:
        _come_and_go(case, one, yard, "first")
        one.wait(lambda: not one.state()["pods"], "end of the first pods")
        before = descriptors(one.pid)
        for pods in rounds("LEAK_PODS", LEAK_PODS, step=AT_ONCE):
            _come_and_go(case, one, yard, f"{pods}")
        one.wait(lambda: not one.state()["pods"], "end of all pods")
        # The far ends of their interfaces vanish with the namespaces, and only then.
        wait(lambda: run("ip", "-n", yard, "-o", "link").count("\n") == 1, "end of all namespaces", pause=0.1)
        wait(lambda: descriptors(one.pid) <= before, f"return to {before} descriptors")
        held = metric(one, "pointsman_netns_held")
        expect(findings, held == 0, f"{held:g} namespaces are held")
    findings.notes.append(f"{pods + AT_ONCE} pods created and deleted")
    return findings


def _come_and_go(case: Case, one: Agent, yard: str, batch: str) -> None:
    """Pods with an interface each, redirected, then gone: half by their objects first, half by the netns."""
    with contextlib.ExitStack() as stack:
        pods = {f"web-{batch}-{n}": stack.enter_context(netns()) for n in range(AT_ONCE)}
        ends = enumerate(pods.values())
        # Interfaces of the batch before may live on for a moment, so each has a name of its own.
        configure(yard, *(f"link add v{batch}-{n} type veth peer name eth0 netns {pod}" for n, pod in ends))
        for name, pod in pods.items():
            one.put(manifest(case, pod, name))
        all_redirected(one, pods)
        for name in list(pods)[::2]:
            one.drop(manifest(case, None, name))
    for name in list(pods)[1::2]:
        one.drop(manifest(case, None, name))


def verified_from_the_node(case: Case) -> Findings:
    """C22: one connection from the pod's netns is counted, proxy or none; without a route nobody can tell."""
    findings = Findings()
    spec = spec_of(case)
    with pod_and_world() as pod, netns() as island, running(case) as one:
        there, alone = manifest(case, pod.name), manifest(case, island, "island")
        for each in (there, alone):
            settle(one, each, "Redirected")
        findings.failures += _tried(one, key(there), pod.name, "no proxy", "redirected")
        with standin_of(pod, spec):
            findings.failures += _tried(one, key(there), pod.name, "a running proxy", "redirected")
        findings.failures += _tried(one, key(alone), island, "no route", "unverifiable")
        reason = one.reason(key(alone))
        expect(findings, reason == "Redirected", f"without a route the pod is {reason}, expected Redirected")
    return findings


def _tried(one: Agent, name: str, netns: str, what: str, expected: str) -> Iterator[str]:
    """The agent tries one connection; out_redirect moves by one if it is redirected, else not at all."""
    with socket_in(netns) as look:
        before, _ = look.read(TABLE).counters["out_redirect"]
        answer = one.ask("POST", f"/trial?pod={name}")
        after, _ = look.read(TABLE).counters["out_redirect"]
    if not isinstance(answer, dict) or answer["result"] != expected:
        yield f"with {what} the answer is {answer}, expected {expected}"
    if after - before != (expected == "redirected"):
        yield f"with {what} out_redirect moves by {after - before}"
