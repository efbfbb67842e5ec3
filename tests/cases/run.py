"""Run one case: settings, verdicts, real traffic, and what the case says besides."""

import re
from collections.abc import Iterator

import msgspec

from agent.core.redirect import derive
from agent.core.spec import Derivation, RedirectSpec
from agent.core.verdict import decide
from tests.cases import then
from tests.cases.datapath import Counted, Datapath
from tests.cases.findings import Findings, Outcome, outcome
from tests.cases.lifecycle import LATER, LIFECYCLE
from tests.cases.model import POD_IP, Case, Step
from tests.cases.settings import differences
from tests.cases.stories.pods import standing
from tests.cases.wire import Seen, connection, disagreements, observe
from tests.lab.addresses import FAMILIES, Addresses, Family
from tests.lab.pod import pod_and_world
from tests.lab.probe import opened_standin
from tests.lab.standin import Endpoint
from tests.lab.way import NotOnAWireError, Probe

_VARIANT = re.compile(
    r"with node local_only: (?P<value>true|false)\b.* the same packet is (?P<place>in|out|direct)"
)


def run(case: Case, datapath: Datapath | None) -> Outcome:
    """The outcome of one case; without a datapath only the pure core is asked."""
    if case.effective is None and not case.steps:
        procedure = LIFECYCLE.get(case.id)
        if procedure and datapath is None:
            return Outcome(case.id, case.title, "skip", "needs the agent and a kernel")
        if procedure:
            return outcome(case.id, case.title, procedure(case))
        if case.id in LATER or case.text.steps or not _says_something(case):
            return Outcome(case.id, case.title, "skip", LATER.get(case.id, "no procedure for this id"))
    findings = Findings()
    _examine(case, datapath, findings)
    return outcome(case.id, case.title, findings)


def _derivation(case: Case) -> Derivation:
    return derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)


def _says_something(case: Case) -> bool:
    """Whether any sentence of its `then` can be checked against the pod as it stands."""
    evidence = then.Evidence(_derivation(case))
    return any(then.check(sentence, evidence) is not None for sentence in case.then)


def _examine(case: Case, datapath: Datapath | None, findings: Findings) -> None:
    derivation = _derivation(case)
    spec = derivation.spec
    counted: Counted | None = None
    if datapath and not case.effective and not (spec and case.steps):
        findings.failures += standing(case).failures
    if spec is None and case.effective:
        findings.failures.append(f"the pod is not redirected: {derivation.excluded}")
    elif spec is None:
        findings.connections += len(case.steps)
        unmet = (step for step in case.steps if step.expect != "direct")
        findings.failures += [
            f"{step}: it is direct, since the pod is not redirected: {derivation.excluded}" for step in unmet
        ]
    else:
        if case.effective:
            findings.failures += differences(case.effective, spec)
        _on_paper(case, spec, findings)
        if datapath and case.steps:
            counted = _on_wire(case, spec, datapath, findings)
    findings.notes += [f"not done: {step}" for step in case.text.steps]
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
    varied = msgspec.structs.replace(case, defaults=defaults, steps=steps, effective=None, then=())
    _examine(varied, datapath, found)
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


def _on_paper(case: Case, spec: RedirectSpec, findings: Findings) -> None:
    """The verdict on each connection against what the case expects; addresses as the lab would choose."""
    addresses = _addresses(case, spec)
    pod = {family: case.addresses.get(family) or addresses.fresh(family) for family in FAMILIES}
    world = {family: addresses.fresh(family) for family in FAMILIES}
    for step, probe in _probes(case, spec):
        placed = _placed(probe, pod)
        source, destination = placed.source, placed.destination
        if probe.direction == "in":
            source, destination = source or world[probe.family], destination or pod[probe.family]
        forwarded = probe.direction == "in" and destination not in pod.values()
        packet = connection(probe, source=source, destination=destination, forwarded=forwarded)
        verdict = decide(spec, packet)
        findings.connections += 1
        if verdict.action != step.expect:
            said = f"{verdict.action} by {verdict.rule} ({verdict.why})"
            findings.failures.append(f"{step}: the verdict is {said}, expected {step.expect}")
        elif step.to_port not in (None, verdict.to_port):
            findings.failures.append(
                f"{step}: the verdict goes to {verdict.to_port}, expected {step.to_port}"
            )
        elif destination:
            wrong = _wrong_original(step, (destination, probe.port or 0), pod[probe.family])
            findings.failures += [f"{step}: {each}" for each in wrong]


def _wrong_original(step: Step, have: Endpoint, pod_ip: str) -> list[str]:
    if step.original is None:
        return []
    host, port = step.original
    wanted = (pod_ip if host == POD_IP else host, port)
    return [] if have == wanted else [f"its original destination is {have}, expected {wanted}"]


def _on_wire(case: Case, spec: RedirectSpec, datapath: Datapath, findings: Findings) -> Counted:
    """All connections as real traffic; returns how far they moved the counters, twins left out."""
    total: Counted = {}
    inbound = case.effective.inbound if case.effective else spec.inbound_port
    outbound = case.effective.outbound if case.effective else spec.outbound_port
    user_namespace = case.pod.spec.host_users is False
    with (
        pod_and_world(_addresses(case, spec), case.addresses, user_namespace=user_namespace) as pod,
        datapath.opened(pod.path) as nft,
        opened_standin(pod, inbound=inbound, outbound=outbound, uid=spec.proxy_uid) as standin,
    ):
        for interface in case.interfaces:
            pod.link(interface)
        datapath.install(nft, spec)
        for step, probe in _probes(case, spec):
            try:
                seen = observe(pod, standin, nft, spec, _placed(probe, pod.address))
            except NotOnAWireError as error:
                findings.notes.append(f"not on a wire: {step}: {error}")
                findings.off_wire += 1
                continue
            wrong = _unexpected(step, seen, pod.address[probe.family]) or disagreements(seen, spec, probe)
            findings.failures += [f"{step} (IPv{probe.family}): {each}" for each in wrong]
            if probe is step.probe:
                for name, more in seen.counted.items():
                    total[name] = total.get(name, 0) + more
    return total


def _unexpected(step: Step, seen: Seen, pod_ip: str) -> list[str]:
    """What real traffic did otherwise than the case expects."""
    arrival = seen.arrival
    if seen.place != step.expect:
        detail = f" ({arrival.detail})" if arrival.detail else ""
        return [f"on the wire it is {seen.place}{detail}, expected {step.expect}"]
    if step.to_port not in (None, arrival.port):
        return [f"it arrives at port {arrival.port}, expected {step.to_port}"]
    return _wrong_original(step, arrival.original, pod_ip) if arrival.original else []


def _addresses(case: Case, spec: RedirectSpec) -> Addresses:
    """Addresses for the lab that no connection and no subnet of the case names."""
    named = {address for step in case.steps for address in (step.probe.source, step.probe.destination)}
    named -= {None, POD_IP}
    wanted = case.effective.subnets if case.effective else frozenset()
    skipped = (*spec.skip_subnets.v4, *spec.skip_subnets.v6)
    return Addresses([*filter(None, named), *case.addresses.values(), *wanted, *skipped])
