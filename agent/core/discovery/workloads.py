"""ExternalWorkloads: machines outside the cluster that run a proxy."""

import sys
from typing import Any

import msgspec

from agent.core.discovery.answers import Labels
from agent.core.discovery.objects import ExternalWorkload
from agent.core.discovery.opaque import read_opaque
from agent.core.discovery.pods import Owner, labels_of, owner_of
from agent.core.discovery.targets import canonical_ip
from agent.core.ports import LAST_PORT, PortSet, named
from agent.core.reasons import Complaint, Reason

PROXY_PORT = "linkerd-proxy"


class WorkloadFacts(msgspec.Struct, frozen=True, gc=False):
    """One workload. IPs are canonical, `ports` (name, number) as declared, `inbound` 0 = not said.

    `identity` and `server_name` are both "" where one of them is missing.
    """

    namespace: str
    name: str
    created: str
    labels: Labels
    owner: Owner | None
    ips: tuple[str, ...]
    ports: tuple[tuple[str, int], ...]
    inbound: int
    identity: str
    server_name: str
    opaque: PortSet | None

    @property
    def names(self) -> tuple[tuple[str, int], ...]:
        return tuple(port for port in self.ports if port[0])


def read_workload(item: ExternalWorkload) -> tuple[WorkloadFacts, tuple[Complaint, ...]]:
    """What discovery keeps of a workload, and what of it cannot be read. Never raises."""
    reading = _Reading(item)
    metadata = item.metadata
    ports = reading.ports()
    names = {name: number for name, number in reversed(ports) if name}
    opaque, complaints = read_opaque(metadata.annotations or {}, names, reading.where)
    reading.complaints += complaints
    identity, server_name = reading.identity()
    facts = WorkloadFacts(
        namespace=sys.intern(metadata.namespace),
        name=sys.intern(metadata.name),
        created=metadata.creation_timestamp or "",
        labels=labels_of(metadata),
        owner=owner_of(metadata),
        ips=reading.ips(),
        ports=ports,
        inbound=names.get(PROXY_PORT, 0),
        identity=identity,
        server_name=server_name,
        opaque=opaque,
    )
    return facts, tuple(reading.complaints)


class _Reading:
    """One workload while it is read; its spec may hold anything."""

    def __init__(self, item: ExternalWorkload) -> None:
        self.where = f"ExternalWorkload {item.metadata.namespace}/{item.metadata.name}"
        self.complaints: list[Complaint] = []
        self.spec: dict[str, Any] = item.spec if isinstance(item.spec, dict) else {}
        if item.spec is not None and not isinstance(item.spec, dict):
            self._complain("spec", item.spec, "it has no ports and no IPs")

    def ips(self) -> tuple[str, ...]:
        found: list[str] = []
        for entry in self._list("workloadIPs"):
            text = entry.get("ip") if isinstance(entry, dict) else None
            ip = canonical_ip(text) if isinstance(text, str) else None
            if ip is None:
                self._complain("spec.workloadIPs", text, "it is passed over")
            else:
                found.append(ip)
        return tuple(found)

    def ports(self) -> tuple[tuple[str, int], ...]:
        found: list[tuple[str, int]] = []
        for entry in self._list("ports"):
            number = entry.get("port") if isinstance(entry, dict) else None
            name = (entry.get("name") or "") if isinstance(entry, dict) else None
            if type(number) is int and 1 <= number <= LAST_PORT and isinstance(name, str):
                found.append((sys.intern(name), number))
            else:
                self._complain("spec.ports", number, "the port is passed over")
        return tuple(found)

    def identity(self) -> tuple[str, str]:
        tls = self.spec.get("meshTLS")
        values = [tls.get(key) if isinstance(tls, dict) else None for key in ("identity", "serverName")]
        if all(isinstance(value, str) and value for value in values):
            return str(values[0]), str(values[1])
        self._complain("spec.meshTLS", values, "it is sent without an identity")
        return "", ""

    def _list(self, field: str) -> list[Any]:
        value = self.spec.get(field)
        if value is not None and not isinstance(value, list | tuple):
            self._complain(f"spec.{field}", value, "it is passed over")
            return []
        return list(value or ())

    def _complain(self, subject: str, value: object, what: str) -> None:
        if len(self.complaints) < 8:
            shown = named([value if isinstance(value, str) else repr(value)[:40]])
            message = f"cannot use {shown} ({self.where}): {what}"
            remedy = "correct the object by the schema of its CRD"
            self.complaints.append(Complaint(Reason.INVALID_OBJECT, subject, message, remedy))
