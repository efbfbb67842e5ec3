"""Rules that change hands or content, or go, while connections live: updates, upgrades, drains."""

import contextlib
import itertools
from collections.abc import Iterator

from agent.core.names import REDIRECT, SKIP_OUTBOUND_PORTS, TABLE
from agent.core.ruleset import render
from agent.node.nft.socket import Nft
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import content, descriptors_of, table
from tests.cases.stories.stage import (
    all_redirected,
    expect,
    manifest,
    metric,
    rounds,
    running,
    settle,
    spec_of,
    wait,
)
from tests.cases.stories.traffic import arrival, both_ways, load, ordinary_port, proxied, standin_of
from tests.lab.agent import JSON, Agent
from tests.lab.netns import netns, path_of, run
from tests.lab.pod import Pod, pod_and_world
from tests.node.pods import nft as nft_script
from tests.node.pods import socket_in

CHANGES = 200
"""Changes of the pod's annotation under load; the environment may say another number."""
STARTED = STOPPED = 20
"""Pods that come and go between two agents."""
UNCHANGED = 3
"""Pods that live through the change of agents as they are."""


def changed_under_load(case: Case) -> Findings:
    """C06: the annotation changes again and again while connections are opened."""
    findings = Findings()
    spec = spec_of(case)
    # A text that is new is compiled first: a few of them only, so that the changes themselves are tried.
    used = ordinary_port(spec)
    firsts = (first for first in range(10_000, 60_000, 10_000) if used not in (first, first + 1000))
    lists = [f"{first},{first + 1000}" for first in itertools.islice(firsts, 4)]
    counted: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        pod = stack.enter_context(pod_and_world())
        one = stack.enter_context(running(case))
        settle(one, manifest(case, pod.name, annotations={SKIP_OUTBOUND_PORTS: lists[-1]}), "Redirected")
        through = stack.enter_context(proxied(pod, spec))
        connections = stack.enter_context(load(pod, spec))
        look = stack.enter_context(socket_in(pod.name))
        number = 0
        for number in rounds("CHANGES", CHANGES):
            _change(one, manifest(case, pod.name, annotations={SKIP_OUTBOUND_PORTS: lists[number % 4]}), look)
            counters = _packets(look)
            backwards = [name for name, packets in counted.items() if counters.get(name, 0) < packets]
            expect(findings, not backwards, f"counters went backwards: {backwards}")
            counted = counters
        last = lists[number % 4].replace(",", ", ")
        wait(lambda: last in content(pod.name), "the last list in force")
        for direction, connection in through.items():
            expect(findings, connection.works(), f"the {direction} connection through the proxy is dead")
        totals = one.state()["totals"]
    behind = [name for name, packets in counted.items() if totals[name] < packets]
    expect(findings, not behind, f"the agent's totals are below the kernel's counters: {behind}")
    findings.failures += connections.failures(f"{number + 1} changes")
    findings.notes.append(f"{number + 1} changes of the annotation beside {connections.opened} connections")
    return findings


def _change(one: Agent, pod: JSON, look: Nft) -> None:
    """Put the manifest, and wait until the kernel's rules have changed."""
    before = look.generation()
    one.put(pod)
    wait(lambda: look.generation() != before, "change of the rules after one of the manifest", pause=0.001)


def _packets(look: Nft) -> dict[str, int]:
    return {name: packets for name, (packets, _) in look.read(TABLE).counters.items()}


def upgrade(case: Case) -> Findings:
    """C09: one agent ends, pods come and go, the rules of one get another layout, the next agent starts."""
    findings = Findings()
    spec = spec_of(case)
    with contextlib.ExitStack() as stack:
        old, busy = (stack.enter_context(pod_and_world()) for _ in range(2))
        kept = {f"kept-{n}": stack.enter_context(netns()) for n in range(UNCHANGED)} | {"busy": busy.name}
        going = stack.enter_context(contextlib.ExitStack())
        gone = {f"gone-{n}": going.enter_context(netns()) for n in range(STOPPED)}
        one = stack.enter_context(running(case))
        for name, pod in (kept | gone | {"old": old.name}).items():
            one.put(manifest(case, pod, name))
        all_redirected(one, [*kept, *gone, "old"])
        for probe in both_ways(spec):
            arrival(busy, (), probe)
        inodes = [path_of(pod).stat().st_ino for pod in gone.values()]
        one.stop()
        nft_script(old.name, f"delete table inet {TABLE}\n{_older_layout(render(spec))}")
        looks = {name: stack.enter_context(socket_in(pod)) for name, pod in kept.items()}
        looks["old"] = stack.enter_context(socket_in(old.name))
        before = {name: (table(pod), _packets(looks[name])) for name, pod in kept.items()}
        come = {f"come-{n}": stack.enter_context(netns()) for n in range(STARTED)}
        for name, pod in come.items():
            one.put(manifest(case, pod, name))
        going.close()
        for name in itertools.islice(gone, STOPPED // 2):
            one.drop(manifest(case, None, name))
        with load(old, spec) as connections:
            wait(lambda: connections.opened > 20, "connections before the next agent")
            one.start()
            all_redirected(one, [*kept, *come, "old"])
            opened = connections.opened
            wait(lambda: connections.opened > opened + 20, "connections after the rewrite")
        findings.failures += connections.failures("the rewrite of another layout")
        expect(findings, before["busy"][1].get("out_redirect"), "nothing was counted before the upgrade")
        for name, pod in kept.items():
            findings.failures += _adopted(name, pod, looks[name], *before[name])
        commits = len([change for change in looks["old"].events() if not change.own])
        expect(findings, commits == 1, f"the other layout was rewritten by {commits} commits, not by 1")
        right = content(old.name) == content(kept["kept-0"])
        expect(findings, right, "the rules of the other layout are not as they should be")
        held, alive = metric(one, "pointsman_netns_held"), len(kept) + len(come) + 1
        expect(findings, held == alive, f"{held:g} namespaces are held, {alive} are alive")
        leaks = sum(descriptors_of(one.pid, inode) for inode in inodes)
        expect(findings, not leaks, f"{leaks} descriptors of gone pods are left")
    return findings


def _adopted(name: str, pod: str, look: Nft, rules: str, packets: dict[str, int]) -> Iterator[str]:
    """What the next agent did to a pod that it had only to claim."""
    commits = [change for change in look.events() if not change.own]
    if len(commits) > 1:
        yield f"{name}: {len(commits)} commits to adopt it, at most 1 expected"
    if table(pod) != rules:
        yield f"{name}: its rules or their handles have changed"
    if _packets(look) != packets:
        yield f"{name}: its counters have changed"


def _older_layout(text: str) -> str:
    """The same redirection as another version might write it: other names, priority and comments."""
    for word, other in (("in_skip_ports", "in_ports"), ("-101", "-102"), ("pointsman out-", "v0 ")):
        if word not in text:
            raise AssertionError(f"the rules have no {word} that an older layout could write otherwise")
        text = text.replace(word, other)
    return text


def unmeshed(case: Case) -> Findings:
    """C10: by annotation, and by the order to drain the node; then the drain tables go as well."""
    findings = Findings()
    for way in ("annotation", "order"):
        with pod_and_world() as pod, running(case) as one:
            settle(one, manifest(case, pod.name), "Redirected")
            failures = _drained(case, one, pod, by_order=way == "order")
            findings.failures += [f"by {way}: {failure}" for failure in failures]
    return findings


def _drained(case: Case, one: Agent, pod: Pod, *, by_order: bool) -> Iterator[str]:
    spec = spec_of(case)
    name = str(case.pod.key)
    with proxied(pod, spec) as through:
        if by_order:
            one.ask("POST", "/drain")
        else:
            one.put(manifest(case, pod.name, annotations={REDIRECT: "disabled"}))
        one.wait_reason(name, "Draining")
        drained = content(pod.name)
        if "ct state new" not in drained or "redirect to" in drained:
            yield f"the table is no drain table: {drained or 'none'}"
        with standin_of(pod, spec) as standin:
            for probe in both_ways(spec):
                seen = arrival(pod, standin, probe).place
                if seen != "direct":
                    yield f"a new {probe.direction}bound connection is {seen}, expected direct"
        for direction, connection in through.items():
            if not connection.works():
                yield f"the open {direction} connection is dead"
    one.ask("POST", f"/visit?pod={name}")
    if content(pod.name) != drained:
        yield "the drain table did not stay"
    if by_order:
        one.ask("POST", "/remove")
        if table(pod.name):
            yield "the drain table is still there after its removal"
    else:
        inode = path_of(pod.name).stat().st_ino
        run("ip", "netns", "delete", pod.name)
        wait(lambda: not descriptors_of(one.pid, inode), "end of the drain table with its pod")
