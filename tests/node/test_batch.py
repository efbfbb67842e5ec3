"""Records to transactions, and foreign chains and rules, on hand-made bytes: no kernel, no root."""

import pytest

from agent.node.nft.batch import batch
from agent.node.nft.foreign import Chain, Rule, chain, comment, removal, rule
from agent.node.nft.records import in_order, with_flags
from agent.node.nft.wire import (
    ACK,
    BATCH_BEGIN,
    BATCH_END,
    DELETE,
    NEW,
    NUMBER,
    SUBSYSTEM,
    Message,
    attr,
    attrs,
    messages,
    number,
    string,
    u32,
)
from tests.node.made import FULL, a_chain, a_counter, a_rule, a_set, a_table, expression, ports, u64


def steps(data: bytes) -> list[Message]:
    """The messages of a batch without its begin and end."""
    found = list(messages(data))
    assert (found[0].kind, found[-1].kind) == (BATCH_BEGIN, BATCH_END)
    return found[1:-1]


def kinds(data: bytes) -> list[int]:
    return [step.kind - (SUBSYSTEM << 8) for step in steps(data)]


def test_fresh_batch_creates_everything_in_order_and_asks_for_one_answer() -> None:
    made = batch(FULL, generation=3)
    new = [NUMBER[kind] + NEW for kind in ("table", "chain", "object", "set", "elements", "rule", "rule")]
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
    assert kinds(made.data)[-3:] == [NUMBER[kind] + DELETE for kind in ("set", "object", "chain")]
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


def test_many_elements_are_cut_where_an_interval_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # A START has 16 bytes, an END 24: this size comes between them.
    monkeypatch.setattr("agent.node.nft.batch.ELEMENTS_CUT", 40 * 100 + 20)
    many = ports("ports", *((port, port) for port in range(1, 30_000, 3)))
    made = batch(in_order((a_table(), a_set("ports"), many)))
    parts = [dict(attrs(step.attributes))[3] for step in steps(made.data)[2:]]
    assert len(parts) > 3
    for part in parts:
        assert len(part) < 40 * 102
        ends = [bool(dict(attrs(entry)).get(3)) for _, entry in attrs(part)]
        assert (ends[0], ends[-1]) == (False, True)
    assert b"".join(parts) == many.body


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
