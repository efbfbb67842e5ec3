"""The chain of plugins in which ours has to stay, while others write the same file."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from agent.core.chain import TYPE
from agent.core.reasons import Reason
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import sandbox, table
from tests.cases.stories.runtime import Runtime, container, gated, wired
from tests.cases.stories.stage import expect, key, manifest, metric, number, wait
from tests.cni.shim import Done
from tests.lab.addresses import Addresses
from tests.lab.agent import SLOWNESS, Agent
from tests.lab.netns import netns

MTU = 1400
"""What the primary CNI has changed in its own file."""
FIGHT = 3.0
"""Seconds for which it insists on that file once our entry is put back at intervals: of 1, 2, 4, ... s."""


def rewritten(case: Case) -> Findings:
    """C11: the primary CNI replaces its file while pods start; then it does so again and again."""
    findings = Findings()
    later = number(r"(\d+) ms", case.text.steps, 50) / 1000
    soon = number(r"back < (\d+) s", case.then, 1) * SLOWNESS
    with gated(case) as (one, runtime), netns() as first, netns() as second, ThreadPoolExecutor(1) as thread:
        missed, late = (container(name, manifest(case, None, f"web-{name}")) for name in (first, second))
        for each in (missed, late):
            one.put(each.pod)

        def start_late() -> Done:
            time.sleep(later)
            return runtime.add(late)

        theirs = runtime.rewrite(MTU)
        begun = time.monotonic()
        adding = thread.submit(start_late)
        # This runtime has read the file before our entry is in it again.
        done = [runtime.add(missed, theirs)]
        wait(runtime.node.chained, "entry of ours in the chain", soon, pause=0.002)
        back = time.monotonic() - begun
        done.append(adding.result())
        expect(findings, not any(each.code for each in done), f"a pod cannot start: {done}")
        for each in (missed, late):
            one.put(manifest(case, each.netns, each.key.name))
            one.wait_reason(str(each.key), "Redirected")
        _gated_again(case, one, runtime, findings)
        _found_by_the_scan(case, one, runtime, theirs, findings)
        one.wait(lambda: _told(one, Reason.CNI_OVERWRITTEN), "report of the overwritten entry")
        told = metric(one, "pointsman_cni_config_reports_total", reason=Reason.CNI_OVERWRITTEN)
        expect(findings, told == 1, f"the overwritten entry is counted {told:g} times, expected 1")
        mtu = json.loads(runtime.conflist.read_text())["plugins"][0]["mtu"]
        expect(findings, mtu == MTU, f"the primary CNI's own change is lost: mtu {mtu}, expected {MTU}")
        findings.failures += _fight(case, one, runtime)
    findings.notes.append(f"the entry was back after {back * 1000:.0f} ms")
    return findings


def _gated_again(case: Case, one: Agent, runtime: Runtime, findings: Findings) -> None:
    """The next pod has its rules when ADD returns."""
    with netns() as pod:
        after = container(pod, manifest(case, None, "after"))
        one.put(after.pod)
        done = runtime.add(after)
        expect(findings, done.code == 0, f"with our entry in its place a pod cannot start: {done}")
        expect(findings, table(pod), "with our entry in its place a pod starts without rules")


def _found_by_the_scan(case: Case, one: Agent, runtime: Runtime, theirs: str, findings: Findings) -> None:
    """A pod that missed the gate, and of whose netns nobody tells: its process does."""
    address, uid = Addresses(case.addresses.values()).fresh(4), "5b0c1e7a-94d2-4f0e-8c3b-2f6d7a1e9c00"
    manifested = manifest(case, None, "scanned", status={"podIP": address, "podIPs": [{"ip": address}]})
    manifested["metadata"]["uid"] = uid
    with wired(address) as pod:
        done = runtime.add(container(pod, manifested), theirs)
        expect(findings, done.code == 0, f"a pod cannot start: {done}")
        try:
            with sandbox(uid, pod):
                one.put(manifested)
                one.wait_reason(key(manifested), "Redirected")
        except OSError as error:
            findings.notes.append(f"the scan was not tried, since no cgroup can be made here: {error}")


def _told(one: Agent, reason: Reason) -> int:
    return sum(line.get("reason") == reason for line in one.events("CNI configuration"))


def _fight(case: Case, one: Agent, runtime: Runtime) -> Iterator[str]:
    """The primary CNI takes our entry out whenever it sees it."""
    at_once = number(r"after (\d+) rewrites", case.then, 5)
    with _insisting(runtime) as taken_out:
        one.wait(lambda: _told(one, Reason.CNI_CONTESTED), "report that the entry is contested")
        reports = [line.get("reason") for line in one.events("CNI configuration")]
        put_back = reports[: reports.index(Reason.CNI_CONTESTED)].count(Reason.CNI_OVERWRITTEN)
        if not at_once <= put_back <= at_once + 1:
            yield f"the entry is put back {put_back} times before it is throttled, expected {at_once}"
        before = len(taken_out)
        time.sleep(FIGHT)
        writes = len(taken_out) - before
    if writes > 3:
        yield f"throttled, the entry is still put back {writes} times in {FIGHT:g} s"
    wait(runtime.node.chained, "entry of ours after the fight", 5 * FIGHT * SLOWNESS)
    if (times := _told(one, Reason.CNI_CONTESTED)) != 1:
        yield f"the fight is reported {times} times, expected once"


@contextlib.contextmanager
def _insisting(runtime: Runtime) -> Iterator[list[float]]:
    """Another writer, who undoes each of our writes at once; yields the times at which it did."""
    ended, taken_out = threading.Event(), list[float]()

    def insist() -> None:
        while not ended.wait(0.001):
            if TYPE in runtime.conflist.read_text():
                runtime.rewrite(MTU)
                taken_out.append(time.monotonic())

    thread = threading.Thread(target=insist)
    thread.start()
    try:
        yield taken_out
    finally:
        ended.set()
        thread.join()
