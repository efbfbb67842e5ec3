"""The cost of an event, and of an answer, is that of what it touches: it does not grow with the cluster."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from agent.core.discovery import objects
from agent.core.objects import Object
from tests.core.discovery.world import (
    OPAQUE,
    World,
    endpoint_slice,
    namespace,
    node,
    owned,
    pod,
    server,
    service,
    service_profile,
)


def cluster(size: int) -> World:
    """Services of two pods each, ten to a namespace."""
    world = World()
    for number in range(size):
        space = f"ns-{number // 10}"
        ips = [f"10.{number // 100}.{number % 100}.{each}" for each in (1, 2)]
        fields: dict[str, Any] = {"namespace": space}
        world.put(service(f"s{number}", "- 80", ip=f"10.96.{number // 256}.{number % 256}", **fields))
        eps = [f"{ip} pod=p{number}-{each}" for each, ip in enumerate(ips)]
        world.put(endpoint_slice(f"e{number}", f"s{number}", ["- 80"], *eps, **fields))
        for each, ip in enumerate(ips):
            labels = {"app": f"s{number}"}
            world.put(pod(f"p{number}-{each}", ip, labels=labels, owner=f"ReplicaSet r{number}", **fields))
        world.put(server(f"v{number}", {"app": f"s{number}"}, 81, **fields))
    return world


def calls(function: Callable[[], object]) -> int:
    """How many calls of functions, Python's and C's, a call makes."""
    count = 0

    def seen(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


SPACE: dict[str, Any] = {"namespace": "ns-0"}
EVENTS: list[Object] = [
    service("s3", "- 80", "- 81", ip="10.96.0.3", **SPACE),
    endpoint_slice("e3", "s3", ["- 80"], "10.0.3.1 pod=p3-0", "10.0.3.2 pod=p3-1 ready=false", **SPACE),
    pod("p3-0", "10.0.3.1", labels={"app": "s3"}, owner="ReplicaSet r3", annotations={OPAQUE: "80"}, **SPACE),
    server("v3", {"app": "s3"}, 80, **SPACE),
    service_profile("s3.ns-0", "ns-0", routes=["r"]),
    owned(objects.ReplicaSet, "r3", "Deployment d", **SPACE),
    namespace("ns-0", opaque="80"),
    node("n1", "za"),
]


@pytest.fixture(scope="module", name="worlds")
def both_worlds() -> tuple[World, World]:
    return cluster(20), cluster(1500)


@pytest.mark.parametrize("event", EVENTS, ids=[type(event).__name__ for event in EVENTS])
def test_b_18_the_cost_of_an_event_is_flat(worlds: tuple[World, World], event: Object) -> None:
    touched = [len(world.put(event)) for world in worlds]
    assert touched[0] == touched[1] > 0
    small, large = (calls(lambda world=world: (world.drop(event), world.put(event))) for world in worlds)
    assert large <= small * 1.05 + 5


def test_the_cost_of_a_state_of_redirection_is_flat(worlds: tuple[World, World]) -> None:
    small, large = (
        calls(lambda world=world: world.catalog.set_redirection("uid-ns-0-p4-0", "failed"))
        for world in worlds
    )
    assert large <= small * 1.05 + 5


@pytest.mark.parametrize("path", ["s5.ns-0:80", "10.0.5.1:80", "10.96.0.5:80"])
def test_the_cost_of_an_answer_is_flat(worlds: tuple[World, World], path: str) -> None:
    small, large = (calls(lambda world=world: world.ask_profile(path)) for world in worlds)
    assert large <= small * 1.05 + 5
    if path[0] == "s":
        small, large = (calls(lambda world=world: world.ask(path)) for world in worlds)
        assert large <= small * 1.05 + 5
