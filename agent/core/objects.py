"""Kubernetes objects, cut down to the fields that are read, shaped as the API shapes them.

Both sources decode into these structs: manifests through `msgspec.convert`, the API server's
JSON through a decoder of the same type. Every list and nested object may be null, because the API
sends null where Go has a nil slice. Unknown fields are dropped while decoding.
"""

import msgspec

from agent.core.discovery.objects import (
    ConfigMap,
    Endpoints,
    EndpointSlice,
    ExternalWorkload,
    Job,
    Node,
    ReplicaSet,
    Server,
    ServiceProfile,
)
from agent.core.meta import Metadata as Metadata  # noqa: PLC0414
from agent.core.meta import Partial
from agent.core.names import PodKey


class EnvVar(Partial, frozen=True):
    name: str
    value: str | None = None


class SecurityContext(Partial, frozen=True):
    run_as_user: int | None = None
    run_as_group: int | None = None


class ContainerPort(Partial, frozen=True):
    container_port: int
    name: str | None = None
    protocol: str | None = None
    host_port: int | None = None


class Container(Partial, frozen=True):
    name: str
    env: tuple[EnvVar, ...] | None = None
    ports: tuple[ContainerPort, ...] | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None


class PodSpec(Partial, frozen=True):
    node_name: str | None = None
    host_network: bool | None = None
    host_users: bool | None = None
    service_account_name: str | None = None
    security_context: SecurityContext | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class Terminated(Partial, frozen=True):
    exit_code: int = 0
    reason: str | None = None


class Running(Partial, frozen=True):
    started_at: str | None = None


class ContainerState(Partial, frozen=True):
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Partial, frozen=True):
    name: str
    state: ContainerState | None = None


class PodIP(Partial, frozen=True):
    ip: str


class HostIP(Partial, frozen=True):
    ip: str


class PodCondition(Partial, frozen=True):
    type: str
    status: str = "Unknown"
    reason: str | None = None


class PodStatus(Partial, frozen=True):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: tuple[PodIP, ...] | None = msgspec.field(default=None, name="podIPs")
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    host_ips: tuple[HostIP, ...] | None = msgspec.field(default=None, name="hostIPs")
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    conditions: tuple[PodCondition, ...] | None = None


class Pod(Partial, frozen=True):
    """A pod. `metadata.uid` is never empty once a source has handed it out."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> PodKey:
        return PodKey(self.metadata.namespace, self.metadata.name)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """Init containers, then the others."""
        return (*(self.spec.init_containers or ()), *(self.spec.containers or ()))

    @property
    def ips(self) -> tuple[str, ...]:
        """All addresses of `status`, empty while the pod has none."""
        many = tuple(entry.ip for entry in self.status.pod_ips or ())
        return many or ((self.status.pod_ip,) if self.status.pod_ip else ())

    @property
    def finished(self) -> bool:
        """Terminal phase: every container has ended for good, and the IP may be someone else's."""
        return self.status.phase in ("Succeeded", "Failed")


class Namespace(Partial, frozen=True):
    metadata: Metadata

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}


class ServicePort(Partial, frozen=True):
    port: int
    target_port: int | str | None = None
    name: str | None = None
    protocol: str | None = None


class ServiceSpec(Partial, frozen=True):
    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] | None = msgspec.field(default=None, name="clusterIPs")
    ports: tuple[ServicePort, ...] | None = None
    internal_traffic_policy: str | None = None


class Service(Partial, frozen=True):
    metadata: Metadata
    spec: ServiceSpec = ServiceSpec()


Object = (
    Pod
    | Namespace
    | Service
    | EndpointSlice
    | Endpoints
    | Server
    | ServiceProfile
    | ExternalWorkload
    | Node
    | ReplicaSet
    | Job
    | ConfigMap
)
"""Redirection reads the first three; discovery all but the ConfigMap, which is for its settings."""


class Replace(msgspec.Struct, frozen=True):
    """The whole list of one kind, as listed: what is not in it does not exist (any more)."""

    kind: type[Object]
    items: tuple[Object, ...]


class Put(msgspec.Struct, frozen=True):
    """One object was created or changed."""

    item: Object


class Drop(msgspec.Struct, frozen=True):
    """One object is gone: positively seen to be deleted, never merely missing."""

    item: Object


Event = Replace | Put | Drop
