"""What the ruleset does with one connection, rule by rule: for `explain`, dry runs and tests.

The rules and their order are the ruleset's own; this module only knows what each of them matches.
"""

from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Literal

import msgspec

from agent.core.ports import PortSet
from agent.core.ruleset import Direction, inbound, outbound
from agent.core.spec import RedirectSpec


class Connection(msgspec.Struct, frozen=True):
    """The first packet of a connection, as the pod's network namespace sees it.

    `direction`: "in" arrives from outside, "out" is made by a process of the pod; calls over
    loopback and to the pod's own address are "out" with interface "lo". `port`: destination, None
    where the protocol has none. `uid`, `gid`: of the sending socket, outbound only. `syn` False: a
    later packet of a connection that conntrack has not seen. `local` False: forwarded through the
    pod. `source`, `destination`: addresses of `family`, or None.
    """

    direction: Direction
    port: int | None
    protocol: str = "tcp"
    family: Literal[4, 6] = 4
    source: str | None = None
    destination: str | None = None
    uid: int = 1000
    gid: int | None = None
    interface: str = "eth0"
    syn: bool = True
    local: bool = True


class Verdict(msgspec.Struct, frozen=True):
    """`in` or `out`: redirected to the proxy's `to_port`; `direct`: left alone.

    `rule` is the id in the comment of the rule that decided, `setting` the RedirectSpec field
    behind it (None: holds for every pod), `why` one sentence.
    """

    action: Literal["in", "out", "direct"]
    rule: str
    to_port: int | None
    setting: str | None
    why: str


class _Match(msgspec.Struct, frozen=True):
    """What one rule matches; `why` is filled in with the fields of spec and connection."""

    holds: Callable[[RedirectSpec, Connection], bool]
    setting: str | None
    why: str


def decide(spec: RedirectSpec, connection: Connection) -> Verdict:
    """The verdict of the ruleset of `spec`. ValueError if a needed `source` is no IP address."""
    rules = inbound(spec) if connection.direction == "in" else outbound(spec)
    rule = next(rule.id for rule in rules if _MATCHES[rule.id].holds(spec, connection))
    setting, why = _MATCHES[rule].setting, _MATCHES[rule].why
    if rule == "in-skip-port" and _port_in(spec.proxy_ports, connection):
        setting, why = "proxy_ports", "port {packet.port} is the proxy's own control or admin port"
    why = why.format(spec=spec, packet=connection)
    if rule == "in-redirect":
        return Verdict("in", rule, spec.inbound_port, setting, why)
    if rule == "out-redirect":
        return Verdict("out", rule, spec.outbound_port, setting, why)
    return Verdict("direct", rule, None, setting, why)


def _port_in(ports: PortSet, connection: Connection) -> bool:
    return connection.port is not None and connection.port in ports


def _from(subnets: tuple[str, ...], connection: Connection) -> bool:
    source = ip_address(connection.source) if connection.source else None
    return source is not None and any(source in ip_network(subnet) for subnet in subnets)


_NOT_TCP = _Match(lambda _, packet: packet.protocol != "tcp", None, "only TCP is ever redirected")
_NOT_IPV4 = _Match(lambda _, packet: packet.family != 4, "ipv6", "IPv6 is not redirected in this pod")
_NOT_SYN = _Match(lambda _, packet: not packet.syn, None, "connections older than the rules stay as they are")

_MATCHES = {
    "in-not-tcp": _NOT_TCP,
    "in-not-ipv4": _NOT_IPV4,
    "in-not-syn": _NOT_SYN,
    "in-forwarded": _Match(
        lambda _, packet: not packet.local,
        "local_only",
        "it is forwarded through the pod, not addressed to it",
    ),
    "in-skip-port": _Match(
        lambda spec, packet: _port_in(spec.skip_inbound | spec.proxy_ports, packet),
        "skip_inbound",
        "port {packet.port} is on the list of inbound ports to skip",
    ),
    "in-skip-src4": _Match(
        lambda spec, packet: _from(spec.skip_subnets.v4, packet),
        "skip_subnets",
        "source {packet.source} is in a subnet to skip",
    ),
    "in-skip-src6": _Match(
        lambda spec, packet: _from(spec.skip_subnets.v6, packet),
        "skip_subnets",
        "source {packet.source} is in a subnet to skip",
    ),
    "in-unlisted": _Match(
        lambda spec, packet: not _port_in(spec.only_inbound or PortSet(), packet),
        "only_inbound",
        "port {packet.port} is not on the list of inbound ports to redirect",
    ),
    "in-redirect": _Match(
        lambda _spec, _packet: True,
        "inbound_port",
        "inbound TCP goes to the proxy's port {spec.inbound_port} unless a rule says otherwise",
    ),
    "out-not-tcp": _NOT_TCP,
    "out-not-ipv4": _NOT_IPV4,
    "out-not-syn": _NOT_SYN,
    "out-proxy-uid": _Match(
        lambda spec, packet: packet.uid == spec.proxy_uid,
        "proxy_uid",
        "user {packet.uid} is the proxy's, and the proxy's own connections are exempt",
    ),
    "out-proxy-gid": _Match(
        lambda spec, packet: packet.gid == spec.proxy_gid,
        "proxy_gid",
        "group {packet.gid} is the proxy's, and the proxy's own connections are exempt",
    ),
    "out-lo": _Match(
        lambda _, packet: packet.interface == "lo",
        None,
        "it stays inside the pod, over the loopback interface",
    ),
    "out-skip-port": _Match(
        lambda spec, packet: _port_in(spec.skip_outbound, packet),
        "skip_outbound",
        "port {packet.port} is on the list of outbound ports to skip",
    ),
    "out-held": _Match(
        lambda _spec, _packet: True,
        "hold_outbound",
        "outbound is held back from the proxy until it listens on {spec.outbound_port}",
    ),
    "out-redirect": _Match(
        lambda _spec, _packet: True,
        "outbound_port",
        "outbound TCP goes to the proxy's port {spec.outbound_port} unless a rule says otherwise",
    ),
}
