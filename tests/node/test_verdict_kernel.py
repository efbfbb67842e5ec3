"""Random settings and connections: what `decide` says is what the kernel does, rule for rule."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agent.core.ports import PortSet, Subnets
from agent.core.spec import RedirectSpec
from agent.node.nft.socket import Nft
from tests.cases.datapath import Datapath
from tests.cases.wire import disagreements, observe
from tests.lab.addresses import FAMILIES, Family
from tests.lab.pod import Pod, pod_and_world
from tests.lab.probe import opened_standin
from tests.lab.way import Probe

DIRECTIONS: tuple[Literal["in", "out"], ...] = ("in", "out")
PROXY_PORTS = (4140, 4143, 4190, 4191)
PORTS = st.sampled_from((1, 80, 442, 443, 444, 8080, 9000, 9001, 9010, 9011, 65534, 65535, *PROXY_PORTS))
IDS = (0, 1000, 2102, 2150, 65_534)
SOURCES: dict[Family, tuple[str | None, ...]] = {
    4: (
        None,
        "10.0.0.0",
        "10.255.255.255",
        "11.0.0.1",
        "172.17.0.5",
        "172.18.0.1",
        "192.0.2.127",
        "192.0.2.128",
    ),
    6: (None, "fd99::7", "fd99:0:0:1::1", "fd98::7", "2001:db8:5::1", "2001:db8:6::1"),
}
DESTINATIONS: dict[Family, tuple[str | None, ...]] = {
    4: (None, "10.96.0.10", "172.17.0.6"),
    6: (None, "fd00::10", "fd99::8"),
}
RARELY = st.sampled_from((False, False, False, False, True))
LOOPBACK: dict[Family, tuple[str | None, ...]] = {4: (None, "127.0.0.1", "127.255.255.254"), 6: (None, "::1")}


@st.composite
def port_sets(draw: st.DrawFn) -> PortSet:
    ends = draw(st.lists(st.tuples(PORTS, PORTS), max_size=4))
    return PortSet.of(*((min(pair), max(pair)) if draw(st.booleans()) else pair[0] for pair in ends))


@st.composite
def specs(draw: st.DrawFn) -> RedirectSpec:
    inbound, outbound = draw(st.sampled_from([(4143, 4140), (5143, 5140), (65535, 1)]))
    v4 = draw(st.lists(st.sampled_from(("10.0.0.0/8", "172.17.0.0/16", "192.0.2.128/25")), unique=True))
    v6 = draw(st.lists(st.sampled_from(("2001:db8:5::/48", "fd99::/64")), unique=True))
    return RedirectSpec(
        inbound_port=inbound,
        outbound_port=outbound,
        proxy_uid=draw(st.sampled_from((1000, 2102))),
        proxy_gid=draw(st.sampled_from((None, 2150))),
        skip_inbound=draw(port_sets()),
        proxy_ports=PortSet.of(4190, 4191),
        skip_outbound=draw(port_sets()),
        skip_subnets=Subnets(tuple(sorted(v4)), tuple(sorted(v6))),
        only_inbound=draw(port_sets()) if draw(RARELY) else None,
        ipv6=draw(st.booleans()),
        local_only=draw(st.booleans()),
        pin=draw(st.booleans()),
        hold_outbound=draw(RARELY),
    )


@st.composite
def probes(draw: st.DrawFn) -> Probe:
    family = draw(st.sampled_from(FAMILIES))
    direction = draw(st.sampled_from(DIRECTIONS))
    protocol = draw(st.sampled_from(("tcp", "tcp", "tcp", "tcp", "udp", "icmp")))
    loopback = direction == "out" and draw(RARELY)
    # Inbound to one of these is forwarded: the pod does not have them.
    destinations = LOOPBACK[family] if loopback else (None, None, *DESTINATIONS[family])
    return Probe(
        direction=direction,
        port=None if protocol == "icmp" else draw(PORTS),
        protocol=protocol,
        family=family,
        source=draw(st.sampled_from(SOURCES[family])) if direction == "in" else None,
        destination=draw(st.sampled_from(destinations)),
        uid=draw(st.sampled_from(IDS)),
        gid=draw(st.sampled_from((None, *IDS))),
        interface="lo" if loopback else "eth0",
        syn=protocol != "tcp" or not draw(RARELY),
    )


@pytest.fixture(scope="module")
def datapath() -> Iterator[Datapath]:
    with contextlib.closing(Datapath()) as made:
        yield made


@pytest.fixture(scope="module", params=[False, True], ids=["host-user", "own-user-namespace"])
def pod(request: pytest.FixtureRequest) -> Iterator[Pod]:
    with pod_and_world(user_namespace=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def nft(pod: Pod, datapath: Datapath) -> Iterator[Nft]:
    with datapath.opened(pod.path) as opened:
        yield opened


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs(), connections=st.lists(probes(), min_size=6, max_size=10))
def test_the_kernel_does_what_decide_says(
    pod: Pod, nft: Nft, datapath: Datapath, spec: RedirectSpec, connections: list[Probe]
) -> None:
    datapath.install(nft, spec)
    with opened_standin(pod, inbound=spec.inbound_port, outbound=spec.outbound_port) as standin:
        for probe in connections:
            seen = observe(pod, standin, nft, spec, probe)
            event(seen.verdict.rule)
            assert not disagreements(seen, spec, probe), (probe, seen)
