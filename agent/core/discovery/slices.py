"""EndpointSlices, and the Endpoints objects before them, in one compact form."""

import sys
from collections.abc import Iterable, Iterator

import msgspec

from agent.core.discovery.answers import Labels
from agent.core.discovery.names import MIRROR_CLUSTER, MIRROR_IDENTITY, MIRROR_SERVICE, SERVICE_NAME
from agent.core.discovery.objects import (
    Endpoint,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    Hints,
    ObjectReference,
)
from agent.core.discovery.targets import canonical_ip
from agent.core.meta import Metadata
from agent.core.ports import LAST_PORT, named
from agent.core.reasons import Complaint, Reason

POD, WORKLOAD = "Pod", "ExternalWorkload"


class TargetRef(msgspec.Struct, frozen=True, gc=False):
    """The pod or ExternalWorkload behind an endpoint. `uid` "": not said."""

    kind: str
    namespace: str
    name: str
    uid: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One endpoint with its IPs in canonical form. `ref` None: a plain address.

    `serving`: it terminates and still serves. `zones`, `nodes`: for which ones it is hinted.
    """

    ips: tuple[str, ...]
    ref: TargetRef | None
    ready: bool
    serving: bool
    hostname: str
    zone: str
    zones: tuple[str, ...]
    nodes: tuple[str, ...]


class SlicePort(msgspec.Struct, frozen=True, gc=False):
    name: str
    number: int


class SliceFacts(msgspec.Struct, frozen=True, gc=False):
    """One slice of a Service, or one subset of Endpoints.

    `cluster`: name of the mirrored cluster; `origin`, `identity`: name of the mirrored Service and
    identity of the gateway that leads there; each "" where the slice mirrors nothing.
    """

    namespace: str
    name: str
    service: str
    ports: tuple[SlicePort, ...]
    entries: tuple[Entry, ...]
    cluster: str = ""
    origin: str = ""
    identity: str = ""

    @property
    def labels(self) -> Labels:
        """What a mirrored slice adds to the labels of the set."""
        if not self.cluster:
            return ()
        parts = self.origin.split(".")
        target = (("target_service", parts[0]), ("target_service_namespace", parts[1])) if parts[1:] else ()
        return (("target_cluster", self.cluster), *target)


def read_slice(item: EndpointSlice) -> tuple[tuple[SliceFacts, ...], tuple[Complaint, ...]]:
    """What discovery keeps of a slice; nothing for one that belongs to no Service. Never raises."""
    service = _service_of(item.metadata)
    if service is None:
        return (), ()
    reading = _Reading(item.metadata, "EndpointSlice")
    plain = item.address_type == "FQDN"
    entries = () if plain else tuple(reading.entries(item.endpoints or ()))
    facts = reading.facts(item.metadata.name, service, tuple(reading.ports(item.ports)), entries)
    return (facts,), tuple(reading.complaints)


def read_endpoints(item: Endpoints) -> tuple[tuple[SliceFacts, ...], tuple[Complaint, ...]]:
    """The same of an Endpoints object: one per subset, with its ready addresses alone. Never raises."""
    reading = _Reading(item.metadata, "Endpoints")
    facts = []
    for number, subset in enumerate(item.subsets or ()):
        endpoints = (
            Endpoint(addresses=(each.ip,), hostname=each.hostname, target_ref=each.target_ref)
            for each in subset.addresses or ()
        )
        entries = tuple(reading.entries(endpoints))
        ports = tuple(reading.ports(subset.ports))
        facts.append(reading.facts(f"{item.metadata.name}/{number}", item.metadata.name, ports, entries))
    return tuple(facts), tuple(reading.complaints)


class _Reading:
    """One object while it is read. Its first few faults are named, the others are like them."""

    def __init__(self, metadata: Metadata, kind: str) -> None:
        self.metadata = metadata
        self.where = f"{kind} {metadata.namespace}/{metadata.name}"
        self.complaints: list[Complaint] = []

    def facts(
        self, name: str, service: str, ports: tuple[SlicePort, ...], entries: tuple[Entry, ...]
    ) -> SliceFacts:
        labels, annotations = self.metadata.labels or {}, self.metadata.annotations or {}
        return SliceFacts(
            namespace=sys.intern(self.metadata.namespace),
            name=name,
            service=sys.intern(service),
            ports=ports,
            entries=entries,
            cluster=labels.get(MIRROR_CLUSTER, ""),
            origin=annotations.get(MIRROR_SERVICE, ""),
            identity=annotations.get(MIRROR_IDENTITY, ""),
        )

    def ports(self, ports: Iterable[EndpointPort] | None) -> Iterator[SlicePort]:
        for port in ports or ():
            if port.port is not None and 1 <= port.port <= LAST_PORT:
                yield SlicePort(sys.intern(port.name or ""), port.port)
            else:
                self._complain("ports", f"cannot use a port {named([port.name or ''])} without a number")

    def entries(self, endpoints: Iterable[Endpoint]) -> Iterator[Entry]:
        for endpoint in endpoints:
            ref = endpoint.target_ref
            if ref is not None and ref.kind not in (POD, WORKLOAD):
                continue
            conditions = endpoint.conditions
            yield Entry(
                ips=tuple(self._ips(endpoint.addresses or ())),
                ref=self._ref(ref) if ref is not None else None,
                ready=conditions is None or conditions.ready is not False,
                serving=conditions is not None
                and conditions.serving is not False
                and conditions.terminating is True,
                hostname=endpoint.hostname or "",
                zone=sys.intern(endpoint.zone or ""),
                **_hinted(endpoint.hints),
            )

    def _ips(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            ip = canonical_ip(text)
            if ip is not None:
                yield ip
            else:
                self._complain("endpoints", f"cannot read {named([text])} as an IP")

    def _ref(self, ref: ObjectReference) -> TargetRef:
        namespace = ref.namespace or self.metadata.namespace
        uid = ref.uid or ""
        return TargetRef(ref.kind or "", sys.intern(namespace), sys.intern(ref.name or ""), uid)

    def _complain(self, subject: str, what: str) -> None:
        if len(self.complaints) < 8:
            message = f"{what} ({self.where}): it is passed over"
            self.complaints.append(
                Complaint(Reason.INVALID_OBJECT, subject, message, "correct what writes the object")
            )


def _service_of(metadata: Metadata) -> str | None:
    if name := (metadata.labels or {}).get(SERVICE_NAME):
        return name
    owners = (owner.name for owner in metadata.owner_references or () if owner.kind == "Service")
    return next((name for name in owners if name), None)


def _hinted(hints: Hints | None) -> dict[str, tuple[str, ...]]:
    if hints is None:
        return {"zones": (), "nodes": ()}
    zones = tuple(sys.intern(zone.name) for zone in hints.for_zones or ())
    return {"zones": zones, "nodes": tuple(sys.intern(node.name) for node in hints.for_nodes or ())}
