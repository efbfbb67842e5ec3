"""The tables of the catalog, the events that it takes, and what they weigh."""

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cluster import Cluster
from agent.core.discovery import objects
from agent.core.discovery.answers import Address
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.multimap import Multimap, move
from agent.core.objects import Drop, Object, Pod, Put, Replace, Service
from tests.core.discovery.world import (
    OPAQUE,
    World,
    endpoint_slice,
    make,
    node,
    pod,
    server,
    service,
    service_profile,
    workload,
)

changes = st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 12)), max_size=120)


@given(changes)
def test_a_multimap_is_a_dictionary_of_sets(script: list[tuple[bool, int, int]]) -> None:
    model: dict[int, set[int]] = {}
    found: Multimap[int, int] = Multimap()
    for adding, key, value in script:
        if adding:
            model.setdefault(key, set()).add(value)
            found.add(key, value)
        else:
            model.get(key, set()).discard(value)
            found.discard(key, value)
        model = {key: values for key, values in model.items() if values}
        assert {key: set(found[key]) for key in found} == model
        assert len(found) == len(model)
        assert all(len(found[key]) == len(model[key]) for key in model)


def test_what_stays_keeps_its_turn() -> None:
    found: Multimap[str, str] = Multimap()
    move("a", (), [(found, "x"), (found, "y")])
    move("b", (), [(found, "x")])
    move("a", [(found, "x"), (found, "y")], [(found, "x"), (found, "z")])
    assert found["x"] == ("a", "b")
    assert (found["y"], found["z"]) == ((), ("a",))


OTHERS: list[Object] = [
    make(objects.ConfigMap, "linkerd-config", data={"values": ""}),
    service("web", "- 80"),
    endpoint_slice("w", "web", ["- 80"], "10.1.0.1"),
    server("s", {}, 80),
    service_profile("web.shop"),
    workload("vm", "10.2.0.1", ports=["- 80"]),
    node("n1", "za"),
]


@pytest.mark.parametrize("item", OTHERS, ids=[type(item).__name__ for item in OTHERS])
def test_redirection_passes_over_what_only_discovery_reads(item: Object) -> None:
    cluster = Cluster()
    cluster.apply(Put(pod("a", "10.1.0.1")))
    for event in (Put(item), Drop(item), Replace(type(item), (item,)), Replace(type(item), ())):
        assert cluster.apply(event) == set()
    assert type(item) in cluster.listed
    assert len(cluster.pods) == 1


def test_discovery_passes_over_the_settings() -> None:
    catalog = Catalog()
    item = OTHERS[0]
    assert len(catalog.apply(Replace(objects.ConfigMap, (item,)))) == 1
    assert catalog.apply(Put(item)) == catalog.apply(Drop(item)) == frozenset()


def test_g06_a_late_drop_of_the_old_uid_leaves_the_new_pod() -> None:
    old, new = pod("db-0", "10.1.0.1", uid="old"), pod("db-0", "10.1.0.1", uid="new", account="new")
    world = World(old, new)
    world.drop(old)
    assert world.endpoint("10.1.0.1:80").identity.startswith("new.")
    assert world.drop(old) == frozenset()


def test_a_slice_that_names_a_uid_means_that_pod() -> None:
    world = World(
        service("db", "- 80"),
        endpoint_slice("d", "db", ["- 80"], "10.1.0.1 pod=db-0 uid=old"),
        pod("db-0", "10.1.0.1", uid="old", account="old"),
        pod("db-0", "10.1.0.2", uid="new", account="new", creationTimestamp="2026-01-01T00:00:00Z"),
    )
    assert world.one("db.shop:80").identity.startswith("old.")
    world.drop(pod("db-0", uid="old"))
    assert world.one("db.shop:80").identity.startswith("new.")


def test_pods_of_one_owner_share_what_is_equal() -> None:
    fields = {
        "owner": "ReplicaSet r",
        "labels": {"app": "a"},
        "annotations": {OPAQUE: "80"},
        "ports": ["x 1"],
    }
    world = World(*(pod(f"p{number}", f"10.1.0.{number}", **fields) for number in range(3)))
    one, two, three = world.catalog.pods.of.values()
    for field in ("labels", "ports", "proxy", "opaque", "owner"):
        assert getattr(one, field) is getattr(two, field) is getattr(three, field)


def test_a_pod_weighs_little() -> None:
    """Decoded as the API sends them, 10 pods to an owner; indexes and all."""
    texts = [msgspec.json.encode(_of_the_api(number)) for number in range(1000)]
    decoder = msgspec.json.Decoder(Pod)
    catalog = Catalog()
    catalog.apply(Put(decoder.decode(texts[0])))
    tracemalloc.start()
    for text in texts:
        catalog.apply(Put(decoder.decode(text)))
    weight, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(catalog.pods.of) == 1000
    assert weight / 1000 < 1700


def _of_the_api(number: int) -> dict[str, object]:
    name = f"web-{number // 10}"
    item = msgspec.to_builtins(
        pod(
            f"{name}-6f9c4-{number:05x}",
            f"10.1.{number // 250}.{number % 250}",
            uid=f"00000000-0000-4000-8000-{number:012d}",
            owner=f"ReplicaSet {name}-6f9c4",
            labels={"app": name, "pod-template-hash": "6f9c4", "linkerd.io/workload-ns": "shop"},
            annotations={OPAQUE: "25,587,3306"},
            ports=["http 8080"],
            host_ips=["192.0.2.1"],
            account=name,
        )
    )
    assert isinstance(item, dict)
    item["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": {"f:x": {}}}] * 20
    return item


def test_an_address_is_hashed_by_its_content() -> None:
    world = World(pod("a", "10.1.0.1"))
    one, two = world.endpoint("10.1.0.1:80"), world.endpoint("10.1.0.1:80")
    assert {one: 1}[two] == 1
    assert one != Address("10.1.0.1", 80)


def test_services_of_other_names_are_not_kept_by_redirection() -> None:
    cluster = Cluster()
    cluster.apply(Replace(Service, tuple(service(f"s{number}", "- 80") for number in range(10))))
    assert cluster.services == {}
