"""Netlink bytes, records, batches and differences, on hand-made bytes: no kernel, no root."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node.nft.batch import ELEMENTS_CUT, batch
from agent.node.nft.difference import MOST, difference
from agent.node.nft.foreign import Chain, Rule, chain, comment, removal, rule
from agent.node.nft.records import Record, counter, elements, in_order, record, with_flags
from agent.node.nft.wire import (
    ACK,
    APPEND,
    BATCH_BEGIN,
    BATCH_END,
    DELETE,
    ERROR,
    INET,
    NEW,
    NUMBER,
    SUBSYSTEM,
    Message,
    answer,
    attr,
    attrs,
    envelope,
    message,
    messages,
    number,
    string,
    text,
    u32,
)

TABLE = attr(1, string("pointsman"))


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def expression(name: str, data: bytes) -> bytes:
    return attr(1, attr(1, string(name)) + attr(2, data))


def a_table(flags: int = 0) -> Record:
    return record("table", TABLE + attr(2, u32(flags)) + attr(3, u32(9)) + attr(4, u64(1)))


def a_chain(name: str, priority: int | None = None, policy: int = 1) -> Record:
    body = TABLE + attr(2, u64(7)) + attr(3, string(name)) + attr(6, u32(3))
    if priority is not None:
        body += attr(4, attr(1, u32(3)) + attr(2, priority.to_bytes(4, "big", signed=True)))
        body += attr(5, u32(policy)) + attr(7, string("nat"))
    return record("chain", body)


def a_rule(chain_name: str, words: str, packets: int = 0, handle: int = 5) -> Record:
    counts = attr(1, u64(packets * 60)) + attr(2, u64(packets))
    note = words.encode() + b"\0"
    return record(
        "rule",
        TABLE
        + attr(2, string(chain_name))
        + attr(3, u64(handle))
        + attr(4, expression("counter", counts) + expression("immediate", b"\1\2\3\4"))
        + attr(6, u64(handle - 1))
        + attr(7, bytes((0, len(note))) + note),
    )


def a_set(name: str, flags: int = 4) -> Record:
    return record(
        "set", TABLE + attr(2, string(name)) + attr(3, u32(flags)) + attr(5, u32(2)) + attr(16, u64(3))
    )


def a_counter(name: str, packets: int = 0) -> Record:
    data = attr(1, u64(packets * 60)) + attr(2, u64(packets))
    return record("object", TABLE + attr(2, string(name)) + attr(3, u32(1)) + attr(4, data) + attr(6, u64(8)))


def an_element(key: int, *, end: bool = False, width: int = 2, expires: int | None = None) -> bytes:
    body = attr(1, attr(1, key.to_bytes(width, "big")))
    if end:
        body += attr(3, u32(1))
    if expires is not None:
        body += attr(5, u64(expires))
    return attr(1, body)


def ports(name: str, *ranges: tuple[int, int]) -> Record:
    """The elements of an interval set of ports."""
    parts = [an_element(first) + an_element(last + 1, end=True) for first, last in ranges]
    found = elements(name, parts)
    assert found is not None
    return found


def steps(data: bytes) -> list[Message]:
    """The messages of a batch without its begin and end."""
    found = list(messages(data))
    assert (found[0].kind, found[-1].kind) == (BATCH_BEGIN, BATCH_END)
    return found[1:-1]


def kinds(data: bytes) -> list[int]:
    return [step.kind - (SUBSYSTEM << 8) for step in steps(data)]


# --- attributes and messages -------------------------------------------------------------------------


def test_attribute_is_padded_and_its_length_is_not() -> None:
    assert attr(3, b"abcde") == struct.pack("=HH", 9, 3) + b"abcde\0\0\0"


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40))))
def test_attributes_come_back(pairs: list[tuple[int, bytes]]) -> None:
    assert list(attrs(b"".join(attr(kind, data) for kind, data in pairs))) == pairs


def test_flag_bits_of_an_attribute_type_are_no_part_of_it() -> None:
    assert list(attrs(struct.pack("=HH", 4, 0x8000 | 0x4000 | 4))) == [(4, b"")]


@given(st.binary(max_size=200))
def test_any_bytes_end_in_attributes_or_in_an_error(data: bytes) -> None:
    try:
        assert sum(len(part) + 4 for _, part in attrs(data)) <= len(data)
    except ValueError as error:
        assert "cannot decode" in str(error)  # noqa: PT017


@given(st.binary(max_size=200))
def test_any_datagram_ends_in_messages_or_in_an_error(data: bytes) -> None:
    try:
        assert sum(len(part.body) + 16 for part in messages(data)) <= len(data)
    except ValueError as error:
        assert "cannot decode" in str(error)  # noqa: PT017


def test_attribute_longer_than_16_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        attr(3, bytes(0xFFFC))


def test_message_comes_back() -> None:
    (found,) = messages(message(NUMBER["rule"] + NEW, APPEND, 7, TABLE))
    assert (found.kind, found.flags, found.seq, found.portid) == (SUBSYSTEM << 8 | 6, APPEND | 1, 7, 0)
    assert (found.family, found.attributes) == (INET, TABLE)


def test_envelope_carries_the_generation_in_network_order() -> None:
    expected = (
        struct.pack("=IHHII", 28, BATCH_BEGIN, 1, 0, 0)
        + b"\0\0\0\x0a"
        + struct.pack("=HH", 8, 1)
        + b"\0\0\1\2"
    )
    assert envelope(BATCH_BEGIN, 0, 258) == expected


def test_answer_has_errno_offset_and_words() -> None:
    request = bytes(16)
    body = struct.pack("=i", -17) + request + attr(1, b"set type differs\0") + attr(2, struct.pack("=I", 28))
    assert answer(Message(ERROR, 0x200, 1, 0, body)) == (17, "set type differs at byte 28")
    assert answer(Message(ERROR, 0, 1, 0, struct.pack("=i", 0) + request)) == (0, "")


def test_names_that_are_no_utf8_survive() -> None:
    assert string(text(b"caf\xe9\0")) == b"caf\xe9\0"


# --- records -----------------------------------------------------------------------------------------


def test_state_is_no_part_of_a_record() -> None:
    assert a_rule("output", "x", packets=0, handle=5) == a_rule("output", "x", packets=99, handle=50)
    assert a_counter("c", packets=0) == a_counter("c", packets=12)
    kept = dict(attrs(a_rule("output", "x").body))
    assert set(kept) == {1, 2, 4, 7}
    assert set(dict(attrs(a_set("ports").body))) == {1, 2, 3, 5}
    assert set(dict(attrs(a_chain("output", -101).body))) == {1, 3, 4, 5, 7}


def test_content_is_part_of_a_record() -> None:
    assert a_rule("output", "x") != a_rule("output", "y")
    assert a_chain("output", -101) != a_chain("output", -100)
    assert a_table(0) != a_table(6)


def test_unknown_attributes_of_newer_kernels_are_dropped() -> None:
    assert record("set", a_set("ports").body + attr(19, b"nft_set_rbtree\0") + attr(20, u32(3))) == a_set(
        "ports"
    )


def test_notes_are_kept_and_not_compared() -> None:
    noted = record("set", a_set("ports").body + attr(13, b"note"))
    assert noted == a_set("ports")
    assert not noted != a_set("ports")  # noqa: SIM202 - the operator has code of its own
    assert hash(noted) == hash(a_set("ports"))
    assert noted.note == attr(13, b"note")


def test_counter_values_are_read_beside_the_record() -> None:
    data = attr(1, u64(420)) + attr(2, u64(7))
    assert counter(TABLE + attr(2, string("c")) + attr(3, u32(1)) + attr(4, data)) == (7, 420)
    assert counter(TABLE + attr(2, string("q")) + attr(3, u32(2)) + attr(4, b"")) is None


def test_elements_have_one_order_whatever_the_dump_s() -> None:
    upwards = elements(
        "s", [an_element(22) + an_element(23, end=True) + an_element(23) + an_element(25, end=True)]
    )
    downwards = elements(
        "s", [an_element(25, end=True), an_element(23) + an_element(23, end=True), an_element(22)]
    )
    assert upwards == downwards
    assert upwards is not None
    ends = [bool(dict(attrs(entry)).get(3)) for _, entry in attrs(upwards.body)]
    assert ends == [False, True, False, True]


def test_end_at_zero_means_nothing_and_start_at_zero_does() -> None:
    assert elements("s", [an_element(0, end=True)]) is None
    assert elements("s", [an_element(0, end=True) + an_element(9)]) == elements("s", [an_element(9)])
    assert elements("s", [an_element(0)]) is not None


def test_expiry_of_an_element_is_state() -> None:
    assert elements("s", [an_element(9, expires=5)]) == elements("s", [an_element(9)])


def test_flags_are_stamped_on_the_table_only() -> None:
    stamped = with_flags((a_table(), a_chain("output", -101)), 6)
    assert stamped == (a_table(6), a_chain("output", -101))
    assert with_flags(stamped, 0) == (a_table(), a_chain("output", -101))


# --- batches -----------------------------------------------------------------------------------------

FULL = in_order(
    (
        a_rule("output", "one"),
        a_rule("output", "two"),
        ports("ports", (22, 22)),
        a_set("ports"),
        a_counter("hits"),
        a_chain("output", -101),
        a_table(),
    )
)


def test_fresh_batch_creates_everything_in_order_and_asks_for_one_answer() -> None:
    made = batch(FULL, generation=3)
    new = [NUMBER[kind] + NEW for kind in ("table", "chain", "object", "set", "elements", "rule", "rule")]  # type: ignore[index]
    assert kinds(made.data) == new
    assert [step.seq for step in steps(made.data)] == list(range(1, 8))
    assert [bool(step.flags & ACK) for step in steps(made.data)] == [False] * 6 + [True]
    assert made.labels[0] == "transaction on generation 3"
    assert made.labels[-1] == "rule output #2"


def test_set_gets_a_number_of_its_own() -> None:
    made = batch(in_order((a_table(), a_set("a"), a_set("b"))))
    numbers = [number(dict(attrs(step.attributes))[10]) for step in steps(made.data)[1:]]
    assert numbers == [1, 2]


def test_equal_content_of_an_orphan_is_claimed_by_one_message() -> None:
    orphan = with_flags(FULL, 4)
    made = batch(with_flags(FULL, 6), orphan, generation=1)
    assert kinds(made.data) == [NUMBER["table"] + NEW]
    assert number(dict(attrs(steps(made.data)[0].attributes))[2]) == 6


def test_changed_elements_leave_rules_alone() -> None:
    want = in_order((*(item for item in FULL if item.kind != "elements"), ports("ports", (80, 80))))
    made = batch(want, FULL, generation=1)
    assert kinds(made.data) == [NUMBER["table"] + NEW, NUMBER["elements"] + DELETE, NUMBER["elements"] + NEW]


def test_one_changed_rule_rewrites_the_rules_and_nothing_else() -> None:
    want = in_order((*(item for item in FULL if item.kind != "rule"), a_rule("output", "three")))
    made = batch(want, FULL, generation=1)
    assert kinds(made.data) == [NUMBER["table"] + NEW, NUMBER["rule"] + DELETE, NUMBER["rule"] + NEW]


def test_what_is_no_longer_wanted_goes_last() -> None:
    have = in_order((*FULL, a_chain("stale"), a_rule("stale", "x"), a_set("old"), a_counter("old")))
    made = batch(FULL, have, generation=1)
    assert kinds(made.data)[-3:] == [NUMBER[kind] + DELETE for kind in ("set", "object", "chain")]  # type: ignore[index]
    assert made.labels[-1] == "deletion of chain stale"
    assert "removal of rule from stale" in made.labels


def test_anonymous_sets_go_with_their_rules() -> None:
    anonymous = (a_set("__set0", flags=3), ports("__set0", (22, 22)))
    have = in_order((*FULL, *anonymous))
    made = batch(FULL, have, generation=1)
    assert NUMBER["set"] + DELETE not in kinds(made.data)
    assert NUMBER["elements"] + DELETE not in kinds(made.data)
    changed = in_order((*FULL, anonymous[0], ports("__set0", (80, 80))))
    rewritten = batch(changed, have, generation=1)
    assert kinds(rewritten.data) == [
        NUMBER["table"] + NEW,
        NUMBER["rule"] + DELETE,
        NUMBER["set"] + NEW,
        NUMBER["elements"] + NEW,
        NUMBER["rule"] + NEW,
        NUMBER["rule"] + NEW,
    ]


def test_replacement_deletes_and_makes_anew_in_one_batch() -> None:
    made = batch(FULL, FULL, replace=True, generation=1)
    assert kinds(made.data) == [NUMBER["table"] + DELETE, *kinds(batch(FULL).data)]


def test_nothing_wanted_deletes_the_table() -> None:
    assert kinds(batch((), FULL, generation=1).data) == [NUMBER["table"] + DELETE]
    assert kinds(batch(()).data) == []


def test_many_elements_are_cut_where_an_interval_has_ended() -> None:
    many = ports("ports", *((port, port) for port in range(1, 30_000, 3)))
    made = batch(in_order((a_table(), a_set("ports"), many)))
    parts = [dict(attrs(step.attributes))[3] for step in steps(made.data)[2:]]
    assert len(parts) > 3
    for part in parts:
        assert len(part) < ELEMENTS_CUT + 200
        ends = [bool(dict(attrs(entry)).get(3)) for _, entry in attrs(part)]
        assert (ends[0], ends[-1]) == (False, True)
    assert b"".join(parts) == many.body


# --- foreign tables ----------------------------------------------------------------------------------


def test_chain_of_any_family_is_decoded() -> None:
    where = attr(4, attr(1, u32(0)) + attr(2, (-100).to_bytes(4, "big", signed=True)))
    base = (
        attr(1, string("nat"))
        + attr(3, string("PREROUTING"))
        + where
        + attr(6, u32(4))
        + attr(7, string("nat"))
    )
    assert chain(2, base) == Chain("ip", "nat", "PREROUTING", "nat", "prerouting", -100, 4)
    plain = attr(1, string("nat")) + attr(3, string("PROXY_INIT_REDIRECT")) + attr(6, u32(3))
    assert chain(10, plain) == Chain("ip6", "nat", "PROXY_INIT_REDIRECT", None, None, None, 3)
    assert chain(5, base).hook == "ingress"


def test_comment_is_found_among_other_userdata() -> None:
    assert comment(b"\x05\x02ab" + b"\x00\x03hi\x00") == "hi"
    assert comment(b"") == ""
    assert comment(b"\x00\xff" + b"short") == ""


def test_comment_of_iptables_nft_is_in_a_match() -> None:
    match = expression(
        "match", attr(1, string("comment")) + attr(2, u32(0)) + attr(3, b"proxy-init/x".ljust(256, b"\0"))
    )
    found = rule(2, attr(1, string("nat")) + attr(2, string("OUTPUT")) + attr(3, u64(7)) + attr(4, match))
    assert (found.comment, found.handle, found.expressions[0][0]) == ("proxy-init/x", 7, "match")


def test_removal_takes_rules_then_empties_then_deletes_chains() -> None:
    jump = Rule("ip", "nat", "OUTPUT", 9, (), "")
    inner = Rule("ip", "nat", "A", 10, (), "")
    chains = [Chain("ip", "nat", name, None, None, None, 1) for name in ("A", "B")]
    made = removal([jump, inner], chains, generation=5)
    rule_, chain_ = NUMBER["rule"] + DELETE, NUMBER["chain"] + DELETE
    assert kinds(made.data) == [rule_, rule_, rule_, chain_, chain_]
    assert {step.family for step in steps(made.data)} == {2}
    assert made.labels[1] == "deletion of rule ip nat OUTPUT handle 9"


# --- differences -------------------------------------------------------------------------------------


def without(kind: str, *instead: Record) -> tuple[Record, ...]:
    return in_order((*(item for item in FULL if item.kind != kind), *instead))


@pytest.mark.parametrize(
    ("have", "words"),
    [
        (FULL, ()),
        ((), ("table missing",)),
        (with_flags(FULL, 1), ("table is dormant",)),
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
