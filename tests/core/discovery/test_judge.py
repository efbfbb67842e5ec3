"""What is wrong upstream is not wrong here: spec/destination.md Part B, one test per finding.

B-17, B-19 and B-29 are about streams and metrics, B-25 about other clusters; B-18 is in test_scale as well.
"""

import pytest

from agent.core.discovery import objects
from agent.core.discovery.answers import Endpoints, Hint, Profile, Twofold
from agent.core.discovery.policy import Selector
from agent.core.ports import PortSet
from tests.core.discovery.world import (
    OPAQUE,
    World,
    at,
    endpoint_slice,
    namespace,
    owned,
    pod,
    server,
    service,
    service_profile,
    workload,
)

IDENTITY = "default.shop.serviceaccount.identity.l5d.mesh.test"
WEB = service("web", "- 80", ip="10.96.0.1")
DELETED = "2026-01-01T00:00:00Z"


def test_b_1_readiness_never_matters_to_who_is_asked_for_directly() -> None:
    world = World(
        pod("not-ready", "10.1.0.1", ready=False),
        pod("pending", "10.1.0.2", phase="Pending", state="running"),
        pod("terminating", "10.1.0.3", deletionTimestamp=DELETED),
    )
    assert {world.endpoint(f"10.1.0.{number}:80").identity for number in (1, 2, 3)} == {IDENTITY}


def test_b_2_an_undeclared_port_learns_of_the_next_pod() -> None:
    old, new = pod("old", "10.1.0.1", account="old"), pod("new", "10.1.0.1", account="new")
    world = World(old)
    assert world.endpoint("10.1.0.1:9999").identity.startswith("old.")
    touched = world.drop(old) | world.put(new)
    assert ("address", "10.1.0.1") in {(subject.kind, subject.name) for subject in touched}
    assert world.endpoint("10.1.0.1:9999").identity.startswith("new.")


def test_b_3_j19_a_pod_of_the_same_name_with_a_new_ip() -> None:
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], "10.1.0.1 pod=db-0"), pod("db-0", "10.1.0.1"))
    world.put(pod("db-0", "10.1.0.2"), endpoint_slice("w", "web", ["- 80"], "10.1.0.2 pod=db-0"))
    assert world.view("web.shop:80") == ["10.1.0.2:80"]


def test_b_4_another_target_port_with_the_same_pods() -> None:
    world = World(WEB, endpoint_slice("w", "web", ["- 8080"], "10.1.0.1 pod=a"), pod("a", "10.1.0.1"))
    assert world.put(endpoint_slice("w", "web", ["- 9090"], "10.1.0.1 pod=a"))
    assert world.view("web.shop:80") == ["10.1.0.1:9090"]


def test_b_5_the_opaque_set_of_a_service_is_never_forgotten() -> None:
    world = World(service("db", "- 3306", ip="10.96.0.2"), service("q", "- 1", annotations={OPAQUE: "1"}))
    for _ in range(2):
        assert world.opaque("10.96.0.2:3306")
        assert world.opaque("q.shop:1")


def test_b_6_a_server_that_goes_clears_what_it_set() -> None:
    world = World(pod("a", "10.1.0.1", labels={"app": "a"}), workload("vm", "10.2.0.1", ports=["- 80"]))
    both = server("s", {"app": "a"}, 80, workloads={})
    world.put(both)
    assert world.opaque("10.1.0.1:80")
    assert world.opaque("10.2.0.1:80")
    touched = world.drop(both)
    assert {subject.name for subject in touched} == {"10.1.0.1", "10.2.0.1"}
    assert not world.opaque("10.1.0.1:80")
    assert not world.opaque("10.2.0.1:80")


def test_b_7_of_two_opaque_servers_either_is_enough() -> None:
    one, two = server("one", {}, 80), server("two", {}, 80)
    world = World(pod("a", "10.1.0.1"), one, two)
    world.drop(one)
    assert world.opaque("10.1.0.1:80")


def test_b_8_j01_a_slice_that_goes_after_its_pods() -> None:
    slice_ = endpoint_slice("w", "web", ["- 80"], "10.1.0.1 pod=a", "10.1.0.2 pod=b")
    world = World(WEB, slice_, pod("a", "10.1.0.1"), pod("b", "10.1.0.2"))
    world.drop(pod("a", "10.1.0.1"))
    assert world.view("web.shop:80") == ["10.1.0.2:80"]
    world.drop(slice_)
    assert world.get("web.shop:80").addresses == ()
    assert len(world.catalog.slices.services_with(("shop", "a"))) == 0


def test_b_9_a_slice_that_comes_before_its_pod() -> None:
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], "10.1.0.1 pod=a"))
    assert world.view("web.shop:80") == []
    touched = world.put(pod("a", "10.1.0.1"))
    assert ("service", "web") in {(subject.kind, subject.name) for subject in touched}
    assert world.one("web.shop:80").identity == IDENTITY


def test_b_10_j05_one_pod_in_two_slices() -> None:
    first = endpoint_slice("w1", "web", ["- 80"], "10.1.0.5 pod=a")
    second = endpoint_slice("w2", "web", ["- 80"], "10.1.0.5 pod=a", "10.1.0.9 pod=a")
    world = World(WEB, first, second, pod("a", "10.1.0.5", "10.1.0.9"))
    world.drop(first)
    assert world.view("web.shop:80") == ["10.1.0.5:80", "10.1.0.9:80"]
    world.put(endpoint_slice("w2", "web", ["- 80"], "10.1.0.9 pod=a"), endpoint_slice("w3", "web", ["- 80"]))
    assert world.view("web.shop:80") == ["10.1.0.9:80"]
    assert ("service", "web") in {(s.kind, s.name) for s in world.put(pod("a", "10.1.0.9"))}


def test_b_11_j11_no_endpoints_is_an_answer() -> None:
    world = World(WEB)
    assert world.get("web.shop:80") == Endpoints(True, (), (("service", "web"), ("namespace", "shop")))
    world.put(endpoint_slice("w", "web", ["- 80"], "10.1.0.1"))
    assert world.view("web.shop:80") == ["10.1.0.1:80"]


def test_b_12_no_question_is_left_without_an_answer() -> None:
    world = World(
        WEB,
        service_profile("web.shop", routes=[{"name": "broken"}]),
        pod("a", "10.1.0.1", env={}),
        pod("b", phase="Pending"),
        endpoint_slice("w", "web", ["- 80"], "10.1.0.9 pod=b host=b"),
    )
    broken = world.ask_profile("10.96.0.1:80")
    assert isinstance(broken, Twofold)
    assert isinstance(broken.first, Profile)
    assert world.endpoint("10.1.0.1:80").identity == IDENTITY
    assert at(world.endpoint("b.web.shop:80")) == "10.1.0.9:80"
    assert len(world.catalog.complaints) == 2


def test_b_13_a_meshed_pod_without_variables_is_served() -> None:
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], "10.1.0.1 pod=a"), pod("a", "10.1.0.1", env={}))
    assert world.one("web.shop:80").hint == Hint("h2")


def test_b_14_nothing_that_is_missing_ends_anything() -> None:
    world = World(
        WEB,
        endpoint_slice("w", "web", ["- 80", "x -"], "10.1.0.1 ew=nobody host=h", "10.1.0.2 host=plain"),
        server("s", {}, 80),
    )
    assert world.profile("h.web.shop:80").endpoint is not None
    assert world.profile("plain.web.shop:80").endpoint is not None
    assert world.drop(server("s", {}, 80)) == frozenset()
    assert world.drop(server("s", {}, 80), server("never", None, 80), WEB)
    assert world.drop(WEB) == frozenset()


@pytest.mark.parametrize("transport", ["transparent", "transport-header"])
def test_b_15_no_transport_header_to_a_host_port(transport: str) -> None:
    item = pod("a", "10.1.0.1", host_ips=["192.0.2.1"], ports=["http 80:7777", "db 3306:3306"])
    world = World(item, transport=transport)
    assert world.endpoint("192.0.2.1:7777").hint == Hint("h2")
    assert world.endpoint("192.0.2.1:7777").identity == IDENTITY
    assert (world.endpoint("192.0.2.1:3306").hint, world.endpoint("192.0.2.1:3306").identity) == (
        Hint("opaque"),
        "",
    )


def test_b_16_equal_objects_are_no_event() -> None:
    item = pod("a", "10.1.0.1")
    sp = service_profile("web.shop", routes=["r"])
    world = World(WEB, item, sp, namespace(opaque="1"), server("s", {}, 80), owned(objects.Job, "j"))
    again = (WEB, item, sp, namespace(opaque="1"), server("s", {}, 80), owned(objects.Job, "j"))
    assert world.put(*again) == frozenset()


def test_b_18_only_servers_that_ask_for_one_of_its_labels_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(*(server(f"s{number}", {"app": f"app-{number}"}, 80) for number in range(500)))
    world.put(pod("a", "10.1.0.1", labels={"app": "app-7"}))
    looked: list[Selector] = []
    matches = Selector.matches

    def counting(self: Selector, labels: dict[str, str]) -> bool:
        looked.append(self)
        return matches(self, labels)

    monkeypatch.setattr(Selector, "matches", counting)
    assert world.opaque("10.1.0.1:80")
    assert len(looked) == 1


@pytest.mark.parametrize("old_first", [True, False])
def test_b_20_the_order_of_events_on_one_ip_does_not_matter(old_first: bool) -> None:
    old, new = pod("old", "10.1.0.1"), pod("new", "10.1.0.1")
    world = World(old)
    if old_first:
        world.drop(old)
    world.put(new)
    world.drop(old)
    assert dict(world.endpoint("10.1.0.1:80").labels)["pod"] == "new"


def test_b_21_of_udp_and_tcp_the_tcp_port() -> None:
    world = World(service("dns", "u 53/UDP->5300", "t 53/TCP->5301"))
    world.put(endpoint_slice("d", "dns", ["u 5300", "t 5301"], "10.1.0.53"))
    assert world.view("dns.shop:53") == ["10.1.0.53:5301"]


def test_b_22_j07_serving_endpoints_are_an_option() -> None:
    slice_ = endpoint_slice("w", "web", ["- 80"], "10.1.0.1 ready=false serving=true terminating=true")
    assert World(WEB, slice_).view("web.shop:80") == []
    assert World(WEB, slice_, serving_fallback=True).view("web.shop:80") == ["10.1.0.1:80"]


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (("node=n1 hint=za", "node=n2 hint=za"), [0]),
        (("node=n2 hint=za", "node=n2 hint=zb"), [0, 1]),
        (("node=n1", "hint=za"), [0, 1]),
        (("node=n1 hint=zb", "hint=zb"), [0, 1]),
    ],
)
def test_b_23_hints_for_nodes(hints: tuple[str, str], expected: list[int]) -> None:
    world = World(
        WEB, endpoint_slice("w", "web", ["- 80"], *(f"10.1.0.{i} {h}" for i, h in enumerate(hints)))
    )
    assert world.view("web.shop:80", "n1") == [f"10.1.0.{number}:80" for number in expected]


def test_b_24_namespaces_live_and_numeric_targets_of_default_ports() -> None:
    world = World(
        service("db", "- 80->3306", "- 81->8081", "- 3306->1", "- 82->mysql", ip="10.96.0.2"),
        default_opaque_ports=PortSet.of(3306),
    )
    assert [world.opaque(f"10.96.0.2:{port}") for port in (80, 81, 3306, 82)] == [True, False, True, False]
    world.put(namespace(opaque="81"))
    assert [world.opaque(f"10.96.0.2:{port}") for port in (80, 81, 3306, 82)] == [False, True, False, False]


def test_b_26_what_is_not_there_yet_keeps_its_stream() -> None:
    assert World().get("ghost.shop:80") == Endpoints(exists=False)
    assert World().profile("ghost.shop:80") == Profile()


def test_b_27_an_owner_that_nobody_knows_is_no_trouble() -> None:
    world = World(pod("a", "10.1.0.1", owner="ReplicaSet web-6f"))
    assert ("replicaset", "web-6f") in world.endpoint("10.1.0.1:80").labels
    assert world.put(owned(objects.ReplicaSet, "web-6f", "Deployment web"))
    assert ("deployment", "web") in world.endpoint("10.1.0.1:80").labels
    assert world.catalog.complaints == {}


def test_b_28_labels_are_alike_in_both_calls() -> None:
    world = World(
        service("vm", "- 80"),
        endpoint_slice("v", "vm", ["- 80"], "10.2.0.1 ew=vm", "10.1.0.1 pod=a"),
        workload("vm", "10.2.0.1", ports=["- 80"], owner="WorkloadGroup wg"),
        pod("a", "10.1.0.1", owner="StatefulSet s"),
    )
    apart = {"zone_locality", "namespace"}
    for address in world.get("vm.shop:80").addresses:
        direct = dict(world.endpoint(at(address)).labels)
        assert {k: v for k, v in address.labels if k not in apart} == {
            k: v for k, v in direct.items() if k not in apart
        }
