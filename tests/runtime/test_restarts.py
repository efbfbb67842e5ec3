"""The gate while agents, runtimes and sockets come and go."""

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.agent import Agent, pod_manifest
from tests.lab.containerd import Containerd
from tests.lab.cri import Refused
from tests.lab.images import Built
from tests.lab.netns import inside
from tests.runtime.kubelet import PORT, Kubelet, entry, kubelet, wait


@pytest.fixture
def node(tmp_path: Path, built: Built, shim: Path) -> Iterator[Kubelet]:
    with kubelet(tmp_path, built, shim, "--unknown-wait", "0.3") as made:
        yield made


@pytest.fixture
def denying(tmp_path: Path, built: Built, shim: Path) -> Iterator[Kubelet]:
    """A node whose pods do not start while the agent is away, but for some."""
    settings = {
        "whenAgentAway": "deny",
        "exemptNamespaces": ["kube-system"],
        "agentPod": "linkerd-cni/linkerd-cni-",
    }
    with kubelet(tmp_path, built, shim, "--unknown-wait", "5", **settings) as made:
        yield made


@contextlib.contextmanager
def successor(node: Kubelet) -> Iterator[Agent]:
    """Another agent of the same directory, not started yet."""
    one = Agent(node.agent.directory, name="successor", prefix=node.runtime.prefix)
    with contextlib.closing(one):
        yield one


# ---- no agent -------------------------------------------------------------------------------------------


def test_allowed_pods_are_repaired_by_the_agent_that_comes(node: Kubelet) -> None:
    pod = node.server("web")
    assert pod.rules() == ""
    node.agent.start()
    node.agent.wait_reason(pod.key, "Redirected")
    assert pod.redirected


def test_denied_pods_wait_for_the_agent(denying: Kubelet) -> None:
    with pytest.raises(Refused, match="agent not reachable on"):
        denying.pod("web")
    assert denying.cri.pods() == []
    assert denying.runtime.node.run("ls", "/run/netns") == ""
    # A plugin that blocked the agent's own pod could never be repaired.
    denying.pod("linkerd-cni-x7f2p", "linkerd-cni")
    denying.pod("coredns-5d78c", "kube-system", meshed=False)
    denying.agent.start()
    assert denying.pod("web").redirected


def test_pods_are_removed_without_an_agent(denying: Kubelet) -> None:
    denying.agent.start()
    pod = denying.pod("web")
    denying.agent.kill()
    denying.end(pod)
    denying.agent.start()
    attachments = denying.agent.run_dir / "attachments"
    wait(lambda: not list(attachments.iterdir()), "forgotten attachment")
    assert denying.agent.state()["pods"] == []


def test_a_pod_older_than_the_gate_keeps_its_connections(node: Kubelet) -> None:
    """The chain gets its entry, and the node its agent, while the pod serves a client."""
    node.runtime.write_chain([])
    time.sleep(0.2)
    pod = node.server("web")
    address = (pod.ip, PORT)
    client = inside(node.runtime.node.netns, lambda: socket.create_connection(address, timeout=5))
    with client, client.makefile() as answers:
        assert answers.readline().startswith(f"app {PORT}")
        node.runtime.write_chain([entry(node.agent.directory)])
        node.agent.start()
        node.agent.wait_reason(pod.key, "Redirected")
        client.sendall(b"still there\n")
        assert answers.readline() == "still there\n"
    node.runtime.end_pod(pod.sandbox)


# ---- agents come and go ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Agent.stop, Agent.kill])
def test_an_agents_restart_changes_nothing(node: Kubelet, end: Callable[[Agent], object]) -> None:
    node.agent.start()
    old = node.server("old")
    before = old.handles()
    end(node.agent)
    assert old.handles() == before
    node.agent.start()
    node.agent.wait_reason(old.key, "Redirected")
    assert old.handles() == before
    assert node.pod("new").redirected
    node.end(old)
    wait(lambda: len(list((node.agent.run_dir / "attachments").iterdir())) == 1, "forgotten attachment")


def test_an_upgrade_with_two_agents_leaves_no_gap(denying: Kubelet) -> None:
    """Pods start all the time, while the successor comes, takes over, and the old agent ends."""
    denying.agent.start()
    first = denying.server("first")
    before = first.handles()
    ended = threading.Event()

    def start_pods() -> dict[str, bool]:
        started: dict[str, bool] = {}
        while not ended.is_set():
            name = f"pod-{len(started)}"
            started[name] = denying.pod(name).redirected
        return started

    with successor(denying) as new, ThreadPoolExecutor(1) as thread:
        running = thread.submit(start_pods)
        try:
            new.start()
            new.wait(lambda: new.events("answering the CNI shim"), "the socket taken over")
            time.sleep(0.3)
            assert denying.agent.stop() == 0
            new.wait(lambda: new.state()["writer"], "the writer's lock")
            time.sleep(0.3)
        finally:
            ended.set()
        started = running.result()
        assert len(started) >= 5
        assert set(started.values()) == {True}
        assert first.handles() == before
        assert {pod["status"]["reason"] for pod in new.state()["pods"]} == {"Redirected"}


def test_an_agent_killed_in_the_middle_of_add(denying: Kubelet) -> None:
    """The plugin asks the agent that comes next, or refuses; the pod never starts without its rules."""
    denying.agent.start()
    uid = str(uuid.uuid4())
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(denying.pod, "web", known=False, uid=uid)
        wait(lambda: list(denying.agent.run_dir.glob("attachments/*.json")), "call of the plugin")
        denying.agent.kill()
        denying.agent.put(pod_manifest("web", uid=uid))
        denying.agent.start()
        with contextlib.suppress(Refused):
            assert made.result().redirected
    if not denying.cri.pods():
        assert denying.pod("web", uid=uid).redirected


def test_a_successor_answers_when_the_agent_is_killed_in_the_middle_of_add(denying: Kubelet) -> None:
    denying.agent.start()
    uid = str(uuid.uuid4())
    with successor(denying) as new, ThreadPoolExecutor(1) as thread:
        new.start()
        new.wait(lambda: new.events("answering the CNI shim"), "the socket taken over")
        made = thread.submit(denying.pod, "web", known=False, uid=uid)
        wait(lambda: list(denying.agent.run_dir.glob("attachments/*.json")), "call of the plugin")
        denying.agent.kill()
        denying.agent.put(pod_manifest("web", uid=uid))
        assert made.result().redirected


# ---- runtimes and sockets -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Containerd.stop, Containerd.kill])
def test_a_runtimes_restart_changes_nothing(node: Kubelet, end: Callable[[Containerd], object]) -> None:
    node.agent.start()
    old = node.server("old")
    before = old.handles()
    end(node.runtime)
    node.runtime.start()
    assert old.handles() == before
    assert node.pod("new").redirected
    node.end(old)
    assert [pod["name"] for pod in node.agent.state()["pods"]] == ["new"]


def test_a_stale_socket_is_as_no_agent(denying: Kubelet) -> None:
    denying.agent.start()
    denying.agent.kill()
    assert (denying.agent.run_dir / "cni.sock").is_socket()
    with pytest.raises(Refused, match="Connection refused"):
        denying.pod("web")
    denying.agent.start()
    assert denying.pod("web").redirected


@pytest.mark.parametrize("kind", ["plain file", "another's socket", "link to nowhere"])
def test_what_stands_in_the_sockets_place_is_replaced_by_the_agent(denying: Kubelet, kind: str) -> None:
    path = denying.agent.run_dir / "cni.sock"
    with contextlib.ExitStack() as stack:
        if kind == "plain file":
            path.write_text("no socket")
        elif kind == "link to nowhere":
            path.symlink_to("nowhere")
        else:
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        with pytest.raises(Refused, match="agent not reachable on"):
            denying.pod("web")
        denying.agent.start()
        assert path.is_socket()
        assert denying.pod("web").redirected
