"""`run --install-cni`: the agent keeps its plugin in the node's chain, whoever writes there or ends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.cni.install import SHIM
from agent.core.chain import TYPE
from agent.core.reasons import Reason
from tests.cni.confs import CALICO, CILIUM, Node, by_rename, in_place, mounted
from tests.cni.shim import PREVIOUS
from tests.daemon.chained import CONFLIST, UID, add, entry, keeping
from tests.daemon.test_run import table
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.netns import netns

NOT_INSTALLED = "the shim is not in the node's CNI configuration yet"


def identity(path: Path) -> tuple[int, int, bytes]:
    """Of one file with one content; another after every write."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, path.read_bytes()


def reports(one: Agent) -> list[str]:
    return [line["reason"] for line in one.events("CNI configuration")]


def test_the_gate_is_ready_with_the_agent(node: Node) -> None:
    conf = node.put(CONFLIST, CALICO)
    with netns() as pod, keeping(node) as one:
        assert node.chained()
        assert entry(node)["socket"] == str(one.run_dir / "cni.sock")
        assert json.loads(conf.read_text())["plugins"][:-1] == json.loads(CALICO)["plugins"]
        assert (node.bin_dir / TYPE).read_bytes() == SHIM.read_bytes()
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        done = add(node, pod)
        assert (done.code, done.out, done.err) == (0, PREVIOUS.encode(), "")
        assert "redirect to :4140" in table(pod)
        chain = one.state()["cni"]["chain"]
        assert (chain["file"], chain["position"], chain["current"], chain["shim"]) == (
            CONFLIST,
            2,
            True,
            "current",
        )
        assert reports(one) == []


def test_the_flags_are_those_of_install_cni(node: Node) -> None:
    node.put(CONFLIST, CALICO)
    flags = (
        *("--when-agent-away", "deny", "--exempt-namespaces", "linkerd,kube-system"),
        *("--agent-pod", "linkerd-cni/linkerd-cni-", "--socket", "/host/run/cni.sock"),
    )
    with keeping(node, *flags):
        assert entry(node) == {
            "type": TYPE,
            "socket": "/host/run/cni.sock",
            "whenAgentAway": "deny",
            "exemptNamespaces": ["kube-system", "linkerd"],
            "agentPod": "linkerd-cni/linkerd-cni-",
            "capabilities": {"io.kubernetes.cri.pod-annotations": True},
        }


def test_without_it_the_node_is_left_alone(node: Node) -> None:
    node.put(CONFLIST, CALICO)
    place = ("--conf-dir", str(node.conf_dir), "--bin-dir", str(node.bin_dir))
    with agent(node.conf_dir.parent, *place) as one:
        assert one.state()["cni"]["chain"] is None
        time.sleep(0.5)
    assert node.files() == {CONFLIST: CALICO}
    assert not node.bin_dir.exists()


def test_readiness_waits_for_the_entry(node: Node) -> None:
    with keeping(node, start=False) as one:
        one.start(wait=False)
        one.wait(lambda: one.state()["notReady"] == [NOT_INSTALLED], "readiness but for the entry")
        one.wait(lambda: reports(one) == [Reason.CNI_MISSING], "report of the missing configuration")
        node.put(CONFLIST, CALICO)
        one.wait(lambda: one.state()["notReady"] == [], "readiness")
        assert node.chained()


def test_a_kill_and_a_restart_write_nothing(node: Node) -> None:
    conf = node.put(CONFLIST, CALICO)
    with keeping(node) as one:
        before = identity(conf), identity(node.bin_dir / TYPE)
        one.kill()
        assert node.chained()
        one.start()
        time.sleep(1)
        assert (identity(conf), identity(node.bin_dir / TYPE)) == before
        assert reports(one) == []
        assert [path.name for path in node.conf_dir.iterdir()] == [CONFLIST]


@pytest.mark.parametrize("write", [by_rename, in_place])
def test_an_overwritten_entry_is_back_and_reported(node: Node, write: Any) -> None:
    conf = node.put(CONFLIST, CALICO)
    with keeping(node) as one:
        write(conf, CALICO.replace('"mtu": 0', '"mtu": 1400'))
        one.wait(node.chained, "the entry", 1)
        assert json.loads(conf.read_text())["plugins"][0]["mtu"] == 1400
        one.wait(lambda: reports(one) == [Reason.CNI_OVERWRITTEN], "the report")
        counted = 'pointsman_cni_config_reports_total{reason="CniConfigOverwritten"} 1.0'
        assert counted in one.ask("GET", "/metrics")
        assert one.state()["notReady"] == []


def test_what_was_overwritten_while_no_agent_ran_is_put_back(node: Node) -> None:
    conf = node.put(CONFLIST, CALICO)
    with keeping(node) as one:
        one.kill()
        by_rename(conf, CALICO)
        (node.bin_dir / TYPE).write_bytes(b"another version")
        one.start()
        assert node.chained()
        one.wait(lambda: (node.bin_dir / TYPE).read_bytes() == SHIM.read_bytes(), "the binary")


@pytest.mark.parametrize("end", [Agent.stop, Agent.kill])
def test_its_end_keeps_all_in_place_and_blocks_nobody(node: Node, end: Any) -> None:
    """An agent that ends may be one that is upgraded, or one that never comes back."""
    conf = node.put(CONFLIST, CALICO)
    with netns() as pod, keeping(node) as one:
        before = identity(conf), identity(node.bin_dir / TYPE)
        end(one)
        assert (identity(conf), identity(node.bin_dir / TYPE)) == before
        done = add(node, pod)
        assert (done.code, done.out) == (0, PREVIOUS.encode())
        assert "passed without the agent" in done.err


def test_two_agents_with_different_settings_do_not_fight(node: Node) -> None:
    """An upgrade that changes a setting: the successor is ready beside the old one, and writes after it."""
    conf = node.put(CONFLIST, CALICO)
    with (
        keeping(node, name="old") as old,
        keeping(node, "--when-agent-away", "deny", name="new", start=False) as new,
    ):
        before = identity(conf)
        new.start()
        time.sleep(1)
        assert identity(conf) == before
        by_rename(conf, CALICO)
        old.wait(node.chained, "the entry", 1)
        assert entry(node)["whenAgentAway"] == "allow"
        assert old.stop() == 0
        new.wait(lambda: entry(node)["whenAgentAway"] == "deny", "the successor's own entry")
        after = identity(conf)
        time.sleep(1)
        assert identity(conf) == after
        assert (reports(old), reports(new)) == ([Reason.CNI_OVERWRITTEN], [])
        assert new.state()["notReady"] == []


def test_a_killed_agents_chain_passes_to_its_successor(node: Node) -> None:
    conf = node.put(CONFLIST, CALICO)
    with keeping(node, name="old") as old, keeping(node, name="new", start=False) as new:
        new.start()
        old.kill()
        new.wait(lambda: new.state()["writer"], "the writer's lock")
        by_rename(conf, CALICO)
        new.wait(node.chained, "the entry")
        new.wait(lambda: reports(new) == [Reason.CNI_OVERWRITTEN], "the report")


def test_a_single_plugin_is_continued_beside_it(node: Node) -> None:
    node.put("05-cilium.conf", CILIUM)
    with keeping(node) as one:
        assert node.used() == ("05-cilium-pointsman.conflist", ["cilium-cni", TYPE])
        assert one.state()["cni"]["chain"]["holder"] == "05-cilium-pointsman.conflist"
    assert node.files()["05-cilium.conf"] == CILIUM


def test_pods_are_redirected_though_nothing_can_be_installed(node: Node) -> None:
    """A node whose directory is read-only: not ready, said with the remedy, and everything else works."""
    with mounted(node.conf_dir, "size=64k"):
        node.put(CONFLIST, CALICO)
        subprocess.run(["mount", "-o", "remount,ro", str(node.conf_dir)], check=True)
        with netns() as pod, keeping(node, start=False) as one:
            one.start(wait=False)
            one.put(pod_manifest("web", pod))
            one.wait_reason("default/web", "Redirected")
            one.wait(lambda: reports(one) == [Reason.CNI_UNWRITABLE], "the report")
            assert one.state()["notReady"] == [NOT_INSTALLED]
            (line,) = one.events("CNI configuration")
            assert "Read-only file system" in line["message"]
            subprocess.run(["mount", "-o", "remount,rw", str(node.conf_dir)], check=True)
            one.wait(lambda: one.state()["notReady"] == [], "readiness")


def test_a_missing_shim_is_said_with_what_makes_it(node: Node, tmp_path: Path) -> None:
    node.put(CONFLIST, CALICO)
    node.shim = tmp_path / "never-built"
    with keeping(node, start=False) as one:
        one.start(wait=False)
        one.wait(lambda: reports(one), "the report")
        assert "run `make shim`" in one.events("CNI configuration")[0]["message"]
        assert one.state()["notReady"] == [NOT_INSTALLED]
    assert node.files() == {CONFLIST: CALICO}


def test_an_agent_that_never_writes_installs_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agent",
        "run",
        "--source",
        f"files:{tmp_path}",
        "--observe",
        "--install-cni",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert "cannot use --install-cni with --observe" in done.stderr
