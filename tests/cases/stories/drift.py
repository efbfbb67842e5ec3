"""What others do to a pod's rules: refused where the table is owned, repaired where it is plain."""

import contextlib
import errno
import os
import signal
from collections.abc import Iterator

from agent.core.names import SKIP_OUTBOUND_PORTS, TABLE
from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError
from tests.cases.datapath import Datapath
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import content, netfilter_sockets, nft, table
from tests.cases.stories.stage import (
    BY_EVENT,
    PLAIN,
    expect,
    key,
    manifest,
    metric,
    running,
    settle,
    settle_for_events,
    spec_of,
    wait,
)
from tests.cases.stories.traffic import load
from tests.lab.agent import JSON, Agent
from tests.lab.netns import netns, path_of
from tests.lab.pod import Pod, pod_and_world
from tests.node.pods import nft as nft_script
from tests.node.pods import socket_in

BURST = 1000
"""Foreign changes in one burst."""
BURSTS = 50
"""Bursts after which the queue of a socket must have overflowed."""


def flushed(case: Case) -> Findings:
    """C07: a container with NET_ADMIN flushes the ruleset of its pod, which is owned, or plain."""
    findings = Findings()
    with pod_and_world() as pod, running(case) as one:
        settle(one, manifest(case, pod.name), "Redirected")
        if one.state()["ownedTables"]:
            _flush_owned(case, one, pod, findings)
        else:
            findings.notes.append("this kernel has no owned tables: only the plain one is flushed")
    with netns() as pod, running(case, *PLAIN, *BY_EVENT) as one:
        settle_for_events(one, manifest(case, pod))
        name, rules = str(case.pod.key), content(pod)
        before = metric(one, "pointsman_drift_total")
        culprit = _repaired(one, name, pod, "flush", "ruleset")["culprit"]
        expect(findings, content(pod) == rules, "the plain table is not as it was")
        expect(findings, culprit.startswith("nft["), f"the culprit is {culprit or 'not named'}, expected nft")
        drifts = metric(one, "pointsman_drift_total") - before
        expect(findings, drifts == 1, f"pointsman_drift_total moves by {drifts:g}, expected 1")
    return findings


def _repaired(one: Agent, name: str, pod: str, *command: str) -> JSON:
    """Run nft in the pod, and wait until the agent has repaired what it did. Returns the pod's status."""
    before = one.pod(name)["status"]["drifts"]
    nft(pod, *command)
    one.wait(lambda: one.pod(name)["status"]["drifts"] > before, f"repair after nft {' '.join(command)}")
    status: JSON = one.pod(name)["status"]
    return status


def _flush_owned(case: Case, one: Agent, pod: Pod, findings: Findings) -> None:
    """Nothing changes, every single change is refused, and the attempt is reported."""
    name, before = str(case.pod.key), table(pod.name)
    with load(pod, spec_of(case)) as connections:
        for _ in range(5):
            nft(pod.name, "flush", "ruleset")
        opened = connections.opened
        wait(lambda: connections.opened > opened + 20, "connections after the flush")
    findings.failures += connections.failures("the flush of an owned table")
    # The kernel sends an event for a flush that has changed something: a table of the application.
    nft(pod.name, "add", "table", "inet", "appfw")
    one.wait(lambda: one.pod(name)["status"]["foreignChanges"] > 0, "report of a foreign change")
    reported = one.pod(name)["status"]["foreignChanges"]
    nft(pod.name, "flush", "ruleset")
    one.wait(lambda: one.pod(name)["status"]["foreignChanges"] > reported, "report of the flush")
    culprit = one.pod(name)["status"]["culprit"]
    expect(findings, culprit.startswith("nft["), f"the culprit is {culprit or 'not named'}, expected nft")
    for attempt in (
        f"delete table inet {TABLE}",
        f"flush chain inet {TABLE} output",
        f"flush set inet {TABLE} out_skip_ports",
        f"insert rule inet {TABLE} output accept",
    ):
        expect(findings, _refused(pod.name, attempt), f"nft {attempt} is not refused with EPERM")
    expect(findings, table(pod.name) == before, "the owned table has changed")
    expect(findings, one.pod(name)["status"]["drifts"] == 0, "a drift of the owned table is counted")


def _refused(pod: str, command: str) -> bool:
    try:
        nft(pod, *command.split())
    except RuntimeError as error:
        return "Operation not permitted" in str(error)
    return False


def element_removed(case: Case) -> Findings:
    """C08: one element is put back, and all else keeps its handles; an overtaken commit changes nothing."""
    findings = Findings()
    spec = spec_of(case)
    with netns() as pod, running(case, *PLAIN, *BY_EVENT) as one:
        (element, *_) = spec.skip_outbound.elements() or ("4567",)
        wanted = manifest(case, pod, annotations={SKIP_OUTBOUND_PORTS: str(spec.skip_outbound) or element})
        settle_for_events(one, wanted)
        before = table(pod)
        removal = ("delete", "element", "inet", TABLE, "out_skip_ports", f"{{ {element} }}")
        status = _repaired(one, key(wanted), pod, *removal)
        expect(findings, table(pod) == before, "the table or its handles are not as they were")
        said = [each for each in status["differences"] if element in each and "out_skip_ports" in each]
        expect(findings, said, f"the differences are {status['differences']}, expected {element} by name")
        how = status["how"]
        expect(findings, how == "updated", f"the table was {how}, expected a repair in place")
    with netns() as pod, contextlib.closing(Datapath()) as datapath, datapath.opened(path_of(pod)) as look:
        datapath.install(look, spec)
        state = look.read(TABLE)
        nft(pod, "add", "table", "inet", "other")
        try:
            look.commit(batch((), state.records, generation=state.generation))
            findings.failures.append("a commit is applied although its generation has passed")
        except NftError as error:
            expect(findings, error.errno == errno.ERESTART, f"an overtaken commit ends with {error}")
        expect(findings, look.read(TABLE).records == state.records, "an overtaken commit has had an effect")
    return findings


def overflow(case: Case) -> Findings:
    """C18: more foreign changes than the queue of the agent's socket holds; what they hide is repaired."""
    findings = Findings()
    with netns() as pod, running(case, *PLAIN, *BY_EVENT) as one:
        settle_for_events(one, manifest(case, pod))
        name, rules = str(case.pod.key), content(pod)
        with _standing_still(one):
            changes = _overflow(pod)
            nft(pod, "delete", "table", "inet", TABLE)
        one.wait(lambda: one.pod(name)["status"]["drifts"] > 0, "repair of what the overflow has hidden")
        expect(findings, content(pod) == rules, "after the overflow the table is not as it was")
        nft(pod, "delete", "table", "inet", "burst")
        _repaired(one, name, pod, "delete", "table", "inet", TABLE)
        expect(findings, content(pod) == rules, "after a later change the table is not as it was")
    findings.notes.append(
        f"the queue overflowed within {changes} foreign changes while the agent stood still"
    )
    return findings


@contextlib.contextmanager
def _standing_still(one: Agent) -> Iterator[None]:
    """The agent's process is stopped for as long as the context lasts."""
    os.kill(one.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(one.pid, signal.SIGCONT)


def _overflow(pod: str) -> int:
    """Make foreign changes until the queue of a socket has overflowed; returns how many they were."""
    for number in range(BURSTS):
        nft_script(pod, _burst(number))
        if any(each.drops for each in netfilter_sockets(pod)):
            return (number + 1) * BURST
    raise AssertionError(f"no queue has overflowed after {BURSTS * BURST} foreign changes")


def _burst(number: int) -> str:
    """So many new rules in a table that is not ours."""
    comment = "x" * 100
    rule = f"add rule inet burst c{number} tcp dport"
    rules = [f'{rule} {port} comment "{comment}"' for port in range(1, BURST + 1)]
    return "\n".join(["add table inet burst", f"add chain inet burst c{number}", *rules])


def plain_tables(case: Case) -> Findings:
    """C20: without the flags everything works on plain tables, which is shown, and drift comes by events."""
    findings = Findings(notes=["as on a kernel without the flags, by the setting: --table-ownership off"])
    with netns() as pod, running(case, *PLAIN, *BY_EVENT) as one, socket_in(pod) as look:
        settle_for_events(one, manifest(case, pod))
        state = look.read(TABLE)
        expect(
            findings, not (state.flags or state.owner), f"flags of the table are {state.flags}, expected 0"
        )
        owned = metric(one, "pointsman_owned_tables")
        expect(findings, owned == 0, f"pointsman_owned_tables is {owned:g}, expected 0")
        expect(findings, one.state()["ownedTables"] is False, "the state says that tables are owned")
        name, rules = str(case.pod.key), content(pod)
        for change in (f"flush chain inet {TABLE} output", f"delete table inet {TABLE}"):
            _repaired(one, name, pod, *change.split())
            expect(findings, content(pod) == rules, f"after {change} the table is not as it was")
    return findings
