"""Labels, identity, hints and opacity: spec sections 6 and 11. Names of tests are ids of cases."""

from typing import Any

import pytest

from agent.core.discovery import objects
from agent.core.discovery.answers import Hint
from agent.core.discovery.config import Http2
from agent.core.objects import Pod
from agent.core.ports import PortSet
from agent.core.spec import NodeDefaults
from tests.core.discovery.world import (
    OPAQUE,
    SKIP,
    World,
    endpoint_slice,
    namespace,
    node,
    owned,
    pod,
    server,
    service,
    workload,
)

WEB = service("web", "- 80", ip="10.96.0.1")
IDENTITY = "default.shop.serviceaccount.identity.l5d.mesh.test"


def opaque_ports(world: World, ip: str, *candidates: int) -> list[int]:
    return [port for port in candidates if world.opaque(f"{ip}:{port}")]


def test_c01_all_labels() -> None:
    item = pod(
        "web-a", "10.1.0.11", account="webby", owner="ReplicaSet web-6f", labels={"pod-template-hash": "6f"}
    )
    world = World(WEB, item, owned(objects.ReplicaSet, "web-6f", "Deployment web"), node("n1", "za"))
    world.put(endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=web-a zone=za"))
    address = world.one("web.shop:80", "n1")
    assert dict(address.labels) == {
        "pod": "web-a",
        "deployment": "web",
        "serviceaccount": "webby",
        "control_plane_ns": "l5d",
        "pod_template_hash": "6f",
        "zone": "za",
        "zone_locality": "local",
    }
    assert len(address.labels) == 7
    assert address.identity == address.server_name == "webby.shop.serviceaccount.identity.l5d.mesh.test"
    assert (address.hint, address.uri, address.weight, address.withheld) == (Hint("h2"), False, 10_000, "")
    assert dict(world.get("web.shop:80", "n1").labels) == {"service": "web", "namespace": "shop"}


@pytest.mark.parametrize(
    ("owner", "others", "key", "value"),
    [
        (None, [], "pod", "p"),
        ("StatefulSet a,StatefulSet b", [], "pod", "p"),
        ("ReplicaSet r", [owned(objects.ReplicaSet, "r")], "replicaset", "r"),
        ("ReplicaSet r", [owned(objects.ReplicaSet, "r", "Rollout x")], "replicaset", "r"),
        ("ReplicaSet r", [owned(objects.ReplicaSet, "r", "Deployment x,Deployment y")], "replicaset", "r"),
        ("ReplicaSet r", [owned(objects.ReplicaSet, "r", "Deployment d")], "deployment", "d"),
        ("ReplicaSet r", [], "replicaset", "r"),
        ("ReplicaSet r", [owned(objects.ReplicaSet, "r", "Deployment d", namespace="x")], "replicaset", "r"),
        ("Job j", [], "k8s_job", "j"),
        ("Job j", [owned(objects.Job, "j")], "k8s_job", "j"),
        ("Job j", [owned(objects.Job, "j", "CronJob c")], "cronjob", "c"),
        ("Job j", [owned(objects.Job, "j", "Workflow w")], "workflow", "w"),
        ("StatefulSet s", [], "statefulset", "s"),
        ("DaemonSet s", [], "daemonset", "s"),
        ("ReplicationController s", [], "replicationcontroller", "s"),
        ("FooSet s", [], "fooset", "s"),
    ],
)
def test_c02_owners(owner: str | None, others: list[Any], key: str, value: str) -> None:
    world = World(WEB, pod("p", "10.1.0.11", owner=owner), *others)
    world.put(endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=p"))
    for labels in (world.one("web.shop:80").labels, world.endpoint("10.1.0.11:80").labels):
        assert (key, value) in labels
        kinds = {"pod", "serviceaccount", "zone", "control_plane_ns", "zone_locality", "namespace", key}
        assert {name for name, _ in labels} <= kinds


@pytest.mark.parametrize(
    ("item", "config", "identity", "hint", "withheld"),
    [
        (pod("p", "10.1.0.11"), {}, IDENTITY, Hint("h2"), ""),
        (pod("p", "10.1.0.11", mesh="other"), {}, "", Hint("h2"), "OtherControlPlane"),
        (pod("p", "10.1.0.11", mesh=False), {}, "", None, ""),
        (pod("p", "10.1.0.11"), {"trust_domain": ""}, "", Hint("h2"), "NoTrustDomain"),
        (pod("p", "10.1.0.11", proxy="none"), {}, "", None, ""),
        (pod("p", "10.1.0.11", mesh=False, proxy="ctr"), {}, "", None, ""),
    ],
)
def test_c03_who_has_an_identity(
    item: Pod, config: dict[str, Any], identity: str, hint: Hint | None, withheld: str
) -> None:
    address = World(item, **config).endpoint("10.1.0.11:80")
    assert (address.identity, address.hint, address.withheld) == (identity, hint, withheld)


def test_c04_k10_skipped_ports() -> None:
    world = World(pod("p", "10.1.0.15", annotations={SKIP: "24224,9000-9002"}), http2=Http2())
    for port in (24224, 9000, 9001):
        address = world.endpoint(f"10.1.0.15:{port}")
        assert (address.hint, address.http2, address.identity) == (None, False, "")
        assert address.withheld == "PortSkipped"
        assert ("pod", "p") in address.labels
    full = world.endpoint("10.1.0.15:80")
    assert (full.hint, full.http2, full.identity) == (Hint("h2"), True, IDENTITY)


@pytest.mark.parametrize(
    ("own", "inherited", "skipped"),
    [
        (None, None, [4567]),
        (None, "80", [80]),
        (None, "", []),
        ("9000", "80", [9000]),
        ("", "80", []),
        (" , ", "80", []),
    ],
)
def test_the_skip_list_is_the_one_of_redirection(
    own: str | None, inherited: str | None, skipped: list[int]
) -> None:
    world = World(pod("p", "10.1.0.15", annotations={} if own is None else {SKIP: own}))
    if inherited is not None:
        world.put(namespace(skip=inherited))
    ports = (80, 4567, 9000)
    assert [port for port in ports if not world.endpoint(f"10.1.0.15:{port}").identity] == skipped


def test_the_proxys_own_ports_are_never_skipped() -> None:
    defaults = NodeDefaults(only_inbound=PortSet.of(80))
    world = World(pod("p", "10.1.0.15", annotations={SKIP: "4190-4191"}), defaults=defaults)
    for port, identity in ((80, IDENTITY), (4190, IDENTITY), (4191, IDENTITY), (81, "")):
        assert world.endpoint(f"10.1.0.15:{port}").identity == identity, port


CANDIDATES = (10, 11, 12, 80, 81, 90, 8080, 8081, 8090, 4242, 1, 2, 3, 70)


@pytest.mark.parametrize(
    ("annotation", "opaque"),
    [
        ("4242", [4242]),
        ("10-12", [10, 11, 12]),
        ("http", [8080]),
        ("side", [8090]),
        ("80, 81 ,", [80, 81]),
        ("5-3,abc,1-2-3,70000,90", [90]),
        ("12-34", [8081]),
        ("", []),
        (" , ", []),
        ("twice", [81]),
    ],
)
def test_c05_k08_lists_of_a_pod(annotation: str, opaque: list[int]) -> None:
    item = pod(
        "p",
        "10.1.0.14",
        ports=["http 8080", "12-34 8081", "twice 81"],
        init_ports=["side 8090", "twice 80"],
        annotations={OPAQUE: annotation},
    )
    world = World(item)
    assert opaque_ports(world, "10.1.0.14", *CANDIDATES) == sorted(opaque, key=CANDIDATES.index)
    for port in CANDIDATES:
        hint = world.endpoint(f"10.1.0.14:{port}").hint
        assert hint == (Hint("opaque", 4143) if port in opaque else Hint("h2"))


def test_c06_the_default_list() -> None:
    world = World(
        pod("m", "10.1.0.61"),
        pod("u", "10.1.0.62", mesh=False),
        pod("e", "10.1.0.63", annotations={OPAQUE: ""}),
    )
    assert world.endpoint("10.1.0.61:3306").hint == Hint("opaque", 4143)
    assert world.opaque("10.1.0.62:3306")
    assert world.endpoint("10.1.0.62:3306").hint is None
    assert not world.opaque("10.1.0.63:3306")
    assert world.endpoint("10.1.0.63:3306").hint == Hint("h2")
    assert world.opaque("203.0.113.9:3306")
    assert not world.opaque("203.0.113.9:443")


def test_c07_k19_k25_transport_header() -> None:
    world = World(pod("p", "10.1.0.11"), transport="transport-header")
    hints = {port: world.endpoint(f"10.1.0.11:{port}").hint for port in (80, 4191, 4190, 3306)}
    assert hints == {80: Hint("h2", 4143), 4191: Hint("h2"), 4190: Hint("h2"), 3306: Hint("opaque", 4143)}
    world.put(pod("p", "10.1.0.11", env={"INBOUND": "0.0.0.0:5143", "ADMIN": "[::]:5191"}))
    hints = {port: world.endpoint(f"10.1.0.11:{port}").hint for port in (80, 4191, 5191, 4190)}
    assert hints == {80: Hint("h2", 5143), 4191: Hint("h2", 5143), 5191: Hint("h2"), 4190: Hint("h2")}


def test_c08_h2_upgrade_off() -> None:
    world = World(pod("p", "10.1.0.11"), h2_upgrade=False)
    assert world.endpoint("10.1.0.11:80").hint == Hint()
    assert world.endpoint("10.1.0.11:3306").hint == Hint("opaque", 4143)


@pytest.mark.parametrize("listen", ["[::]:5143", "0.0.0.0:5143"])
@pytest.mark.parametrize("where", ["init", "ctr"])
def test_c09_inbound_port(listen: str, where: str) -> None:
    world = World(pod("p", "10.1.0.11", env={"INBOUND": listen}, proxy=where))
    assert world.endpoint("10.1.0.11:3306").hint == Hint("opaque", 5143)


def test_c10_http2_parameters_of_meshed_addresses_only() -> None:
    world = World(pod("m", "10.1.0.61"), pod("u", "10.1.0.62", mesh=False), http2=Http2())
    assert world.endpoint("10.1.0.61:80").http2
    assert not world.endpoint("10.1.0.62:80").http2


def test_c12_k13_k14_life_of_a_server() -> None:
    world = World(
        service("pol", "- 80"),
        endpoint_slice("s", "pol", ["- 80"], "10.1.0.16 pod=pol-a"),
        pod("pol-a", "10.1.0.16", labels={"app": "pol"}, ports=["http 80"]),
    )
    opaque, plain = Hint("opaque", 4143), Hint("h2")
    steps = [
        (server("s", {"app": "pol"}, "http"), opaque),
        (server("s", {"app": "other"}, "http"), plain),
        (server("s", {"app": "pol"}, "http"), opaque),
        (server("s", {"app": "pol"}, "http", "HTTP/1"), plain),
        (server("s", {"app": "pol"}, "http"), opaque),
    ]
    assert world.one("pol.shop:80").hint == plain
    for item, hint in steps:
        assert world.put(item)
        assert world.one("pol.shop:80").hint == hint
    assert world.profile("10.1.0.16:80").rule == "Server shop/s"
    world.drop(steps[0][0])
    assert world.one("pol.shop:80").hint == plain
    assert world.put(server("s", {}, 80, namespace="other")) == frozenset()
    assert world.one("pol.shop:80").hint == plain


@pytest.mark.parametrize(
    ("item", "opaque"),
    [
        (server("s", None, 80, workloads={"app": "p"}), False),
        (server("s", None, 80), False),
        (server("s", {}, 80), True),
        (server("s", {"app": "p"}, 80), True),
        (server("s", {"app": "p", "x": "y"}, 80), False),
        (server("s", {"matchExpressions": [{"key": "app", "operator": "In", "values": ["p"]}]}, 80), True),
        (server("s", {"matchExpressions": [{"key": "app", "operator": "In", "values": ["q"]}]}, 80), False),
        (
            server("s", {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["p"]}]}, 80),
            False,
        ),
        (server("s", {"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["p"]}]}, 80), True),
        (server("s", {"matchExpressions": [{"key": "app", "operator": "Exists"}]}, 80), True),
        (server("s", {"matchExpressions": [{"key": "x", "operator": "Exists"}]}, 80), False),
        (server("s", {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, 80), True),
        (server("s", {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, 80), False),
        (
            server(
                "s",
                {"matchLabels": {"app": "p"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]},
                80,
            ),
            False,
        ),
        (server("s", {}, "80"), False),
        (server("s", {}, "web"), True),
        (server("s", {}, 81), False),
        (server("s", {}, 80, "unknown"), False),
        (server("s", {}, 80, "Opaque"), False),
    ],
)
def test_c14_k16_selectors(item: Any, opaque: bool) -> None:
    world = World(pod("p", "10.1.0.17", labels={"app": "p"}, ports=["web 80:7777"]), item)
    assert world.opaque("10.1.0.17:80") is opaque


def test_c15_f21_a_server_cancels_nothing_unless_it_wins() -> None:
    item = pod("p", "10.1.0.17", labels={"app": "p"}, annotations={OPAQUE: "8080"})
    servers = server("s", {"app": "p"}, 8080, "HTTP/1"), server("t", {"app": "p"}, 8080, "TLS")
    assert World(item, *servers).opaque("10.1.0.17:8080")
    wins = World(item, *servers, server_wins=True)
    assert not wins.opaque("10.1.0.17:8080")
    assert wins.profile("10.1.0.17:8080").rule == "Server shop/s"
    assert World(item, server_wins=True).opaque("10.1.0.17:8080")
    assert World(item, servers[0], server("t", {}, 8080), server_wins=True).opaque("10.1.0.17:8080")


def test_c16_zone_weights() -> None:
    world = World(
        WEB,
        node("n1", "za"),
        endpoint_slice("w", "web", ["- 80"], *(f"10.1.0.1{i} pod={i} {z}" for i, z in enumerate(ZONES))),
        endpoint_slice("x", "web", ["- 80"], "10.1.0.13 zone=za", "10.1.0.14 ew=vm zone=za"),
        *(pod(f"{i}", f"10.1.0.1{i}") for i in range(3)),
        workload("vm", "10.1.0.14", ports=["- 80"]),
        zone_weights=True,
    )
    found = {
        address.ip: (dict(address.labels)["zone_locality"], dict(address.labels).get("zone"), address.weight)
        for address in world.get("web.shop:80", "n1").addresses
    }
    assert found == {
        "10.1.0.10": ("local", "za", 100_000),
        "10.1.0.11": ("remote", "zb", 10_000),
        "10.1.0.12": ("unknown", "", 10_000),
        "10.1.0.13": ("unknown", None, 10_000),
        "10.1.0.14": ("local", "za", 100_000),
    }


ZONES = ("zone=za", "zone=zb", "zone=")


def test_c17_k04_a_pods_annotation_is_followed() -> None:
    world = World(service("kv", "- 7000"), endpoint_slice("k", "kv", ["- 7000"], "10.1.0.70 pod=kv-0"))
    for text, opaque in ((None, False), ("7000", True), ("7001", False), (None, False), ("", False)):
        world.put(pod("kv-0", "10.1.0.70", annotations={} if text is None else {OPAQUE: text}))
        assert world.opaque("10.1.0.70:7000") is opaque
        assert world.one("kv.shop:7000").hint == (Hint("opaque", 4143) if opaque else Hint("h2"))


def test_c18_k04_namespaces_are_read_live() -> None:
    world = World(
        namespace(opaque="9000"),
        pod("a", "10.1.0.81"),
        pod("b", "10.1.0.82", annotations={OPAQUE: "9100"}),
        pod("c", "10.1.0.83", annotations={OPAQUE: ""}),
        service("s", "- 9000", "- 3306", ip="10.96.0.20"),
        workload("vm", "198.51.100.1", ports=["- 9000", "- 3306"]),
    )
    paths = ("10.1.0.81:9000", "10.1.0.81:3306", "10.1.0.82:9000", "10.1.0.83:9000", "10.96.0.20:9000")
    paths = (*paths, "10.96.0.20:3306", "198.51.100.1:9000", "198.51.100.1:3306")
    assert [world.opaque(path) for path in paths] == [True, False, False, False, True, False, True, False]
    world.put(namespace(opaque="3306"))
    assert [world.opaque(path) for path in paths] == [False, True, False, False, False, True, False, True]
    world.drop(namespace())
    assert [world.opaque(path) for path in paths] == [False, True, False, False, False, True, False, True]
    world.put(namespace(opaque=""))
    assert not any(world.opaque(path) for path in paths)


def test_names_in_a_namespaces_list_are_those_of_each_object() -> None:
    world = World(
        namespace(opaque="db"),
        pod("a", "10.1.0.81", ports=["db 5000"]),
        pod("b", "10.1.0.82", ports=["db 6000"]),
        service("s", "db 7000", "- 5000", ip="10.96.0.20"),
        workload("vm", "198.51.100.1", ports=["db 8000", "- 5000"]),
    )
    paths = ("10.1.0.81:5000", "10.1.0.82:6000", "10.1.0.82:5000", "10.96.0.20:7000", "10.96.0.20:5000")
    paths = (*paths, "198.51.100.1:8000", "198.51.100.1:5000")
    assert [world.opaque(path) for path in paths] == [True, True, False, True, False, True, False]


DEFAULT = {"default_opaque_ports": PortSet.of(3306)}
SERVER = server("s", {"app": "p"}, 6000)


@pytest.mark.parametrize(
    ("own", "inherited", "servers", "opaque", "rule"),
    [
        ("4000", None, [], [4000], "annotation of the Pod"),
        ("", "4000", [], [], "annotation of the Pod"),
        (None, "5000", [], [5000], "annotation of the Namespace"),
        (None, None, [], [3306], "default opaque ports"),
        ("4000", None, [SERVER], [4000, 6000], "annotation of the Pod"),
        ("", "4000", [SERVER], [6000], "annotation of the Pod"),
        (None, "5000", [SERVER], [5000, 6000], "annotation of the Namespace"),
        (None, None, [SERVER], [3306, 6000], "default opaque ports"),
    ],
)
def test_the_table_of_opacity(
    own: str | None, inherited: str | None, servers: list[Any], opaque: list[int], rule: str
) -> None:
    annotations = {} if own is None else {OPAQUE: own}
    world = World(pod("p", "10.1.0.1", labels={"app": "p"}, annotations=annotations), *servers, **DEFAULT)
    if inherited is not None:
        world.put(namespace(opaque=inherited))
    assert opaque_ports(world, "10.1.0.1", 3306, 4000, 5000, 6000) == opaque
    for port in (3306, 4000, 5000, 6000):
        by_server = port == 6000 and servers
        assert world.profile(f"10.1.0.1:{port}").rule == ("Server shop/s" if by_server else rule)


def test_k07_the_hint_is_of_the_target_port() -> None:
    world = World(
        service("web", "- 80->8080", ip="10.96.0.1"),
        endpoint_slice("w", "web", ["- 8080"], "10.1.0.11 pod=a"),
        pod("a", "10.1.0.11", annotations={OPAQUE: "8080"}),
    )
    assert world.one("web.shop:80").hint == Hint("opaque", 4143)
    assert not world.opaque("10.96.0.1:80")
    world.put(pod("a", "10.1.0.11", annotations={OPAQUE: "80"}))
    assert world.one("web.shop:80").hint == Hint("h2")


def test_b24_plain_addresses_have_nothing_of_the_mesh() -> None:
    world = World(service("vm", "- 3306"), endpoint_slice("v", "vm", ["- 3306"], "192.0.2.10 zone=za"))
    address = world.one("vm.shop:3306")
    assert address.labels == (("zone_locality", "unknown"),)
    assert (address.identity, address.hint, address.http2, address.weight) == ("", None, False, 10_000)


def test_b25_mirrored_gateways() -> None:
    identity = "gw.mc.serviceaccount.identity.l5d.east.test"
    annotations = {"mirror.linkerd.io/remote-svc-fq-name": "pay.shop.svc.east.test"}
    labels = {"mirror.linkerd.io/cluster-name": "east"}
    world = World(service("pay-east", "- 8989"), http2=Http2())

    def put(gateway: str | None) -> None:
        said = {} if gateway is None else {"mirror.linkerd.io/remote-gateway-identity": gateway}
        world.put(
            endpoint_slice(
                "m", "pay-east", ["- 4143"], "198.51.100.7", labels=labels, annotations=annotations | said
            )
        )

    put(identity)
    address = world.one("pay-east.shop:8989")
    assert (address.ip, address.port) == ("198.51.100.7", 4143)
    assert (address.identity, address.server_name, address.uri) == (identity, "", False)
    assert (address.authority, address.hint) == ("pay.shop.svc.east.test:8989", Hint("h2"))
    assert address.http2
    assert dict(world.get("pay-east.shop:8989").labels) == {
        "service": "pay-east",
        "namespace": "shop",
        "target_cluster": "east",
        "target_service": "pay",
        "target_service_namespace": "shop",
    }
    for nothing in ("", None):
        put(nothing)
        address = world.one("pay-east.shop:8989")
        assert (address.identity, address.hint, address.http2) == ("", None, False)
        assert address.authority == "pay.shop.svc.east.test:8989"


def test_x36_workloads_behind_a_service() -> None:
    world = World(
        service("vm", "- 80"),
        endpoint_slice("v", "vm", ["- 80"], "198.51.100.1 ew=vm1 zone=za"),
        workload("vm1", "198.51.100.1", ports=["- 80"], owner="WorkloadGroup wg"),
        node("n1", "za"),
    )
    address = world.one("vm.shop:80", "n1")
    assert (address.identity, address.uri, address.server_name) == ("spiffe://mesh.test/vm1", True, "vm1")
    assert address.hint == Hint("h2")
    assert dict(address.labels) == {
        "external_workload": "vm1",
        "zone": "za",
        "workloadgroup": "wg",
        "zone_locality": "local",
    }
    assert world.put(workload("vm1", "198.51.100.1", ports=["- 80"], identity="spiffe://x/2"))
    assert world.one("vm.shop:80").identity == "spiffe://x/2"


def test_h2_of_a_workload_is_not_a_matter_of_the_flag() -> None:
    world = World(workload("vm", "198.51.100.1", ports=["- 80"]), h2_upgrade=False, http2=Http2())
    assert world.endpoint("198.51.100.1:80").hint == Hint("h2")
    assert world.endpoint("198.51.100.1:80").http2
    world = World(workload("vm", "198.51.100.1", ports=["- 80"]), transport="transport-header")
    assert world.endpoint("198.51.100.1:80").hint == Hint("h2", 4143)
    world.put(workload("vm", "198.51.100.1", ports=["- 80", "linkerd-proxy 5143"]))
    assert world.endpoint("198.51.100.1:80").hint == Hint("h2", 5143)
