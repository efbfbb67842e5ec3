"""`cfg` of a case as the product's own settings."""

from typing import Any

from agent.core.discovery.config import Discovery, FlowControl, Http2, Internals, KeepAlive
from agent.core.ports import parse_ports
from tests.cases.discovery.schema import ConfigText

_SECOND = 1_000_000_000


def discovery(text: ConfigText) -> Discovery:
    """Raises ValueError for a transport mode that does not exist."""
    if text.transport not in ("transparent", "transport-header"):
        raise ValueError(f"transport is transparent or transport-header, not {text.transport!r}")
    words = {True: "withhold", False: "allow"}
    return Discovery(
        cluster_domain=text.cluster_domain,
        trust_domain=text.trust_domain,
        control_plane_namespace=text.control_plane_namespace,
        default_opaque_ports=parse_ports(text.default_opaque_ports).ports,
        transport=text.transport,  # type: ignore[arg-type]  # checked above
        h2_upgrade=text.h2,
        http2=None if text.http2 is None else _http2(text.http2),
        ipv6=text.ipv6,
        endpoint_slices=text.slices,
        zone_weights=text.zone_weights,
        require_redirection=words.get(text.require_redirection, text.require_redirection),  # type: ignore[arg-type]
    )


def _http2(written: dict[str, Any]) -> Http2:
    flow, keep, internals = (written.get(key) for key in ("flow_control", "keep_alive", "internals"))
    return Http2(
        flow_control=flow
        and FlowControl(
            flow.get("initial_connection_window_size", 0),
            flow.get("initial_stream_window_size", 0),
            flow.get("adaptive_flow_control", False),
        ),
        keep_alive=keep
        and KeepAlive(
            _nanos(keep.get("interval")), _nanos(keep.get("timeout")), keep.get("while_idle", False)
        ),
        internals=internals and Internals(**internals),
    )


def _nanos(written: dict[str, int] | None) -> int:
    return (written or {}).get("seconds", 0) * _SECOND + (written or {}).get("nanos", 0)
