"""What holds for the whole cluster, as Linkerd was installed, and how this agent answers."""

from typing import Literal

import msgspec

from agent.core.ports import PortSet
from agent.core.spec import NodeDefaults

DEFAULT_OPAQUE_PORTS = PortSet.of(25, 587, 3306, 4444, 5432, 6379, 9300, 11211)


class FlowControl(msgspec.Struct, frozen=True):
    """Http2ClientParams.FlowControl; window sizes in bytes, 0 = the proxy's own."""

    connection_window: int = 0
    stream_window: int = 0
    adaptive: bool = False


class KeepAlive(msgspec.Struct, frozen=True):
    """Http2ClientParams.KeepAlive; nanoseconds, 0 = not set."""

    interval: int = 0
    timeout: int = 0
    while_idle: bool = False


class Internals(msgspec.Struct, frozen=True):
    """Http2ClientParams.Internals; 0 = the proxy's own."""

    max_concurrent_reset_streams: int = 0
    max_frame_size: int = 0
    max_send_buf_size: int = 0


class Http2(msgspec.Struct, frozen=True):
    """HTTP/2 parameters for clients of meshed targets; None = not sent."""

    flow_control: FlowControl | None = None
    keep_alive: KeepAlive | None = None
    internals: Internals | None = None


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of discovery. They come from Linkerd's ConfigMap `linkerd-config`, overridden by flags.

    `trust_domain` "": no identity is sent to anybody. `endpoint_slices` False: the older Endpoints
    objects are read instead. `zone_weights`: ten times the weight in the client's own zone.
    `require_redirection`: for a pod that is known not to be redirected, `withhold` identity and hints (its
    traffic goes in clear text), `deny` the traffic by keeping them, or `allow`, where the state is not asked.
    `serving_fallback`: while no endpoint is ready, those that terminate and still serve are used.
    `server_wins`: a Server that selects a port decides alone whether it is opaque.
    `defaults`: the node's redirection settings, for skip lists and ports that a pod leaves open.
    """

    cluster_domain: str = "cluster.local"
    trust_domain: str = ""
    control_plane_namespace: str = "linkerd"
    default_opaque_ports: PortSet = DEFAULT_OPAQUE_PORTS
    transport: Literal["transparent", "transport-header"] = "transport-header"
    h2_upgrade: bool = True
    http2: Http2 | None = Http2(keep_alive=KeepAlive(10_000_000_000, 3_000_000_000, True))
    ipv6: bool = False
    endpoint_slices: bool = True
    zone_weights: bool = False
    require_redirection: Literal["allow", "withhold", "deny"] = "withhold"
    serving_fallback: bool = False
    server_wins: bool = False
    defaults: NodeDefaults = NodeDefaults()
