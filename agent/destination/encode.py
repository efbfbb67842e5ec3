"""Endpoints as bytes, and what leads from one set of them to the next.

A message is a concatenation of fields that were encoded before: protobuf's repeated fields allow it. What
was added or has changed goes before what was removed, so that a client never has fewer addresses than
either set; and no message is larger than LIMIT, since proxies end a stream at 4 MiB.
"""

from collections.abc import Iterable, Iterator

import msgspec

from agent.core.discovery.answers import Endpoints
from agent.destination.address import Encoded, Encoder, varint
from agent.destination.proto.destination_pb2 import NoEndpoints, Update, WeightedAddrSet

LIMIT = 1 << 20
"""Bytes of the largest message, unless one address alone is larger."""

_ADD, _REMOVE = b"\x0a", b"\x12"
_HEADER = 1 + len(varint(LIMIT))


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """A set of endpoints, encoded. Immutable, and shared by all streams that have been sent it.

    `labels`: the set's labels as fields of WeightedAddrSet.
    """

    exists: bool
    labels: bytes
    addresses: dict[tuple[str, int], Encoded]


def snapshot(encoder: Encoder, answer: Endpoints) -> Snapshot:
    labels = WeightedAddrSet(metric_labels=dict(answer.labels)).SerializeToString(deterministic=True)
    addresses = {(each.ip, each.port): encoder.encode(each) for each in answer.addresses}
    return Snapshot(answer.exists, labels, addresses)


def difference(old: Snapshot | None, new: Snapshot) -> tuple[bytes, ...]:
    """The messages that turn the view of a client that was sent `old` (None: nothing yet) into `new`.

    Empty when the two are the same. The first message that a client gets is an `add`, or `no_endpoints`.
    """
    if not new.addresses and (old is None or old.exists != new.exists):
        return (Update(no_endpoints=NoEndpoints(exists=new.exists)).SerializeToString(),)
    if old is None:
        added = [each.added for each in new.addresses.values()]
        return tuple(_parts(_ADD, added, new.labels))
    added = [
        each.added
        for key, each in new.addresses.items()
        if old.labels != new.labels or not _same(old.addresses.get(key), each)
    ]
    removed = [each.removed for key, each in old.addresses.items() if key not in new.addresses]
    return (*_parts(_ADD, added, new.labels), *_parts(_REMOVE, removed, b""))


def _same(before: Encoded | None, now: Encoded) -> bool:
    return before is now or (before is not None and before.added == now.added)


def _parts(tag: bytes, elements: Iterable[bytes], tail: bytes) -> Iterator[bytes]:
    """Updates of the kind `tag` with all elements, as few as LIMIT allows, each with `tail` at its end."""
    room = LIMIT - _HEADER - len(tail)
    part: list[bytes] = []
    size = 0
    for element in elements:
        if part and size + len(element) > room:
            yield _update(tag, part, tail)
            part, size = [], 0
        part.append(element)
        size += len(element)
    if part:
        yield _update(tag, part, tail)


def _update(tag: bytes, elements: list[bytes], tail: bytes) -> bytes:
    body = b"".join((*elements, tail))
    return tag + varint(len(body)) + body
