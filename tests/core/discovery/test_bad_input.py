"""Objects that cannot be used: a complaint that names them, and nothing else breaks."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.discovery import objects
from agent.core.discovery.answers import Hint
from agent.core.discovery.objects import ExternalWorkload, Server
from agent.core.meta import Metadata
from agent.core.objects import Object, Put, Replace, Service
from tests.core.discovery.world import (
    OPAQUE,
    SKIP,
    World,
    endpoint_slice,
    make,
    namespace,
    pod,
    server,
    service,
    workload,
)

HEALTHY = (
    service("web", "- 80", ip="10.96.0.1"),
    endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=p"),
    pod("p", "10.1.0.11", labels={"app": "p"}),
)
BIG = "x" * 100_000


def a_server(spec: Any) -> Server:
    return Server(Metadata(name="bad", namespace="shop"), spec)


def a_workload(spec: Any) -> ExternalWorkload:
    return ExternalWorkload(Metadata(name="bad", namespace="shop"), spec)


BAD: list[Object] = [
    a_server(None),
    a_server("text"),
    a_server({}),
    a_server({"podSelector": {}, "port": True}),
    a_server({"podSelector": {}, "port": 80.5}),
    a_server({"podSelector": [], "port": 80}),
    a_server({"podSelector": {"matchLabels": {"app": 1}}, "port": 80}),
    a_server({"podSelector": {"matchLabels": ["app"]}, "port": 80}),
    a_server({"podSelector": {"matchExpressions": "app"}, "port": 80}),
    a_server({"podSelector": {"matchExpressions": [None]}, "port": 80}),
    a_server({"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like"}]}, "port": 80}),
    a_server({"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}, "port": 80}),
    a_server({"podSelector": {"matchExpressions": [{"operator": "Exists"}]}, "port": 80}),
    a_server(
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}, "port": 80}
    ),
    a_server({"externalWorkloadSelector": 7, "port": 80}),
    a_server({"podSelector": {"matchLabels": {BIG: 1}}, "port": 80}),
    a_workload(None),
    a_workload(7),
    a_workload({"meshTLS": {"identity": "x"}}),
    a_workload({"meshTLS": {"identity": "x", "serverName": 7}}),
    a_workload({"meshTLS": {"identity": "x", "serverName": "y"}, "workloadIPs": "10.0.0.1"}),
    a_workload(
        {"meshTLS": {"identity": "x", "serverName": "y"}, "workloadIPs": [{"ip": BIG}, None, {"ip": 7}]}
    ),
    a_workload({"meshTLS": {"identity": "x", "serverName": "y"}, "ports": [{"port": "80"}, {"port": 0}, 7]}),
    workload("bad", "10.0.0.1", ports=["- 80"], annotations={OPAQUE: "80,nonsense"}),
    pod("bad", "10.1.0.300"),
    pod("bad", "10.1.0.12", annotations={OPAQUE: f"80,{BIG}"}),
    pod("bad", "10.1.0.12", annotations={SKIP: "80,http"}),
    pod("bad", "10.1.0.12", annotations={OPAQUE: " , "}),
    pod("bad", "10.1.0.12", env={"INBOUND": "localhost:4143", "ADMIN": "0.0.0.0:4191", "CONTROL": "x"}),
    pod("bad", "10.1.0.12", proxy="none"),
    service("bad", "- 80", ip="10.96.0.999"),
    service("bad", "- 80", annotations={OPAQUE: "80-70"}),
    endpoint_slice("bad", "web", ["- -"], "10.1.0.13"),
    endpoint_slice("bad", "web", ["- 80"], *(f"10.1.0.{number}" for number in range(256, 2000))),
]


@pytest.mark.parametrize("item", BAD, ids=range(len(BAD)))
def test_a_bad_object_is_named_and_the_others_are_served(item: Object) -> None:
    world = World(*HEALTHY)
    answers = world.get("web.shop:80"), world.profile("10.1.0.11:80"), world.profile("10.96.0.1:80")
    world.catalog.apply(Put(item))
    (complaints,) = world.catalog.complaints.values()
    kind = type(item).__name__
    assert 1 <= len(complaints) <= 8
    for complaint in complaints:
        assert f"{kind} shop/bad" in complaint.message
        assert complaint.message.startswith("cannot ")
        assert complaint.remedy
        assert len(complaint.message) < 500
    assert answers == (world.get("web.shop:80"), world.profile("10.1.0.11:80"), world.profile("10.96.0.1:80"))
    world.drop(item)
    assert world.catalog.complaints == {}


def test_complaints_are_news_once() -> None:
    world = World(*HEALTHY)
    bad, worse = (server("bad", selector, 80) for selector in ({"app": 7}, {"app": 8, "tier": 9}))
    world.put(bad)
    ((complaint, came),) = world.catalog.news()
    assert ("Server shop/bad" in complaint.message, came) == (True, True)
    world.put(bad, HEALTHY[2])
    assert list(world.catalog.news()) == []
    world.put(worse)
    world.drop(worse)
    world.put(bad)
    assert list(world.catalog.news()) == []
    world.catalog.apply(Replace(Server, ()))
    assert list(world.catalog.news()) == [(complaint, False)]


def test_x03_a_bad_server_does_not_stop_the_others() -> None:
    world = World(*HEALTHY)
    assert world.put(server("bad", {"app": 1}, 80, namespace="other")) == frozenset()
    assert world.put(server("s", {"app": "p"}, 80))
    assert world.opaque("10.1.0.11:80")


def test_a_server_that_turns_bad_selects_nothing() -> None:
    world = World(*HEALTHY, server("s", {"app": "p"}, 80))
    assert world.put(server("s", {"app": 7}, 80))
    assert not world.opaque("10.1.0.11:80")
    assert world.put(server("s", {"app": "p"}, 80))
    assert world.opaque("10.1.0.11:80")
    assert world.catalog.complaints == {}


def test_x09_b13_a_proxy_without_variables() -> None:
    for env, inbound in (
        ({"INBOUND": "0.0.0.0:5143", "CONTROL": "0.0.0.0:4190"}, 5143),
        ({}, 4143),
        ({"INBOUND": "", "ADMIN": ":4191", "CONTROL": "$(IP):4190"}, 4143),
    ):
        world = World(*HEALTHY[:2], pod("p", "10.1.0.11", env=env), transport="transport-header")
        assert world.one("web.shop:80").hint == Hint("h2", inbound)
        assert world.endpoint("10.1.0.11:4191").hint == Hint("h2")
        (complaints,) = world.catalog.complaints.values()
        assert {complaint.reason for complaint in complaints} == {"InvalidProxySetting"}


def test_annotations_stand_in_for_missing_variables() -> None:
    annotations = {"config.linkerd.io/inbound-port": "5143", "config.linkerd.io/admin-port": "5191"}
    annotations["config.linkerd.io/control-port"] = "5190-5192"
    world = World(pod("p", "10.1.0.11", env={}, annotations=annotations), transport="transport-header")
    hints = [world.endpoint(f"10.1.0.11:{port}").hint for port in (80, 5191, 4190)]
    assert hints == [Hint("h2", 5143), Hint("h2"), Hint("h2")]


def test_a_workload_without_identity_is_sent_in_clear() -> None:
    world = World(workload("vm", "10.0.0.1", ports=["- 80"], server_name=""))
    address = world.endpoint("10.0.0.1:80")
    assert (address.identity, address.hint, address.withheld) == ("", None, "InvalidObject")


def test_k22_a_proxy_that_began_with_another_list() -> None:
    item = msgspec.to_builtins(pod("p", "10.1.0.11", annotations={OPAQUE: "8080,9000-9001"}))
    variable = "LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"
    env = item["spec"]["initContainers"][1]["env"]
    for value, missing in (("8080,9000-9010", ""), ("25,9000", "'8080', '9000-9001'")):
        changed = [*env, {"name": variable, "value": value}]
        item["spec"]["initContainers"][1]["env"] = changed
        world = World(msgspec.convert(item, type(pod("p"))))
        messages = [complaint.message for found in world.catalog.complaints.values() for complaint in found]
        expected = f"cannot have {missing} opaque at the proxy (Pod shop/p): it began without it"
        assert messages == ([expected] if missing else [])


def test_a_namespace_with_a_bad_list() -> None:
    world = World(*HEALTHY, namespace(skip="80,abc", opaque="443,???"))
    assert world.endpoint("10.1.0.11:80").withheld == "PortSkipped"
    assert world.opaque("10.1.0.11:443")
    (complaints,) = world.catalog.complaints.values()
    assert [complaint.message for complaint in complaints] == [
        "cannot read 'abc' (Namespace shop): the rest is applied"
    ]


def test_null_is_nothing() -> None:
    world = World(
        make(Service, "a", spec={"ports": None, "clusterIPs": None, "clusterIP": None}),
        make(objects.EndpointSlice, "a", labels=None, ports=None, endpoints=None),
        make(objects.Endpoints, "a", subsets=[{"addresses": None, "ports": [{"port": 80}]}]),
        make(objects.Node, "a", labels=None),
    )
    assert world.view("a.shop:80") == []
    assert world.catalog.complaints == {}


WORDS = (
    "podSelector externalWorkloadSelector port matchLabels matchExpressions key operator values "
    "proxyProtocol meshTLS identity serverName ports name workloadIPs ip"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split()), children, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_spec_raises(spec: Any) -> None:
    world = World(*HEALTHY, a_server(spec), a_workload(spec))
    assert world.view("web.shop:80") == ["10.1.0.11:80"]
    assert world.profile("10.1.0.11:80").endpoint is not None
