"""Records to one transaction: only what differs is touched, so the rest keeps handles and counters. Pure.

Order within a batch: the table, new or changed chains, all old rules out, objects, sets and their
elements, rules, and last what is no longer wanted, when nothing refers to it any more.
"""

from collections.abc import Iterable, Iterator

import msgspec

from agent.node.nft.records import ELEMENT_END, ELEMENT_FLAGS, LIST_ENTRY, OBJECT_TYPE, Record
from agent.node.nft.wire import (
    ACK,
    APPEND,
    BATCH_BEGIN,
    BATCH_END,
    CREATE,
    DELETE,
    INET,
    NEW,
    NUMBER,
    Kind,
    attr,
    attrs,
    envelope,
    message,
    number,
    string,
    u32,
)

SET_ID = 10
ELEMENTS_CUT = 60_000
"""Bytes of elements in one message; an attribute ends at 64 KiB."""


class Batch(msgspec.Struct, frozen=True):
    """One transaction: netlink bytes, and what each message is about; its index is its sequence number."""

    data: bytes
    labels: tuple[str, ...]


class Step(msgspec.Struct, frozen=True):
    """One message of a batch; `number` is its message number, `body` its attributes."""

    label: str
    number: int
    body: bytes
    flags: int = 0
    family: int = INET


def batch(
    want: Iterable[Record],
    have: Iterable[Record] = (),
    *,
    replace: bool = False,
    generation: int | None = None,
) -> Batch:
    """The transaction that makes the table `have` into `want`; empty `want` deletes it.

    `have` is the read whose `generation` is given: the kernel then refuses the batch (ERESTART) when
    anything has changed since. `replace` deletes the table and makes a new one, in the same transaction.
    """
    old, new = _Contents(have), _Contents(want)
    steps: list[Step] = []
    if old.table is not None and (replace or new.table is None):
        steps.append(_delete(old.table))
        old = _Contents(())
    if new.table is not None:
        steps.extend(_changes(new.table, new, old))
    return frame(steps, generation)


def conditional(transaction: Batch, generation: int) -> Batch:
    """An unconditional transaction, made so that the kernel refuses it once `generation` has passed."""
    steps = transaction.data[len(envelope(BATCH_BEGIN, 0)) :]
    begin = envelope(BATCH_BEGIN, 0, generation)
    return Batch(begin + steps, (_begin(generation), *transaction.labels[1:]))


class _Contents:
    """The records of one table by kind."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.table: Record | None = None
        self.chains: dict[str, Record] = {}
        self.objects: dict[tuple[str, bytes], Record] = {}
        self.sets: dict[str, Record] = {}
        self.anonymous: list[Record] = []
        self.elements: dict[str, Record] = {}
        self.rules: list[Record] = []
        for item in records:
            if item.kind == "table":
                self.table = item
            elif item.kind == "chain":
                self.chains[item.name] = item
            elif item.kind == "object":
                self.objects[item.name, item[OBJECT_TYPE]] = item
            elif item.kind == "set" and item.anonymous:
                self.anonymous.append(item)
            elif item.kind == "set":
                self.sets[item.name] = item
            elif item.kind == "elements":
                self.elements[item.name] = item
            else:
                self.rules.append(item)

    @property
    def program(self) -> tuple[list[Record], list[Record], list[Record | None]]:
        """The rules, and the anonymous sets that live and die with them."""
        return self.rules, self.anonymous, [self.elements.get(item.name) for item in self.anonymous]


def _changes(table: Record, new: _Contents, old: _Contents) -> Iterator[Step]:
    rewrite = new.program != old.program
    yield _new(table)
    yield from (_new(chain) for name, chain in new.chains.items() if old.chains.get(name) != chain)
    if rewrite:
        yield from (_empty("rule", table, name) for name in old.chains)
    yield from (_new(item) for name, item in new.objects.items() if old.objects.get(name) != item)
    # A set needs a number of its own within the batch.
    numbers = {name: place for place, name in enumerate([*new.sets, *(s.name for s in new.anonymous)], 1)}
    for name, item in new.sets.items():
        if old.sets.get(name) != item:
            yield _new(item, attr(SET_ID, u32(numbers[name])))
        if new.elements.get(name) != old.elements.get(name):
            if name in old.elements:
                yield _empty("elements", table, name)
            yield from _fill(table, new.elements.get(name))
    if rewrite:
        for item in new.anonymous:
            yield _new(item, attr(SET_ID, u32(numbers[item.name])))
            yield from _fill(table, new.elements.get(item.name))
        yield from _program(new.rules)
    yield from (_delete(item) for name, item in old.sets.items() if name not in new.sets)
    yield from (_delete(item) for name, item in old.objects.items() if name not in new.objects)
    yield from (_delete(item) for name, item in old.chains.items() if name not in new.chains)


def _new(item: Record, extra: bytes = b"") -> Step:
    return Step(f"{item.kind} {item.name}", NUMBER[item.kind] + NEW, item.body + item.note + extra, CREATE)


def _delete(item: Record) -> Step:
    return Step(f"deletion of {item.kind} {item.name}", NUMBER[item.kind] + DELETE, item.key)


def _empty(kind: Kind, table: Record, name: str) -> Step:
    """Take out all rules of a chain, or all elements of a set."""
    body = attr(1, string(table.name)) + attr(2, string(name))
    return Step(f"removal of {kind} from {name}", NUMBER[kind] + DELETE, body)


def _program(rules: list[Record]) -> Iterator[Step]:
    places: dict[str, int] = {}
    for rule in rules:
        places[rule.name] = place = places.get(rule.name, 0) + 1
        yield Step(f"rule {rule.name} #{place}", NUMBER["rule"] + NEW, rule.body, CREATE | APPEND)


def _fill(table: Record, elements: Record | None) -> Iterator[Step]:
    """Add elements, cut where an interval has ended."""
    if elements is None:
        return
    head = attr(1, string(table.name)) + attr(2, string(elements.name))
    part: list[bytes] = []
    size = 0
    for _, entry in attrs(elements.body):
        encoded = attr(LIST_ENTRY, entry)
        if size + len(encoded) > ELEMENTS_CUT and _starts(entry):
            yield _elements(elements.name, head, part)
            part, size = [], 0
        part.append(encoded)
        size += len(encoded)
    yield _elements(elements.name, head, part)


def _elements(name: str, head: bytes, part: list[bytes]) -> Step:
    return Step(f"elements of {name}", NUMBER["elements"] + NEW, head + attr(3, b"".join(part)), CREATE)


def _starts(entry: bytes) -> bool:
    found = dict(attrs(entry))
    return not number(found.get(ELEMENT_FLAGS, b"")) & ELEMENT_END


def frame(steps: list[Step], generation: int | None) -> Batch:
    """Sequence number = index. One acknowledgement is asked for, on the last step: commits are atomic."""
    parts = [envelope(BATCH_BEGIN, 0, generation)]
    for seq, step in enumerate(steps, 1):
        flags = step.flags | (ACK if seq == len(steps) else 0)
        parts.append(message(step.number, flags, seq, step.body, step.family))
    parts.append(envelope(BATCH_END, len(steps) + 1))
    return Batch(b"".join(parts), (_begin(generation), *(step.label for step in steps)))


def _begin(generation: int | None) -> str:
    return "transaction" if generation is None else f"transaction on generation {generation}"
