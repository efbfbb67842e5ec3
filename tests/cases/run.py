"""Run one case: settings, verdicts, real traffic, and what the case says besides."""

import contextlib
import re
from collections.abc import Iterator

import msgspec

from agent.core.redirect import RedirectSpec, derive
from agent.core.verdict import decide
from tests.cases import then
from tests.cases.datapath import Counted, Datapath
from tests.cases.findings import Findings, Outcome, outcome
from tests.cases.lifecycle import LATER, LIFECYCLE
from tests.cases.model import POD_IP, Case, Step
from tests.cases.settings import differences
from tests.cases.wire import connection, disagreements, observe
from tests.lab.addresses import Addresses, Family
from tests.lab.pod import pod_and_world
from tests.lab.probe import open_standin
from tests.lab.standin import Endpoint
from tests.lab.way import NotOnAWireError, Probe

_PAPER_POD: dict[Family, str] = {4: "192.0.2.77", 6: "2001:db8::77"}
"""Addresses of a pod that is not there."""

_VARIANT = re.compile(
    r"with node local_only: (?P<value>true|false)\b.* the same packet is (?P<place>in|out|direct)"
)


def run(case: Case, datapath: Datapath | None) -> Outcome:
    """The outcome of one case; without a datapath only the pure core is asked."""
    if case.effective is None and not case.steps:
        procedure = LIFECYCLE.get(case.id)
        if procedure is None:
            return Outcome(case.id, case.title, "skip", LATER.get(case.id, "no procedure for this id"))
        return outcome(case.id, case.title, procedure(case))
    findings = Findings()
    _examine(case, datapath, findings)
    return outcome(case.id, case.title, findings)


def _examine(case: Case, datapath: Datapath | None, findings: Findings) -> None:
    derivation = derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)
    spec = derivation.spec
    counted: Counted | None = None
    if spec is None:
        findings.failures.append(f"the pod is not redirected: {derivation.excluded}")
    else:
        if case.effective:
            findings.failures += differences(case.effective, spec)
        for step, probe in _probes(case, spec):
            findings.failures += _on_paper(case, spec, step, probe)
            findings.connections += 1
        if datapath and case.steps:
            counted = _on_wire(case, spec, datapath, findings)
    for sentence in case.then:
        if variant := _VARIANT.fullmatch(sentence):
            _examine_variant(case, variant, datapath, findings)
            continue
        found = then.check(sentence, then.Evidence(derivation, counted))
        if found is None:
            findings.notes.append(f"not checked: {sentence}")
        findings.failures += found or []


def _examine_variant(
    case: Case, variant: re.Match[str], datapath: Datapath | None, findings: Findings
) -> None:
    """The same connections under another setting of the node."""
    defaults = msgspec.structs.replace(case.defaults, local_only=variant["value"] == "true")
    steps = tuple(msgspec.structs.replace(step, expect=variant["place"]) for step in case.steps)
    found = Findings()
    _examine(
        msgspec.structs.replace(case, defaults=defaults, steps=steps, effective=None, then=()),
        datapath,
        found,
    )
    findings.failures += [f"with local_only {variant['value']}: {failure}" for failure in found.failures]
    findings.notes += found.notes
    findings.connections += found.connections
    findings.off_wire += found.off_wire


def _probes(case: Case, spec: RedirectSpec) -> Iterator[tuple[Step, Probe]]:
    """Each connection, and its IPv6 twin where nothing in it names a family and IPv6 is redirected too."""
    for step in case.steps:
        yield step, step.probe
        if step.either_family and spec.ipv6:
            yield step, msgspec.structs.replace(step.probe, family=6)


def _placed(probe: Probe, pod: dict[Family, str]) -> Probe:
    """The probe with the pod's address for its symbol."""
    address = pod[probe.family]
    return msgspec.structs.replace(
        probe,
        source=address if probe.source == POD_IP else probe.source,
        destination=address if probe.destination == POD_IP else probe.destination,
    )


def _on_paper(case: Case, spec: RedirectSpec, step: Step, probe: Probe) -> list[str]:
    """The verdict against what the case expects."""
    pod = _PAPER_POD | case.addresses
    placed = _placed(probe, pod)
    local = probe.direction == "out" or placed.destination in (None, *pod.values())
    destination = placed.destination or (pod[probe.family] if probe.direction == "in" else None)
    packet = connection(probe, source=placed.source, destination=destination, forwarded=not local)
    verdict = decide(spec, packet)
    if verdict.action != step.expect:
        said = f"{verdict.action} by {verdict.rule} ({verdict.why})"
        return [f"{step}: the verdict is {said}, expected {step.expect}"]
    if step.to_port is not None and verdict.to_port != step.to_port:
        return [f"{step}: the verdict goes to port {verdict.to_port}, expected {step.to_port}"]
    if step.orig_dst and destination:
        return _wrong_original(step, (destination, probe.port or 0), pod[probe.family])
    return []


def _wrong_original(step: Step, have: Endpoint | None, pod_ip: str) -> list[str]:
    host, _, port = (step.orig_dst or "").rpartition(":")
    wanted = (pod_ip if host == POD_IP else host.strip("[]"), int(port))
    return [] if have == wanted else [f"{step}: the original destination is {have}, expected {wanted}"]


def _on_wire(case: Case, spec: RedirectSpec, datapath: Datapath, findings: Findings) -> Counted:
    """All connections as real traffic; returns how far they moved the counters, twins left out."""
    total: Counted = {}
    inbound = case.effective.inbound if case.effective else spec.inbound_port
    outbound = case.effective.outbound if case.effective else spec.outbound_port
    user_namespace = case.pod.spec.host_users is False
    with (
        pod_and_world(_addresses(case, spec), case.addresses, user_namespace=user_namespace) as pod,
        datapath.opened(pod.path) as nft,
        contextlib.ExitStack() as stack,
    ):
        for interface in case.interfaces:
            pod.link(interface)
        datapath.install(nft, spec)
        standin = open_standin(pod, inbound=inbound, outbound=outbound, uid=spec.proxy_uid)
        for listener in standin:
            stack.enter_context(listener.socket)
        for step, probe in _probes(case, spec):
            try:
                seen = observe(pod, standin, nft, spec, _placed(probe, pod.address))
            except NotOnAWireError as error:
                findings.notes.append(f"not on a wire: {step}: {error}")
                findings.off_wire += 1
                continue
            wrong = disagreements(seen, spec, probe)
            if seen.place != step.expect:
                wrong = [
                    f"on the wire it is {seen.place} {seen.arrival.detail}".rstrip()
                    + f", expected {step.expect}"
                ]
            elif step.to_port is not None and seen.arrival.port != step.to_port:
                wrong.append(f"it arrives at port {seen.arrival.port}, expected {step.to_port}")
            findings.failures += [f"{step} (IPv{probe.family}): {each}" for each in wrong]
            if step.orig_dst and seen.arrival.original:
                findings.failures += _wrong_original(step, seen.arrival.original, pod.address[probe.family])
            if probe is step.probe:
                for name, more in seen.counted.items():
                    total[name] = total.get(name, 0) + more
    return total


def _addresses(case: Case, spec: RedirectSpec) -> Addresses:
    """Addresses for the lab that no connection and no subnet of the case names."""
    named = {address for step in case.steps for address in (step.probe.source, step.probe.destination)}
    named -= {None, POD_IP}
    wanted = case.effective.subnets if case.effective else frozenset()
    return Addresses(
        [
            *filter(None, named),
            *case.addresses.values(),
            *wanted,
            *spec.skip_subnets.v4,
            *spec.skip_subnets.v6,
        ]
    )
