"""Linkerd's own settings: the Helm values that its ConfigMap `linkerd-config` holds."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agent.core.discovery.config import Discovery, FlowControl, Http2, Internals, KeepAlive
from agent.core.ports import PortSet, named, parse_ports
from agent.core.reasons import Complaint, Reason

NAME = "linkerd-config"
KEY = "values"
"""Where in the ConfigMap's data the values are, as YAML text."""

_LAST_UINT32 = 2**32 - 1


def read_values(
    values: Mapping[str, Any], namespace: str, base: Discovery
) -> tuple[Discovery, tuple[Complaint, ...]]:
    """The settings that Linkerd was installed with, over `base`; `namespace`: where its ConfigMap is, which
    is the control plane's. A value that cannot be read leaves what is in `base`. An empty trust domain is the
    cluster's domain, as it is to Linkerd. Never raises."""
    complaints: list[Complaint] = []
    found: dict[str, Any] = {"control_plane_namespace": namespace}
    for path, field, read in _VALUES:
        value: Any = values
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is None:
            continue
        try:
            found[field] = read(value)
        except ValueError as error:
            message = f"cannot use {path} of ConfigMap {namespace}/{NAME}: {error}; the default holds"
            remedy = "correct it, or set it by a flag of this agent"
            complaints.append(Complaint(Reason.INVALID_OBJECT, path, message, remedy))
    if found.get("trust_domain") == "":
        found["trust_domain"] = found.get("cluster_domain", base.cluster_domain)
    return msgspec.structs.replace(base, **found), tuple(complaints)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_show(value)} is neither true nor false")
    return value


def _inverted(value: object) -> bool:
    return not _boolean(value)


def _domain(value: object) -> str:
    if not isinstance(value, str) or not value.strip("."):
        raise ValueError(f"{_show(value)} is no domain")
    return value.strip(".")


def _trust_domain(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_show(value)} is no domain")
    return value


def _ports(value: object) -> PortSet:
    parsed = parse_ports(value)
    if parsed.invalid:
        raise ValueError(f"{named(parsed.invalid)} is no port")
    return parsed.ports


def _transport(value: object) -> str:
    """Upstream takes every mode that it does not know for the transparent one."""
    return "transport-header" if value == "transport-header" else "transparent"


def read_http2(value: object) -> Http2 | None:
    """HTTP/2 parameters with the field names of the protobuf; None when there are none. Raises ValueError."""
    fields = _object(value)
    flow, alive, inner = (_optional(fields, key) for key in ("flow_control", "keep_alive", "internals"))
    if flow is None and alive is None and inner is None:
        return None
    return Http2(
        flow_control=None
        if flow is None
        else FlowControl(
            _uint(flow, "initial_connection_window_size"),
            _uint(flow, "initial_stream_window_size"),
            _boolean(flow.get("adaptive_flow_control") or False),
        ),
        keep_alive=None
        if alive is None
        else KeepAlive(
            _duration(alive, "interval"),
            _duration(alive, "timeout"),
            _boolean(alive.get("while_idle") or False),
        ),
        internals=None
        if inner is None
        else Internals(
            _uint(inner, "max_concurrent_reset_streams"),
            _uint(inner, "max_frame_size"),
            _uint(inner, "max_send_buf_size"),
        ),
    )


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{_show(value)} is no object")
    return value


def _optional(fields: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    return None if fields.get(key) is None else _object(fields[key])


def _uint(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    # Helm writes every number of this object as a float.
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if number is None:
        return 0
    if type(number) is not int or not 0 <= number <= _LAST_UINT32:
        raise ValueError(f"{key} is {_show(value)}, which is no positive integer")
    return number


def _duration(fields: Mapping[str, Any], key: str) -> int:
    parts = _optional(fields, key)
    return 0 if parts is None else _uint(parts, "seconds") * 10**9 + _uint(parts, "nanos")


def _show(value: object) -> str:
    return named([value if isinstance(value, str) else repr(value)[:40]])


_VALUES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("clusterDomain", "cluster_domain", _domain),
    ("identityTrustDomain", "trust_domain", _trust_domain),
    ("disableIPv6", "ipv6", _inverted),
    ("enableH2Upgrade", "h2_upgrade", _boolean),
    ("enableEndpointSlices", "endpoint_slices", _boolean),
    ("proxy.opaquePorts", "default_opaque_ports", _ports),
    ("proxy.outboundTransportMode", "transport", _transport),
    ("destinationController.meshedHttp2ClientProtobuf", "http2", read_http2),
)
