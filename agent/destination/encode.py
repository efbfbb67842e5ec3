"""Endpoints as bytes, and what leads from one set of them to the next.

A message is a concatenation of fields that were encoded before: protobuf's repeated fields allow it. What
was added or has changed goes before what was removed, so that a client never has fewer addresses than
either set; and no message is larger than LIMIT, since proxies end a stream at 4 MiB.
"""

from collections.abc import Iterable, Iterator

import msgspec

from agent.core.discovery.answers import Endpoints, Labels
from agent.destination.address import Encoded, Encoder, field, varint
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
    return Snapshot(answer.exists, _shared(answer.labels, labels), addresses)


def difference(old: Snapshot | None, new: Snapshot) -> tuple[bytes, ...]:
    """The messages that turn the view of a client that was sent `old` (None: nothing yet) into `new`.

    Empty when the two are the same. The first message that a client gets is an `add`, or `no_endpoints`.
    """
    before = {} if old is None else old.addresses
    relabelled = old is None or old.labels != new.labels
    added = [
        encoded.added
        for key, encoded in new.addresses.items()
        if relabelled or (known := before.get(key)) is None or known.added != encoded.added
    ]
    if added:
        removed = [encoded.removed for key, encoded in before.items() if key not in new.addresses]
        return (*_parts(_ADD, added, new.labels), *_parts(_REMOVE, removed, b""))
    if not new.addresses and (old is None or (old.exists and not new.exists) or _appeared(old, new)):
        return (Update(no_endpoints=NoEndpoints(exists=new.exists)).SerializeToString(),)
    removed = [encoded.removed for key, encoded in before.items() if key not in new.addresses]
    return tuple(_parts(_REMOVE, removed, b""))


def _appeared(old: Snapshot, new: Snapshot) -> bool:
    return not old.addresses and new.exists and not old.exists


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
