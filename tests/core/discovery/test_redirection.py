"""What the state of a pod's redirection does to its answers."""

import pytest

from agent.core.discovery.answers import Hint
from tests.core.discovery.world import World, endpoint_slice, namespace, pod, service

IDENTITY = "default.shop.serviceaccount.identity.l5d.mesh.test"
P = pod("p", "10.1.0.11", uid="p")


def test_f22_a_failed_pod_is_answered_in_clear() -> None:
    world = World(P, pod("q", "10.1.0.12", node="n2"), service("web", "- 80"))
    world.put(endpoint_slice("w", "web", ["- 80"], "10.1.0.11 pod=p"))
    touched = world.catalog.set_redirection("p", "failed", "Contested")
    assert {(subject.kind, subject.name) for subject in touched} == {
        ("address", "10.1.0.11"),
        ("service", "web"),
    }
    for address in (world.endpoint("10.1.0.11:80"), world.one("web.shop:80")):
        assert (address.identity, address.server_name, address.hint, address.http2) == ("", "", None, False)
        assert (address.withheld, address.redirection) == ("Contested", "failed")
        assert ("pod", "p") in address.labels
    assert world.endpoint("10.1.0.12:80").identity == IDENTITY
    assert world.catalog.set_redirection("p", "redirected")
    assert world.endpoint("10.1.0.11:80").identity == IDENTITY
    assert world.endpoint("10.1.0.11:80").redirection == "redirected"


@pytest.mark.parametrize("mode", ["allow", "deny"])
def test_the_other_modes_keep_the_identity(mode: str) -> None:
    world = World(P, require_redirection=mode)
    world.catalog.set_redirection("p", "failed")
    address = world.endpoint("10.1.0.11:80")
    assert (address.identity, address.hint) == (IDENTITY, Hint("h2"))
    assert (address.withheld, address.redirection) == ("", "failed")


def test_the_proxys_own_ports_need_no_redirection() -> None:
    world = World(P)
    world.catalog.set_redirection("p", "failed")
    assert world.endpoint("10.1.0.11:4191").identity == IDENTITY
    assert world.endpoint("10.1.0.11:4190").identity == IDENTITY
    assert world.endpoint("10.1.0.11:4143").identity == ""


def test_what_is_not_known_withholds_nothing() -> None:
    world = World(P)
    for state in ("pending", "unknown"):
        assert world.catalog.set_redirection("p", state) == frozenset()  # type: ignore[arg-type]
        assert world.endpoint("10.1.0.11:80").identity == IDENTITY


def test_a_state_may_come_before_its_pod_and_goes_with_it() -> None:
    world = World()
    assert world.catalog.set_redirection("p", "failed") == frozenset()
    world.put(P)
    assert world.endpoint("10.1.0.11:80").withheld == "NotRedirected"
    world.drop(P)
    world.put(P)
    assert world.endpoint("10.1.0.11:80").identity == IDENTITY


def test_the_same_state_again_touches_nobody() -> None:
    world = World(P)
    assert world.catalog.set_redirection("p", "failed", "Contested")
    assert world.catalog.set_redirection("p", "failed", "Contested") == frozenset()
    assert world.catalog.set_redirection("p", "pending")
    assert world.catalog.set_redirection("p", "unknown") == frozenset()


@pytest.mark.parametrize(
    ("condition", "withheld"),
    [
        ("False Drifted", "Drifted"),
        ("False", "NotRedirected"),
        ("False Whatever", "NotRedirected"),
        ("True", ""),
    ],
)
def test_other_nodes_say_it_by_a_condition(condition: str, withheld: str) -> None:
    world = World(pod("q", "10.1.0.12", redirected=condition, uid="q"))
    assert world.endpoint("10.1.0.12:80").withheld == withheld
    assert world.endpoint("10.1.0.12:80").redirection == ("failed" if withheld else "redirected")


def test_the_agent_of_the_node_stands_over_the_condition() -> None:
    world = World(pod("q", "10.1.0.12", redirected="False", uid="q"))
    world.catalog.set_redirection("q", "redirected")
    assert world.endpoint("10.1.0.12:80").identity == IDENTITY
    world.catalog.set_redirection("q", "pending")
    assert world.endpoint("10.1.0.12:80").identity == ""
    world.put(pod("q", "10.1.0.12", redirected="Unknown", uid="q"))
    assert world.endpoint("10.1.0.12:80").identity == IDENTITY


@pytest.mark.parametrize(
    ("own", "inherited", "identity"),
    [
        (None, None, IDENTITY),
        ("disabled", None, ""),
        (None, "disabled", ""),
        ("enabled", "disabled", IDENTITY),
        ("nonsense", None, IDENTITY),
        ("nonsense", "disabled", ""),
    ],
)
def test_the_kill_switch(own: str | None, inherited: str | None, identity: str) -> None:
    annotations = {} if own is None else {"pointsman.io/redirect": own}
    world = World(pod("p", "10.1.0.11", annotations=annotations))
    if inherited is not None:
        world.put(namespace(redirect=inherited))
    address = world.endpoint("10.1.0.11:80")
    assert address.identity == identity
    assert address.withheld == ("" if identity else "RedirectDisabled")
