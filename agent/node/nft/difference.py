"""Two tables compared, in words for people: what is missing, extra or changed. Pure."""

from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from ipaddress import ip_address, summarize_address_range

from agent.node.nft.foreign import comment, hook_of
from agent.node.nft.records import (
    CHAIN_HOOK,
    CHAIN_POLICY,
    CHAIN_TYPE,
    DORMANT,
    ELEMENT_END,
    ELEMENT_FLAGS,
    ELEMENT_KEY_END,
    OBJECT_COUNTER,
    OBJECT_TYPE,
    OWNER,
    PERSIST,
    RULE_USERDATA,
    SET_FLAGS,
    SET_INTERVAL,
    SET_MAP,
    TABLE_FLAGS,
    Record,
    element_key,
)
from agent.node.nft.wire import Kind, attrs, number, text

MOST = 20
"""Differences named one by one."""

_POLICIES = {0: "drop", 1: "accept"}
_OWNERSHIP = {0: "plain", PERSIST: "an orphan", OWNER: "owned until its owner ends", OWNER | PERSIST: "owned"}


def difference(want: Iterable[Record], have: Iterable[Record]) -> tuple[str, ...]:
    """What differs in `have`, empty when the tables are equal; at most MOST entries and "and N more"."""
    want, have = tuple(want), tuple(have)
    if want == have:
        return ()
    if not have:
        return ("table missing",)
    if not want:
        return ("table should not be there",)
    found = list(_all(want, have)) or ["table differs in a way that has no words"]
    rest = len(found) - MOST
    return (*found[:MOST], f"and {rest} more") if rest > 0 else tuple(found)


def _all(want: tuple[Record, ...], have: tuple[Record, ...]) -> Iterator[str]:
    yield from _table(want[0], have[0])
    yield from _pairs(_by_name("chain", want), _by_name("chain", have), _chain)
    yield from _pairs(_by_name("object", want), _by_name("object", have), _other)
    wanted_sets, sets = _by_name("set", want), _by_name("set", have)
    yield from _pairs(wanted_sets, sets, _other)
    wanted_elements, elements = _by_name("elements", want), _by_name("elements", have)
    for name in sorted(wanted_sets.keys() & sets.keys()):
        yield from _elements(sets[name], wanted_elements.get(name), elements.get(name))
    for name in sorted(_by_name("chain", want).keys() & _by_name("chain", have).keys()):
        yield from _rules(name, _rules_of(name, want), _rules_of(name, have))


def _by_name(kind: Kind, records: tuple[Record, ...]) -> dict[str, Record]:
    return {item.name: item for item in records if item.kind == kind}


def _rules_of(chain: str, records: tuple[Record, ...]) -> list[bytes]:
    return [item.body for item in records if item.kind == "rule" and item.name == chain]


def _pairs(
    want: dict[str, Record], have: dict[str, Record], changed: Callable[[Record, Record], Iterator[str]]
) -> Iterator[str]:
    for name, item in want.items():
        if name not in have:
            yield f"{_noun(item)} {name} missing"
        elif have[name] != item:
            yield from changed(item, have[name])
    for name, item in have.items():
        if name not in want:
            yield f"extra {_noun(item)} {name}"


def _noun(item: Record) -> str:
    if item.kind == "set" and number(item[SET_FLAGS]) & SET_MAP:
        return "map"
    if item.kind == "object" and number(item[OBJECT_TYPE]) == OBJECT_COUNTER:
        return "counter"
    return item.kind


def _table(want: Record, have: Record) -> Iterator[str]:
    wanted, flags = number(want[TABLE_FLAGS]), number(have[TABLE_FLAGS])
    if flags & DORMANT:
        yield "table is dormant"
    ownership = OWNER | PERSIST
    if (wanted ^ flags) & ownership:
        yield f"table is {_OWNERSHIP[flags & ownership]}, should be {_OWNERSHIP[wanted & ownership]}"


def _chain(want: Record, have: Record) -> Iterator[str]:
    for word, wanted, found in zip(
        ("type", "hook", "priority", "policy"), _fields(want), _fields(have), strict=True
    ):
        if wanted != found:
            yield f"chain {want.name} {word} is {found}, should be {wanted}"
            return
    yield f"chain {want.name} is defined otherwise"


def _fields(chain: Record) -> tuple[str, str, str, str]:
    """Type, hook, priority and policy of a chain as words."""
    if not chain[CHAIN_HOOK]:
        return ("none (no base chain)", "none", "none", "none")
    where = dict(attrs(chain[CHAIN_HOOK]))
    priority = int.from_bytes(where[2], "big", signed=True)
    policy = _POLICIES.get(number(chain[CHAIN_POLICY]), "unknown")
    return text(chain[CHAIN_TYPE]), hook_of("inet", number(where[1])), str(priority), policy


def _other(want: Record, _: Record) -> Iterator[str]:
    yield f"{_noun(want)} {want.name} is defined otherwise"


def _elements(item: Record, want: Record | None, have: Record | None) -> Iterator[str]:
    if want == have:
        return
    interval = bool(number(item[SET_FLAGS]) & SET_INTERVAL)
    wanted = dict.fromkeys(_keys(want, interval)) if want else {}
    found = dict.fromkeys(_keys(have, interval)) if have else {}
    words = [
        f"element {_words(key)} missing in {_noun(item)} {item.name}" for key in wanted if key not in found
    ]
    words += [
        f"extra element {_words(key)} in {_noun(item)} {item.name}" for key in found if key not in wanted
    ]
    yield from words or [f"elements of {_noun(item)} {item.name} have other data"]


def _keys(elements: Record, interval: bool) -> Iterator[tuple[bytes, bytes]]:
    """(first, last) key of every element. In the dump an interval is a START and an END one past it."""
    start: bytes | None = None
    for _, entry in attrs(elements.body):
        found = dict(attrs(entry))
        key, last = element_key(found), element_key(found, ELEMENT_KEY_END)
        if number(found.get(ELEMENT_FLAGS, b"")) & ELEMENT_END:
            if start is not None:
                yield start, (number(key) - 1).to_bytes(len(key), "big")
            start = None
        elif interval and not last:
            if start is not None:
                yield start, start
            start = key
        else:
            yield key, last or key
    if start is not None:
        yield start, b"\xff" * len(start)


def _words(key: tuple[bytes, bytes]) -> str:
    first, last = key
    if len(first) == 2:
        return "-".join(dict.fromkeys(str(number(end)) for end in key))
    if len(first) in (4, 16):
        networks = list(summarize_address_range(ip_address(first), ip_address(last)))
        if len(networks) == 1:
            return str(networks[0]).removesuffix(f"/{len(first) * 8}")
        return f"{ip_address(first)}-{ip_address(last)}"
    return "-".join(dict.fromkeys(end.hex() for end in key)) or "*"


def _rules(chain: str, want: list[bytes], have: list[bytes]) -> Iterator[str]:
    for what, i, j, k, m in SequenceMatcher(None, want, have, autojunk=False).get_opcodes():
        if what == "equal":
            continue
        for place in range(i, j):
            yield f"rule missing in chain {chain} at {place + 1}{_comment(want[place])}"
        for place in range(k, m):
            yield f"extra rule in chain {chain} at {place + 1}{_comment(have[place])}"


def _comment(rule: bytes) -> str:
    words = comment(dict(attrs(rule)).get(RULE_USERDATA, b""))
    return f" ({words})" if words else ""
