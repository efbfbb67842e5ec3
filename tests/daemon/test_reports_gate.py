"""Public bug reports of CNI plugins (docs/reports.md), as inputs to plugin, chain and agent together."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.core.chain import TYPE, Entry
from tests.cni.confs import CALICO, CILIUM, Node, in_place
from tests.cni.shim import AWAY_AFTER, PREVIOUS, UNSTRIPPED, build
from tests.daemon.chained import CONFLIST, UID, add, entry, keeping
from tests.daemon.test_run import table
from tests.lab.agent import SLOWNESS, Agent, pod_manifest
from tests.lab.netns import inside, netns

PASSED = (0, PREVIOUS.encode())


def test_f03_f09_a_file_written_in_place_gets_one_entry(node: Node) -> None:
    """Again and again, with what the writer took over from us among it."""
    conf = node.put(CONFLIST, CALICO)
    stale = Entry(socket="/run/old.sock").plugin()
    with keeping(node) as one:

        def mended() -> bool:
            only = node.used()[1] == ["calico", "portmap", TYPE]
            return only and entry(node)["socket"] == str(one.run_dir / "cni.sock")

        for copies in range(3):
            document = json.loads(CALICO)
            document["plugins"] += [stale] * copies
            in_place(conf, json.dumps(document))
            one.wait(mended, f"one entry, our own, in place of {copies}", 1)


def test_f06_a_configuration_that_comes_while_the_agent_starts(node: Node) -> None:
    with keeping(node, start=False) as one:
        one.start(wait=False)
        node.put(CONFLIST, CALICO)
        one.wait(lambda: one.state()["notReady"] == [], "readiness")
        assert node.chained()


def test_f07_there_is_one_configuration_at_each_step(node: Node) -> None:
    conf = node.put("05-cilium.conf", CILIUM)
    with keeping(node) as one:
        for _ in range(2):
            assert node.used() == ("05-cilium-pointsman.conflist", ["cilium-cni", TYPE])
            assert conf.read_text() == CILIUM
            one.stop()
            one.start()
    node.installer().remove()
    assert node.files() == {"05-cilium.conf": CILIUM}


def test_f12_there_is_no_credential_that_could_expire(node: Node, tmp_path: Path) -> None:
    """The shim opens no file and uses no network, and nothing else of ours is on the node."""
    symbols = subprocess.check_output(["nm", build(tmp_path / "unstripped", UNSTRIPPED)], text=True)
    assert not {"open", "openat", "fopen"} & {line.split()[-1] for line in symbols.splitlines()}
    node.put(CONFLIST, CALICO)
    with netns() as pod, netns() as nowhere, keeping(node, "--agent-pod", "linkerd-cni/linkerd-cni-") as one:
        assert set(entry(node)) == {
            *("type", "socket", "whenAgentAway", "exemptNamespaces", "agentPod", "capabilities")
        }
        assert list(node.files()) == [CONFLIST]
        assert [path.name for path in node.bin_dir.iterdir()] == [TYPE]
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        done = inside(nowhere, lambda: add(node, pod))
        assert (done.code, done.out) == PASSED
        assert "redirect to :4140" in table(pod)


@pytest.mark.parametrize("policy", ["allow", "deny"])
@pytest.mark.parametrize("end", [Agent.stop, Agent.kill])
def test_f13_the_plugin_never_blocks_its_rescuer(node: Node, policy: str, end: Any) -> None:
    """The agent is gone, its binary and its entry have stayed."""
    node.put(CONFLIST, CALICO)
    flags = ("--when-agent-away", policy, "--agent-pod", "linkerd-cni/linkerd-cni-")
    with netns() as pod, keeping(node, *flags) as one:
        end(one)
        pods = [("linkerd-cni-x7f2p", "linkerd-cni"), ("coredns-5d78c", "kube-system"), ("web", "default")]
        with ThreadPoolExecutor(len(pods)) as kubelet:
            own, host, other = kubelet.map(lambda each: add(node, pod, *each), pods)
        for done in (own, host, other):
            assert done.seconds < (AWAY_AFTER + 1) * SLOWNESS
        assert (own.code, own.out) == (host.code, host.out) == PASSED
        if policy == "deny":
            assert other.error["code"] == 11
            assert "pod default/web: agent not reachable" in other.error["msg"]
        else:
            assert (other.code, other.out) == PASSED
        one.put(pod_manifest("web", None if policy == "deny" else pod, uid=UID))
        one.start()
        if policy == "deny":
            assert (add(node, pod).code, bool(table(pod))) == (0, True)
        one.wait_reason("default/web", "Redirected")


def test_f25_an_agent_that_is_killed_while_a_pod_is_added(node: Node) -> None:
    """With `deny` the pod starts with its rules, or is tried again; never without them."""
    node.put(CONFLIST, CALICO)
    flags = ("--when-agent-away", "deny", "--unknown-wait", "5")
    with netns() as pod, keeping(node, *flags) as one, ThreadPoolExecutor(1) as kubelet:
        adding = kubelet.submit(add, node, pod)
        one.wait(lambda: list(one.run_dir.glob("attachments/*.json")), "the call")
        one.kill()
        one.put(pod_manifest("web", uid=UID))
        one.start()
        done = adding.result()
        deadline = time.monotonic() + 10 * SLOWNESS
        while done.code and time.monotonic() < deadline:
            assert done.error["code"] == 11
            done = add(node, pod)
        assert (done.code, done.out) == PASSED
        assert "redirect to :4140" in table(pod)
