"""Whom a proxy asks, by its variable; what a redirection means; no kernel, no clock."""

import msgspec
import pytest

from agent.core.discovery.asked import Asked, asked
from agent.core.discovery.redirected import deliberate, known
from agent.core.lifecycle import Redirection
from agent.core.objects import Pod
from agent.core.reasons import MEANINGS, Phase, Reason

VARIABLE = "LINKERD2_PROXY_DESTINATION_SVC_ADDR"


def pod(*addresses: str | None, ports: tuple[dict[str, object], ...] = (), init: bool = False) -> Pod:
    env = [{"name": VARIABLE, **({} if each is None else {"value": each})} for each in addresses]
    proxy = {"name": "linkerd-proxy", "env": env, "ports": [{"containerPort": 4186}]}
    spec = {"containers": [{"name": "app", "ports": list(ports)}]}
    spec["initContainers" if init else "containers"] = [
        *spec.get("initContainers" if init else "containers", []),
        proxy,
    ]
    return msgspec.convert({"metadata": {"name": "web", "uid": "u"}, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:4186", "127.0.0.1", 4186),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("127.255.0.9:65535", "127.255.0.9", 65535),
        ("[::1]:4186", "::1", 4186),
        ("[0:0:0:0:0:0:0:1]:4186", "::1", 4186),
        ("localhost.:4186", "127.0.0.1", 4186),
        ("LocalHost.:4186", "127.0.0.1", 4186),
    ],
)
def test_loopback_is_us(address: str, host: str, port: int) -> None:
    assert asked(pod(address), 4999) == Asked("us", host, port)


@pytest.mark.parametrize(
    "address",
    [
        "linkerd-dst-headless.linkerd.svc.cluster.local.:8086",
        "localhost:4186",
        "10.0.0.1:4186",
        "0.0.0.0:4186",
        "[::ffff:127.0.0.1]:4186",
        "[::1%lo]:4186",
        "::1:4186",
        "[127.0.0.1]:4186",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:+80",
        "127.0.0.1:٨٠",
        "127.1:4186",
        "127.evil.example:4186",
        "",
    ],
)
def test_anything_else_is_not(address: str) -> None:
    assert asked(pod(address), 4999) == Asked("central")


def test_a_proxy_that_does_not_say_has_the_default_port() -> None:
    assert asked(pod(), 4999) == Asked("nobody", port=4999)
    assert asked(pod(None), 4999) == Asked("nobody", port=4999)


def test_the_last_of_equal_variables_counts_as_it_does_to_the_kubelet() -> None:
    assert asked(pod("central.test.:8086", "127.0.0.1:4186"), 4999) == Asked("us", port=4186)


def test_a_native_sidecar_is_a_proxy_too() -> None:
    assert asked(pod("127.0.0.1:4186", init=True), 4999) == Asked("us", port=4186)


def test_a_pod_without_a_proxy_asks_nobody() -> None:
    plain = msgspec.convert({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}}, Pod)
    assert asked(plain, 4186) is None


@pytest.mark.parametrize(
    ("port", "declares"),
    [
        ({"containerPort": 4186}, True),
        ({"containerPort": 4186, "protocol": "TCP"}, True),
        ({"containerPort": 4186, "protocol": "UDP"}, False),
        ({"containerPort": 4186, "protocol": "SCTP"}, False),
        ({"containerPort": 4187}, False),
    ],
)
def test_a_declared_port_is_the_applications(port: dict[str, object], declares: bool) -> None:
    found = asked(pod("127.0.0.1:4186", ports=(port,)), 4999)
    assert found is not None
    assert found.declared_by == ("app" if declares else "")


def test_an_address_is_written_as_it_is_bound() -> None:
    assert Asked("us", "::1", 4186).address == "[::1]:4186"
    assert Asked("us", "127.0.0.1", 4186).address == "127.0.0.1:4186"


@pytest.mark.parametrize("reason", [reason for reason in Reason if MEANINGS[reason].phase is not None])
def test_every_reason_says_whether_a_pod_may_be_announced(reason: Reason) -> None:
    phase = MEANINGS[reason].phase
    assert phase is not None
    expected = {Phase.APPLIED: "redirected", Phase.FAILED: "failed"}.get(phase, "pending")
    expected = "failed" if reason in (Reason.OBSERVED, Reason.DRAINING) else expected
    status = Redirection(phase=phase, reason=reason)
    assert known(status) == expected
    assert deliberate(status) is (reason is Reason.DRAINING)


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        (("table is an orphan, should be owned",), "redirected"),
        (("table is owned, should be plain",), "redirected"),
        (("table is an orphan, should be owned", "chain output missing"), "failed"),
        (("table is dormant",), "failed"),
        (("rule 1 of output differs",), "failed"),
        ((), "failed"),
    ],
)
def test_who_owns_a_table_is_nothing_to_its_rules(differences: tuple[str, ...], expected: str) -> None:
    assert known(Redirection(Phase.FAILED, Reason.DRIFTED, differences=differences)) == expected
