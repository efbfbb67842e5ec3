"""Destinations as a pod of the real agent asks for them: over loopback in its own network namespace."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.mesh import (
    ANSWERING,
    IDENTITY,
    JSON,
    SERVICE_IP,
    WEB,
    endpoint_slice,
    meshed,
    named,
    service,
    token,
)
from tests.lab.agent import Agent, agent
from tests.lab.asker import Asker, asking
from tests.lab.netns import netns


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@contextlib.contextmanager
def answering(directory: Path, pod: str, *objects: JSON, flags: tuple[str, ...] = ()) -> Iterator[Agent]:
    """An agent of a cluster with these objects, which answers the pod `client` in the namespace `pod`."""
    with agent(directory, *ANSWERING, *flags) as one:
        for each in (*objects, meshed("client", pod, "10.1.0.99")):
            one.put(each)
        one.wait(lambda: one.pod("shop/client")["destination"]["port"] == 4186, "listener")
        yield one


def told(client: Asker, question: str, at: str = "") -> dict[str, Any]:
    """What the client was told of the one address of an answer, or of this one."""
    client.wait(lambda: client.addresses(question), f"answer to {question}")
    found = client.addresses(question)
    return found[at] if at else next(iter(found.values()))


def test_endpoints_come_and_go(tmp_path: Path, pod: str) -> None:
    web = [meshed(f"web-{n}", ip=f"10.1.0.{n}", node="n2") for n in range(3)]
    with (
        answering(tmp_path, pod, service(), endpoint_slice(*web[:2]), *web) as one,
        asking(pod, WEB) as client,
    ):
        first = told(client, WEB, "10.1.0.0:8080")
        assert sorted(client.addresses(WEB)) == ["10.1.0.0:8080", "10.1.0.1:8080"]
        assert (first["tls"], first["hint"]) == (IDENTITY, "h2")
        one.put(endpoint_slice(*web[1:]))
        client.wait(lambda: sorted(client.addresses(WEB)) == ["10.1.0.1:8080", "10.1.0.2:8080"], "change")
        view = client.view(WEB)
        assert view is not None
        assert [seen.kind for seen in view.seen] == ["add", "add", "remove"]
        one.drop(service())
        client.wait(lambda: view.exists is False, "the Service's end")
        one.put(service())
        client.wait(lambda: len(client.addresses(WEB)) == 2, "its return")
        assert client.faults() == []
        assert client.ends == []


def test_a_name_that_is_not_there_yet_heals_by_itself(tmp_path: Path, pod: str) -> None:
    with (
        answering(tmp_path, pod) as one,
        asking(pod, WEB, "GetProfile=web.shop.svc.cluster.local:80") as client,
    ):
        client.wait(lambda: len(client.current) == 2, "first answers")
        web = meshed("web", ip="10.1.0.1")
        for each in (web, endpoint_slice(web), service()):
            one.put(each)
        assert told(client, WEB)["tls"] == IDENTITY
        assert client.ends == []


def test_a_pod_that_is_not_ready_is_answered_in_full(tmp_path: Path, pod: str) -> None:
    """By its IP and by its hostname; readiness decides only whether it is one of the Service's endpoints."""
    by_ip, by_name = "GetProfile=10.1.0.1:8080", "Get=web-0.web.shop.svc.cluster.local:80"
    profile = "GetProfile=web-0.web.shop.svc.cluster.local:8080"
    web = meshed("web-0", ip="10.1.0.1", ready=False)
    objects = (web, endpoint_slice(web), service(ip="None"))
    with answering(tmp_path, pod, *objects) as one, asking(pod, WEB, by_ip, by_name, profile) as client:
        for question in (by_ip, profile):
            assert told(client, question)["tls"] == IDENTITY
            assert told(client, question)["at"] == "10.1.0.1:8080"
        client.wait(lambda: WEB in client.current, "answer for the Service")
        assert client.addresses(WEB) == {}
        ready = meshed("web-0", ip="10.1.0.1")
        one.put(ready)
        one.put(endpoint_slice(ready))
        assert told(client, WEB)["tls"] == IDENTITY
        assert told(client, by_name)["tls"] == IDENTITY
        assert client.ends == []


def test_every_kind_of_object_counts(tmp_path: Path, pod: str) -> None:
    by_ip, machine = "GetProfile=10.1.0.1:8080", "Get=machines.shop.svc.cluster.local:80"
    by_name = "GetProfile=web.shop.svc.cluster.local:80"
    web = meshed("web-0", ip="10.1.0.1", ports=(8080,), node="n2")
    web["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-5d", "uid": "u"}]
    nodes = [named("Node", name) for name in ("n1", "n2")]
    for node in nodes:
        node["metadata"]["labels"] = {"topology.kubernetes.io/zone": "east"}
    slices = endpoint_slice(web)
    slices["endpoints"][0]["zone"] = "east"
    machines = endpoint_slice(service="machines", name="machines-1")
    machines["endpoints"] = [
        {
            "addresses": ["192.0.2.7"],
            "targetRef": {"kind": "ExternalWorkload", "name": "vm", "namespace": "shop"},
        }
    ]
    vm = {"meshTLS": {"identity": "spiffe://mesh.test/vm", "serverName": "vm.test"}}
    owner = named("ReplicaSet", "web-5d")
    owner["metadata"]["ownerReferences"] = [{"kind": "Deployment", "name": "web", "uid": "d"}]
    profile = named("ServiceProfile", "web.shop.svc.cluster.local")
    profile["spec"] = {"routes": [{"name": "all", "condition": {"pathRegex": "/.*"}}]}
    objects = (service(), slices, web, owner, *nodes, service("machines", "10.96.0.11"), machines)
    workload = named("ExternalWorkload", "vm")
    workload["spec"] = {**vm, "workloadIPs": [{"ip": "192.0.2.7"}], "ports": [{"port": 8080}]}
    questions = (WEB, by_ip, by_name, machine)
    with answering(tmp_path, pod, *objects, workload) as one, asking(pod, *questions) as client:
        labels = told(client, WEB)["labels"]
        assert (labels["deployment"], labels["zone"], labels["zone_locality"]) == ("web", "east", "local")
        assert told(client, machine)["uri_identity"] == "spiffe://mesh.test/vm"
        one.put(profile)
        client.wait(lambda: _profile(client, by_name).get("routes"), "routes")
        one.put(
            named(
                "Server",
                "opaque",
                spec={
                    "podSelector": {"matchLabels": {"app": "web"}},
                    "port": 8080,
                    "proxyProtocol": "opaque",
                },
            )
        )
        client.wait(lambda: _profile(client, by_ip).get("opaque_protocol"), "the Server's word")
        client.wait(lambda: told(client, WEB)["hint"] == "opaque", "the Server's word in the endpoints")
        assert client.ends == []


def test_the_listener_tells_who_asks_and_not_the_token(tmp_path: Path, pod: str) -> None:
    """Only endpoints of the client's own node, and the profile of the client's own namespace."""
    near, far = meshed("near", ip="10.1.0.1"), meshed("far", ip="10.1.0.2", node="n2")
    objects = [service(internalTrafficPolicy="Local"), endpoint_slice(near, far), near, far]
    profiles = {}
    for namespace in ("shop", "team"):
        made = profiles[namespace] = named("ServiceProfile", "other.far.svc.cluster.local")
        made["metadata"]["namespace"] = namespace
        made["spec"] = {"routes": [{"name": namespace, "condition": {"pathRegex": "/.*"}}]}
    other = service("other", "10.96.0.12")
    other["metadata"]["namespace"] = "far"
    by_name = "GetProfile=other.far.svc.cluster.local:80"
    lie = token("team", "n2", "far")
    with (
        answering(tmp_path, pod, *objects, other, *profiles.values()),
        asking(pod, WEB, by_name, token=lie) as client,
    ):
        assert list(_known(client, WEB)) == ["10.1.0.1:8080"]
        client.wait(lambda: _profile(client, by_name).get("routes"), "routes")
        assert _routes(client, by_name) == ["shop"]


def test_who_asks_on_the_node_is_told_by_the_token(tmp_path: Path) -> None:
    near, far = meshed("near", ip="10.1.0.1"), meshed("far", ip="10.1.0.2", node="n2")
    objects = (service(internalTrafficPolicy="Local"), endpoint_slice(near, far), near, far)
    with (
        netns() as name,
        agent(
            tmp_path,
            *ANSWERING,
            "--diagnostics-address",
            "127.0.0.1:4998",
            prefix=("nsenter", f"--net=/run/netns/{name}"),
        ) as one,
    ):
        for each in objects:
            one.put(each)
        with asking(name, WEB, target="127.0.0.1:4998", token=token("shop", "n2", "far")) as client:
            assert list(_known(client, WEB)) == ["10.1.0.2:8080"]


def test_a_service_is_known_by_its_address(tmp_path: Path, pod: str) -> None:
    question = f"GetProfile={SERVICE_IP}:80"
    with answering(tmp_path, pod, service()), asking(pod, question) as client:
        client.wait(lambda: question in client.current, "answer")
        assert _profile(client, question)["fully_qualified_name"] == "web.shop.svc.cluster.local"


def _known(client: Asker, question: str) -> dict[str, Any]:
    client.wait(lambda: client.addresses(question), f"answer to {question}")
    return client.addresses(question)


def _profile(client: Asker, question: str) -> dict[str, Any]:
    view = client.view(question)
    return view.profile or {} if view is not None else {}


def _routes(client: Asker, question: str) -> list[str]:
    return [route["metrics_labels"]["route"] for route in _profile(client, question)["routes"]]
