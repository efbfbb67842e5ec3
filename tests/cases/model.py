"""A case as the product's own values: pod, namespace, node defaults; and what is expected of them."""

import ipaddress
from typing import Any, Literal

import msgspec

from agent.core import names
from agent.core.objects import (
    Container,
    ContainerPort,
    EnvVar,
    Metadata,
    Namespace,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    SecurityContext,
)
from agent.core.ports import PortSet, parse_ports, parse_subnets
from agent.core.redirect import NodeDefaults
from tests.cases.load import Entry
from tests.cases.schema import CaseText, ConnectionText, ContainerText, NodeText, PodText, PortList, Texts
from tests.lab.addresses import Family, family_of
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
    """One connection of a case. `probe` may hold POD_IP; `either_family`: nothing in it says IPv4 or IPv6."""

    probe: Probe
    expect: Place
    to_port: int | None
    orig_dst: str | None
    either_family: bool

    def __str__(self) -> str:
        fields = {name: getattr(self.probe, name) for name in self.probe.__struct_fields__}
        shown = [f"{name} {value}" for name, value in fields.items() if value != _PROBE_DEFAULTS.get(name, None)]
        return ", ".join(shown) or "connection"


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


_PROBE_DEFAULTS: dict[str, Any] = {
    name: default
    for name, default in zip(reversed(Probe.__struct_fields__), reversed(Probe.__struct_defaults__), strict=False)
}


def case(entry: Entry) -> Case:
    """The case of an entry. Raises CaseError."""
    try:
        return _case(msgspec.convert(entry.data, CaseText))
    except (msgspec.ValidationError, ValueError) as error:
        raise CaseError(f"cannot use {entry.id} ({entry.where}): {error}") from error


def ports(value: PortList) -> frozenset[int]:
    """The ports of `22,9000-9010`, a number, or a list of both. Raises ValueError."""
    found: set[int] = set()
    for item in value if isinstance(value, list) else [value]:
        for part in str(item).split(","):
            if part.strip():
                low, _, high = part.strip().partition("-")
                found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def subnets(value: str | list[str]) -> frozenset[str]:
    """The networks of `10.0.0.0/8, fd99::/64`, each in its canonical form. Raises ValueError."""
    parts = ",".join(value if isinstance(value, list) else [value]).split(",")
    return frozenset(str(ipaddress.ip_network(part.strip(), strict=False)) for part in parts if part.strip())


def _case(text: CaseText) -> Case:
    addresses = [text.pod.pod_ip] if isinstance(text.pod.pod_ip, str) else text.pod.pod_ip or []
    return Case(
        id=str(text.id),
        title=text.title,
        pod=_pod(text.pod, addresses, add_proxy=text.effective is not None or text.pod.containers is None),
        namespace=Namespace(Metadata(text.pod.namespace, annotations=_present(text.pod.ns_annotations))),
        defaults=_defaults(text.node),
        kubernetes_ports=_kubernetes_ports(text.pod),
        effective=_effective(text),
        steps=tuple(_step(connection) for connection in text.connections),
        then=tuple(_prose(item) for item in text.then),
        interfaces=tuple(name for name in text.pod.interfaces if name != "eth0"),
        addresses={family_of(address): address for address in addresses},
        text=text,
    )


def _prose(item: Any) -> str:
    """A sentence with a colon that YAML took for a mapping, as the sentence that it was."""
    return ", ".join(f"{key}: {value}" for key, value in item.items()) if isinstance(item, dict) else str(item)


def _present(texts: Texts) -> dict[str, str]:
    return {name: value for name, value in texts.items() if value is not None}


def _pod(text: PodText, addresses: list[str], *, add_proxy: bool) -> Pod:
    init = tuple(_container(each, text) for each in text.init)
    containers = tuple(_container(each, text) for each in text.containers or ())
    if add_proxy and names.PROXY_CONTAINER not in {each.name for each in (*init, *containers)}:
        containers += (_container(ContainerText(name=names.PROXY_CONTAINER), text),)
    return Pod(
        metadata=Metadata(
            name=text.name,
            namespace=text.namespace,
            uid=f"uid-of-{text.name}",
            labels=_present(text.labels),
            annotations=_present(text.annotations),
        ),
        spec=PodSpec(
            host_network=text.host_network,
            host_users=text.host_users,
            containers=containers,
            init_containers=init,
        ),
        status=PodStatus(
            phase=text.phase or "Running",
            pod_ip=addresses[0] if addresses else None,
            pod_ips=tuple(map(PodIP, addresses)) or None,
        ),
    )


def _container(text: ContainerText, pod: PodText) -> Container:
    env = text.env if isinstance(text.env, list) else [{"name": k, "value": v} for k, v in (text.env or {}).items()]
    user = text.run_as_user
    if text.name == names.PROXY_CONTAINER:
        env = [*env, *({"name": name, "value": value} for name, value in _present(pod.proxy_env).items())]
        user = pod.proxy_run_as_user if user is None else user
    context = SecurityContext(user, text.run_as_group)
    return Container(
        name=text.name,
        env=msgspec.convert(env, tuple[EnvVar, ...]) or None,
        ports=msgspec.convert(text.ports, tuple[ContainerPort, ...] | None),
        security_context=context if context != SecurityContext() else None,
        restart_policy=text.restart_policy,
    )


def _kubernetes_ports(text: PodText) -> PortSet | None:
    if text.kubernetes_service_ports is None:
        return None
    found = [port for each in text.kubernetes_service_ports for port in (each.port, each.target_port)]
    return PortSet.of(*(port for port in found if isinstance(port, int)))


def _defaults(text: NodeText) -> NodeDefaults:
    """The node's settings; lists go through the product's own parsers, as its settings do."""
    given: dict[str, Any] = {
        "inbound_port": text.inbound_port,
        "outbound_port": text.outbound_port,
        "proxy_uid": text.proxy_uid,
        "proxy_gid": text.proxy_gid,
        "ipv6": text.ipv6,
        "local_only": text.local_only,
        "takeover": text.takeover,
    }
    for field, value in (("skip_inbound", text.skip_inbound), ("skip_outbound", text.skip_outbound)):
        given[field] = None if value is None else parse_ports(value).ports
    if text.ports_to_redirect not in (None, [], ""):
        given["only_inbound"] = parse_ports(text.ports_to_redirect).ports
    if text.skip_subnets is not None:
        given["skip_subnets"] = parse_subnets(text.skip_subnets).subnets
    if text.exclude_namespaces is not None:
        given["exclude_namespaces"] = frozenset(text.exclude_namespaces)
    return NodeDefaults(**{field: value for field, value in given.items() if value is not None})


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


def _step(text: ConnectionText) -> Step:
    source, mapped_source = _address(text.source)
    destination, mapped = _address(text.destination)
    named = {family_of(each) for each in (source, destination) if each and each != POD_IP}
    if text.family:
        named.add(text.family)
    if len(named) > 1:
        raise ValueError(f"connection {text.direction} {text.port}: its addresses and family disagree")
    if text.protocol in ("tcp", "udp") and text.port is None:
        raise ValueError(f"connection {text.direction}: {text.protocol} needs a port")
    probe = Probe(
        direction=text.direction,
        port=text.port,
        protocol=text.protocol,
        family=named.pop() if named else 4,
        source=source,
        destination=destination,
        uid=text.uid,
        gid=text.gid,
        interface=text.interface,
        syn=text.syn,
        mapped=mapped or mapped_source,
    )
    either = text.family is None and not any(each and each != POD_IP for each in (source, destination))
    return Step(probe, text.expect, text.to_port, text.orig_dst, either)


def _address(text: str | None) -> tuple[str | None, bool]:
    """Canonical address, and whether it was written as IPv4 mapped into IPv6. Raises ValueError."""
    if text is None or text == POD_IP:
        return text, False
    address = ipaddress.ip_address(text.strip("[]"))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), mapped is not None
