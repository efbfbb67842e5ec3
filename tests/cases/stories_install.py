"""Rules that come, change hands and go: installs, leftovers, restarts, drains."""

import contextlib
import itertools
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

from agent.core.names import REDIRECT, SKIP_OUTBOUND_PORTS, TABLE
from agent.core.ruleset import render
from agent.node.hold import Hold, Place
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft
from agent.node.trial import trial
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories_stage import (
    complaints,
    content,
    descriptors_of,
    expect,
    key,
    manifest,
    metric,
    running,
    settle,
    spec_of,
    table,
    wait,
    with_init,
)
from tests.cases.stories_traffic import arrival, live, load, ordinary_port, ordinary_uid
from tests.lab.agent import Agent
from tests.lab.netns import inside, netns, path_of, run
from tests.lab.pod import Pod, pod_and_world
from tests.lab.probe import opened_standin
from tests.lab.standin import bind
from tests.lab.way import Probe
from tests.linkerd_init import COMMANDS, INBOUND_ONLY, PARTIAL
from tests.node.pods import nft as nft_script
from tests.node.pods import socket_in

KILLS = int(os.environ.get("KILLS", "30"))
"""Agents that are killed in the middle of their installs."""
PODS_PER_KILL = 6
STARTED = STOPPED = 20
"""Pods that come and go between two agents."""
UNCHANGED = 3
"""Pods that live through the change of agents as they are."""


def killed_in_the_middle(case: Case) -> Findings:
    """C01: after SIGKILL each netns holds the whole table or none, and the next agent completes all."""
    findings = Findings()
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    counts = {"none": 0, "whole": 0}
    with contextlib.ExitStack() as stack:
        pods = [stack.enter_context(netns()) for _ in range(PODS_PER_KILL)]
        looks = [stack.enter_context(socket_in(pod)) for pod in pods]
        one = stack.enter_context(running(case))
        for number, pod in enumerate(pods):
            settle(one, manifest(case, pod, f"web-{number}"), "Redirected")
        one.kill()
        # The first record is the table itself, whose flags tell who owned it.
        whole = looks[0].read(TABLE).records[1:]
        for _ in range(KILLS):
            for look in looks:
                NftDatapath().remove(look)
            _kill_while_installing(one, looks, chance.uniform(0, 0.004))
            for pod, look in zip(pods, looks, strict=True):
                left = look.read(TABLE).records
                counts["whole" if left else "none"] += 1
                half = bool(left) and left[1:] != whole
                expect(findings, not half, f"{pod} holds half a table: {len(left)} objects of {len(whole) + 1}")
        one.start()
        for number, look in enumerate(looks):
            one.wait_reason(f"{case.pod.metadata.namespace}/web-{number}", "Redirected")
            expect(findings, look.read(TABLE).records[1:] == whole, f"web-{number} is not whole at last")
    findings.notes.append(f"{KILLS} kills (seed {seed}): {counts['none']} without a table, {counts['whole']} whole")
    return findings


def _kill_while_installing(one: Agent, looks: list[Nft], delay: float) -> None:
    """Start the agent, and kill it `delay` seconds after its first install."""
    before = [look.generation() for look in looks]
    one.start(wait=False)
    wait(lambda: [look.generation() for look in looks] != before, "begin of the installs", pause=0.0003)
    time.sleep(delay)
    one.kill()


def half_killed_linkerd_init(case: Case) -> Findings:
    """C02: linkerd-init was killed after each of its commands; the agent's first look puts it right."""
    findings = Findings()
    spec = spec_of(case)
    commands = COMMANDS()
    # The last two commands enter the outbound chain and list: without them outbound is not redirected.
    last = len(commands) - 2
    ended = {"terminated": {"exitCode": 137}}
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(pod_and_world())
        pods = [stack.enter_context(netns()) for _ in range(1, last)] + [world.name]
        for count, pod in enumerate(pods, 1):
            for command in commands[:count]:
                run("ip", "netns", "exec", pod, *command)
        standin = stack.enter_context(
            opened_standin(world, inbound=spec.inbound_port, outbound=spec.outbound_port, uid=spec.proxy_uid)
        )
        probe = Probe(direction="out", port=ordinary_port(spec), uid=ordinary_uid(spec))
        before = arrival(world, standin, probe).place
        expect(findings, before == "direct", f"without the agent, outbound is {before}, expected direct")
        one = stack.enter_context(running(case, start=False))
        for count, pod in enumerate(pods, 1):
            one.put(with_init(manifest(case, pod, f"after-{count}"), ended))
        one.start()
        for count in range(1, last + 1):
            name = f"{case.pod.metadata.namespace}/after-{count}"
            one.wait_reason(name, "Redirected")
            _one_reconcile(one, name, count, findings)
        for direction in ("out", "in"):
            seen = arrival(world, standin, Probe(direction=direction, port=probe.port, uid=probe.uid)).place
            expect(findings, seen == direction, f"with the agent, {direction}bound is {seen}")
    return findings


def _one_reconcile(one: Agent, name: str, count: int, findings: Findings) -> None:
    """The first visit installed ours, and told of what linkerd-init left after `count` commands."""
    status = one.pod(name)["status"]
    expect(findings, (status["how"], status["attempts"]) == ("installed", 0), f"{name}: {status}")
    state = None if count < PARTIAL else "partial" if count < INBOUND_ONLY else "inboundOnly"
    told = [f"{each['subject']}: {each['message']}" for each in complaints(one, name, "LeftoverRules")]
    right = not told if state is None else any("nft" in each and state in each for each in told)
    expect(findings, right, f"{name}: complaints say {told or 'nothing'}, expected {state}")


def complete_leftover(case: Case) -> Findings:
    """C03: rules of linkerd-init with other settings stand behind ours, and decide nothing."""
    findings = Findings()
    steps = " ".join(map(str, case.text.steps))
    stranger = _number(r"uid (\d+)", steps, 9999)
    skipped = _number(r"skips out (\d+)", steps, 5432)
    for binary in ("iptables-nft", "iptables-legacy"):
        with pod_and_world() as pod, running(case) as one:
            try:
                for command in COMMANDS(binary, skip_inbound=(4190,), skip_outbound=(1,), proxy_uid=stranger):
                    run("ip", "netns", "exec", pod.name, *command)
            except (RuntimeError, FileNotFoundError) as error:
                findings.notes.append(f"not done with {binary}: {error}")
                continue
            wanted = {SKIP_OUTBOUND_PORTS: str(skipped)}
            settle(one, manifest(case, pod.name, annotations=wanted), "Redirected")
            told = complaints(one, key(manifest(case, None)), "LeftoverRules")
            expect(findings, told, f"{binary}: the leftover is not reported")
            failures = _decisions(case, pod, skipped, stranger)
            findings.failures += [f"{binary}: {failure}" for failure in failures]
    return findings


def _decisions(case: Case, pod: Pod, skipped: int, stranger: int) -> Iterator[str]:
    """What real connections do otherwise than ours alone would have it."""
    spec = spec_of(case)
    port, user = ordinary_port(spec), ordinary_uid(spec)
    with opened_standin(
        pod, inbound=spec.inbound_port, outbound=spec.outbound_port, uid=spec.proxy_uid
    ) as standin:
        for probe, expected in (
            (Probe(direction="out", port=skipped, uid=user), "direct"),
            (Probe(direction="out", port=port, uid=spec.proxy_uid), "direct"),
            (Probe(direction="out", port=port, uid=stranger), "out"),
            (Probe(direction="out", port=port, uid=user), "out"),
            (Probe(direction="in", port=port), "in"),
        ):
            seen = arrival(pod, standin, probe)
            if seen.place != expected:
                yield f"{probe} is {seen.place}, expected {expected}"
            if seen.place == "out" and seen.port != spec.outbound_port:
                yield f"{probe} arrives at port {seen.port}, expected {spec.outbound_port}"


def _number(pattern: str, text: str, otherwise: int) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else otherwise


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
        one.wait_reason(key(manifest(case, None)), "Redirected")
        for name, connection in old.items():
            expect(findings, connection.works(), f"the {name} connection that was there before is dead")
        standin = stack.enter_context(
            opened_standin(pod, inbound=spec.inbound_port, outbound=spec.outbound_port, uid=spec.proxy_uid)
        )
        # Another port: at this one the application and the peer listen already.
        other = ordinary_port(spec, port + 1)
        for direction in ("in", "out"):
            seen = arrival(pod, standin, Probe(direction=direction, port=other, uid=user)).place
            expect(findings, seen == direction, f"a new {direction}bound connection is {seen}")
        for name, connection in old.items():
            expect(findings, connection.works(), f"the old {name} connection has died since")
    return findings


def upgrade(case: Case) -> Findings:
    """C09: one agent ends, pods come and go, the rules of one are of another layout, the next agent starts."""
    findings = Findings()
    spec = spec_of(case)
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(pod_and_world())
        kept = {f"kept-{n}": stack.enter_context(netns()) for n in range(UNCHANGED)}
        going = contextlib.ExitStack()
        stack.callback(going.close)
        gone = {f"gone-{n}": going.enter_context(netns()) for n in range(STOPPED)}
        one = stack.enter_context(running(case))
        for name, pod in (kept | gone | {"old": old.name}).items():
            one.put(manifest(case, pod, name))
        _all_redirected(one, case, [*kept, *gone, "old"])
        inodes = [path_of(pod).stat().st_ino for pod in gone.values()]
        one.stop()
        before = {name: table(pod) for name, pod in kept.items()}
        nft_script(old.name, f"delete table inet {TABLE}\n{_older_layout(render(spec))}")
        looks = {name: stack.enter_context(socket_in(pod)) for name, pod in kept.items()}
        looks["old"] = stack.enter_context(socket_in(old.name))
        come = {f"come-{n}": stack.enter_context(netns()) for n in range(STARTED)}
        for name, pod in come.items():
            one.put(manifest(case, pod, name))
        going.close()
        for name in itertools.islice(gone, STOPPED // 2):
            one.drop(manifest(case, None, name))
        with load(old, spec) as connections:
            wait(lambda: connections.opened > 20, "connections before the next agent")
            one.start()
            _all_redirected(one, case, [*kept, *come, "old"])
            opened = connections.opened
            wait(lambda: connections.opened > opened + 20, "connections after the rewrite")
        findings.failures += connections.failures("the rewrite of another layout")
        for name, pod in kept.items():
            commits = [change for change in looks[name].events() if change.comm != "nft"]
            expect(findings, len(commits) <= 1, f"{name}: {len(commits)} commits to adopt it, at most 1 expected")
            expect(findings, table(pod) == before[name], f"{name}: its table or handles have changed")
        commits = [change for change in looks["old"].events() if not change.own]
        expect(findings, len(commits) == 1, f"the other layout was rewritten by {len(commits)} commits, not by 1")
        expect(findings, content(old.name) == content(kept["kept-0"]), "the other layout is not as it should be")
        held, alive = metric(one, "pointsman_netns_held"), len(kept) + len(come) + 1
        expect(findings, held == alive, f"{held:g} namespaces are held, {alive} are alive")
        expect(findings, not any(descriptors_of(one.pid, inode) for inode in inodes), "a gone pod leaves an fd")
    return findings


def _all_redirected(one: Agent, case: Case, names: list[str]) -> None:
    namespace = case.pod.metadata.namespace

    def redirected() -> bool:
        reasons = {pod["name"]: pod["status"]["reason"] for pod in one.state()["pods"]}
        return all(reasons.get(name) == "Redirected" for name in names)

    one.wait(redirected, f"redirection of {len(names)} pods in {namespace}")


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
    port, user = ordinary_port(spec), ordinary_uid(spec)
    here, there = pod.address[4], pod.link("eth0").there[4]
    name = key(manifest(case, None))
    with contextlib.ExitStack() as stack:
        standin = stack.enter_context(
            opened_standin(pod, inbound=spec.inbound_port, outbound=spec.outbound_port, uid=spec.proxy_uid)
        )
        proxy = {each.name: each.socket for each in standin if (each.family, each.protocol) == (4, "tcp")}
        through = {
            "inbound": stack.enter_context(live(pod.world, (here, port), proxy["inbound"])),
            "outbound": stack.enter_context(live(pod.name, (there, port), proxy["outbound"], uid=user)),
        }
        if by_order:
            one.ask("POST", "/drain")
        else:
            one.put(manifest(case, pod.name, annotations={REDIRECT: "disabled"}))
        one.wait_reason(name, "Draining")
        drained = content(pod.name)
        if "ct state new" not in drained or "redirect to" in drained:
            yield f"the table is no drain table: {drained or 'none'}"
        for direction in ("in", "out"):
            seen = arrival(pod, standin, Probe(direction=direction, port=port, uid=user)).place
            if seen != "direct":
                yield f"a new {direction}bound connection is {seen}, expected direct"
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


def verified_from_the_node(case: Case) -> Findings:
    """C22: one connection from the pod's netns is counted, proxy or none; without a route nobody can tell."""
    findings = Findings()
    spec = spec_of(case)
    with pod_and_world() as pod, netns() as island, running(case) as one:
        settle(one, manifest(case, pod.name), "Redirected")
        settle(one, manifest(case, island, "island"), "Redirected")
        expected = [("no proxy", pod.path, "redirected", 1), ("no route", path_of(island), "unverifiable", 0)]
        for what, path, result, more in expected:
            findings.failures += _tried(case, path, what, result, more)
        with opened_standin(
            pod, inbound=spec.inbound_port, outbound=spec.outbound_port, uid=spec.proxy_uid
        ):
            findings.failures += _tried(case, pod.path, "a running proxy", "redirected", 1)
        settle(one, manifest(case, pod.name, annotations={REDIRECT: "disabled"}), "Draining")
        findings.failures += _tried(case, pod.path, "the drain table", "escaped", 0)
    return findings


def _tried(case: Case, path: Path, what: str, result: str, more: int) -> Iterator[str]:
    """Try one connection; it has this result and moves out_redirect so far."""
    hold = Hold(Place(str(path)), NftDatapath())
    with contextlib.closing(hold):
        before = hold.nft.read(TABLE).counters.get("out_redirect", (0, 0))[0]
        tried = trial(hold, spec_of(case))
        after = hold.nft.read(TABLE).counters.get("out_redirect", (0, 0))[0]
    if tried.result != result:
        yield f"with {what} it is {tried.result} ({tried.why}), expected {result}"
    if after - before != more:
        yield f"with {what} out_redirect moves by {after - before}, expected {more}"


STORIES = {
    "C01": killed_in_the_middle,
    "C02": half_killed_linkerd_init,
    "C03": complete_leftover,
    "C05": started_before_the_agent,
    "C09": upgrade,
    "C10": unmeshed,
    "C22": verified_from_the_node,
}
