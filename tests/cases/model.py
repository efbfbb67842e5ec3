"""A case as the product's own values: pod, namespace, node defaults; and what is expected of them."""

import ipaddress
from typing import Any, Literal

import msgspec

from agent.core.objects import Namespace, Pod
from agent.core.ports import PortSet
from agent.core.spec import NodeDefaults
from tests.cases import pods
from tests.cases.load import Entry
from tests.cases.schema import CaseText, ConnectionText, PodText, PortList
from tests.lab.addresses import Family, family_of
from tests.lab.standin import Endpoint
from tests.lab.way import Probe

POD_IP = "podIP"
"""Symbol for the pod's address in `to`, `from` and `orig_dst`."""

Place = Literal["in", "out", "direct"]


class CaseError(Exception):
    """A case that cannot be understood; the message names the case, the key and what is wrong."""


class Effective(msgspec.Struct, frozen=True):
    """The settings that must come out, read by other code than the product's."""

    inbound: int
    outbound: int
    in_base: frozenset[int]
    in_skip: frozenset[int]
    out_skip: frozenset[int]
    subnets: frozenset[str]
    ipv6: bool
    uid: int
    gid: int | None
    listed: frozenset[int] | None
    local_only: bool


class Step(msgspec.Struct, frozen=True):
    """One connection of a case. `probe` and `original`, the original destination, may hold POD_IP.

    `either_family`: nothing in it says IPv4 or IPv6.
    """

    probe: Probe
    expect: Place
    to_port: int | None
    original: Endpoint | None
    either_family: bool

    def __str__(self) -> str:
        plain = Probe(direction=self.probe.direction)
        fields = msgspec.structs.asdict(self.probe).items()
        return " ".join(
            [
                self.probe.direction,
                *(f"{name} {value}" for name, value in fields if value != getattr(plain, name)),
            ]
        )


class Case(msgspec.Struct, frozen=True):
    """One case. `effective` is None when the case says nothing of settings (life cycle)."""

    id: str
    title: str
    pod: Pod
    namespace: Namespace
    defaults: NodeDefaults
    kubernetes_ports: PortSet | None
    effective: Effective | None
    steps: tuple[Step, ...]
    then: tuple[str, ...]
    interfaces: tuple[str, ...]
    addresses: dict[Family, str]
    """The pod's addresses where the case names them."""
    text: CaseText


def case(entry: Entry) -> Case:
    """The case of an entry. Raises CaseError."""
    try:
        # A mapping without content reads as null, and says as much as an empty one.
        empty: dict[str, Any] = {
            key: {} for key in ("pod", "node", "effective") if entry.data.get(key, "") is None
        }
        return _case(msgspec.convert(_without_nulls(entry.data) | empty, CaseText))
    except ValueError as error:
        raise CaseError(f"cannot use {entry.id} ({entry.where}): {error}") from error


def ports(value: PortList) -> frozenset[int]:
    """The ports of `22,9000-9010`, a number, or a list of both. Raises ValueError."""
    found: set[int] = set()
    for item in value if isinstance(value, list) else [value]:
        for part in filter(str.strip, str(item).split(",")):
            low, _, high = part.strip().partition("-")
            if not 0 <= int(low) <= int(high or low) <= 65_535:
                raise ValueError(f"{part!r} is no range of ports")
            found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def subnets(value: str | list[str]) -> frozenset[str]:
    """The networks of `10.0.0.0/8, fd99::/64`, canonical, those inside others left out. Raises ValueError."""
    parts = ",".join(value if isinstance(value, list) else [value]).split(",")
    networks = [ipaddress.ip_network(part.strip(), strict=False) for part in parts if part.strip()]
    v4 = ipaddress.collapse_addresses(net for net in networks if isinstance(net, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(net for net in networks if isinstance(net, ipaddress.IPv6Network))
    return frozenset(map(str, (*v4, *v6)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _case(text: CaseText) -> Case:
    addresses = _pod_addresses(text.pod)
    return Case(
        id=str(text.id),
        title=text.title,
        pod=pods.pod(
            text.pod, addresses, add_proxy=text.effective is not None or text.pod.containers is None
        ),
        namespace=pods.namespace(text.pod),
        defaults=pods.defaults(text.node),
        kubernetes_ports=pods.kubernetes_ports(text.pod),
        effective=_effective(text),
        steps=tuple(_step(connection, addresses) for connection in text.connections),
        then=tuple(_prose(item) for item in text.then),
        interfaces=tuple(name for name in text.pod.interfaces if name not in ("eth0", "lo")),
        addresses={family_of(address): address for address in addresses},
        text=text,
    )


def _pod_addresses(pod: PodText) -> list[str]:
    """The pod's addresses, at most one of each family. Raises ValueError."""
    first = [pod.pod_ip] if isinstance(pod.pod_ip, str) else pod.pod_ip or []
    addresses = list(dict.fromkeys(str(ipaddress.ip_address(each)) for each in (*first, *pod.pod_ips)))
    if len({*map(family_of, addresses)}) < len(addresses):
        raise ValueError(f"a pod has one address of each family at most, not {', '.join(addresses)}")
    return addresses


def _prose(item: Any) -> str:
    """A sentence with a colon that YAML took for a mapping, as the sentence that it was."""
    return (
        ", ".join(f"{key}: {value}" for key, value in item.items()) if isinstance(item, dict) else str(item)
    )


def _effective(text: CaseText) -> Effective | None:
    wanted = text.effective
    if wanted is None:
        return None
    local_only = text.node.local_only if wanted.local_only is None else wanted.local_only
    return Effective(
        inbound=wanted.inbound,
        outbound=wanted.outbound,
        in_base=ports(wanted.in_base),
        in_skip=ports(wanted.in_skip),
        out_skip=ports(wanted.out_skip),
        subnets=subnets(wanted.subnets),
        ipv6=wanted.ipv6,
        uid=wanted.uid,
        gid=wanted.gid,
        listed=None if wanted.listed is None else ports(wanted.listed),
        local_only=True if local_only is None else local_only,
    )


def _step(text: ConnectionText, pod_addresses: list[str]) -> Step:
    source, mapped_source = _address(text.source)
    destination, mapped = _address(text.destination)
    original = _endpoint(text.orig_dst) if text.orig_dst else None
    literal = [each for each in (source, destination, original and original[0]) if each and each != POD_IP]
    named = {*map(family_of, literal), *([text.family] if text.family else [])}
    if len(named) > 1:
        raise ValueError(f"connection {text.direction} {text.port}: its addresses and family disagree")
    protocol = text.protocol.lower()
    if protocol in ("tcp", "udp") and text.port is None:
        raise ValueError(f"connection {text.direction}: {protocol} needs a port")
    # The kernel chooses the interface: what a pod sends to itself goes over lo.
    to_itself = destination in (POD_IP, *pod_addresses) or _is_loopback(destination)
    probe = Probe(
        direction=text.direction,
        port=text.port,
        protocol=protocol,
        family=named.pop() if named else 4,
        source=source,
        destination=destination,
        uid=text.uid,
        gid=text.gid,
        interface=text.interface or ("lo" if text.direction == "out" and to_itself else "eth0"),
        syn=text.syn,
        mapped=mapped or mapped_source,
    )
    either = text.family is None and not literal
    return Step(probe, text.expect, text.to_port, original, either)


def _is_loopback(address: str | None) -> bool:
    """Whether the kernel sends it over lo; 0.0.0.0 and :: mean loopback to it."""
    if address is None or address == POD_IP:
        return False
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_unspecified


def _endpoint(text: str) -> Endpoint:
    """`10.96.0.10:80`, `[fd00::1]:80` or `podIP:80`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    address, _ = _address(host)
    if address is None or not port.isdecimal():
        raise ValueError(f"orig_dst {text!r} is no address with a port")
    return address, int(port)


def _address(text: str | None) -> tuple[str | None, bool]:
    """Canonical address, and whether it was written as IPv4 mapped into IPv6. Raises ValueError."""
    if text is None or text == POD_IP:
        return text, False
    address = ipaddress.ip_address(text.strip("[]"))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), mapped is not None
