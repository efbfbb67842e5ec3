"""`pointsman install-cni`, on directories of its own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cni.directory import Directory
from agent.core.chain import TYPE
from tests.cli.conftest import Cli, answer
from tests.cni.confs import CALICO, CILIUM, Node, by_rename


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def place(node: Node) -> tuple[object, ...]:
    return "--conf-dir", node.conf_dir, "--bin-dir", node.bin_dir, "--shim", node.shim


def test_installs_and_removes(cli: Cli, node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)

    done = cli("install-cni", *place(node))
    again = cli("install-cni", *place(node))
    removed = cli("install-cni", *place(node), "--remove")
    nothing = cli("install-cni", *place(node), "--remove")

    line = f"{conf}: calico, portmap, pointsman-cni\n"
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"changed {node.bin_dir / TYPE}\nchanged {conf}\n{line}"
    assert (again.exit_code, again.stdout) == (0, line)
    assert (removed.exit_code, removed.stdout) == (0, f"changed {conf}\nchanged {node.bin_dir / TYPE}\n")
    assert conf.read_text() == CALICO
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "Nothing of ours" in nothing.stderr


def test_flags_become_the_entry(cli: Cli, node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)

    result = cli(
        "install-cni",
        *place(node),
        *("--socket", "/run/other/cni.sock", "--when-agent-away", "deny"),
        *("--exempt-namespaces", "linkerd,kube-system", "--agent-pod", "linkerd-cni/linkerd-cni-"),
    )

    assert result.exit_code == 0
    assert json.loads(conf.read_text())["plugins"][-1] == {
        "type": "pointsman-cni",
        "socket": "/run/other/cni.sock",
        "whenAgentAway": "deny",
        "exemptNamespaces": ["kube-system", "linkerd"],
        "agentPod": "linkerd-cni/linkerd-cni-",
        "capabilities": {"io.kubernetes.cri.pod-annotations": True},
    }


def test_the_environment_twin_of_a_flag(cli: Cli, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    monkeypatch.setenv("POINTSMAN_WHEN_AGENT_AWAY", "deny")

    assert cli("install-cni", *place(node)).exit_code == 0
    assert json.loads(conf.read_text())["plugins"][-1]["whenAgentAway"] == "deny"


def test_json(cli: Cli, node: Node) -> None:
    node.put("05-cilium.conf", CILIUM)

    found = answer(cli("install-cni", *place(node), "-o", "json"))

    assert [Path(name).name for name in found["written"]] == [TYPE, "05-cilium-pointsman.conflist"]
    assert found["inspection"] == {
        "confDir": str(node.conf_dir),
        "binDir": str(node.bin_dir),
        "file": "05-cilium.conf",
        "holder": "05-cilium-pointsman.conflist",
        "chain": ["cilium-cni", TYPE],
        "position": 1,
        "current": True,
        "neighbours": [],
        "broken": [],
        "pending": [],
        "shim": "current",
    }


def test_what_a_person_should_know_is_on_stderr(cli: Cli, node: Node) -> None:
    node.put("05-half.conflist", CALICO[:50])
    node.put("10-a.conflist", '{"name": "a", "plugins": [{"type": "calico"}, {"type": "linkerd-cni"}]}')

    result = cli("install-cni", *place(node))

    assert result.exit_code == 0
    assert "calico, linkerd-cni, pointsman-cni" in result.stdout
    assert f"Warning: cannot use {node.conf_dir}/05-half.conflist: unterminated string" in result.stderr
    assert "Warning: linkerd-cni is in the chain as well; uninstall linkerd-cni" in result.stderr


def test_no_configuration_is_a_failure_with_a_remedy(cli: Cli, node: Node) -> None:
    result = cli("install-cni", *place(node))

    assert result.exit_code == 1
    assert "There is no CNI configuration yet" in result.stderr
    assert "is --conf-dir the directory that the runtime reads?" in result.stderr


def test_a_missing_shim_is_a_failure_with_a_remedy(cli: Cli, node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    node.shim.unlink()

    result = cli("install-cni", *place(node))

    assert result.exit_code == 1
    assert f"cannot find the shim {node.shim}; run `make shim`" in result.stderr


def test_beside_a_running_agent_nothing_is_changed(cli: Cli, node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    cli("install-cni", *place(node))
    before = conf.read_text()
    with Directory(node.bin_dir) as agent:
        assert agent.try_lock()
        same = cli("install-cni", *place(node))
        other = cli("install-cni", *place(node), "--when-agent-away", "deny")
        removed = cli("install-cni", *place(node), "--remove")

    assert same.exit_code == 0
    assert (other.exit_code, removed.exit_code) == (1, 1)
    assert "a running agent keeps it; end the agent first" in other.stderr
    assert conf.read_text() == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--socket", "cni.sock"), "/run/pointsman/cni.sock"),
        (("--socket", "/" + "x" * 107), "at most 107 bytes"),
        (("--agent-pod", "linkerd-cni"), "NAMESPACE/POD"),
        (("--exempt-namespaces", "Kube System"), "kube-system,ci"),
        (("--when-agent-away", "maybe"), "'allow', 'deny'"),
        (("--watch", "--remove"), "cannot use --watch with --remove"),
    ],
)
def test_bad_values_are_refused(cli: Cli, node: Node, flags: tuple[str, ...], words: str) -> None:
    node.put("10-calico.conflist", CALICO)

    result = cli("install-cni", *place(node), *flags)

    assert result.exit_code == 2
    assert words in result.stderr
    assert node.files() == {"10-calico.conflist": CALICO}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_watch_keeps_it_in_place_until_it_is_told_to_stop(node: Node, end: signal.Signals) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    argv = [sys.executable, "-m", "agent", "install-cni", *map(str, place(node)), "--watch"]
    said = node.conf_dir.parent / "said"
    with (
        said.open("wb") as stderr,
        subprocess.Popen(argv, cwd=Path(__file__).parents[2], stderr=stderr) as child,
    ):
        try:
            _wait(node.chained, 10)
            by_rename(conf, CALICO)
            _wait(node.chained, 2)
            _wait(lambda: "CniConfigOverwritten" in said.read_text(), 2)
            child.send_signal(end)
            assert child.wait(5) == 0
        finally:
            child.kill()

    assert node.chained()


def _wait(true: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
