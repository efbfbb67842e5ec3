"""Destinations on a real runtime: containers ask in their pod, while pods and agents come and go."""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.destination.metrics import SERVICE, Method
from agent.destination.proto.destination_pb2 import DestinationProfile, GetDestination
from tests.lab.agent import Agent
from tests.lab.containerd import Containerd
from tests.lab.cri import ASK, Refused
from tests.lab.images import Built
from tests.lab.netns import run
from tests.runtime.kubelet import PROXY_UID, Kubelet, Pod, kubelet, wait

PORT = 4187
"""Where the proxies of these pods ask. It is not the agent's default."""

NAME = "web.shop.svc.cluster.local"
ENDS = pytest.mark.parametrize("end", [Agent.stop, Agent.kill])
FLAGS = ("--unknown-wait=0.3", "--identity-trust-domain=cluster.local", "--cluster-domain=cluster.local")


class Asker:
    """A container with one kind of call, and what it has written of it."""

    def __init__(
        self, node: Kubelet, pod: Pod, name: str = "linkerd-proxy", verb: str = "follow", attempt: int = 0
    ) -> None:
        lie = json.dumps({"ns": "elsewhere", "nodeName": "elsewhere"})
        request = GetDestination(path=f"{NAME}:80", context_token=lie).SerializeToString().hex()
        words = (verb, "127.0.0.1", PORT, f"/{SERVICE}/{Method.PROFILE.value}", request)
        self._cri = node.cri
        self._container = node.cri.run_container(
            pod.sandbox, name, *words, image=ASK, uid=PROXY_UID, attempt=attempt
        )

    @property
    def said(self) -> list[str]:
        return self._cri.said(self._container)

    @property
    def acts(self) -> list[str]:
        """The first word of each line."""
        return [line.split()[0] for line in self.said]

    def route(self, count: int = 1) -> str:
        """The name of the one route of the last profile, once `count` have come; "" when it has none."""
        wait(lambda: self.acts.count("message") >= count, f"{count} messages: {self.said}")
        last = [line.split()[1] for line in self.said if line.startswith("message ")][-1]
        profile = DestinationProfile.FromString(bytes.fromhex(last))
        return "".join(route.metrics_labels["route"] for route in profile.routes)


@pytest.fixture
def node(tmp_path: Path, built: Built, shim: Path) -> Iterator[Kubelet]:
    with kubelet(tmp_path, built, shim, *FLAGS, whenAgentAway="deny") as made:
        made.agent.put(
            {
                "kind": "Service",
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]},
            }
        )
        for namespace in ("default", "shop"):
            _put_route(made, f"of-{namespace}", namespace)
        made.agent.start()
        yield made


def _put_route(node: Kubelet, name: str, namespace: str = "default") -> None:
    """What clients of this namespace get, and those of namespaces without such an object."""
    spec = {"routes": [{"name": name, "condition": {"method": "GET"}}]}
    node.agent.put(
        {"kind": "ServiceProfile", "metadata": {"name": NAME, "namespace": namespace}, "spec": spec}
    )


def _pod(node: Kubelet, name: str, namespace: str = "default", **given: Any) -> Pod:
    """A pod whose proxy says where it asks."""
    where = {"name": "LINKERD2_PROXY_DESTINATION_SVC_ADDR", "value": f"127.0.0.1:{PORT}"}
    containers = [{"name": "app"}, {"name": "linkerd-proxy", "env": [where]}]
    return node.pod(name, namespace, containers=containers, **given)


def _witness(node: Kubelet, pod: Pod) -> Callable[[], bool]:
    """Whether the pod's network namespace lives, by a link to it that nobody else knows and so removes."""
    there = node.cri.pod(pod.sandbox).netns
    name = f"w{pod.uid[:8]}"
    link = ("ip", "link", "add", name, "type", "veth", "peer", "name", "witness", "netns", there)
    node.runtime.node.run(*link)
    return lambda: name in node.runtime.node.run("ip", "-o", "link")


def _listening(pod: Pod) -> int:
    """How many sockets listen where the pod's proxy asks."""
    return len(run("nsenter", f"--net={pod.netns}", "ss", "-Hltn", f"sport = :{PORT}").splitlines())


def test_twenty_pods_at_once_are_answered_at_their_first_try(node: Kubelet) -> None:
    names = [f"web-{number}" for number in range(20)]
    with ThreadPoolExecutor(len(names)) as kubelets:
        pods = list(kubelets.map(lambda name: _pod(node, name), names))
        askers = list(kubelets.map(lambda pod: Asker(node, pod), pods))
        assert {asker.route() for asker in askers} == {"of-default"}
        assert [asker.said for asker in askers if asker.acts != ["connected", "message"]] == []
        witnesses = [_witness(node, pod) for pod in pods]
        list(kubelets.map(node.end, pods))
    wait(lambda: not any(lives() for lives in witnesses), "end of all network namespaces", 3)
    assert "pointsman_destination_listeners 0.0" in node.agent.ask("GET", "/metrics")


def test_a_pod_is_known_by_its_listener(node: Kubelet) -> None:
    """All say in their token that they are elsewhere."""
    askers = {
        namespace: Asker(node, _pod(node, "client", namespace)) for namespace in ("default", "shop", "third")
    }
    routes = {namespace: asker.route() for namespace, asker in askers.items()}
    assert routes == {"default": "of-default", "shop": "of-shop", "third": "of-shop"}
    assert {pod["destination"]["port"] for pod in node.agent.state()["pods"]} == {PORT}
    _put_route(node, "changed")
    assert askers["default"].route(2) == "changed"
    assert askers["shop"].acts == askers["third"].acts == ["connected", "message"]


def test_a_call_does_not_keep_the_network_namespace_of_its_pod(node: Kubelet) -> None:
    pod = _pod(node, "web")
    asker, lives = Asker(node, pod), _witness(node, pod)
    assert asker.route() == "of-default"
    node.cri.stop_pod(pod.sandbox)
    wait(lambda: not lives(), "end of the network namespace", 3)
    assert "veth" not in node.runtime.node.run("ip", "-o", "link")
    node.end(pod)
    wait(lambda: node.agent.state()["pods"] == [], "forgotten pod")
    # There may be complaints about a proxy that does nothing but ask.
    said = [line for line in node.agent.lines() if line.get("event") != "complaint"]
    assert [line for line in said if line.get("level") != "info"] == []


def test_a_sandbox_made_anew_has_the_listener_in_its_turn(node: Kubelet) -> None:
    old = _pod(node, "web")
    first, lives = Asker(node, old), _witness(node, old)
    assert first.route() == "of-default"
    sandbox = node.cri.run_pod("web", uid=old.uid, attempt=1)
    second = Asker(node, msgspec.structs.replace(old, sandbox=sandbox), attempt=1)
    assert second.route() == "of-default"
    assert second.acts == ["connected", "message"]
    node.cri.remove_pod(old.sandbox)
    wait(lambda: not lives(), "end of the first network namespace", 3)
    assert second.acts == ["connected", "message"]


def test_a_pod_that_was_let_through_is_answered_once_its_source_knows_it(node: Kubelet) -> None:
    pod = _pod(node, "web", known=False)
    asker = Asker(node, pod)
    wait(lambda: "cannot connect: Connection refused" in asker.said, "refused connection")
    node.tell(pod)
    assert asker.route() == "of-default"


@ENDS
def test_an_agents_restart_costs_a_reconnect(node: Kubelet, end: Callable[[Agent], object]) -> None:
    pod = _pod(node, "web")
    asker, lives = Asker(node, pod), _witness(node, pod)
    assert asker.route() == "of-default"
    end(node.agent)
    wait(lambda: asker.acts[2:3] == ["ended"], "end of the call")
    node.agent.start()
    assert asker.route(2) == "of-default"
    assert asker.acts[-2:] == ["connected", "message"]
    assert asker.acts.count("ended") == 1
    _put_route(node, "changed")
    assert asker.route(3) == "changed"
    node.end(pod)
    wait(lambda: not lives(), "end of the network namespace", 3)


def test_a_pod_that_waits_for_the_agent_is_answered_at_its_first_try(node: Kubelet) -> None:
    """Its ADD is answered as soon as there is an agent, which has only begun to load gRPC then."""
    node.agent.stop()

    def start_pod() -> Pod:
        while True:
            with contextlib.suppress(Refused):
                return _pod(node, "web")

    with ThreadPoolExecutor(1) as thread:
        pod = thread.submit(start_pod)
        node.agent.start()
        asker = Asker(node, pod.result())
    assert asker.route() == "of-default"
    assert asker.acts == ["connected", "message"]


@contextlib.contextmanager
def _successor(node: Kubelet) -> Iterator[None]:
    """Another agent, once it listens in all pods too."""
    new = Agent(node.agent.directory, *FLAGS, name="successor", prefix=node.runtime.prefix)
    with contextlib.closing(new):
        new.start()
        new.wait(lambda: {pod["destination"]["port"] for pod in new.state()["pods"]} == {PORT}, "listeners")
        yield


@ENDS
def test_two_agents_lose_no_call_beyond_the_reconnect(node: Kubelet, end: Callable[[Agent], object]) -> None:
    pods = [_pod(node, f"web-{number}") for number in range(2)]
    following = [Asker(node, pod) for pod in pods]
    repeating = [Asker(node, pod, f"app-{number}", "repeat") for pod in pods for number in range(3)]
    assert {asker.route() for asker in (*following, *repeating)} == {"of-default"}
    with _successor(node):
        end(node.agent)
        for asker in repeating:
            assert asker.route(asker.acts.count("message") + 5) == "of-default"
        assert {asker.route(2) for asker in following} == {"of-default"}
        for asker in (*following, *repeating):
            assert "cannot" not in asker.acts
            # A connection that the kernel had given to the listener which closes is the reconnect.
            assert "connected ended connected ended" not in " ".join(asker.acts)
        for asker in following:
            assert asker.acts[:3] == ["connected", "message", "ended"]
            assert asker.acts.count("message") == 2
        _put_route(node, "changed")
        assert {asker.route(3) for asker in following} == {"changed"}


def test_pods_come_and_go_while_two_agents_overlap(node: Kubelet) -> None:
    """CNI tells one of both of a pod's end, and both have a listener in it."""
    old = _pod(node, "old")
    askers, lives = [Asker(node, old)], [_witness(node, old)]
    assert askers[0].route() == "of-default"
    with _successor(node):
        young = _pod(node, "young")
        askers.append(Asker(node, young))
        lives.append(_witness(node, young))
        wait(lambda: _listening(young) == 2, "listeners of both")
        for pod in (old, young):
            node.cri.stop_pod(pod.sandbox)
        wait(lambda: not any(each() for each in lives), "end of the network namespaces", 3)
        assert [asker.acts for asker in askers] == [["connected", "message"]] * 2
        node.agent.stop()
        last = Asker(node, _pod(node, "last"))
        assert last.route() == "of-default"
        assert last.acts == ["connected", "message"]


@pytest.mark.parametrize("end", [Containerd.stop, Containerd.kill])
def test_a_runtimes_restart_disturbs_no_call(node: Kubelet, end: Callable[[Containerd], object]) -> None:
    pod = _pod(node, "web")
    asker = Asker(node, pod)
    assert asker.route() == "of-default"
    end(node.runtime)
    node.runtime.start()
    late = Asker(node, _pod(node, "late"))
    assert late.route() == "of-default"
    _put_route(node, "changed")
    assert asker.route(2) == "changed"
    assert asker.acts == ["connected", "message", "message"]
    lives = _witness(node, pod)
    node.end(pod)
    wait(lambda: not lives(), "end of the network namespace", 3)
