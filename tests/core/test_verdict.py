"""Verdicts rule by rule. That the kernel agrees is tested in real network namespaces."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.ports import PortSet, Subnets
from agent.core.ruleset import RULES, Direction, inbound, outbound
from agent.core.spec import RedirectSpec
from agent.core.verdict import _MATCHES, Connection, Verdict, decide
from tests.core.test_ruleset import DEFAULT, specs

SPEC = msgspec.structs.replace(
    DEFAULT, skip_subnets=Subnets(v4=("172.17.0.0/16",), v6=("fd99::/64",)), skip_outbound=PortSet.of(25)
)


def decided(direction: Direction, port: int | None = 80, spec: RedirectSpec = SPEC, **fields: Any) -> Verdict:
    return decide(spec, Connection(direction, port, **fields))


def changed(**fields: Any) -> RedirectSpec:
    return msgspec.structs.replace(SPEC, **fields)


@pytest.mark.parametrize(
    ("verdict", "action", "rule", "setting"),
    [
        (decided("in"), "in", "in-redirect", "inbound_port"),
        (decided("in", 4143), "in", "in-redirect", "inbound_port"),
        (decided("in", 4190), "direct", "in-skip-port", "proxy_ports"),
        (decided("in", 4567), "direct", "in-skip-port", "skip_inbound"),
        (decided("in", source="172.17.0.5"), "direct", "in-skip-src4", "skip_subnets"),
        (decided("in", source="172.18.0.5"), "in", "in-redirect", "inbound_port"),
        (decided("in", protocol="udp"), "direct", "in-not-tcp", None),
        (decided("in", syn=False), "direct", "in-not-syn", None),
        (decided("in", family=6, source="fd98::7"), "direct", "in-not-ipv4", "ipv6"),
        (decided("in", 4190, local=False), "direct", "in-forwarded", "local_only"),
        (decided("in", local=False, spec=changed(local_only=False)), "in", "in-redirect", "inbound_port"),
        (
            decided("in", 8080, spec=changed(only_inbound=PortSet.of(8080))),
            "in",
            "in-redirect",
            "inbound_port",
        ),
        (
            decided("in", 7070, spec=changed(only_inbound=PortSet.of(8080))),
            "direct",
            "in-unlisted",
            "only_inbound",
        ),
        (decided("in", 7070, spec=changed(only_inbound=PortSet())), "direct", "in-unlisted", "only_inbound"),
        (decided("out"), "out", "out-redirect", "outbound_port"),
        (decided("out", 53), "out", "out-redirect", "outbound_port"),
        (decided("out", 25), "direct", "out-skip-port", "skip_outbound"),
        (decided("out", uid=2102), "direct", "out-proxy-uid", "proxy_uid"),
        (decided("out", uid=0), "out", "out-redirect", "outbound_port"),
        (decided("out", gid=2150, spec=changed(proxy_gid=2150)), "direct", "out-proxy-gid", "proxy_gid"),
        (decided("out", gid=1000, spec=changed(proxy_gid=2150)), "out", "out-redirect", "outbound_port"),
        (decided("out", gid=None), "out", "out-redirect", "outbound_port"),
        (decided("out", interface="lo"), "direct", "out-lo", None),
        (decided("out", uid=2102, interface="lo"), "direct", "out-proxy-uid", "proxy_uid"),
        (decided("out", destination="172.17.0.5"), "out", "out-redirect", "outbound_port"),
        (decided("out", None, protocol="icmp"), "direct", "out-not-tcp", None),
        (decided("out", syn=False), "direct", "out-not-syn", None),
        (decided("out", family=6), "direct", "out-not-ipv4", "ipv6"),
        (decided("out", family=6, spec=changed(ipv6=True)), "out", "out-redirect", "outbound_port"),
    ],
)
def test_each_rule(verdict: Verdict, action: str, rule: str, setting: str | None) -> None:
    assert (verdict.action, verdict.rule, verdict.setting) == (action, rule, setting)


@pytest.mark.parametrize(
    ("source", "rule"), [("fd99::7", "in-skip-src6"), ("fd98::7", "in-redirect"), (None, "in-redirect")]
)
def test_ipv6_sources(source: str | None, rule: str) -> None:
    assert decided("in", family=6, source=source, spec=changed(ipv6=True)).rule == rule


def test_redirects_name_the_proxys_port() -> None:
    spec = changed(inbound_port=5143, outbound_port=5140)
    assert (decided("in", spec=spec).to_port, decided("out", spec=spec).to_port) == (5143, 5140)
    assert decided("in", 4190).to_port is None


def test_why_names_what_was_matched() -> None:
    assert decided("out", 25).why == "port 25 is on the list of outbound ports to skip"
    assert "172.17.0.5" in decided("in", source="172.17.0.5").why
    assert "4140" in decided("out").why


def test_a_source_that_is_no_address_is_an_error() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        decided("in", source="nowhere")


def test_every_rule_of_the_ruleset_has_its_match() -> None:
    assert set(_MATCHES) == set(RULES)


connections = st.builds(
    Connection,
    direction=st.sampled_from(["in", "out"]),
    port=st.integers(0, 65535),
    protocol=st.sampled_from(["tcp", "udp"]),
    family=st.sampled_from([4, 6]),
    source=st.sampled_from([None, "10.0.0.9", "192.0.2.1", "fd99::9", "fd98::9"]),
    uid=st.sampled_from([0, 1000, 2102]),
    gid=st.sampled_from([None, 0, 2150]),
    interface=st.sampled_from(["eth0", "lo"]),
    syn=st.booleans(),
    local=st.booleans(),
)


@given(specs, connections)
def test_the_rule_is_in_the_chain_and_the_action_is_its_end(
    spec: RedirectSpec, connection: Connection
) -> None:
    verdict = decide(spec, connection)
    rules = {rule.id: rule for rule in (inbound if connection.direction == "in" else outbound)(spec)}
    end = rules[verdict.rule].end
    assert verdict.action == (connection.direction if end.startswith("redirect") else "direct")
    assert (verdict.to_port is not None) == end.startswith("redirect")
    assert end.endswith(f":{verdict.to_port}") or verdict.to_port is None
    assert not re.search(r"[{}]", verdict.why)


@given(specs, connections)
def test_pin_changes_no_verdict(spec: RedirectSpec, connection: Connection) -> None:
    other = msgspec.structs.replace(spec, pin=not spec.pin)
    assert decide(spec, connection) == decide(other, connection)
