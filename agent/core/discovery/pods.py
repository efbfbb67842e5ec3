"""Pods as discovery needs them: a few hundred bytes each, whatever the object weighs."""

import sys
from collections.abc import Iterator
from typing import Literal

import msgspec

from agent.core import names
from agent.core.discovery.answers import Labels
from agent.core.discovery.names import CONTROL_PLANE_NS, POD_TEMPLATE_HASH, REDIRECTED
from agent.core.discovery.opaque import read_opaque
from agent.core.discovery.proxies import ProxyPorts, read_proxy
from agent.core.discovery.targets import canonical_ip
from agent.core.meta import Metadata
from agent.core.objects import Pod
from agent.core.ports import PortSet, list_complaints, named, parse_ports
from agent.core.reasons import Complaint, Reason

Redirected = Literal["", "redirected", "failed"]

_SWITCH = {"enabled": False, "disabled": True}


class Owner(msgspec.Struct, frozen=True, gc=False):
    kind: str
    name: str


class Port(msgspec.Struct, frozen=True, gc=False):
    """A declared container port; `name` "" and `host` 0 where there is none."""

    name: str
    number: int
    host: int


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """One pod. IPs are canonical, `host_ips` are kept only where a port is mapped to the host.

    `proxy` None: there is no container linkerd-proxy. `running`: it can be reached, ready or not.
    `opaque`, `skip`, `disabled`: what its own annotations say, None = nothing. `owner`: the only one,
    None when it has none or several. `condition`: what the agent of its node says of its redirection, and
    `condition_reason` why.
    """

    namespace: str
    name: str
    uid: str
    created: str
    node: str
    account: str
    labels: Labels
    ips: tuple[str, ...]
    host_ips: tuple[str, ...]
    host_network: bool
    running: bool
    finished: bool
    terminating: bool
    owner: Owner | None
    ports: tuple[Port, ...]
    control_plane: str
    template: str
    proxy: ProxyPorts | None
    opaque: PortSet | None
    skip: PortSet | None
    disabled: bool | None
    condition: Redirected
    condition_reason: str

    @property
    def precedence(self) -> tuple[bool, bool, str]:
        """The greatest of several pods that claim one address or name is the one that has it."""
        return (not self.terminating, self.running, self.created)


SHARED = ("labels", "ports", "proxy", "opaque", "skip", "owner")
"""Fields that are mostly equal among the pods of one owner."""


def read_pod(pod: Pod) -> tuple[PodFacts, tuple[Complaint, ...]]:
    """What discovery keeps of a pod, and what is wrong with its settings. Never raises."""
    reading = _Reading(pod)
    facts = reading.facts()
    return facts, tuple(reading.complaints)


def owner_of(metadata: Metadata) -> Owner | None:
    """The one owner of an object; None if it has none or several."""
    references = metadata.owner_references or ()
    if len(references) != 1:
        return None
    return Owner(sys.intern(references[0].kind), sys.intern(references[0].name))


def labels_of(metadata: Metadata) -> Labels:
    """Labels in ascending order."""
    labels = sorted((metadata.labels or {}).items())
    return tuple((sys.intern(key), sys.intern(value)) for key, value in labels)


class _Reading:
    """One pod while it is read."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.where = f"Pod {pod.key}"
        self.complaints: list[Complaint] = []

    def facts(self) -> PodFacts:
        pod, metadata = self.pod, self.pod.metadata
        labels = labels_of(metadata)
        control_plane = dict(labels).get(CONTROL_PLANE_NS, "")
        ports = tuple(self._ports())
        on_host = bool(pod.spec.host_network) or any(port.host for port in ports)
        opaque, complaints = read_opaque(
            pod.annotations, {port.name: port.number for port in ports if port.name}, self.where
        )
        self.complaints += complaints
        condition, condition_reason = self._condition()
        return PodFacts(
            namespace=sys.intern(metadata.namespace),
            name=sys.intern(metadata.name),
            uid=metadata.uid,
            created=metadata.creation_timestamp or "",
            node=sys.intern(pod.spec.node_name or ""),
            account=sys.intern(pod.spec.service_account_name or "default"),
            labels=labels,
            ips=tuple(self._canonical(pod.ips)),
            host_ips=tuple(self._host_ips()) if on_host else (),
            host_network=bool(pod.spec.host_network),
            running=pod.status.phase not in ("Pending", "Succeeded", "Failed") or self._proxy_runs(),
            finished=pod.finished,
            terminating=metadata.deletion_timestamp is not None,
            owner=owner_of(metadata),
            ports=ports,
            control_plane=control_plane,
            template=dict(labels).get(POD_TEMPLATE_HASH, ""),
            proxy=self._proxy(meshed=bool(control_plane)),
            opaque=opaque,
            skip=self._skip(),
            disabled=_SWITCH.get(pod.annotations.get(names.REDIRECT, "").strip()),
            condition=condition,
            condition_reason=condition_reason,
        )

    def _ports(self) -> Iterator[Port]:
        """Those that can be asked for by name, or on the host. The last of equal names wins."""
        on_host = self.pod.spec.host_network
        last: dict[str, int] = {}
        declared = [port for container in self.pod.all_containers for port in container.ports or ()]
        for at, port in enumerate(declared):
            if port.name:
                last[port.name] = at
        for at, port in enumerate(declared):
            host = port.host_port or (port.container_port if on_host else 0)
            if port.protocol not in (None, "TCP"):
                host = 0
            name = port.name or ""
            name = sys.intern(name) if name and last[name] == at else ""
            if name or host:
                yield Port(name, port.container_port, host)

    def _canonical(self, texts: tuple[str, ...]) -> Iterator[str]:
        for text in texts:
            ip = canonical_ip(text)
            if ip is not None:
                yield ip
            else:
                message = f"cannot read {named([text])} as an IP ({self.where}): it is passed over"
                remedy = "correct the pod's status"
                self.complaints.append(Complaint(Reason.INVALID_OBJECT, "status.podIPs", message, remedy))

    def _host_ips(self) -> Iterator[str]:
        status = self.pod.status
        many = tuple(entry.ip for entry in status.host_ips or ())
        texts = many or ((status.host_ip,) if status.host_ip else ())
        if self.pod.spec.host_network:
            texts = (*texts, *self.pod.ips)
        yield from dict.fromkeys(ip for ip in map(canonical_ip, texts) if ip is not None)

    def _proxy_runs(self) -> bool:
        """Of a pod that is Pending, its proxy may run already: a native sidecar, before other containers."""
        status = self.pod.status
        statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        return not self.pod.finished and any(
            entry.name == names.PROXY_CONTAINER and entry.state and entry.state.running for entry in statuses
        )

    def _proxy(self, *, meshed: bool) -> ProxyPorts | None:
        pod = self.pod
        proxy = next((each for each in pod.all_containers if each.name == names.PROXY_CONTAINER), None)
        if proxy is not None:
            ports, complaints = read_proxy(proxy, pod.annotations, self.where)
            self.complaints += complaints
            return ports
        if meshed:
            message = f"cannot take it for meshed ({self.where}): it has no container linkerd-proxy"
            remedy = "restart the pod so that it is injected, or remove the label"
            self.complaints.append(Complaint(Reason.INVALID_OBJECT, CONTROL_PLANE_NS, message, remedy))
        return None

    def _skip(self) -> PortSet | None:
        text = self.pod.annotations.get(names.SKIP_INBOUND_PORTS)
        if text is None:
            return None
        parsed = parse_ports(text)
        self.complaints += list_complaints(parsed, names.SKIP_INBOUND_PORTS, self.where)
        return parsed.ports

    def _condition(self) -> tuple[Redirected, str]:
        for condition in self.pod.status.conditions or ():
            if condition.type == REDIRECTED:
                if condition.status == "False":
                    return "failed", condition.reason or ""
                return ("redirected" if condition.status == "True" else ""), ""
        return "", ""
