"""GetProfile of a Service: spec section 8. Names of tests are ids of cases."""

import msgspec
import pytest

from agent.core.discovery.answers import Ended, Override, Profile, Ref, RetryBudget, Twofold
from agent.core.discovery.serviceprofiles import ProfileFacts
from agent.core.discovery.tables import Services
from tests.core.discovery.world import (
    OPAQUE,
    World,
    endpoint_slice,
    namespace,
    pod,
    server,
    service,
    service_profile,
)

WEB = service("web", "http 80->8080", ip=["10.96.0.1", "2001:db8::100"])
NAME = "web.shop.svc.cluster.test"
DEFAULT = Profile(
    name=NAME,
    retry_budget=RetryBudget(0.2, 10, 10_000_000_000),
    parent=Ref("core", "Service", "web", "shop", 80),
    rule="default opaque ports",
)
IP = "10.96.0.1:80"


def routes(answer: object) -> list[str]:
    assert isinstance(answer, Profile)
    return [route.labels[0][1] for route in answer.routes]


@pytest.mark.parametrize("path", [IP, "[2001:db8::100]:80", "web.shop:80", "[::ffff:10.96.0.1]:80"])
def test_e01_a10_l13_k02_the_default_profile(path: str) -> None:
    assert World(WEB).profile(path) == DEFAULT


def test_a07_a_domain_of_several_labels() -> None:
    world = World(service("web", "- 80", ip="10.96.0.1"), cluster_domain="k8s.corp.test")
    assert world.profile(IP).name == "web.shop.svc.k8s.corp.test"


def test_a08_a_missing_service_is_the_empty_profile() -> None:
    world = World()
    assert world.profile("ghost.shop:80") == Profile()
    world.put(service_profile("ghost.shop", routes=["r"]))
    assert world.profile("ghost.shop:80") == Profile()
    world.put(service("ghost", "- 80"))
    assert routes(world.profile("ghost.shop:80")) == ["r"]


def test_a09_external_names() -> None:
    world = World(service("ext", "- 443", type="ExternalName"), service("ext2", type="ExternalName"))
    answer = world.ask_profile("ext.shop:443")
    assert isinstance(answer, Ended)
    assert answer.code == "INVALID_ARGUMENT"
    assert world.profile("ext2.shop:443") == Profile()


def test_a12_two_services_with_one_ip() -> None:
    a, b = service("a", "- 80", ip="10.96.0.5"), service("b", "- 80", ip="10.96.0.5")
    world = World(a, b)
    answer = world.ask_profile("10.96.0.5:80")
    assert isinstance(answer, Ended)
    assert answer.code == "FAILED_PRECONDITION"
    assert answer.reason == "cannot tell whose 10.96.0.5 is: Services shop/a and shop/b claim it"
    world.drop(a)
    assert world.profile("10.96.0.5:80").name == "b.shop.svc.cluster.test"


def test_e02_k20_a_port_that_is_not_defined() -> None:
    world = World(WEB)
    assert world.profile("10.96.0.1:81") == Profile()
    world.put(service("web", "http 80", "- 81", ip="10.96.0.1"))
    assert world.profile("10.96.0.1:81").name == NAME


def test_e03_l15_headless_services_have_no_ip() -> None:
    world = World(service("db", "pg 5432"), service("x", "pg 5432", ip=""))
    assert world.profile("db.shop:5432").opaque
    assert len(world.catalog.services.by_ip) == 0


CLIENT = service_profile("web.shop", "team", routes=["client-route"])
SERVER = service_profile("web.shop", routes=["server-route"])


@pytest.mark.parametrize(
    ("asking", "expected"),
    [("team", "client-route"), ("other", "server-route"), ("shop", "server-route"), ("", "server-route")],
)
def test_e04_k01_which_profile(asking: str, expected: str) -> None:
    answer = World(WEB, SERVER, CLIENT).profile(IP, asking)
    assert routes(answer) == [expected]
    where = "team" if expected == "client-route" else "shop"
    assert answer.source == Ref("linkerd.io", "ServiceProfile", NAME, where)


def test_e05_e07_fallback() -> None:
    world = World(WEB, SERVER, CLIENT)
    before = world.profile(IP, "team")
    assert world.put(service_profile("web.shop", routes=["changed"]))
    assert world.profile(IP, "team") == before
    assert world.drop(CLIENT)
    assert routes(world.profile(IP, "team")) == ["changed"]
    assert world.drop(SERVER)
    assert world.profile(IP, "team") == DEFAULT
    assert world.put(CLIENT)
    assert routes(world.profile(IP, "team")) == ["client-route"]
    assert world.put(SERVER)
    assert routes(world.profile(IP, "team")) == ["client-route"]


def test_e08_metadata_alone_is_no_change() -> None:
    world = World(WEB, SERVER)
    item = msgspec.structs.replace(
        SERVER, metadata=msgspec.structs.replace(SERVER.metadata, labels={"a": "b"})
    )
    assert world.put(item) == frozenset()


def test_e09_an_unreadable_profile_leaves_open_streams_alone() -> None:
    world = World(WEB, service_profile("web.shop", routes=["good"]))
    broken = service_profile("web.shop", routes=[{"name": "bad", "condition": {}}])
    assert world.put(broken)
    assert world.ask_profile(IP) == Twofold(first=DEFAULT, later=None)
    (complaints,) = world.catalog.complaints.values()
    assert complaints[0].reason == "InvalidServiceProfile"
    assert f"ServiceProfile shop/{NAME}" in complaints[0].message
    world.put(SERVER)
    assert routes(world.profile(IP)) == ["server-route"]
    assert world.catalog.complaints == {}


def test_a_readable_profile_of_the_client_hides_an_unreadable_one() -> None:
    world = World(WEB, CLIENT, service_profile("web.shop", routes=[{"name": "bad"}]))
    assert routes(world.profile(IP, "team")) == ["client-route"]
    assert world.ask_profile(IP) == Twofold(first=DEFAULT)


def test_e13_overrides_get_the_port_that_was_asked_for() -> None:
    authorities = {
        "web-v2.shop.svc.cluster.test": "web-v2.shop.svc.cluster.test:80",
        "web-v1.shop.svc.cluster.test:8080": "web-v1.shop.svc.cluster.test:8080",
        "web-v3.shop.svc.cluster.test.": "web-v3.shop.svc.cluster.test.:80",
        "2001:db8::1": "[2001:db8::1]:80",
        "[2001:db8::1]:81": "[2001:db8::1]:81",
    }
    overrides = [{"authority": authority, "weight": "500m"} for authority in authorities]
    world = World(WEB, service_profile("web.shop", dstOverrides=overrides))
    assert world.profile(IP).overrides == tuple(Override(text, 5000) for text in authorities.values())


def test_e14_retry_budget() -> None:
    budget = {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": "30s"}
    world = World(WEB, service_profile("web.shop", retryBudget=budget))
    assert world.profile(IP).retry_budget == RetryBudget(0.5, 3, 30_000_000_000)


def test_e15_e16_k04_the_annotation_of_a_service() -> None:
    def q(annotation: str | None) -> object:
        annotations = {} if annotation is None else {OPAQUE: annotation}
        return service("q", "amqp 5672", "- 3306", ip="10.96.0.30", annotations=annotations)

    world = World()
    for annotation, opaque in (
        (None, [False, True]),
        ("amqp", [True, False]),
        ("5000-6000", [True, False]),
        ("", [False, False]),
        (None, [False, True]),
        ("3306, 5672", [True, True]),
    ):
        world.put(q(annotation))  # type: ignore[arg-type]
        assert [world.opaque(f"10.96.0.30:{port}") for port in (5672, 3306)] == opaque
    assert world.profile("10.96.0.30:3306").rule == "annotation of the Service"


def test_e15_e20_a_deleted_service_stays_what_it_was_for_open_streams() -> None:
    item = service("q", "amqp 5672", "- 3306", ip="10.96.0.30", annotations={OPAQUE: "5672"})
    sp = service_profile("q.shop", routes=["r"])
    world = World(item, sp)
    assert world.drop(item)
    answers = {port: world.ask_profile(f"10.96.0.30:{port}") for port in (5672, 3306)}
    for port, answer in answers.items():
        assert isinstance(answer, Twofold)
        assert isinstance(answer.first, Profile)
        assert isinstance(answer.later, Profile)
        assert answer.first.endpoint is not None
        assert answer.later.opaque is (port == 3306)
        assert routes(answer.later) == ["r"]
    assert world.drop(sp)
    answer = world.ask_profile("10.96.0.30:5672")
    assert isinstance(answer, Twofold)
    assert routes(answer.later) == []
    by_name = world.ask_profile("q.shop:5672")
    assert isinstance(by_name, Twofold)
    assert (by_name.first, by_name.later) == (Profile(), answer.later)
    world.put(item)
    assert world.profile("10.96.0.30:5672").opaque


def test_an_ip_that_somebody_else_has_taken() -> None:
    item = service("q", "- 80", ip="10.96.0.30")
    world = World(item)
    world.drop(item)
    world.put(pod("p", "10.96.0.30"))
    assert world.endpoint("10.96.0.30:80").identity
    world.drop(pod("p", "10.96.0.30"))
    world.put(service("r", "- 80", ip="10.96.0.30"))
    assert world.profile("10.96.0.30:80").name == "r.shop.svc.cluster.test"


def test_a_service_that_changed_its_ip_is_not_at_the_old_one() -> None:
    world = World(service("q", "- 80", ip="10.96.0.30"))
    touched = world.put(service("q", "- 80", ip="10.96.0.31"))
    assert {subject.name for subject in touched} == {"q", "10.96.0.30", "10.96.0.31"}
    assert world.profile("10.96.0.30:80").endpoint is not None
    assert world.profile("10.96.0.31:80").name == "q.shop.svc.cluster.test"


def test_the_memory_of_deleted_services_is_bounded() -> None:
    world = World()
    for number in range(Services.REMEMBERED + 10):
        item = service(f"s{number}", "- 80", ip=f"10.96.{number // 256}.{number % 256}")
        world.put(item)
        world.drop(item)
    services = world.catalog.services
    assert len(services.departed) == Services.REMEMBERED
    assert services.departed_from("10.96.0.9") is None
    assert services.departed_from("10.96.0.10") == ("shop", "s10")


def test_e18_pods_and_servers_do_not_matter() -> None:
    world = World(
        service("web", "- 80->4242", ip="10.96.0.1"),
        pod("w", "10.1.0.11", annotations={OPAQUE: "4242,80"}),
        endpoint_slice("s", "web", ["- 4242"], "10.1.0.11 pod=w"),
        server("sv", {}, 4242),
    )
    assert not world.opaque(IP)


def test_e19_opaque_ports_of_a_profile_do_not_matter() -> None:
    world = World(service("web", "- 80", ip="10.96.0.1"), service_profile("web.shop", opaquePorts=["80"]))
    assert not world.opaque(IP)
    assert world.profile(IP).source is not None


def test_the_namespace_speaks_for_services_that_say_nothing() -> None:
    world = World(WEB, namespace(opaque="80"))
    assert world.opaque(IP)
    assert world.profile(IP).rule == "annotation of the Namespace"


def test_a_multicluster_service_is_served_and_complained_of() -> None:
    mirror = {"multicluster.linkerd.io/remote-discovery": "east"}
    world = World(service("web", "- 80", ip="10.96.0.1", labels=mirror))
    assert world.profile(IP).name == NAME
    (complaints,) = world.catalog.complaints.values()
    assert [complaint.reason for complaint in complaints] == ["MulticlusterNotServed"]


def test_profiles_of_no_service_are_kept_and_touch_nobody() -> None:
    world = World()
    for name in ("", "one", "www.example.org"):
        item = service_profile(name)
        item = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, name=name))
        world.put(item)
        assert isinstance(world.catalog.profiles.of["shop", name], ProfileFacts)


def test_x01_one_bad_profile_does_not_stop_the_others() -> None:
    world = World(WEB, service_profile("web.shop", routes=["one"]))
    touched = world.put(service_profile("zzz.other", "other", opaquePorts=["80"], routes=[7]))
    assert {(subject.namespace, subject.name) for subject in touched} == {("other", "zzz")}
    world.put(service_profile("web.shop", routes=["two"]))
    assert routes(world.profile(IP)) == ["two"]
