"""The words a case may use, by name and type. An unknown word is an error that names it, never ignored."""

from typing import Annotated, Any, Literal

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Id = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 2)]
Texts = dict[str, str]
"""Strings as Kubernetes holds them."""
PortList = str | int | list[str | int]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the file."""


class ConnectionText(
    _Strict,
    frozen=True,
    kw_only=True,
    rename={
        "direction": "dir",
        "protocol": "proto",
        "source": "from",
        "destination": "to",
        "interface": "oif",
    },
):
    direction: Literal["in", "out"]
    port: Port | None = None
    protocol: str = "tcp"
    family: Literal[4, 6] | None = None
    source: str | None = None
    destination: str | None = None
    uid: Id = 1000
    gid: Id | None = None
    interface: str | None = None
    syn: bool = True
    expect: Literal["in", "out", "direct"]
    expect_ebpf: Literal["in", "out", "direct"] | None = None
    to_port: Port | None = None
    orig_dst: str | None = None
    note: str | None = None


class SecurityText(_Strict, frozen=True, rename="camel"):
    run_as_user: int | None = None
    run_as_group: int | None = None


class ContainerText(_Strict, frozen=True, rename="camel"):
    name: str
    run_as_user: int | None = None
    run_as_group: int | None = None
    security_context: SecurityText = SecurityText()
    env: Texts | list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None
    restart_policy: str | None = None


class ServicePortText(_Strict, frozen=True, rename="camel"):
    port: Port
    target_port: Port | str | None = None
    name: str | None = None


class PodText(
    _Strict,
    frozen=True,
    rename={
        "host_network": "hostNetwork",
        "host_users": "hostUsers",
        "pod_ip": "podIP",
        "pod_ips": "podIPs",
        "init_containers": "initContainers",
        "security_context": "securityContext",
    },
):
    """The pod: the words of the cases, and beside them Kubernetes' own names for the same."""

    annotations: Texts = {}
    ns_annotations: Texts = {}
    labels: Texts = {}
    proxy_env: Texts = {}
    proxy_run_as_user: int | None = None
    kubernetes_service_ports: list[ServicePortText] | None = None
    containers: list[ContainerText] | None = None
    init: list[ContainerText] = []
    init_containers: list[ContainerText] = []
    security_context: SecurityText = SecurityText()
    host_network: bool | None = None
    host_users: bool | None = None
    owner: str | None = None
    phase: str | None = None
    pod_ip: str | list[str] | None = None
    pod_ips: list[str] = []
    namespace: str = "default"
    name: str = "web"
    interfaces: list[str] = []


class NodeText(
    _Strict,
    frozen=True,
    rename={
        "ports_to_redirect": "ports-to-redirect",
        "inbound_port": "incoming-proxy-port",
        "outbound_port": "outgoing-proxy-port",
        "proxy_uid": "proxy-uid",
        "proxy_gid": "proxy-gid",
        "skip_inbound": "inbound-ports-to-ignore",
        "skip_outbound": "outbound-ports-to-ignore",
        "skip_subnets": "subnets-to-ignore",
        "iptables_mode": "iptables-mode",
        "use_wait_flag": "use-wait-flag",
    },
):
    """The node's own words, and those of linkerd-cni's configuration.

    iptables-mode, simulate, use-wait-flag and log_level say how linkerd-cni works, not what is redirected.
    """

    ports_to_redirect: PortList | None = None
    inbound_port: Port | None = None
    outbound_port: Port | None = None
    proxy_uid: int | None = None
    proxy_gid: int | None = None
    skip_inbound: PortList | None = None
    skip_outbound: PortList | None = None
    skip_subnets: str | list[str] | None = None
    ipv6: bool | None = None
    local_only: bool | None = None
    takeover: bool | None = None
    exclude_namespaces: list[str] | None = None
    iptables_mode: str | None = None
    use_wait_flag: bool | None = None
    simulate: bool | None = None
    log_level: str | None = None


class EffectiveText(_Strict, frozen=True):
    inbound: Port = 4143
    outbound: Port = 4140
    in_base: PortList = "4190,4191"
    in_skip: PortList = "4567,4568"
    out_skip: PortList = "4567,4568"
    subnets: str | list[str] = ""
    ipv6: bool = False
    uid: Id = 2102
    gid: Id | None = None
    listed: PortList | None = None
    local_only: bool | None = None


class CaseText(_Strict, frozen=True):
    id: str | int
    title: str = ""
    pod: PodText = PodText()
    node: NodeText = NodeText()
    effective: EffectiveText | None = None
    connections: list[ConnectionText] = []
    steps: list[Any] = []
    then: list[Any] = []
    note: str | None = None
