"""The gate on a real runtime: no meshed pod's container runs before its redirection is in the kernel."""

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.lab.agent import PATIENCE, pod_manifest
from tests.lab.images import Built
from tests.lab.netns import path_of, user_netns
from tests.runtime.kubelet import PORT, Kubelet, Pod, kubelet, wait

INJECTED = {"linkerd.io/proxy-version": "stable-2.14.0", "config.linkerd.io/skip-outbound-ports": "3306"}


@pytest.fixture
def node(tmp_path: Path, built: Built, shim: Path) -> Iterator[Kubelet]:
    with kubelet(tmp_path, built, shim, "--unknown-wait", "0.3") as made:
        made.agent.start()
        yield made


def _attachments(node: Kubelet) -> list[str]:
    directory = node.agent.run_dir / "attachments"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def _by_proxy(server: Pod) -> list[str]:
    """The end of a route: through the server's proxy, from which the application is asked locally."""
    return [f"inbound {server.ip}:{PORT}", f"app {PORT} from {server.ip}"]


def test_rules_are_there_before_the_first_container(node: Kubelet) -> None:
    pod = node.pod("web")
    assert node.cri.containers(pod.sandbox) == []
    assert pod.redirected
    state = node.agent.pod(pod.key)
    assert (state["status"]["reason"], state["status"]["exposedS"]) == ("Redirected", None)


def test_native_sidecar_order(node: Kubelet) -> None:
    """The proxy is first, and listens; the application's first connection goes through it."""
    server, client = node.server("server"), node.pod("client")
    node.proxy(client)
    assert node.connect(client, server) == [f"outbound {server.ip}:{PORT}", *_by_proxy(server)]


def test_old_order(node: Kubelet) -> None:
    """The application is first: before its proxy listens it reaches nobody, above all not in clear text."""
    server, client = node.server("server"), node.pod("client")
    assert node.connect(client, server, "early") == ["cannot connect: Connection refused"]
    node.proxy(client)
    late = node.connect(client, server, "late")
    assert late == [f"outbound {server.ip}:{PORT}", *_by_proxy(server)]


def test_an_unmeshed_pod_is_left_alone(node: Kubelet) -> None:
    meshed, plain = node.server("meshed"), node.server("plain", meshed=False)
    client = node.pod("client", meshed=False)
    assert plain.rules() == client.rules() == ""
    assert node.connect(client, plain, "to-plain") == [f"app {PORT} from {client.ip}"]
    assert node.connect(client, meshed, "to-meshed") == _by_proxy(meshed)


def test_the_node_itself_is_left_alone(node: Kubelet) -> None:
    pod = node.pod("on-the-host", host_network=True)
    node.agent.wait_reason(pod.key, "HostNetwork")
    node.pod("web")
    assert node.runtime.node.run("nft", "list", "tables") == ""
    assert len(_attachments(node)) == 1


def test_annotations_reach_the_rules(node: Kubelet) -> None:
    pod = node.pod("web", annotations={"config.linkerd.io/skip-outbound-ports": "3306"})
    assert "3306" in pod.rules()


def test_a_pod_that_the_source_learns_of_meanwhile_is_waited_for(
    tmp_path: Path, built: Built, shim: Path
) -> None:
    with kubelet(tmp_path, built, shim, "--unknown-wait", "5") as node, ThreadPoolExecutor(1) as thread:
        node.agent.start()
        uid = str(uuid.uuid4())
        made = thread.submit(node.pod, "web", known=False, uid=uid)
        wait(lambda: _attachments(node), "call of the plugin")
        assert not made.done()
        node.agent.put(pod_manifest("web", uid=uid))
        assert made.result(4).redirected


def test_an_unknown_pod_is_let_through_and_repaired_in_place(node: Kubelet) -> None:
    server, client = node.server("server"), node.pod("client", known=False)
    node.proxy(client)
    assert client.rules() == ""
    assert node.connect(client, server, "before") == _by_proxy(server)
    node.tell(client)
    node.agent.wait_reason(client.key, "Redirected")
    after = node.connect(client, server, "after")
    assert after == [f"outbound {server.ip}:{PORT}", *_by_proxy(server)]
    assert node.agent.pod(client.key)["status"]["exposedS"] >= 0.3


def test_an_injected_pod_is_known_by_what_the_runtime_tells(node: Kubelet) -> None:
    pod = node.pod("web", known=False, annotations=INJECTED)
    assert pod.redirected
    assert "3306" in pod.rules()
    before = pod.handles()
    node.tell(pod)
    node.agent.wait_reason(pod.key, "Redirected")
    assert pod.handles() == before


def test_the_end_of_a_pod_is_the_end_of_all_that_is_known(node: Kubelet) -> None:
    kept, gone = node.server("kept"), node.server("gone")
    node.end(gone)
    assert [pod["name"] for pod in node.agent.state()["pods"]] == ["kept"]
    wait(lambda: _attachments(node) == [f"{kept.sandbox}.eth0.json"], "forgotten attachment")
    # The runtime's second DEL has no netns; neither it nor the pod's end is anything to complain of.
    assert [line for line in node.agent.lines() if line.get("level") in ("warning", "error")] == []
    assert 'pointsman_cni_requests_total{command="DEL",result="done"} 2.0' in node.agent.ask(
        "GET", "/metrics"
    )
    assert kept.redirected


def test_the_netns_of_an_ended_pod_goes_at_once(node: Kubelet) -> None:
    """An agent that kept a socket in there would keep the veth pair, and with it the address, too."""
    pod = node.pod("web")
    links = node.runtime.node.run("ip", "-o", "link")
    assert links.count("veth") == 1
    node.cri.stop_pod(pod.sandbox)
    assert not Path(pod.netns).exists()
    wait(lambda: "veth" not in node.runtime.node.run("ip", "-o", "link"), "end of the veth pair", 2)


def test_a_sandbox_made_anew_is_redirected_in_its_turn(node: Kubelet) -> None:
    """As after the death of a sandbox's process: same pod, same UID, another netns; the old one goes late."""
    old = node.server("web")
    sandbox = node.cri.run_pod("web", uid=old.uid, attempt=1)
    new = msgspec.structs.replace(old, sandbox=sandbox, netns=node.runtime.netns(sandbox))
    assert new.redirected
    assert new.netns != old.netns
    node.cri.remove_pod(old.sandbox)
    node.agent.wait_reason(new.key, "Redirected")
    assert node.agent.pod(new.key)["netns"] == node.cri.pod(sandbox).netns
    assert new.redirected


def test_fifty_pods_at_once(node: Kubelet) -> None:
    names = [f"web-{number}" for number in range(50)]
    with ThreadPoolExecutor(len(names)) as kubelets:
        pods = list(kubelets.map(node.pod, names))
        assert [pod.key for pod in pods if not pod.redirected] == []
        assert len({pod.ip for pod in pods}) == 50
        metrics = node.agent.ask("GET", "/metrics")
        assert 'pointsman_cni_requests_total{command="ADD",result="redirected"} 50.0' in metrics
        list(kubelets.map(node.end, pods))
    wait(lambda: _attachments(node) == [], "forgotten attachments")
    assert node.agent.state()["pods"] == []


def test_a_pod_in_a_user_namespace(node: Kubelet) -> None:
    """This runtime makes none, so the plugin is called by hand, on the node, as a newer runtime would."""
    with user_netns() as name:
        uid, seen = str(uuid.uuid4()), f"/proc/{os.getpid()}/root{path_of(name)}"
        node.agent.put(pod_manifest("web", uid=uid))
        pod = Pod(name="web", namespace="default", uid=uid, sandbox="", ip="", netns=seen, manifest={})
        call = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "by-hand",
            "CNI_NETNS": seen,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID={uid}",
        }
        node.call_plugin(call)
        assert pod.redirected
        node.call_plugin(call | {"CNI_COMMAND": "DEL"})
        wait(lambda: _attachments(node) == [], "forgotten attachment", PATIENCE)
