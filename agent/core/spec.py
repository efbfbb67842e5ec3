"""The values of redirection: what a pod shall have, where each part came from, and the node's defaults."""

from typing import Literal

import msgspec

from agent.core.ports import PortSet, Subnets
from agent.core.reasons import Complaint, Reason

_GALERA = PortSet.of((4567, 4568))

OriginKind = Literal[
    "pod annotation",
    "namespace annotation",
    "proxy env",
    "security context",
    "node default",
    "built-in default",
    "kubernetes service",
]


class RedirectSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which TCP connections of one pod go to its proxy. Equal specs make equal rulesets.

    `proxy_uid` and `proxy_gid` are as the pod sees them; their sockets are never redirected.
    `skip_inbound` is the user's list; `proxy_ports`, control and admin, are skipped in any case.
    `skip_subnets` looks at the source of inbound connections only. `only_inbound` is the listed
    mode: other inbound ports stay direct; None redirects every port. `local_only`: packets that are
    routed through the pod stay direct. `pin`: what is skipped stays direct even where nat rules of
    others, such as leftovers of linkerd-init, would redirect it. `hold_outbound`: outbound stays direct
    while init containers run and the proxy does not listen yet.
    """

    inbound_port: int
    outbound_port: int
    proxy_uid: int
    proxy_gid: int | None
    skip_inbound: PortSet
    proxy_ports: PortSet
    skip_outbound: PortSet
    skip_subnets: Subnets
    only_inbound: PortSet | None
    ipv6: bool
    local_only: bool
    pin: bool = True
    hold_outbound: bool = False


class NodeDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds on this node for everything that a pod and its namespace leave open.

    `ipv6` None: as the proxy container says. `takeover`: replace complete rules of linkerd-init too.
    `hold_before_proxy`: where init containers run before the proxy, redirect outbound once it listens.
    """

    inbound_port: int = 4143
    outbound_port: int = 4140
    control_port: int = 4190
    admin_port: int = 4191
    proxy_uid: int = 2102
    proxy_gid: int | None = None
    skip_inbound: PortSet = _GALERA
    skip_outbound: PortSet = _GALERA
    skip_subnets: Subnets = Subnets()
    only_inbound: PortSet | None = None
    ipv6: bool | None = None
    local_only: bool = True
    exclude_namespaces: frozenset[str] = frozenset()
    takeover: bool = False
    hold_before_proxy: bool = False


class Origin(msgspec.Struct, frozen=True):
    """Where a setting came from: the annotation, variable or field `name`, which said `value`."""

    kind: OriginKind
    name: str
    value: str


class Derivation(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod shall have: a spec, or the reason why it is left alone; never both.

    `origins` and `shadowed` are keyed by field of RedirectSpec: what made the value, part by part,
    and what was also said but lost, most specific first. `close_wait`: seconds, None = the kernel's.
    """

    spec: RedirectSpec | None = None
    excluded: Reason | None = None
    origins: dict[str, tuple[Origin, ...]] = {}
    shadowed: dict[str, tuple[Origin, ...]] = {}
    close_wait: int | None = None
    complaints: tuple[Complaint, ...] = ()
