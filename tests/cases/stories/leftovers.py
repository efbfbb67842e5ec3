"""Pods with a linkerd-init: while it runs, after it, and after it was killed half way."""

import contextlib
import itertools
from collections.abc import Iterator

from agent.core.names import SKIP_OUTBOUND_PORTS
from agent.core.spec import RedirectSpec
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import content, nft, table
from tests.cases.stories.stage import (
    complaints,
    expect,
    key,
    manifest,
    number,
    running,
    settle,
    spec_of,
    with_init,
)
from tests.cases.stories.traffic import arrival, both_ways, ordinary_port, ordinary_uid, said, standin_of
from tests.lab.agent import JSON, Agent
from tests.lab.netns import netns, run
from tests.lab.pod import Pod, pod_and_world
from tests.lab.way import Probe
from tests.linkerd_init import COMMANDS, INBOUND_ONLY, PARTIAL

RUNS: JSON = {"running": {}}
ENDED_WELL: JSON = {"terminated": {"exitCode": 0}}
ENDED_BADLY: JSON = {"terminated": {"exitCode": 1}}


def linkerd_init(case: Case) -> Findings:
    """P02: waited for while it runs; left alone, or joined, by what it came to; taken over on request."""
    findings = Findings()
    spec = spec_of(case)
    with netns() as left, netns() as short, netns() as failed, running(case) as one:
        _left_alone(case, one, left, findings)
        joined = (("short", short, INBOUND_ONLY, ENDED_WELL), ("failed", failed, None, ENDED_BADLY))
        for name, pod, commands, state in joined:
            _initialise(pod, spec, commands)
            settle(one, with_init(manifest(case, pod, name), state), "Redirected")
            who = f"with a linkerd-init that {'is incomplete' if commands else 'failed'}"
            named = key(manifest(case, pod, name))
            expect(findings, "out-redirect" in table(pod), f"{who}, outbound is not redirected")
            expect(findings, complaints(one, named, "LeftoverRules"), f"{who}, no complaint LeftoverRules")
            expect(findings, _leftovers(one, named), f"{who}, its rules were removed unasked")
    with netns() as taken, netns() as waiting, running(case, "--takeover") as one:
        _taken_over(case, one, taken, findings)
        settle(one, with_init(manifest(case, waiting, "waiting"), RUNS), "InitRunning")
        _initialise(waiting, spec)
        refusal = one.ask("POST", f"/cleanup?pod={key(manifest(case, waiting, 'waiting'))}")
        kept = "PROXY_INIT_OUTPUT" in nft(waiting, "list", "ruleset")
        expect(findings, kept, f"leftovers went before ours were verified: {refusal}")
    return findings


def _left_alone(case: Case, one: Agent, pod: str, findings: Findings) -> None:
    """linkerd-init runs, then ends with all its rules in place."""
    settle(one, with_init(manifest(case, pod), RUNS), "InitRunning")
    expect(findings, not table(pod), "a table was made while linkerd-init runs")
    _initialise(pod, spec_of(case))
    before = nft(pod, "-s", "list", "ruleset")
    status = settle(one, with_init(manifest(case, pod), ENDED_WELL), "RedirectedByIptables")
    expect(findings, status["mode"] == "iptables", f"mode is {status['mode']}, expected iptables")
    expect(
        findings, nft(pod, "-s", "list", "ruleset") == before, "complete rules of linkerd-init were changed"
    )


def _taken_over(case: Case, one: Agent, pod: str, findings: Findings) -> None:
    """linkerd-init ended with all its rules in place, and the agent is to take over."""
    _initialise(pod, spec_of(case))
    status = settle(one, with_init(manifest(case, pod), ENDED_WELL), "Redirected")
    name = key(manifest(case, pod))
    expect(findings, status["verifyMs"] is not None, "ours were not read back before the takeover")
    one.wait(lambda: not _leftovers(one, name), "removal of linkerd-init's rules")
    expect(findings, "out-redirect" in content(pod), "our table is not there after the takeover")
    one.wait(lambda: not complaints(one, name, "LeftoverRules"), "end of the complaint about leftovers")
    expect(findings, one.reason(name) == "Redirected", f"after the takeover it is {one.reason(name)}")


def _initialise(pod: str, spec: RedirectSpec, commands: int | None = None) -> None:
    """Run the commands of a linkerd-init with the pod's ports and user: all, or so many of them."""
    families = ("iptables-nft", "ip6tables-nft") if spec.ipv6 else ("iptables-nft",)
    ports = {"inbound_port": spec.inbound_port, "outbound_port": spec.outbound_port}
    made = [COMMANDS(binary, **ports, proxy_uid=spec.proxy_uid) for binary in families]
    for command in list(itertools.chain.from_iterable(made))[:commands]:
        run("ip", "netns", "exec", pod, *command)


def _leftovers(one: Agent, name: str) -> list[JSON]:
    found: list[JSON] = one.ask("GET", f"/leftovers?pod={name}")
    return found


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
        standin = stack.enter_context(standin_of(world, spec))
        before = arrival(world, standin, both_ways(spec)[1]).place
        expect(findings, before == "direct", f"without the agent, outbound is {before}, expected direct")
        one = stack.enter_context(running(case, start=False))
        for count, pod in enumerate(pods, 1):
            one.put(with_init(manifest(case, pod, f"after-{count}"), ended))
        one.start()
        for count in range(1, last + 1):
            name = f"{case.pod.metadata.namespace}/after-{count}"
            one.wait_reason(name, "Redirected")
            _one_reconcile(one, name, count, findings)
        for each in both_ways(spec):
            seen = arrival(world, standin, each).place
            expect(findings, seen == each.direction, f"with the agent, {each.direction}bound is {seen}")
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
    stranger = number(r"uid (\d+)", case.text.steps, 9999)
    skipped = number(r"skips out (\d+)", case.text.steps, 5432)
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
            told = complaints(one, str(case.pod.key), "LeftoverRules")
            expect(findings, told, f"{binary}: the leftover is not reported")
            failures = _decisions(case, pod, skipped, stranger)
            findings.failures += [f"{binary}: {failure}" for failure in failures]
    return findings


def _decisions(case: Case, pod: Pod, skipped: int, stranger: int) -> Iterator[str]:
    """What real connections do otherwise than ours alone would have it."""
    spec = spec_of(case)
    port, user = ordinary_port(spec), ordinary_uid(spec)
    with standin_of(pod, spec) as standin:
        for probe, expected in (
            (Probe(direction="out", port=skipped, uid=user), "direct"),
            (Probe(direction="out", port=port, uid=spec.proxy_uid), "direct"),
            (Probe(direction="out", port=port, uid=stranger), "out"),
            (Probe(direction="out", port=port, uid=user), "out"),
            (Probe(direction="in", port=port), "in"),
        ):
            seen = arrival(pod, standin, probe)
            if seen.place != expected:
                yield f"{said(probe)} is {seen.place}, expected {expected}"
            if seen.place == "out" and seen.port != spec.outbound_port:
                yield f"{said(probe)} arrives at port {seen.port}, expected {spec.outbound_port}"
