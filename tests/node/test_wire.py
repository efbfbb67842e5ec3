"""Netlink bytes and records, on hand-made bytes: no kernel, no root."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node.nft.records import counter, elements, record, with_flags
from agent.node.nft.wire import (
    APPEND,
    BATCH_BEGIN,
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
    string,
    text,
    u32,
)
from tests.node.made import TABLE, a_chain, a_counter, a_rule, a_set, a_table, an_element, u64


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
