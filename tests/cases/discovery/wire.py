"""The destination API as a proxy reads it: field numbers of its own, none of the product's code.

A message becomes a dict that holds what is on the wire and nothing else: scalars by name, nested
messages as dicts, repeated fields as lists, maps as dicts. What the API does not have is an error.
"""

import struct
from collections.abc import Iterator
from typing import Any

GET = "/io.linkerd.proxy.destination.Destination/Get"
GET_PROFILE = "/io.linkerd.proxy.destination.Destination/GetProfile"

Message = dict[str, Any]

MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "GetDestination": {1: ("scheme", "string"), 2: ("path", "string"), 3: ("context_token", "string")},
    "Update": {
        1: ("add", "WeightedAddrSet"),
        2: ("remove", "AddrSet"),
        3: ("no_endpoints", "NoEndpoints"),
    },
    "AddrSet": {1: ("addrs", "*TcpAddress")},
    "WeightedAddrSet": {1: ("addrs", "*WeightedAddr"), 2: ("metric_labels", "map")},
    "NoEndpoints": {1: ("exists", "bool")},
    "WeightedAddr": {
        1: ("addr", "TcpAddress"),
        3: ("weight", "uint32"),
        4: ("metric_labels", "map"),
        5: ("tls_identity", "TlsIdentity"),
        6: ("protocol_hint", "ProtocolHint"),
        7: ("authority_override", "AuthorityOverride"),
        8: ("http2", "Http2ClientParams"),
        9: ("resource_ref", "Metadata"),
    },
    "TcpAddress": {1: ("ip", "IPAddress"), 2: ("port", "uint32")},
    "IPAddress": {1: ("ipv4", "fixed32"), 2: ("ipv6", "IPv6")},
    "IPv6": {1: ("first", "fixed64"), 2: ("last", "fixed64")},
    "TlsIdentity": {
        1: ("dns_like_identity", "Name"),
        3: ("uri_like_identity", "Uri"),
        4: ("server_name", "Name"),
    },
    "Name": {1: ("name", "string")},
    "Uri": {1: ("uri", "string")},
    "AuthorityOverride": {1: ("authority_override", "string")},
    "ProtocolHint": {
        1: ("h2", "Empty"),
        3: ("opaque", "Empty"),
        2: ("opaque_transport", "OpaqueTransport"),
    },
    "Empty": {},
    "OpaqueTransport": {1: ("inbound_port", "uint32")},
    "Http2ClientParams": {
        1: ("flow_control", "FlowControl"),
        2: ("keep_alive", "KeepAlive"),
        3: ("internals", "Internals"),
    },
    "FlowControl": {
        1: ("initial_connection_window_size", "uint32"),
        2: ("initial_stream_window_size", "uint32"),
        3: ("adaptive_flow_control", "bool"),
    },
    "KeepAlive": {1: ("interval", "Duration"), 2: ("timeout", "Duration"), 3: ("while_idle", "bool")},
    "Internals": {
        1: ("max_concurrent_reset_streams", "uint32"),
        2: ("max_frame_size", "uint32"),
        3: ("max_send_buf_size", "uint32"),
    },
    "Duration": {1: ("seconds", "int64"), 2: ("nanos", "int64")},
    "DestinationProfile": {
        5: ("fully_qualified_name", "string"),
        4: ("opaque_protocol", "bool"),
        1: ("routes", "*Route"),
        2: ("retry_budget", "RetryBudget"),
        3: ("dst_overrides", "*WeightedDst"),
        6: ("endpoint", "WeightedAddr"),
        7: ("parent_ref", "Metadata"),
        8: ("profile_ref", "Metadata"),
    },
    "Route": {
        1: ("condition", "RequestMatch"),
        2: ("response_classes", "*ResponseClass"),
        3: ("metrics_labels", "map"),
        4: ("is_retryable", "bool"),
        5: ("timeout", "Duration"),
    },
    "RetryBudget": {
        1: ("retry_ratio", "float"),
        2: ("min_retries_per_second", "uint32"),
        3: ("ttl", "Duration"),
    },
    "ResponseClass": {1: ("condition", "ResponseMatch"), 2: ("is_failure", "bool")},
    "RequestMatch": {
        1: ("all", "RequestMatches"),
        2: ("any", "RequestMatches"),
        3: ("not", "RequestMatch"),
        4: ("path", "PathMatch"),
        5: ("method", "HttpMethod"),
    },
    "RequestMatches": {1: ("matches", "*RequestMatch")},
    "PathMatch": {1: ("regex", "string")},
    "HttpMethod": {1: ("registered", "uint32"), 2: ("unregistered", "string")},
    "ResponseMatch": {
        1: ("all", "ResponseMatches"),
        2: ("any", "ResponseMatches"),
        3: ("not", "ResponseMatch"),
        4: ("status", "HttpStatusRange"),
    },
    "ResponseMatches": {1: ("matches", "*ResponseMatch")},
    "HttpStatusRange": {1: ("min", "uint32"), 2: ("max", "uint32")},
    "WeightedDst": {1: ("authority", "string"), 2: ("weight", "uint32"), 3: ("backend_ref", "Metadata")},
    "Metadata": {1: ("default", "string"), 2: ("resource", "Resource")},
    "Resource": {
        1: ("group", "string"),
        2: ("kind", "string"),
        3: ("name", "string"),
        4: ("namespace", "string"),
        5: ("section", "string"),
        6: ("port", "uint32"),
    },
    "Pair": {1: ("key", "string"), 2: ("value", "string")},
}

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SCALARS = {
    "bool": _VARINT,
    "uint32": _VARINT,
    "int64": _VARINT,
    "fixed32": _FIXED32,
    "float": _FIXED32,
    "fixed64": _FIXED64,
}
"""Wire type by scalar type; everything else is length-delimited."""


class WireError(Exception):
    """Bytes that are no message of this API; the text says where."""


def request(path: str, token: str = "") -> bytes:
    """An encoded GetDestination; `scheme` stays empty, as proxies leave it."""
    return b"".join(
        bytes([number << 3 | _LENGTH]) + _varint(len(text)) + text
        for number, text in ((2, path.encode()), (3, token.encode()))
        if text
    )


def decode(kind: str, data: bytes) -> Message:
    """The message of this kind. Raises WireError."""
    fields = MESSAGES[kind]
    message: Message = {}
    for number, wire_type, value in _fields(kind, data):
        if number not in fields:
            raise WireError(f"{kind} has no field {number}")
        name, field = fields[number]
        inner = field.removeprefix("*")
        if wire_type != _SCALARS.get(inner, _LENGTH):
            raise WireError(f"{kind}.{name} has wire type {wire_type}")
        if inner == "map":
            pair = decode("Pair", value)
            message.setdefault(name, {})[pair.get("key", "")] = pair.get("value", "")
        elif field.startswith("*"):
            message.setdefault(name, []).append(decode(inner, value))
        elif name in message:
            raise WireError(f"{kind}.{name} is there twice")
        else:
            message[name] = _value(inner, value)
    return message


def _value(kind: str, value: Any) -> Any:
    match kind:
        case "string":
            return value.decode()
        case "bool":
            return bool(value)
        case "float":
            return struct.unpack("<f", value)[0]
        case "fixed32" | "fixed64":
            return int.from_bytes(value, "little")
        case "uint32" | "int64":
            return value
        case _:
            return decode(kind, value)


def _fields(kind: str, data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
            yield number, wire_type, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type)
        if wire_type == _LENGTH:
            size, at = _read_varint(data, at)
        if size is None or at + size > len(data):
            raise WireError(f"{kind} ends within field {number}")
        yield number, wire_type, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise WireError("a number has no end")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
