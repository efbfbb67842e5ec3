"""The objects that only discovery reads, cut down to the fields that are read.

What the API server validates by a schema of its own is typed. The specs of Linkerd's resources are not:
their CRDs let through what no typed client can decode, and one such object must not hide the others; so
they are taken as they are and read with care (`policy`, `serviceprofiles`, `workloads`).
"""

from typing import Any

from agent.core.meta import Metadata, Partial


class Conditions(Partial, frozen=True):
    """Of an endpoint; null means not known, which counts as ready."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(Partial, frozen=True):
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None


class ForZone(Partial, frozen=True):
    name: str = ""


class ForNode(Partial, frozen=True):
    name: str = ""


class Hints(Partial, frozen=True):
    for_zones: tuple[ForZone, ...] | None = None
    for_nodes: tuple[ForNode, ...] | None = None


class Endpoint(Partial, frozen=True):
    addresses: tuple[str, ...] | None = None
    conditions: Conditions | None = None
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    zone: str | None = None
    hints: Hints | None = None


class EndpointPort(Partial, frozen=True):
    """Of EndpointSlice and Endpoints alike."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(Partial, frozen=True):
    metadata: Metadata
    address_type: str | None = None
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class EndpointAddress(Partial, frozen=True):
    ip: str = ""
    hostname: str | None = None
    target_ref: ObjectReference | None = None


class EndpointSubset(Partial, frozen=True):
    addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None


class Endpoints(Partial, frozen=True):
    """The object before slices: one per Service, of the same name."""

    metadata: Metadata
    subsets: tuple[EndpointSubset, ...] | None = None


class Server(Partial, frozen=True):
    """policy.linkerd.io."""

    metadata: Metadata
    spec: Any = None


class ServiceProfile(Partial, frozen=True):
    """linkerd.io; named `SERVICE.NAMESPACE.svc.DOMAIN`."""

    metadata: Metadata
    spec: Any = None


class ExternalWorkload(Partial, frozen=True):
    """workload.linkerd.io."""

    metadata: Metadata
    spec: Any = None


class Node(Partial, frozen=True):
    metadata: Metadata


class ReplicaSet(Partial, frozen=True):
    """Metadata alone: whose pods' owner it is, and its own."""

    metadata: Metadata


class Job(Partial, frozen=True):
    """Metadata alone, like ReplicaSet."""

    metadata: Metadata


class ConfigMap(Partial, frozen=True):
    metadata: Metadata
    data: dict[str, str] | None = None
