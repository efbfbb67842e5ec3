"""What of a kernel dump is content: the records that a table is made of. Pure.

A record keeps the attributes of an allowlist, so that what a newer kernel adds to its dumps is no
drift, and empties counter values. Handles, positions, use counts and expiry times are state: sent
back they would be refused, or silently change the order of rules.

Userdata of tables, chains, sets and objects is a `note`: it is sent, but not compared, since library
versions write other notes and no update changes them on an object that exists.
"""

import functools
from collections.abc import Iterable

import msgspec

from agent.node.nft.wire import Kind, attr, attrs, number, text, u32

TABLE_FLAGS, TABLE_OWNER = 2, 7
DORMANT, OWNER, PERSIST = 1, 2, 4
CHAIN_HOOK, CHAIN_POLICY, CHAIN_TYPE = 4, 5, 7
RULE_EXPRESSIONS, RULE_USERDATA = 4, 7
SET_FLAGS, SET_KEY_TYPE = 3, 4
SET_ANONYMOUS, SET_INTERVAL, SET_MAP = 1, 4, 8
OBJECT_TYPE, OBJECT_DATA = 3, 4
OBJECT_COUNTER = 1
ELEMENT_KEY, ELEMENT_FLAGS, ELEMENT_KEY_END = 1, 3, 10
ELEMENT_END = 1
LIST_ENTRY = 1


DECODED = 2048
"""Dumped objects whose content is kept: pods with one text have one dump, but for counters and names."""
SMALL = 1024
"""Bytes of a set's elements up to which they are kept as well."""


class Shape(msgspec.Struct, frozen=True):
    """Attribute numbers of one kind: what is content, what identifies it, its name, its note."""

    keep: tuple[int, ...]
    key: tuple[int, ...]
    name: int
    note: int | None = None


SHAPES: dict[Kind, Shape] = {
    "table": Shape(keep=(1, 2), key=(1,), name=1, note=6),
    "chain": Shape(keep=(1, 3, 4, 5, 7, 10), key=(1, 3), name=3, note=12),
    "object": Shape(keep=(1, 2, 3, 4), key=(1, 2, 3), name=2, note=8),
    "set": Shape(keep=(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 17, 18), key=(1, 2), name=2, note=13),
    "rule": Shape(keep=(1, 2, 4, 5, 7), key=(1, 2), name=2),
}
ORDER: tuple[Kind, ...] = ("table", "chain", "object", "set", "elements", "rule")
"""In this order the records of a table are listed, each kind by name."""

ELEMENT_KEEP = (1, 2, 3, 4, 6, 7, 9, 10, 11)


class Record(msgspec.Struct, frozen=True, eq=False):
    """One object of a table, as the kernel is told it: `body` and `note` are encoded attributes.

    `name` is the object's own, for a rule its chain's, for elements their set's. Rules keep their order
    in the chain. All elements of a set are one record, whose body is the entries of its list.
    Equal means: same content, whatever the note.
    """

    kind: Kind
    name: str
    body: bytes
    note: bytes = b""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.kind, self.name, self.body) == (other.kind, other.name, other.body)

    def __ne__(self, other: object) -> bool:
        # Struct brings a __ne__ of its own, which does not ask __eq__.
        return not self == other

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.body))

    def __getitem__(self, kind: int) -> bytes:
        """Data of one attribute, empty when the record has none of that type."""
        return dict(attrs(self.body)).get(kind, b"")

    @property
    def key(self) -> bytes:
        """The attributes that identify the object, encoded: what a deletion sends."""
        found = dict(attrs(self.body))
        return b"".join(attr(kind, found[kind]) for kind in SHAPES[self.kind].key)

    @property
    def anonymous(self) -> bool:
        """A set that belongs to one rule: it comes and goes with that rule."""
        return self.kind == "set" and bool(number(self[SET_FLAGS]) & SET_ANONYMOUS)


@functools.lru_cache(DECODED)
def record(kind: Kind, attributes: bytes) -> Record:
    """The content of one dumped object, except elements (see `elements`)."""
    shape, found = SHAPES[kind], dict(attrs(attributes))
    if kind == "rule" and RULE_EXPRESSIONS in found:
        found[RULE_EXPRESSIONS] = _without_counts(found[RULE_EXPRESSIONS])
    if kind == "object" and number(found[OBJECT_TYPE]) == OBJECT_COUNTER:
        found[OBJECT_DATA] = b""
    body = b"".join(attr(number_, found[number_]) for number_ in shape.keep if number_ in found)
    note = attr(shape.note, found[shape.note]) if shape.note in found and shape.note is not None else b""
    return Record(kind, text(found[shape.name]), body, note)


def elements(name: str, parts: Iterable[bytes]) -> Record | None:
    """The content of one set from the element lists of its dump, in one order; None when empty."""
    parts = tuple(parts)
    small = sum(map(len, parts)) <= SMALL
    return _small_elements(name, parts) if small else _elements(name, parts)


@functools.lru_cache(DECODED)
def _small_elements(name: str, parts: tuple[bytes, ...]) -> Record | None:
    return _elements(name, parts)


def _elements(name: str, parts: tuple[bytes, ...]) -> Record | None:
    found = sorted(_element(entry) for part in parts for _, entry in attrs(part))
    # Whether an interval set starts with an END element at zero depends on the library's version
    # and on the set's history; it means nothing.
    entries = b"".join(body for key, start, body in found if start or key.strip(b"\0"))
    return Record("elements", name, entries) if entries else None


def _element(entry: bytes) -> tuple[bytes, bool, bytes]:
    """(key, starts an interval, the element as a list entry); ENDs sort before STARTs of the same key."""
    found = dict(attrs(entry))
    body = b"".join(attr(kind, found[kind]) for kind in ELEMENT_KEEP if kind in found)
    end = number(found.get(ELEMENT_FLAGS, b"")) & ELEMENT_END
    return element_key(found), not end, attr(LIST_ENTRY, body)


def element_key(found: dict[int, bytes], which: int = ELEMENT_KEY) -> bytes:
    """The key of an element's attributes, empty for a catch-all or when there is none."""
    return next((data for _, data in attrs(found.get(which, b""))), b"")


def in_order(records: Iterable[Record]) -> tuple[Record, ...]:
    """Records as they are listed, so that two dumps of one content are equal."""
    return tuple(sorted(records, key=lambda item: (ORDER.index(item.kind), item.name)))


def _without_counts(expressions: bytes) -> bytes:
    """An expression list with the values of its counters emptied."""
    entries = []
    for kind, entry in attrs(expressions):
        found = dict(attrs(entry))
        if text(found.get(1, b"")) == "counter":
            entry = attr(1, found[1]) + attr(2, b"")  # noqa: PLW2901
        entries.append(attr(kind, entry))
    return b"".join(entries)


def with_flags(records: tuple[Record, ...], flags: int) -> tuple[Record, ...]:
    """The same table with other table flags: 0 plain, OWNER | PERSIST owned."""
    return tuple(
        msgspec.structs.replace(item, body=_with(item.body, TABLE_FLAGS, u32(flags)))
        if item.kind == "table"
        else item
        for item in records
    )


def _with(body: bytes, kind: int, data: bytes) -> bytes:
    found = dict(attrs(body)) | {kind: data}
    return b"".join(attr(number_, found[number_]) for number_ in sorted(found))


def counter(attributes: bytes) -> tuple[int, int] | None:
    """(packets, bytes) of a dumped object, None when it is no counter."""
    found = dict(attrs(attributes))
    if number(found[OBJECT_TYPE]) != OBJECT_COUNTER:
        return None
    values = dict(attrs(found[OBJECT_DATA]))
    return number(values.get(2, b"")), number(values.get(1, b""))
