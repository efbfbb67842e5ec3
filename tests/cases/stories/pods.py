"""Which pods are redirected, and when: each kind of pod before the real agent."""

import os
from pathlib import Path

from agent.core.names import NETNS
from agent.core.plan import plan
from agent.core.reasons import Reason
from agent.core.redirect import derive
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import content, descriptors_of, netfilter_sockets, nft, sandbox, table
from tests.cases.stories.runtime import PREVIOUS, container, gated
from tests.cases.stories.stage import (
    complaints,
    expect,
    key,
    manifest,
    metric,
    running,
    settle,
    spec_of,
    wait,
)
from tests.cases.stories.traffic import arrival, ordinary_port, said, standin_of
from tests.lab.addresses import Addresses
from tests.lab.agent import Agent
from tests.lab.netns import netns, path_of, run
from tests.lab.pod import Pod, pod_and_world
from tests.lab.way import Probe


def not_meshed(case: Case) -> Findings:
    """P01: nothing is written, and nothing is held; ADD prints what the plugins before came to."""
    findings = Findings()
    with netns() as pod, gated(case) as (one, runtime):
        status = settle(one, manifest(case, pod), "NotMeshed")
        done = runtime.add(container(pod, manifest(case, None)))
        printed = (done.code, done.out, done.err) == (0, PREVIOUS.encode(), "")
        expect(findings, printed, f"ADD is {done}, expected prevResult and nothing else")
        expect(findings, status["phase"] == "Excluded", f"its phase is {status['phase']}, expected Excluded")
        expect(findings, not nft(pod, "list", "ruleset"), "something was written into its netns")
        expect(findings, not netfilter_sockets(pod), "a socket into its netns is kept")
    return findings


def standing(case: Case) -> Findings:
    """Any pod, as it stands: the agent says of it what the pure core does, and there is a table, or none."""
    findings = Findings()
    derivation = derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)
    expected = plan(case.pod, derivation, case.defaults.takeover)
    with netns() as pod, running(case) as one:
        settle(one, manifest(case, None if case.pod.spec.host_network else pod), expected.reason)
        wanted = expected.reason is Reason.REDIRECTED
        expect(findings, bool(table(pod)) is wanted, f"it is {expected.reason}, and its table says otherwise")
    return findings


def native_sidecar(case: Case) -> Findings:
    """P03: at ADD, as any meshed pod, and never held back: its proxy runs before the application does."""
    findings = Findings()
    for flags in ((), ("--before-proxy", "hold")):
        with netns() as pod, gated(case, *flags) as (one, runtime):
            settle(one, manifest(case, None), "NetnsMissing")
            done = runtime.add(container(pod, manifest(case, None)))
            expect(findings, done.code == 0, f"ADD is {done}")
            for rule in ("in-redirect", "out-redirect"):
                expect(findings, rule in table(pod), f"no rule {rule} with {flags or 'defaults'}")
    return findings


def host_network(case: Case) -> Findings:
    """P04: the node's own netns is never touched, whatever leads to it."""
    findings = Findings()
    inode = Path("/proc/self/ns/net").stat().st_ino
    before = _own_tables()
    with pod_and_world() as beside, running(case, "--round", "0.5") as one:
        settle(one, manifest(case, None), "HostNetwork")
        path = {NETNS: f"/proc/{os.getpid()}/ns/net"}
        settle(one, manifest(case, None, "by-path", annotations=path), "HostNetwork")
        unflagged = manifest(case, None, "unflagged", annotations=path, spec={"hostNetwork": False})
        message = settle(one, unflagged, "NetnsMismatch")["message"]
        expect(
            findings, "the node's own" in message, f"the message does not say whose netns it is: {message}"
        )
        _found_by_the_scan(case, one, beside, findings)
        expect(findings, not descriptors_of(one.pid, inode), "the node's own netns is held open")
    expect(findings, _own_tables() == before, "the node's own nf_tables have changed")
    return findings


def _found_by_the_scan(case: Case, one: Agent, beside: Pod, findings: Findings) -> None:
    """Two pods with processes of theirs on the node's network, and one with a netns, which is found."""
    flagged = manifest(case, None, "flagged")
    unflagged = manifest(case, None, "scanned", spec={"hostNetwork": False})
    found = manifest(case, None, "beside", spec={"hostNetwork": False})
    uids = ["9a1d2f04-6a5e-4c11-8f57-0c9e3d1b7a0" + digit for digit in "123"]
    addresses = ("127.0.0.1", "127.0.0.1", beside.address[4])
    for each, uid, address in zip((flagged, unflagged, found), uids, addresses, strict=True):
        each["metadata"]["uid"] = uid
        each["status"] |= {"podIP": address, "podIPs": None}
    try:
        with sandbox(uids[0], None), sandbox(uids[1], None), sandbox(uids[2], beside.name):
            settle(one, flagged, "HostNetwork")
            settle(one, unflagged, "NetnsMissing", "NetnsMismatch")
            settle(one, found, "Redirected")
            # The scan that has found this one has seen the others' processes as well.
            for each in (flagged, unflagged):
                expect(
                    findings, one.pod(key(each))["netnsInode"] is None, f"{key(each)} was found by the scan"
                )
    except OSError as error:
        findings.notes.append(f"the scan was not tried, since no cgroup can be made here: {error}")


def _own_tables() -> str:
    return run("nft", "list", "tables")


def finished_job(case: Case) -> Findings:
    """P06: a pod that has ended lets go of its netns, and its address may be another pod's."""
    findings = Findings()
    address = case.addresses or {4: Addresses().fresh(4)}
    status = {"podIP": address[min(address)], "podIPs": [{"ip": ip} for ip in address.values()]}
    with pod_and_world(own=address) as job, pod_and_world(own=address) as other, running(case) as one:
        alive = manifest(case, job.name, "job", status=status | {"phase": "Running"})
        settle(one, alive, "Redirected")
        inode = path_of(job.name).stat().st_ino
        expect(
            findings, len(netfilter_sockets(job.name)) == 1, "no socket into the Job's netns to begin with"
        )
        expect(
            findings, descriptors_of(one.pid, inode) == 1, "no descriptor of the Job's netns to begin with"
        )
        last = case.pod.status.phase if case.pod.finished else "Succeeded"
        ended = manifest(case, job.name, "job", status=status | {"phase": last})
        settle(one, ended, "Finished")
        wait(lambda: not netfilter_sockets(job.name), "release of the socket into the Job's netns")
        wait(lambda: not descriptors_of(one.pid, inode), "release of the Job's netns")
        rules = content(job.name)
        heir = manifest(case, other.name, "heir", status=status | {"phase": "Running"})
        settle(one, heir, "Redirected")
        before = table(other.name)
        one.put(manifest(case, job.name, "job", status={"phase": last, "podIP": None, "podIPs": None}))
        one.drop(ended)
        one.wait_reason(key(ended), "NoSuchPod")
        one.ask("POST", f"/visit?pod={key(heir)}")
        expect(findings, table(other.name) == before, "the other pod's rules have changed")
        expect(findings, one.reason(key(heir)) == "Redirected", f"the other pod is {one.reason(key(heir))}")
        expect(findings, content(job.name) == rules, "the ended Job's netns was touched")
        held = metric(one, "pointsman_netns_held")
        expect(findings, held == 1, f"{held:g} namespaces are held, expected 1")
    return findings


def before_the_proxy(case: Case) -> Findings:
    """P07: an init container that runs before the proxy, under both policies."""
    findings = Findings()
    spec = spec_of(case)
    port = ordinary_port(spec)
    outward = Probe(direction="out", port=port, uid=0 if spec.proxy_uid else 1000)
    inward = Probe(direction="in", port=port)
    with pod_and_world() as pod, running(case) as one:
        settle(one, manifest(case, pod.name), "Redirected")
        place = arrival(pod, (), outward).place
        expect(findings, place == "refused", f"policy redirect: migrate's connection is {place}, not refused")
    with pod_and_world() as pod, running(case, "--before-proxy", "hold") as one:
        settle(one, manifest(case, pod.name), "Redirected")
        place = arrival(pod, (), outward).place
        expect(findings, place == "direct", f"policy hold: migrate's connection is {place}, expected direct")
        place = arrival(pod, (), inward).place
        expect(findings, place == "refused", f"policy hold: inbound is {place}, though no proxy listens")
        with standin_of(pod, spec) as standin:
            wait(lambda: "out-redirect" in table(pod.name), "outbound redirect once the proxy listens")
            for probe in (outward, inward):
                place = arrival(pod, standin, probe).place
                expect(
                    findings,
                    place == probe.direction,
                    f"policy hold, proxy listens: {said(probe)} is {place}",
                )
        expect(findings, one.reason(str(case.pod.key)) == "Redirected", "it is not Redirected at last")
    return findings


def excluded_namespace(case: Case) -> Findings:
    """P09: the agent answers as the pure core does, by the manifest as by ADD."""
    findings = Findings()
    derivation = derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)
    named = case.pod.metadata.namespace in case.defaults.exclude_namespaces
    expected = "NamespaceExcluded" if named else "Redirected"
    have = str(derivation.excluded or "Redirected")
    expect(findings, have == expected, f"the core says {have}, expected {expected}")
    with netns() as pod, netns() as other, gated(case) as (one, runtime):
        settle(one, manifest(case, pod), expected)
        added = manifest(case, None, f"{case.pod.metadata.name}-added")
        settle(one, added, "NamespaceExcluded" if named else "NetnsMissing")
        done = runtime.add(container(other, added))
        expect(findings, done.code == 0, f"ADD is {done}")
        expect(findings, one.reason(key(added)) == expected, f"after ADD it is {one.reason(key(added))}")
        for each in (pod, other):
            told = f"it is {expected}, and its table says otherwise"
            expect(findings, bool(table(each)) is not named, told)
    if case.defaults.exclude_namespaces:
        with netns() as pod, running(case) as one:
            beside = manifest(case, pod, "beside")
            beside["metadata"]["namespace"] = "not-excluded"
            settle(one, beside, "Redirected")
    return findings


def secondary_interface(case: Case) -> Findings:
    """P10: what is addressed to another interface reaches the proxy too, and somebody is told."""
    findings = Findings(notes=["that the proxy refuses the connection is Linkerd's own doing"])
    spec = spec_of(case)
    interfaces = case.interfaces or ("net1",)
    with (
        pod_and_world(own=case.addresses) as pod,
        standin_of(pod, spec) as standin,
        running(case) as one,
    ):
        links = [pod.link(interface) for interface in interfaces]
        ips = {"podIP": pod.address[4], "podIPs": [{"ip": ip} for ip in pod.address.values()]}
        settle(one, manifest(case, pod.name, status=ips), "Redirected")
        name = key(manifest(case, pod.name))
        one.ask("POST", f"/visit?pod={name}")
        named = {each["subject"] for each in complaints(one, name, "SecondaryInterface")}
        expect(
            findings, named == set(interfaces), f"complaints name {named or 'nothing'}, expected {interfaces}"
        )
        for link in links:
            probe = Probe(direction="in", port=ordinary_port(spec), interface=link.name)
            seen = arrival(pod, standin, probe)
            expect(findings, seen.place == "in", f"a connection to {link.name} is {seen.place}, expected in")
            wanted = (link.here[4], probe.port)
            expect(
                findings,
                seen.original == wanted,
                f"its original destination is {seen.original}, not {wanted}",
            )
    return findings
