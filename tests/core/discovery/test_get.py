"""Get: endpoints, filters and differences, spec sections 4, 5 and 7. Names of tests are ids of cases."""

import pytest

from agent.core.discovery import objects
from agent.core.discovery.answers import Ended, Endpoints
from agent.core.discovery.targets import Invalid
from agent.core.objects import Replace, Service
from tests.core.discovery.world import World, endpoint_slice, make, node, pod, service

WEB = service("web", "- 80", ip="10.96.0.1")


def test_a02_l12_ip_literals_are_invalid() -> None:
    for path in ("10.1.0.11:80", "[2001:db8::1]:80"):
        with pytest.raises(Invalid, match="Get is for names"):
            World().ask(path)


def test_a08_a_missing_service_is_waited_for() -> None:
    world = World()
    assert world.get("ghost.shop:80") == Endpoints(exists=False)
    world.put(service("ghost", "- 80"), endpoint_slice("g", "ghost", ["- 80"], "10.1.0.11"))
    assert world.view("ghost.shop:80") == ["10.1.0.11:80"]


def test_a09_external_name_ends_a_stream() -> None:
    world = World(service("ext", "- 443", type="ExternalName"))
    answer = world.ask("ext.shop:443")
    assert isinstance(answer, Ended)
    assert answer.code == "INVALID_ARGUMENT"
    assert answer.reason == "cannot list endpoints of Service shop/ext: it is an ExternalName"


def test_b02_j13_slices_name_the_service_port() -> None:
    world = World(
        service("api", "front 7000->main"),
        endpoint_slice("s", "api", ["other 1", "front 7001"], "10.1.0.20"),
    )
    assert world.view("api.shop:7000") == ["10.1.0.20:7001"]


def test_b03_an_unnamed_port() -> None:
    world = World(service("api", "- 7000->main"), endpoint_slice("s", "api", ["- 7002"], "10.1.0.20"))
    assert world.view("api.shop:7000") == ["10.1.0.20:7002"]


def test_b04_a_port_that_is_not_defined_is_used_as_it_is() -> None:
    world = World(service("api", "- 7000"), endpoint_slice("s", "api", ["- 7000"], "10.1.0.20 host=api-0"))
    assert world.view("api.shop:9999") == ["10.1.0.20:9999"]
    assert world.view("api-0.api.shop:9998") == ["10.1.0.20:9998"]


def test_b05_x17_slices_without_ports_or_numbers_say_nothing() -> None:
    world = World(
        service("api", "p 7000"),
        endpoint_slice("s1", "api", None, "10.1.0.20"),
        endpoint_slice("s2", "api", ["p -"], "10.1.0.21"),
        endpoint_slice("s3", "api", [], "10.1.0.22"),
        endpoint_slice("s4", "api", ["p 70000"], "10.1.0.23"),
    )
    assert world.get("api.shop:7000").addresses == ()
    assert world.get("api.shop:7000").exists
    assert world.view("api.shop:9999") == []
    assert {key for _, key in world.catalog.complaints} == {("shop", "s2"), ("shop", "s4")}


def test_b07_readiness() -> None:
    world = World(
        WEB, endpoint_slice("w", "web", ["- 80"], "10.1.0.11", "10.1.0.12 ready=false", "10.1.0.13 ready=-")
    )
    assert world.view("web.shop:80") == ["10.1.0.11:80", "10.1.0.13:80"]


def test_b08_publish_not_ready_addresses_comes_through_the_slices() -> None:
    world = World(
        service("peers", "gossip 7946"),
        endpoint_slice("p", "peers", ["gossip 7946"], "10.1.0.31 pod=db-0 ready=true serving=false"),
        pod("db-0", "10.1.0.31", ready=False),
    )
    assert world.one("peers.shop:7946").identity == "default.shop.serviceaccount.identity.l5d.mesh.test"


def test_b12_x34_a_service_deleted_and_created_again() -> None:
    slice_ = endpoint_slice("w", "web", ["- 80"], "10.1.0.11")
    world = World(WEB, slice_)
    world.drop(WEB)
    assert world.get("web.shop:80") == Endpoints(exists=False)
    world.put(WEB)
    assert world.view("web.shop:80") == ["10.1.0.11:80"]


def test_b14_j04_one_slice_of_two_goes_also_by_a_list() -> None:
    one = endpoint_slice("w1", "web", ["- 80"], "10.1.0.11", "10.1.0.10")
    two = endpoint_slice("w2", "web", ["- 80"], "10.1.0.12")
    world = World(WEB, one, two)
    assert len(world.view("web.shop:80")) == 3
    world.catalog.apply(Replace(objects.EndpointSlice, (two,)))
    assert world.view("web.shop:80") == ["10.1.0.12:80"]


def test_b16_slices_of_an_owner_and_of_nobody() -> None:
    owner = [{"kind": "Job", "name": "x"}, {"kind": "Service", "name": "web"}]
    world = World(
        WEB,
        endpoint_slice("w1", None, ["- 80"], "10.1.0.11", ownerReferences=owner),
        endpoint_slice("stray", None, ["- 80"], "10.1.0.99"),
    )
    assert world.view("web.shop:80") == ["10.1.0.11:80"]


def test_b19_what_changes_nothing_touches_nobody() -> None:
    slice_ = endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=a")
    world = World(WEB, slice_, pod("a", "10.1.0.11", ready=True))
    assert world.put(WEB, slice_, pod("a", "10.1.0.11", ready=False)) == frozenset()


def test_b20_x18_stateful_set_names() -> None:
    eps = ("10.1.0.31 pod=db-0 host=db-0", "10.1.0.32 pod=db-1 host=db-1", "10.1.0.33")
    world = World(
        service("db", "pg 5432"),
        endpoint_slice("d", "db", ["pg 5432"], *eps),
        pod("db-0", "10.1.0.31"),
        pod("db-1", "10.1.0.32"),
    )
    assert world.view("db-1.db.shop:5432") == ["10.1.0.32:5432"]
    assert world.get("db-9.db.shop:5432").exists
    assert world.view("db-9.db.shop:5432") == []
    world.put(endpoint_slice("d", "db", ["pg 5432"], eps[0], f"{eps[1]} ready=false"))
    assert world.view("db-1.db.shop:5432") == []


def test_b21_j17_of_a_dual_stack_pod_one_family() -> None:
    four = endpoint_slice("a", "ds", ["- 8989"], "10.1.0.41 pod=p")
    six = endpoint_slice("b", "ds", ["- 8989"], "2001:db8::41 pod=p", family="IPv6")
    world = World(service("ds", "- 8989"), four, six, pod("p", "10.1.0.41", "2001:db8::41"))
    assert world.view("ds.shop:8989") == ["[2001:db8::41]:8989"]
    world.drop(six)
    assert world.view("ds.shop:8989") == ["10.1.0.41:8989"]
    world.put(six)
    world.drop(four)
    assert world.view("ds.shop:8989") == ["[2001:db8::41]:8989"]


def test_b22_ipv6_off() -> None:
    world = World(
        service("ds", "- 80"),
        endpoint_slice("a", "ds", ["- 80"], "10.1.0.41 pod=p"),
        endpoint_slice("b", "ds", ["- 80"], "2001:db8::41 pod=p", "2001:db8::77", family="IPv6"),
        pod("p", "10.1.0.41", "2001:db8::41"),
        ipv6=False,
    )
    assert world.view("ds.shop:80") == ["10.1.0.41:80", "[2001:db8::77]:80"]


def test_b23_what_is_no_ip_is_passed_over() -> None:
    world = World(
        WEB,
        endpoint_slice("f", "web", ["- 80"], "db.example.org", family="FQDN"),
        endpoint_slice("v", "web", ["- 80"], "10.1.0.300", "10.1.0.012", family="IPv4"),
        endpoint_slice("w", "web", ["- 80"], "10.1.0.11"),
    )
    assert world.view("web.shop:80") == ["10.1.0.11:80"]
    (complaints,) = world.catalog.complaints.values()
    assert "'10.1.0.300'" in complaints[0].message
    assert "EndpointSlice shop/v" in complaints[0].message


def test_b27_of_one_number_the_tcp_port() -> None:
    world = World(
        service("dns", "dns-udp 53/UDP->5300", "dns-tcp 53/TCP->5301", "only-udp 54/UDP"),
        endpoint_slice("d", "dns", ["dns-udp 5300", "dns-tcp 5301", "only-udp 5400"], "10.1.0.53"),
    )
    assert world.view("dns.shop:53") == ["10.1.0.53:5301"]
    assert world.view("dns.shop:54") == ["10.1.0.53:5400"]


def test_b28_endpoints_mode() -> None:
    def address(ip: str) -> dict[str, object]:
        return {"ip": ip, "targetRef": {"kind": "Pod", "name": "a"} if ip == "10.1.0.11" else None}

    item = make(
        objects.Endpoints,
        "web",
        subsets=[
            {
                "addresses": [address("10.1.0.11"), address("10.1.0.12")],
                "ports": [{"name": "p1", "port": 80}],
            },
            {
                "addresses": [address("10.1.0.11")],
                "notReadyAddresses": [address("10.1.0.12")],
                "ports": [{"name": "p2", "port": 81}],
            },
            {"addresses": None, "ports": None},
        ],
    )
    world = World(service("web", "p1 80", "p2 81"), item, pod("a", "10.1.0.11"), endpoint_slices=False)
    world.put(endpoint_slice("s", "web", ["p1 80"], "10.9.9.9"))
    assert world.view("web.shop:80") == ["10.1.0.11:80", "10.1.0.12:80"]
    assert world.view("web.shop:81") == ["10.1.0.11:81"]
    assert world.one("web.shop:81").identity
    world.drop(item)
    assert world.view("web.shop:80") == []


@pytest.mark.parametrize(("fallback", "expected"), [(False, []), (True, ["10.1.0.11:80"])])
def test_b29_only_terminating_endpoints(fallback: bool, expected: list[str]) -> None:
    terminating = "10.1.0.11 ready=false serving=true terminating=true"
    other = "10.1.0.12 ready=false serving=false terminating=true"
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], terminating, other), serving_fallback=fallback)
    assert world.view("web.shop:80") == expected
    world.put(endpoint_slice("w", "web", ["- 80"], terminating, "10.1.0.13"))
    assert world.view("web.shop:80") == ["10.1.0.13:80"]


def test_d01_d02_zone_hints() -> None:
    hinted = ("10.1.0.11 hint=za", "10.1.0.12 hint=zb")
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], *hinted), node("n1", "za"))
    assert world.view("web.shop:80", "n1") == ["10.1.0.11:80"]
    world.put(endpoint_slice("w", "web", ["- 80"], *hinted, "10.1.0.13"))
    assert len(world.view("web.shop:80", "n1")) == 3


def test_d03_hints_that_leave_nothing_are_passed_over() -> None:
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], "10.1.0.11 hint=zb", "10.1.0.12 hint=zb"))
    world.put(node("n1", "za"), node("n2"))
    for asking in ("n1", "n2", "n9", ""):
        assert len(world.view("web.shop:80", asking)) == 2


def test_the_zone_of_the_client_is_followed() -> None:
    world = World(WEB, endpoint_slice("w", "web", ["- 80"], "10.1.0.11 hint=za", "10.1.0.12 hint=zb"))
    world.put(node("n1", "za"))
    assert world.view("web.shop:80", "n1") == ["10.1.0.11:80"]
    world.put(node("n1", "zb"))
    assert world.view("web.shop:80", "n1") == ["10.1.0.12:80"]


def test_d05_d06_j16_traffic_policy_local() -> None:
    local = service("web", "- 80", internalTrafficPolicy="Local")
    world = World(
        local,
        endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=a hint=zz", "10.1.0.12 pod=b", "192.0.2.9"),
        pod("a", "10.1.0.11", node="n1"),
        pod("b", "10.1.0.12", node="n2"),
    )
    assert world.view("web.shop:80", "n1") == ["10.1.0.11:80"]
    assert world.view("web.shop:80", "n3") == []
    assert world.view("web.shop:80", "") == []
    world.put(service("web", "- 80", internalTrafficPolicy="Cluster"))
    assert len(world.view("web.shop:80", "n1")) == 3
    world.put(local, endpoint_slice("w", "web", ["- 80"], "10.1.0.12 pod=b"))
    assert world.view("web.shop:80", "n1") == []


def test_a_pod_without_node_is_local_to_nobody() -> None:
    world = World(
        service("web", "- 80", internalTrafficPolicy="Local"),
        endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=a"),
        pod("a", "10.1.0.11", node=None),
    )
    assert world.view("web.shop:80", "") == []


def test_d07_zones_go_before_families() -> None:
    world = World(
        service("ds", "- 1"),
        endpoint_slice("a", "ds", ["- 1"], "10.1.0.41 pod=p hint=za"),
        endpoint_slice("b", "ds", ["- 1"], "2001:db8::41 pod=p hint=zb", family="IPv6"),
        pod("p", "10.1.0.41", "2001:db8::41"),
        node("n1", "za"),
    )
    assert world.view("ds.shop:1", "n1") == ["10.1.0.41:1"]


def test_x24_x25_two_claims_to_one_address() -> None:
    world = World(
        WEB,
        endpoint_slice("w1", "web", ["- 80"], "10.1.0.11 pod=a", "10.1.0.11 pod=b", "192.0.2.1"),
        endpoint_slice("w2", "web", ["- 80"], "192.0.2.1", "10.1.0.11"),
        pod("a", "10.1.0.11", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("b", "10.1.0.11", creationTimestamp="2026-01-02T00:00:00Z"),
    )
    assert world.view("web.shop:80") == ["10.1.0.11:80", "192.0.2.1:80"]
    assert dict(world.get("web.shop:80").addresses[0].labels)["pod"] == "b"
    world.put(endpoint_slice("w1", "web", ["- 80"], "10.1.0.11 pod=a"))
    assert dict(world.get("web.shop:80").addresses[0].labels)["pod"] == "a"
    assert world.view("web.shop:80") == ["10.1.0.11:80", "192.0.2.1:80"]


def test_x33_a_slice_moves_to_another_service() -> None:
    world = World(WEB, service("web2", "- 80"), endpoint_slice("w", "web", ["- 80"], "192.0.2.1"))
    touched = world.put(endpoint_slice("w", "web2", ["- 80"], "192.0.2.1"))
    assert {subject.name for subject in touched} == {"web", "web2"}
    assert world.view("web.shop:80") == []
    assert world.view("web2.shop:80") == ["192.0.2.1:80"]


def test_other_targets_are_passed_over() -> None:
    item = make(
        objects.EndpointSlice,
        "w",
        labels={"kubernetes.io/service-name": "web"},
        ports=[{"port": 80}],
        endpoints=[
            {"addresses": ["10.1.0.1"], "targetRef": {"kind": "Node", "name": "n1"}},
            {"addresses": ["10.1.0.2"], "targetRef": {"kind": "Pod", "name": "gone"}},
            {"addresses": ["10.1.0.3"], "targetRef": {"kind": "ExternalWorkload", "name": "gone"}},
            {"addresses": ["10.1.0.4"], "targetRef": {"kind": "Pod"}},
            {"addresses": None},
            {"addresses": ["10.1.0.6", "10.1.0.7"]},
        ],
    )
    assert World(WEB, item).view("web.shop:80") == ["10.1.0.6:80", "10.1.0.7:80"]


def test_the_order_is_by_family_ip_and_port() -> None:
    slices = (
        endpoint_slice("a", "web", ["- 90"], "10.1.0.9"),
        endpoint_slice("b", "web", ["- 80"], "fd00::1", family="IPv6"),
        endpoint_slice("c", "web", ["- 80"], "10.1.0.9"),
    )
    assert World(WEB, *slices).view("web.shop:80") == ["10.1.0.9:80", "10.1.0.9:90", "[fd00::1]:80"]


def test_equal_names_in_two_namespaces_stay_apart() -> None:
    world = World(WEB, service("web", "- 80", namespace="other"))
    world.put(endpoint_slice("w", "web", ["- 80"], "10.1.0.11", namespace="other"))
    assert world.view("web.shop:80") == []
    assert world.view("web.other:80") == ["10.1.0.11:80"]


def test_m06_nothing_is_answered_before_all_is_listed() -> None:
    world = World()
    world.catalog.listed.discard(objects.Node)
    world.catalog.listed.discard(Service)
    answer = world.ask("web.shop:80", "n1")
    assert {lack.name for lack in answer.lacking} == {"Service", "Node"}  # type: ignore[union-attr]
    touched = world.catalog.apply(Replace(Service, ()))
    assert [(subject.kind, subject.name) for subject in touched] == [("listing", "Service")]
    assert world.get("web.shop:80") == Endpoints(exists=False)
    assert world.catalog.apply(Replace(Service, ())) == frozenset()
