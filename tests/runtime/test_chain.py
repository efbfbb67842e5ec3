"""The installer beside a real runtime: pods come through the gate, whatever becomes of the conflist."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.cri import Refused
from tests.lab.images import Built
from tests.runtime.kubelet import Kubelet, kubelet, wait


@pytest.fixture
def node(tmp_path: Path, built: Built, shim: Path) -> Iterator[Kubelet]:
    """A node with an agent, in whose chain there is nothing of ours yet."""
    with kubelet(tmp_path, built, shim, "--unknown-wait", "0.3") as made:
        made.runtime.write_chain([])
        (made.runtime.plugins / "pointsman-cni").unlink()
        made.agent.start()
        yield made


def _command(node: Kubelet, shim: Path, *more: str) -> list[str]:
    return [
        *node.runtime.prefix, sys.executable, "-m", "agent", "install-cni",
        "--conf-dir", str(node.runtime.confs),
        "--bin-dir", str(node.runtime.plugins),
        "--socket", str(node.agent.run_dir / "cni.sock"),
        "--shim", str(shim),
        *more,
    ]  # fmt: skip


def _types(node: Kubelet) -> list[str]:
    """Types of the chain as it is now; none while the file is half written or away."""
    with contextlib.suppress(OSError, ValueError):
        return [plugin["type"] for plugin in json.loads(node.runtime.conflist.read_text())["plugins"]]
    return []


def _installed(node: Kubelet) -> bool:
    return _types(node) == ["ptp", "pointsman-cni"]


@contextlib.contextmanager
def watched(node: Kubelet, shim: Path) -> Iterator[None]:
    """The installer stays, and keeps the entry in its place."""
    log = node.runtime.directory / "install-cni.log"
    with log.open("ab") as output:
        process = subprocess.Popen(_command(node, shim, "--watch"), stdout=output, stderr=output)
    try:
        wait(lambda: _installed(node), "entry in the chain")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def _redirects(node: Kubelet, name: str) -> bool:
    """Whether a new pod comes out of its ADD with rules."""
    pod = node.pod(name)
    try:
        return pod.redirected
    finally:
        node.end(pod)


def _overwrite_by_rename(conflist: Path, text: str) -> None:
    other = conflist.with_suffix(".theirs")
    other.write_text(text)
    other.rename(conflist)


def _truncate_and_write(conflist: Path, text: str) -> None:
    with conflist.open("w") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        file.write(text[len(text) // 2 :])


def _delete_and_write(conflist: Path, text: str) -> None:
    conflist.unlink()
    conflist.write_text(text)


def test_pods_are_redirected_once_it_is_installed(node: Kubelet, shim: Path) -> None:
    assert not _redirects(node, "before")
    before = node.runtime.conflist.read_bytes()
    subprocess.run(_command(node, shim), check=True, stdout=subprocess.DEVNULL)
    assert _types(node) == ["ptp", "pointsman-cni"]
    assert node.runtime.cri.ready()
    wait(lambda: _redirects(node, "after"), "redirection by the new chain")

    subprocess.run(_command(node, shim, "--remove"), check=True, stdout=subprocess.DEVNULL)
    assert node.runtime.conflist.read_bytes() == before
    assert node.runtime.cri.ready()
    wait(lambda: not _redirects(node, "removed"), "end of the redirection")
    assert not (node.runtime.plugins / "pointsman-cni").exists()


@pytest.mark.parametrize("write", [_overwrite_by_rename, _truncate_and_write, _delete_and_write])
def test_whoever_writes_the_conflist_the_gate_comes_back(
    node: Kubelet, shim: Path, write: Callable[[Path, str], None]
) -> None:
    theirs = node.runtime.conflist.read_text()
    with watched(node, shim):
        wait(lambda: _redirects(node, "first"), "redirection by the new chain")
        for turn in range(2):
            # Something that is theirs, so that their last word can be told from ours.
            conf = json.loads(theirs)
            conf["plugins"][0]["mtu"] = 1400 + turn
            write(node.runtime.conflist, json.dumps(conf))
            wait(lambda: _installed(node), "entry in the chain")
            chain = json.loads(node.runtime.conflist.read_text())["plugins"]
            assert chain[0]["mtu"] == 1400 + turn
            wait(lambda: _redirects(node, "again"), "redirection by the mended chain")


def test_a_deleted_conflist_is_not_ours_to_write(node: Kubelet, shim: Path) -> None:
    """The network's own plugin is gone with it: a chain of our entry alone would start pods without any."""
    theirs = node.runtime.conflist.read_text()
    with watched(node, shim):
        node.runtime.conflist.unlink()
        wait(lambda: not node.runtime.cri.ready(), "notice that the conflist is gone")
        with pytest.raises(Refused):
            node.pod("between")
        assert not node.runtime.conflist.exists()
        node.runtime.conflist.write_text(theirs)
        wait(lambda: _installed(node), "entry in the chain")
        wait(lambda: _redirects(node, "after"), "redirection by the chain")


def test_pods_of_before_end_in_the_new_chain(node: Kubelet, shim: Path) -> None:
    """Their DEL comes to a plugin that never saw their ADD."""
    old = node.pod("old")
    with watched(node, shim):
        wait(lambda: _redirects(node, "new"), "redirection by the new chain")
        node.end(old)
    assert node.runtime.cri.pods() == []
    assert node.runtime.node.run("ls", "/run/netns") == ""
