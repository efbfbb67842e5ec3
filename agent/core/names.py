"""The field's names: object keys, Linkerd's annotations and container names, and our own."""

import msgspec

LINKERD = "config.linkerd.io/"
SKIP_INBOUND_PORTS = LINKERD + "skip-inbound-ports"
SKIP_OUTBOUND_PORTS = LINKERD + "skip-outbound-ports"
SKIP_SUBNETS = LINKERD + "skip-subnets"
INBOUND_PORT = LINKERD + "inbound-port"
OUTBOUND_PORT = LINKERD + "outbound-port"
ADMIN_PORT = LINKERD + "admin-port"
CONTROL_PORT = LINKERD + "control-port"
PROXY_UID = LINKERD + "proxy-uid"
PROXY_GID = LINKERD + "proxy-gid"
CLOSE_WAIT_TIMEOUT = LINKERD + "close-wait-timeout"
CONTROL_PLANE_COMPONENT = "linkerd.io/control-plane-component"

NETNS = "pointsman.io/netns"
CGROUP = "pointsman.io/cgroup"
REDIRECT = "pointsman.io/redirect"
DATAPATH = "pointsman.io/datapath"
SOCKMAP = "pointsman.io/sockmap"
SKIP_CONTAINERS = "pointsman.io/skip-containers"

PROXY_VERSION = "linkerd.io/proxy-version"
"""Annotation that Linkerd's injector writes into every pod to which it gives a proxy."""

PROXY_CONTAINER = "linkerd-proxy"
INIT_CONTAINER = "linkerd-init"

ENV_INBOUND = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR"
ENV_OUTBOUND = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS"
ENV_OUTBOUND_SINGLE = "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR"
ENV_ADMIN = "LINKERD2_PROXY_ADMIN_LISTEN_ADDR"
ENV_CONTROL = "LINKERD2_PROXY_CONTROL_LISTEN_ADDR"

TABLE = "pointsman"
"""Name of our nf_tables table, family inet, in each pod's network namespace."""


class PodKey(msgspec.Struct, frozen=True, order=True):
    """Namespace and name of a pod. Good for people and look-ups; state is keyed by UID."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def made_from_name(uid: str) -> bool:
    """Whether a UID was made here from a pod's name (a version 5 UUID), for want of one in its manifest.

    Those of an API server are of version 4, and those of a kubelet's static pods no UUIDs at all.
    """
    return len(uid) == 36 and uid[14] == "5"
