"""GetProfile of one endpoint, by IP and by pod DNS name: spec section 10. Names of tests are ids of cases."""

import pytest

from agent.core.discovery.answers import Address, Hint, Profile, RetryBudget
from agent.core.discovery.config import Http2
from tests.core.discovery.world import (
    OPAQUE,
    SKIP,
    World,
    at,
    endpoint_slice,
    pod,
    server,
    service,
    workload,
)

IDENTITY = "default.shop.serviceaccount.identity.l5d.mesh.test"


def labels(world: World, path: str) -> dict[str, str]:
    return dict(world.endpoint(path).labels)


def is_bare(world: World, path: str) -> bool:
    endpoint = world.endpoint(path)
    return endpoint == Address(endpoint.ip, endpoint.port)


def test_f01_l13_a_pod_by_all_its_ips() -> None:
    world = World(pod("web-a", "10.1.0.11", "2001:db8::11", owner="StatefulSet web"), http2=Http2())
    expected = (
        ("pod", "web-a"),
        ("serviceaccount", "default"),
        ("zone", ""),
        ("statefulset", "web"),
        ("control_plane_ns", "l5d"),
        ("namespace", "shop"),
    )
    for path, ip in (("10.1.0.11:8080", "10.1.0.11"), ("[2001:db8::11]:8080", "2001:db8::11")):
        assert world.profile(path) == Profile(
            retry_budget=RetryBudget(),
            rule="default opaque ports",
            endpoint=Address(
                ip, 8080, expected, identity=IDENTITY, server_name=IDENTITY, hint=Hint("h2"), http2=True
            ),
        )


def test_f02_l01_readiness_does_not_matter() -> None:
    world = World(pod("cas-0", "10.1.0.31", ready=False, owner="StatefulSet cas"))
    before = world.profile("10.1.0.31:7000")
    assert before.endpoint is not None
    assert before.endpoint.identity == IDENTITY
    assert world.put(pod("cas-0", "10.1.0.31", ready=True, owner="StatefulSet cas")) == frozenset()


@pytest.mark.parametrize("ready", ["true", "false"])
def test_f03_f04_peers_that_are_not_ready(ready: str) -> None:
    eps = [f"10.1.0.3{i} pod=cas-{i} host=cas-{i} ready={ready}" for i in (1, 2)]
    world = World(
        service("cas", "cql 9042"),
        endpoint_slice("c", "cas", ["cql 9042"], *eps),
        *(pod(f"cas-{i}", f"10.1.0.3{i}", ready=False) for i in (1, 2)),
    )
    assert len(world.view("cas.shop:9042")) == (2 if ready == "true" else 0)
    for path in ("cas-1.cas.shop:9042", "10.1.0.31:9042"):
        endpoint = world.endpoint(path)
        assert (at(endpoint), endpoint.identity) == ("10.1.0.31:9042", IDENTITY)
        assert ("namespace", "shop") in endpoint.labels


def test_f05_a_pending_pod_counts_once_its_proxy_runs() -> None:
    world = World(
        pod("a", "10.1.0.51", phase="Pending", state="waiting"),
        pod("b", "10.1.0.52", phase="Pending", state="running"),
        pod("c", "10.1.0.53", phase="Pending"),
        pod("d", "10.1.0.54", phase="Pending", mesh=False),
    )
    assert is_bare(world, "10.1.0.51:4191")
    assert world.endpoint("10.1.0.52:8080").identity == IDENTITY
    assert is_bare(world, "10.1.0.53:80")
    assert is_bare(world, "10.1.0.54:80")
    assert world.put(pod("a", "10.1.0.51"))
    assert world.endpoint("10.1.0.51:4191").identity == IDENTITY
    assert world.put(pod("b", "10.1.0.52", state="running")) == frozenset()


@pytest.mark.parametrize(
    ("phase", "bare"), [("Unknown", False), (None, False), ("Failed", True), ("Succeeded", True)]
)
def test_l01_the_other_phases(phase: str | None, bare: bool) -> None:
    world = World(pod("a", "10.1.0.51", phase=phase, state="running"))
    assert is_bare(world, "10.1.0.51:80") is bare


def test_f07_undeclared_ports_learn_of_the_end_too() -> None:
    item = pod("p", "10.1.0.91", ports=["http 80"])
    world = World(item)
    before = [world.profile(f"10.1.0.91:{port}") for port in (80, 9999)]
    world.put(pod("p", "10.1.0.91", ports=["http 80"], deletionTimestamp="2026-01-01T00:00:00Z"))
    assert [world.profile(f"10.1.0.91:{port}") for port in (80, 9999)] == before
    assert {subject.name for subject in world.drop(item)} == {"10.1.0.91"}
    assert is_bare(world, "10.1.0.91:80")
    assert is_bare(world, "10.1.0.91:9999")


def test_f08_l03_a_terminating_pod_that_nothing_has_replaced() -> None:
    old = pod(
        "p", "10.1.0.92", deletionTimestamp="2026-01-02T00:00:00Z", creationTimestamp="2026-01-02T00:00:00Z"
    )
    world = World(old)
    assert world.endpoint("10.1.0.92:80").identity == IDENTITY
    world.put(pod("q", "10.1.0.92", creationTimestamp="2026-01-01T00:00:00Z"))
    answer = world.profile("10.1.0.92:80")
    assert answer.endpoint is not None
    assert dict(answer.endpoint.labels)["pod"] == "q"
    assert answer.complaints == ()


def test_f09_two_pods_with_one_ip() -> None:
    world = World(pod("j", "10.1.0.93", phase="Succeeded"), pod("k", "10.1.0.93"))
    assert labels(world, "10.1.0.93:80")["pod"] == "k"
    newest = pod("l", "10.1.0.93", creationTimestamp="2026-01-01T00:00:00Z")
    world.put(newest)
    answer = world.profile("10.1.0.93:80")
    assert labels(world, "10.1.0.93:80")["pod"] == "l"
    assert [complaint.message for complaint in answer.complaints] == [
        "cannot tell whose 10.1.0.93 is: 'shop/l', 'shop/k' claim it; the newest is taken"
    ]
    world.drop(newest)
    assert labels(world, "10.1.0.93:80")["pod"] == "k"
    assert world.profile("10.1.0.93:80").complaints == ()


def test_of_equals_the_one_that_came_last_also_when_the_other_changes() -> None:
    world = World(pod("k", "10.1.0.93"), pod("a", "10.1.0.93"))
    assert labels(world, "10.1.0.93:80")["pod"] == "a"
    world.put(pod("k", "10.1.0.93", annotations={OPAQUE: "80"}))
    assert labels(world, "10.1.0.93:80")["pod"] == "a"
    assert len(world.profile("10.1.0.93:80").complaints) == 1


def test_running_goes_before_pending() -> None:
    world = World(
        pod("old", "10.1.0.94", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("new", "10.1.0.94", creationTimestamp="2026-01-02T00:00:00Z", phase="Pending"),
    )
    assert labels(world, "10.1.0.94:80")["pod"] == "old"


def test_f10_l06_host_network() -> None:
    world = World(
        pod("a", "10.1.0.1", host_ips=["192.0.2.10"], ports=["m 9100:9100"], mesh=False),
        pod("b", "192.0.2.10", host_network=True, host_ips=["192.0.2.10"], ports=["- 9200"], mesh=False),
        pod("c", "192.0.2.10", host_network=True, host_ips=["192.0.2.10"], mesh=False),
    )
    assert labels(world, "192.0.2.10:9100")["pod"] == "a"
    assert labels(world, "192.0.2.10:9200")["pod"] == "b"
    assert is_bare(world, "192.0.2.10:22")


def test_a_meshed_pod_on_the_host_keeps_the_transport_header() -> None:
    item = pod("hn", "192.0.2.5", host_network=True, host_ips=["192.0.2.5"], ports=["m 9100", "db 3306"])
    world = World(item, transport="transport-header")
    assert world.endpoint("192.0.2.5:9100").hint == Hint("h2", 4143)
    assert world.endpoint("192.0.2.5:3306").identity == IDENTITY


def test_f11_b15_a_port_mapped_from_the_host() -> None:
    first = pod("hp1", "10.1.0.17", host_ips=["192.0.2.20"], ports=["web 80:7777"], mesh=False)
    world = World(first)
    assert (at(world.endpoint("192.0.2.20:7777")), labels(world, "192.0.2.20:7777")["pod"]) == (
        "192.0.2.20:7777",
        "hp1",
    )
    world.drop(first)
    assert is_bare(world, "192.0.2.20:7777")
    both = ["192.0.2.20", "2001:db8::20"]
    world.put(pod("hp2", "10.1.0.18", host_ips=both, ports=["web7 80:7777"], labels={"app": "hp2"}))
    assert not world.opaque("[2001:db8::20]:7777")
    assert world.put(server("s", {"app": "hp2"}, "web7"))
    assert world.opaque("192.0.2.20:7777")
    assert world.opaque("[2001:db8::20]:7777")


@pytest.mark.parametrize("transport", ["transparent", "transport-header"])
def test_b15_no_transport_header_to_the_host(transport: str) -> None:
    ports = ["web 80:7777", "db 3306:7778", "admin 4191:7779", "own 5555:3306"]
    item = pod("hp", "10.1.0.17", host_ips=["192.0.2.20"], ports=ports)
    world = World(item, transport=transport)
    web, db, admin = (world.endpoint(f"192.0.2.20:{port}") for port in (7777, 7778, 7779))
    assert (web.identity, web.hint, web.withheld) == (IDENTITY, Hint("h2"), "")
    assert (db.identity, db.hint, db.withheld) == ("", Hint("opaque"), "OpaqueHostPort")
    assert (admin.identity, admin.hint) == (IDENTITY, Hint("h2"))
    assert world.opaque("192.0.2.20:3306")


def test_l07_lists_of_a_mapped_port_are_those_of_the_container() -> None:
    annotations = {OPAQUE: "443", SKIP: "80"}
    ports = ["tls 443:8443", "http 80:8080"]
    world = World(pod("p", "10.1.0.17", host_ips=["192.0.2.20"], ports=ports, annotations=annotations))
    assert world.opaque("192.0.2.20:8443")
    assert world.endpoint("192.0.2.20:8080").withheld == "PortSkipped"
    assert world.endpoint("10.1.0.17:8080").identity == IDENTITY


def test_udp_ports_are_not_mapped() -> None:
    world = World(pod("p", "10.1.0.17", host_ips=["192.0.2.20"], ports=["dns 53:53/UDP"]))
    assert is_bare(world, "192.0.2.20:53")


def test_f13_a_workload_by_its_declared_ports() -> None:
    item = workload(
        "vm1",
        "198.51.100.1",
        ports=["- 8989", "- 4242", "linkerd-proxy 4143"],
        annotations={OPAQUE: "4242"},
    )
    world = World(item)
    endpoint = world.endpoint("198.51.100.1:8989")
    assert (endpoint.identity, endpoint.uri, endpoint.server_name) == ("spiffe://mesh.test/vm1", True, "vm1")
    assert endpoint.hint == Hint("h2")
    assert dict(endpoint.labels) == {"external_workload": "vm1", "zone": "", "namespace": "shop"}
    assert world.opaque("198.51.100.1:4242")
    assert world.endpoint("198.51.100.1:4242").hint == Hint("opaque", 4143)
    assert is_bare(world, "198.51.100.1:22")


def test_f14_b28_life_of_a_workload() -> None:
    fields = {"ports": ["app 80"], "labels": {"app": "vm2"}, "owner": "WorkloadGroup wg"}
    world = World(workload("vm2", "198.51.100.2", **fields))
    policy = server("s", None, "app", workloads={"app": "vm2"})
    assert world.put(policy)
    assert world.endpoint("198.51.100.2:80").hint == Hint("opaque", 4143)
    assert labels(world, "198.51.100.2:80")["workloadgroup"] == "wg"
    assert world.drop(policy)
    assert world.endpoint("198.51.100.2:80").hint == Hint("h2")
    world.put(workload("vm2", "198.51.100.2", identity="spiffe://x/2", **fields))
    assert world.endpoint("198.51.100.2:80").identity == "spiffe://x/2"
    world.drop(workload("vm2", "198.51.100.2", **fields))
    assert is_bare(world, "198.51.100.2:80")


def test_ips_of_workloads_are_canonical_and_the_newest_is_taken() -> None:
    world = World(
        workload("old", "2001:DB8::0:1", ports=["- 80"], creationTimestamp="2026-01-01T00:00:00Z"),
        workload("new", "2001:db8::1", ports=["- 80"], creationTimestamp="2026-01-02T00:00:00Z"),
        workload("other", "2001:db8::1", ports=["- 81"], creationTimestamp="2026-01-03T00:00:00Z"),
    )
    assert labels(world, "[2001:db8::1]:80")["external_workload"] == "new"
    assert len(world.profile("[2001:db8::1]:80").complaints) == 1
    assert world.profile("[2001:db8::1]:81").complaints == ()


def test_f15_an_unknown_ip() -> None:
    assert World().profile("203.0.113.9:80") == Profile(
        retry_budget=RetryBudget(),
        endpoint=Address("203.0.113.9", 80),
        rule="default opaque ports",
    )
    assert World().opaque("203.0.113.9:3306")


def test_f16_l09_pod_dns_names() -> None:
    world = World(
        service("db", "- 5432"),
        endpoint_slice("d", "db", ["- 5432"], "10.1.0.31 pod=db-0 host=db-0", "10.1.0.99"),
        pod("db-0", "10.1.0.31"),
    )
    assert at(world.endpoint("db-0.db.shop:5432")) == "10.1.0.31:5432"
    assert labels(world, "db-0.db.shop:5432")["namespace"] == "shop"
    for name in ("db-7.db.shop:5432", "db-0.nosuch.shop:5432", "10-1-0-99.db.shop:5432"):
        assert world.profile(name) == Profile()
    world.put(endpoint_slice("e", "db", ["- 5432"], "10.1.0.37 pod=db-7 host=db-7"), pod("db-7", "10.1.0.37"))
    assert at(world.endpoint("db-7.db.shop:5432")) == "10.1.0.37:5432"


def test_f17_a_pod_without_an_ip() -> None:
    slice_ = endpoint_slice("d", "db", ["- 5432"], "10.1.0.31 pod=db-0 host=db-0")
    world = World(service("db", "- 5432"), slice_, pod("db-0", phase="Pending"))
    assert is_bare(world, "db-0.db.shop:5432")
    assert at(world.endpoint("db-0.db.shop:5432")) == "10.1.0.31:5432"
    world.put(pod("db-0"))
    assert world.endpoint("db-0.db.shop:5432").identity == IDENTITY
    world.drop(pod("db-0"))
    assert is_bare(world, "db-0.db.shop:5432")


def test_the_address_of_a_name_is_the_pods_own() -> None:
    world = World(
        service("db", "- 5432"),
        endpoint_slice("d", "db", ["- 5432"], "2001:db8::31 pod=db-0 host=db-0", family="IPv6"),
        pod("db-0", "10.1.0.31", "2001:db8::31"),
    )
    assert at(world.endpoint("db-0.db.shop:5432")) == "10.1.0.31:5432"


def test_of_two_endpoints_with_one_hostname_the_ready_one() -> None:
    world = World(
        service("db", "- 5432"),
        endpoint_slice("a", "db", ["- 5432"], "10.1.0.30 pod=old host=db-0 ready=false"),
        endpoint_slice("b", "db", ["- 5432"], "10.1.0.31 pod=db-0 host=db-0"),
        pod("old", "10.1.0.30"),
        pod("db-0", "10.1.0.31"),
    )
    assert at(world.endpoint("db-0.db.shop:5432")) == "10.1.0.31:5432"


def test_b14_a_hostname_without_a_pod() -> None:
    world = World(
        service("vm", "- 80"),
        endpoint_slice(
            "v", "vm", ["- 80"], "198.51.100.1 ew=vm1 host=vm1", "192.0.2.1 host=plain", "10.1.0.5 host=pod"
        ),
        workload("vm1", "198.51.100.1", ports=["- 81"]),
        pod("p", "10.1.0.5"),
    )
    assert world.endpoint("vm1.vm.shop:80").identity == "spiffe://mesh.test/vm1"
    assert is_bare(world, "plain.vm.shop:80")
    assert labels(world, "pod.vm.shop:80")["pod"] == "p"
    world.drop(workload("vm1", "198.51.100.1", ports=["- 81"]))
    assert is_bare(world, "vm1.vm.shop:80")


def test_an_external_name_has_no_hostnames() -> None:
    assert World(service("ext", "- 80", type="ExternalName")).profile("a.ext.shop:80") == Profile()


def test_f19_status_writes_touch_nobody() -> None:
    world = World(pod("p", "10.1.0.11"))
    for ready in (True, False) * 10:
        assert world.put(pod("p", "10.1.0.11", ready=ready)) == frozenset()
