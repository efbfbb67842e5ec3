"""Messages as Go's encoding/json prints the structs that are generated from them, key by key.

That is no canonical JSON of protobuf: a oneof is an object of its own, under its name in Go, that names
the alternative (`{"Ip": {"Ipv4": 167838211}}`), and null where none is set; enums and 64-bit integers are
numbers, a Duration is its fields. What is empty or zero is left out, but in a oneof.
"""

import math
import struct
from decimal import Decimal
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_FIRST = {"io.linkerd.proxy.destination.DestinationProfile": ("fully_qualified_name", "opaque_protocol")}
"""Fields that Linkerd's own files declare before the others: they come first in Go's structs."""

_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def go_struct(message: Message) -> dict[str, Any]:
    """The object that `encoding/json` makes of a message; to be written by `go_json`."""
    found: dict[str, Any] = {}
    for field in _in_order(message):
        oneof = field.containing_oneof
        if oneof is None:
            if _is_set(message, field):
                found[field.name] = _value(message, field)
            continue
        chosen = message.WhichOneof(oneof.name)
        if chosen is None:
            found[_exported(oneof.name)] = None
        elif chosen == field.name:
            found[_exported(oneof.name)] = {_exported(chosen): _value(message, field)}
    return found


def go_json(value: object) -> str:
    """One document, indented by two, with what could be read as HTML escaped."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode().translate(_ESCAPED)


def _in_order(message: Message) -> list[FieldDescriptor]:
    first = _FIRST.get(message.DESCRIPTOR.full_name, ())
    places = {name: place for place, name in enumerate(first)}
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    return sorted(fields, key=lambda field: places.get(field.name, len(places)))


def _is_set(message: Message, field: FieldDescriptor) -> bool:
    if field.is_repeated:
        return bool(getattr(message, field.name))
    if field.has_presence:
        return message.HasField(field.name)
    return bool(getattr(message, field.name) != field.default_value)


def _value(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _scalar(value)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {key: _scalar(value[key]) for key in sorted(value)}
    return [_scalar(each) for each in value]


def _scalar(value: Any) -> Any:
    if isinstance(value, Message):
        return go_struct(value)
    return _float32(value) if isinstance(value, float) else value


def _float32(value: float) -> msgspec.Raw | None:
    """The shortest digits that are this float32; all floats of these messages are. JSON has no infinity."""
    if not math.isfinite(value):
        return None
    packed = struct.pack("f", value)
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    shortest = next(text for text in texts if struct.pack("f", float(text)) == packed)
    if 1e-6 <= abs(value) < 1e21:
        return msgspec.Raw(f"{Decimal(shortest):f}".encode())
    return msgspec.Raw(shortest.replace("e-0", "e-").encode())


def _exported(name: str) -> str:
    """A field's name as Go exports it: `dns_like_identity` is DnsLikeIdentity."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
