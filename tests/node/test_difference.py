"""Differences of two tables in words, on hand-made bytes: no kernel, no root."""

import pytest

from agent.node.nft.difference import MOST, difference
from agent.node.nft.records import Record, elements, in_order, with_flags
from tests.node.made import FULL, a_chain, a_rule, a_set, a_table, an_element, ports


def without(kind: str, *instead: Record) -> tuple[Record, ...]:
    return in_order((*(item for item in FULL if item.kind != kind), *instead))


@pytest.mark.parametrize(
    ("have", "words"),
    [
        (FULL, ()),
        ((), ("table missing",)),
        (with_flags(FULL, 1), ("table is dormant",)),
        (with_flags(FULL, 0x80), ("table differs in a way that has no words",)),
        (without("rule", a_rule("output", "two")), ("rule missing in chain output at 1 (one)",)),
        (in_order((*FULL, a_rule("output", "three"))), ("extra rule in chain output at 3 (three)",)),
        (without("chain", a_chain("output", -100)), ("chain output priority is -100, should be -101",)),
        (
            without("chain", a_chain("output", -101, policy=0)),
            ("chain output policy is drop, should be accept",),
        ),
        (without("chain", a_chain("output")), ("chain output type is none (no base chain), should be nat",)),
        (in_order((*FULL, a_chain("x"))), ("extra chain x",)),
        (in_order((*FULL, a_set("x"))), ("extra set x",)),
        (in_order((*FULL, a_set("x", flags=8))), ("extra map x",)),
        (without("object"), ("counter hits missing",)),
        (without("set", a_set("ports", flags=0)), ("set ports is defined otherwise",)),
        (without("elements"), ("element 22 missing in set ports",)),
        (
            without("elements", ports("ports", (22, 22), (9000, 9010))),
            ("extra element 9000-9010 in set ports",),
        ),
        (
            without("elements", ports("ports", (22, 23))),
            ("element 22 missing in set ports", "extra element 22-23 in set ports"),
        ),
    ],
)
def test_differences_in_words(have: tuple[Record, ...], words: tuple[str, ...]) -> None:
    assert difference(FULL, have) == words


def test_ownership_in_words() -> None:
    owned = with_flags(FULL, 6)
    assert difference(owned, with_flags(FULL, 4)) == ("table is an orphan, should be owned",)
    assert difference(owned, FULL) == ("table is plain, should be owned",)
    assert difference(FULL, owned) == ("table is owned, should be plain",)


@pytest.mark.parametrize(
    ("width", "first", "last", "words"),
    [
        (4, 0x0A000000, 0x0AFFFFFF, "10.0.0.0/8"),
        (4, 0x0A010203, 0x0A010203, "10.1.2.3"),
        (4, 1, 3, "0.0.0.1-0.0.0.3"),
        (16, 0xFD << 120, (0xFE << 120) - 1, "fd00::/8"),
        (3, 1, 1, "000001"),
    ],
)
def test_elements_in_words(width: int, first: int, last: int, words: str) -> None:
    entry = an_element(first, width=width) + an_element(last + 1, end=True, width=width)
    want = in_order((a_table(), a_set("s"), *filter(None, [elements("s", [entry])])))
    assert difference(want, (a_table(), a_set("s"))) == (f"element {words} missing in set s",)


def test_last_interval_may_have_no_end() -> None:
    want = in_order((a_table(), a_set("s"), *filter(None, [elements("s", [an_element(0, width=4)])])))
    assert difference(want, (a_table(), a_set("s"))) == ("element 0.0.0.0/0 missing in set s",)


def test_differences_are_bounded() -> None:
    want = in_order((a_table(), a_set("ports"), ports("ports", *((port, port) for port in range(1, 100, 2)))))
    found = difference(want, (a_table(), a_set("ports")))
    assert len(found) == MOST + 1
    assert found[-1] == "and 30 more"
