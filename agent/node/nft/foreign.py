"""Chains and rules of tables that are not ours: look at them, and take some out. Pure.

Only what such a look needs is decoded, so that no set, map, helper or comment that somebody else has
made can get in the way.
"""

from collections.abc import Iterable, Iterator

import msgspec

from agent.node.nft.batch import Batch, Step, frame
from agent.node.nft.wire import (
    DELETE,
    FAMILIES,
    FAMILY_NUMBERS,
    NUMBER,
    Kind,
    attr,
    attrs,
    number,
    string,
    text,
)

_HOOKS = {0: "prerouting", 1: "input", 2: "forward", 3: "output", 4: "postrouting", 5: "ingress"}
_HOOKS_OF = {"arp": {0: "input", 1: "output", 2: "forward"}, "netdev": {0: "ingress", 1: "egress"}}


class Chain(msgspec.Struct, frozen=True):
    """A chain of any table. A base chain has `type`, `hook` and `priority`; for others they are None.

    `rules` is the kernel's use count: exact for base chains, plus the jumps to it for others.
    """

    family: str
    table: str
    name: str
    type: str | None
    hook: str | None
    priority: int | None
    rules: int


class Rule(msgspec.Struct, frozen=True):
    """A rule of any table; `expressions` are (name, encoded attributes) in their order."""

    family: str
    table: str
    chain: str
    handle: int
    expressions: tuple[tuple[str, bytes], ...]
    comment: str


def chain(family_number: int, attributes: bytes) -> Chain:
    """Decode one dumped chain."""
    found = dict(attrs(attributes))
    family = FAMILIES.get(family_number, str(family_number))
    kind = hook = priority = None
    if 4 in found:
        where = dict(attrs(found[4]))
        hook = hook_of(family, number(where[1]))
        priority = int.from_bytes(where[2], "big", signed=True)
        kind = text(found.get(7, b""))
    return Chain(family, text(found[1]), text(found[3]), kind, hook, priority, number(found.get(6, b"")))


def rule(family_number: int, attributes: bytes) -> Rule:
    """Decode one dumped rule."""
    found = dict(attrs(attributes))
    family = FAMILIES.get(family_number, str(family_number))
    parts = tuple(_expressions(found.get(4, b"")))
    words = comment(found.get(7, b"")) or _xt_comment(parts)
    return Rule(family, text(found[1]), text(found[2]), number(found[3]), parts, words)


def hook_of(family: str, hook: int) -> str:
    """Name of a hook, its number when it is unknown."""
    return _HOOKS_OF.get(family, _HOOKS).get(hook, str(hook))


def comment(userdata: bytes) -> str:
    """The comment in a rule's userdata, "" without one. Entries are (type, length, value)."""
    while len(userdata) >= 2 and len(userdata) >= 2 + userdata[1]:
        if userdata[0] == 0:
            return text(userdata[2 : 2 + userdata[1]])
        userdata = userdata[2 + userdata[1] :]
    return ""


def removal(rules: Iterable[Rule], chains: Iterable[Chain], generation: int) -> Batch:
    """The transaction that deletes these rules, then these chains with all that is in them.

    Nothing else in their tables is touched. Refused as a whole (ERESTART) when anything has changed
    since `generation`, so that no handle can mean another rule by now.
    """
    doomed = tuple(chains)
    emptied = {(item.family, item.table, item.name) for item in doomed}
    steps = [
        _step("rule", (item.family, item.table), item.chain, handle=item.handle)
        for item in rules
        if (item.family, item.table, item.chain) not in emptied
    ]
    # All are emptied before the first is deleted: they may jump to each other.
    steps += [_step("rule", (item.family, item.table), item.name) for item in doomed]
    steps += [_step("chain", (item.family, item.table), item.name) for item in doomed]
    return frame(steps, generation)


def _step(kind: Kind, table: tuple[str, str], chain_name: str, handle: int | None = None) -> Step:
    family, table_name = table
    where = " ".join((family, table_name, chain_name))
    body = attr(1, string(table_name)) + attr(3 if kind == "chain" else 2, string(chain_name))
    if handle is not None:
        body += attr(3, handle.to_bytes(8, "big"))
        where = f"{where} handle {handle}"
    return Step(f"deletion of {kind} {where}", NUMBER[kind] + DELETE, body, family=FAMILY_NUMBERS[family])


def _expressions(data: bytes) -> Iterator[tuple[str, bytes]]:
    for _, entry in attrs(data):
        found = dict(attrs(entry))
        yield text(found.get(1, b"")), found.get(2, b"")


def _xt_comment(parts: tuple[tuple[str, bytes], ...]) -> str:
    """The comment that iptables-nft keeps in an xt match."""
    for name, data in parts:
        found = dict(attrs(data)) if name == "match" else {}
        if text(found.get(1, b"")) == "comment":
            return text(found.get(3, b""))
    return ""
