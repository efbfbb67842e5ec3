"""What our plugin answers to the runtime: the result of those before it, and nothing to a DEL."""

import json
import re
from collections.abc import Iterator

from agent.core.cni import VERSIONS
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import descriptors_of, netfilter_sockets, table
from tests.cases.stories.runtime import Container, Runtime, container, gated, result
from tests.cases.stories.stage import expect, manifest, wait
from tests.lab.agent import Agent
from tests.lab.netns import netns, path_of

_UNKNOWN = {
    "vendor.io/\u03bb": [1, 2.5e-3, None, True, {"deep": [[], {}]}],
    "lease": 12_345_678_901_234_567_890,
    "quoted": 'a "b" \\ \u20ac \u0007 \U0001f600',
}


def deleted_twice(case: Case) -> Findings:
    """C14: what is known of the container goes with the first DEL; the second is as well."""
    findings = Findings()
    with gated(case) as (one, runtime), netns() as first, netns() as second:
        gone = container(first, manifest(case, None))
        kept = container(second, manifest(case, None, f"not-{gone.key.name}"))
        for each in (gone, kept):
            one.put(each.pod)
            done = runtime.add(each)
            expect(findings, done.code == 0 and table(each.netns), f"ADD for {each.key} is {done}")
        wait(lambda: _known(one) == {gone.id, kept.id}, "note of both containers")
        rules, inode = table(second), path_of(first).stat().st_ino
        expect(findings, descriptors_of(one.pid, inode), "the netns is not held to begin with")
        for which in ("first", "second"):
            done = runtime.delete(gone)
            silent = (done.code, done.out, done.err) == (0, b"", "")
            expect(findings, silent, f"the {which} DEL is {done}, expected exit 0 and no output")
            wait(lambda: _known(one) == {kept.id}, "end of what is known of the container")
            wait(lambda: not descriptors_of(one.pid, inode), "release of its netns")
            wait(lambda: not netfilter_sockets(first), "release of the socket into its netns")
        expect(findings, one.state()["cni"]["attachments"] == 1, "the agent counts more than the other pod")
        one.kill()
        done = runtime.delete(gone)
        expect(findings, (done.code, done.out) == (0, b""), f"while no agent runs, DEL is {done}")
        one.start()
        one.wait_reason(str(kept.key), "Redirected")
        expect(findings, _known(one) == {kept.id}, "the next agent does not know the other pod alone")
        expect(findings, table(second) == rules, "the other pod's rules have changed")
    return findings


def _known(one: Agent) -> set[str]:
    """Ids of the containers that the agent has written down."""
    return {path.name.partition(".")[0] for path in (one.run_dir / "attachments").glob("*.json")}


def previous_result(case: Case) -> Findings:
    """C15: ADD prints what the plugins before came to: for every kind of pod, and without an agent."""
    findings = Findings()
    named = re.findall(r"\d+\.\d+\.\d+", " ".join(map(str, case.text.steps)))
    versions = list(dict.fromkeys(named)) or list(VERSIONS)
    plain = {"containers": [{"name": "app"}], "initContainers": []}
    with (
        gated(case, "--unknown-wait", "0.2") as (one, runtime),
        netns() as first,
        netns() as second,
        netns() as third,
    ):
        meshed = container(first, manifest(case, None))
        other = container(second, manifest(case, None, f"{meshed.key.name}-plain", spec=plain))
        for each in (meshed, other):
            one.put(each.pod)
            one.wait(lambda each=each: one.pod(str(each.key)), f"news of {each.key}")
        unknown = container(third, manifest(case, None, f"{meshed.key.name}-unknown"))
        for each in (meshed, other, unknown):
            findings.failures += _printed(runtime, each, versions, f"of {each.key}", logs=False)
        expect(findings, table(first), "the meshed pod has no rules")
        expect(findings, not table(second) + table(third), "another pod has rules")
        one.kill()
        findings.failures += _printed(runtime, meshed, versions, "without an agent", logs=True)
    findings.notes.append(f"versions {', '.join(versions)}, each with and without prevResult")
    return findings


def _printed(
    runtime: Runtime, one: Container, versions: list[str], which: str, *, logs: bool
) -> Iterator[str]:
    """ADD in all versions, with prevResult and without; `logs`: whether there is anything to say of it."""
    given = [
        (version, previous)
        for version in versions
        for previous in (result(version, "192.0.2.7", **_UNKNOWN), None)
    ]
    calls = [runtime.call("ADD", one, version, previous) for version, previous in given]
    for (version, previous), done in zip(given, runtime.at_once(calls), strict=True):
        name = f"ADD {which}, version {version}, {'with' if previous else 'without'} prevResult"
        expected = json.loads(previous) if previous else {"cniVersion": version}
        if done.code != 0 or json.loads(done.out) != expected:
            yield f"{name} is {done}, expected {expected}"
        if bool(done.err) is not logs:
            yield f"{name} says {done.err or 'nothing'!r} on stderr"
