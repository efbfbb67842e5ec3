"""Pods of other nodes are fetched when an answer needs them; no address is sent ahead of its identity."""

from agent.core.discovery.answers import Lack, Profile, Twofold
from tests.core.discovery.world import World, endpoint_slice, pod, service, workload

WEB = service("web", "- 80", ip="10.96.0.1")
SLICE = endpoint_slice(
    "w", "web", ["- 80"], "10.1.0.11 pod=a host=a", "10.1.0.12 pod=b host=b", "192.0.2.1 host=plain"
)
A, B = Lack("pod", "a", "shop"), Lack("pod", "b", "shop")


def test_get_waits_for_the_pods_that_its_slices_name() -> None:
    world = World(WEB, SLICE, on_demand=True)
    answer = world.ask("web.shop:80")
    assert isinstance(answer, Twofold)
    assert (answer.first, answer.lacking) == (None, frozenset((A, B)))
    assert world.put(pod("a", "10.1.0.11"))
    answer = world.ask("web.shop:80")
    assert isinstance(answer, Twofold)
    assert answer.lacking == frozenset((B,))
    assert [address.ip for address in answer.later.addresses] == ["10.1.0.11", "192.0.2.1"]  # type: ignore[union-attr]
    touched = world.catalog.prove_absent(B)
    assert {subject.name for subject in touched} == {"web", "10.1.0.12"}
    assert world.view("web.shop:80") == ["10.1.0.11:80", "192.0.2.1:80"]
    assert world.put(pod("b", "10.1.0.12"))
    assert len(world.view("web.shop:80")) == 3


def test_an_endpoint_of_another_port_is_not_waited_for() -> None:
    world = World(service("web", "x 80", "y 81"), on_demand=True)
    world.put(endpoint_slice("s", "web", ["x 80"], "10.1.0.11 pod=a"))
    assert world.view("web.shop:81") == []


def test_an_ip_that_a_slice_names_waits_for_that_pod() -> None:
    world = World(WEB, SLICE, on_demand=True)
    assert world.ask_profile("10.1.0.12:7000") == Twofold(lacking=frozenset((B,)))
    assert {subject.name for subject in world.put(pod("b", "10.1.0.12"))} == {"web", "10.1.0.12"}
    assert world.endpoint("10.1.0.12:7000").identity


def test_an_unknown_ip_is_bare_only_once_it_is_proven() -> None:
    world = World(on_demand=True)
    lack = Lack("address", "203.0.113.9")
    assert world.ask_profile("203.0.113.9:80") == Twofold(lacking=frozenset((lack,)))
    assert [subject.name for subject in world.catalog.prove_absent(lack)] == ["203.0.113.9"]
    assert world.endpoint("203.0.113.9:80").labels == ()
    assert [subject.name for subject in world.put(pod("late", "203.0.113.9"))] == ["203.0.113.9"]
    assert world.endpoint("203.0.113.9:80").identity
    world.drop(pod("late", "203.0.113.9"))
    assert [subject.name for subject in world.catalog.doubt(lack)] == ["203.0.113.9"]
    assert isinstance(world.ask_profile("203.0.113.9:80"), Twofold)


def test_what_is_known_is_answered_at_once() -> None:
    world = World(WEB, workload("vm", "198.51.100.1", ports=["- 80"]), pod("own", "10.1.0.1"), on_demand=True)
    for path in ("10.96.0.1:80", "198.51.100.1:80", "10.1.0.1:80", "ghost.shop:80"):
        assert isinstance(world.ask_profile(path), Profile)


def test_a_slice_that_comes_later_says_whose_an_ip_is() -> None:
    world = World(WEB, on_demand=True)
    world.ask_profile("10.1.0.11:80")
    touched = world.put(SLICE)
    assert ("address", "10.1.0.11") in {(subject.kind, subject.name) for subject in touched}
    assert world.ask_profile("10.1.0.11:80") == Twofold(lacking=frozenset((A,)))
    world.catalog.prove_absent(A)
    assert world.ask_profile("10.1.0.11:80") == Twofold(lacking=frozenset((Lack("address", "10.1.0.11"),)))
    world.drop(SLICE)
    assert world.catalog.slices.targets_at("10.1.0.11") == set()


def test_a_hostname_waits_for_its_pod() -> None:
    world = World(WEB, SLICE, on_demand=True)
    assert world.ask_profile("b.web.shop:80") == Twofold(lacking=frozenset((B,)))
    world.put(pod("b", "10.1.0.12"))
    assert world.endpoint("b.web.shop:80").identity
    assert world.ask_profile("c.web.shop:80") == Profile()
    assert world.ask_profile("plain.web.shop:80") == Twofold(
        lacking=frozenset((Lack("address", "192.0.2.1"),))
    )


def test_where_all_pods_are_listed_nothing_is_waited_for() -> None:
    world = World(WEB, SLICE)
    assert world.view("web.shop:80") == ["192.0.2.1:80"]
    assert world.endpoint("10.1.0.12:80").labels == ()
    assert world.catalog.slices.targets_at("10.1.0.12") == set()
