"""One table in one pod: installed, updated, claimed, replaced, verified. Real network namespaces, root."""

import errno
import os

import msgspec
import pytest

from agent.core.names import TABLE
from agent.core.ports import PortSet
from agent.core.ruleset import drain, render
from agent.node.nft.channel import NftError
from agent.node.nft.compile import Compiler, Template
from agent.node.nft.datapath import TRIES, NftDatapath, OwnedByAnother, Unverified
from agent.node.nft.socket import Nft, State
from tests.lab.netns import netns, run
from tests.node.pods import (
    PLAIN,
    SPEC,
    TEXT,
    apply,
    handles,
    listing,
    nft,
    socket_in,
    values,
    with_values,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


@pytest.mark.parametrize("kind", ["plain", "owned"])
def test_fresh_install_then_nothing_to_do(
    name: str, nl: Nft, template: Template, kind: str, request: pytest.FixtureRequest
) -> None:
    flags = PLAIN if kind == "plain" else request.getfixturevalue("owned")
    first = apply(nl, template, flags)
    assert (first.result, first.differences) == ("installed", ("table missing",))
    assert (first.state.flags, first.state.owner) == (flags, nl.portid if flags else 0)
    assert first.install_ms > 0 < first.verify_ms
    before = listing(name)
    again = apply(nl, template, flags)
    assert (again.result, again.differences, again.state) == ("unchanged", (), first.state)
    assert listing(name) == before


def test_installed_table_is_what_nft_would_install(name: str, nl: Nft, template: Template) -> None:
    apply(nl, template, PLAIN)
    with netns() as other:
        nft(other, TEXT)
        lists = [
            run("ip", "netns", "exec", each, "nft", "list", "table", "inet", TABLE) for each in (name, other)
        ]
    assert sorted(lists[0].splitlines()) == sorted(lists[1].splitlines())


def test_change_of_ports_keeps_handles_rules_and_counters(name: str, nl: Nft, compiler: Compiler) -> None:
    text = render(msgspec.structs.replace(SPEC, skip_outbound=PortSet.of(3306)))
    with_values(name, TEXT)
    before = handles(name)
    done = apply(nl, compiler.compile(text), PLAIN)
    assert done.result == "updated"
    assert "element 3306 missing in set out_skip_ports" in done.differences
    assert "extra element 4567-4568 in set out_skip_ports" in done.differences
    assert handles(name) == before
    assert len(before) > 14
    assert values(nl) == {"out_redirect": (7, 420)}
    assert done.lost_counters == {}


def test_other_ruleset_in_place_reports_what_its_counters_had(name: str, nl: Nft, compiler: Compiler) -> None:
    with_values(name, TEXT)
    done = apply(nl, compiler.compile(drain()), PLAIN)
    assert done.result == "updated"
    assert done.lost_counters["out_redirect"] == (7, 420)
    assert "extra chain output" in done.differences
    back = apply(nl, compiler.compile(TEXT), PLAIN)
    assert (back.result, back.lost_counters) == ("updated", {})


INTERVAL = "\t\ttype inet_service\n\t\tflags interval\n\t\telements = { 4567-4568, 5432 }"

ONLY_NEW = {
    "priority": (
        "output priority -101",
        "output priority -100",
        "chain output priority is -100, should be -101",
    ),
    "hook": ("hook output", "hook prerouting", "chain output hook is prerouting, should be output"),
    "no-base": ("type nat hook output priority -101; policy accept;", "", "chain output type is none"),
    "set": (INTERVAL, "\t\ttype inet_service", "set out_skip_ports is defined otherwise"),
}


@pytest.mark.parametrize("case", ONLY_NEW)
def test_what_only_a_new_table_can_have_is_replaced(
    name: str, nl: Nft, template: Template, case: str
) -> None:
    old, new, words = ONLY_NEW[case]
    with_values(name, TEXT.replace(old, new))
    done = apply(nl, template, PLAIN)
    assert done.result == "replaced"
    assert any(words in each for each in done.differences), done.differences
    assert done.lost_counters["out_redirect"] == (7, 420)
    assert apply(nl, template, PLAIN).result == "unchanged"


def test_orphan_is_claimed_with_handles_and_counters(name: str, template: Template, owned: int) -> None:
    with socket_in(name) as first:
        apply(first, template, owned)
    before = listing(name)
    with socket_in(name) as second:
        seen = NftDatapath().observe(second, template, owned)
        assert seen.differences == ("table is an orphan, should be owned",)
        done = apply(second, template, owned)
        assert (done.result, done.state.owner) == ("claimed", second.portid)
        (change,) = second.events()
        assert change.own
        assert rules_and_handles(listing(name)) == rules_and_handles(before)


def rules_and_handles(listed: str) -> list[str]:
    """All but the lines about the owner."""
    return [line for line in listed.splitlines() if not line.startswith(("table", "\tflags"))]


def test_orphan_of_another_version_is_claimed_and_updated(
    name: str, template: Template, compiler: Compiler, owned: int
) -> None:
    with socket_in(name) as first:
        apply(first, compiler.compile(TEXT.replace("4140", "5140")), owned)
    with socket_in(name) as second:
        done = apply(second, template, owned)
        assert (done.result, done.state.owner) == ("updated", second.portid)


def test_every_way_between_plain_and_owned(name: str, template: Template, owned: int) -> None:
    with socket_in(name) as first:
        assert apply(first, template, PLAIN).result == "installed"
        assert apply(first, template, owned).result == "replaced"
        assert apply(first, template, PLAIN).result == "replaced"
        assert apply(first, template, owned).state.owner == first.portid
    with socket_in(name) as second:
        done = apply(second, template, PLAIN)
        assert (done.result, done.state.flags) == ("replaced", PLAIN)


def test_conversion_takes_one_transaction(nl: Nft, template: Template, owned: int) -> None:
    reads: list[State] = []

    def counted(nl: Nft, table: str) -> State:
        reads.append(nl.read(table))
        return reads[-1]

    apply(nl, template, PLAIN)
    NftDatapath(counted).apply(nl, template, owned)
    assert [state.flags for state in reads] == [PLAIN, owned]


def test_owner_refuses_foreign_flush_and_delete(name: str, nl: Nft, template: Template, owned: int) -> None:
    apply(nl, template, owned)
    before = listing(name)
    nft(name, "flush ruleset")
    for script in (
        f"delete table inet {TABLE}",
        f"flush chain inet {TABLE} output",
        f"add rule inet {TABLE} output drop",
    ):
        with pytest.raises(RuntimeError, match="Operation not permitted"):
            nft(name, script)
    assert listing(name) == before
    assert apply(nl, template, owned).result == "unchanged"


def test_table_of_a_living_agent_is_left_to_it(
    name: str, template: Template, compiler: Compiler, owned: int
) -> None:
    other = compiler.compile(drain())
    with socket_in(name) as first, socket_in(name) as second:
        apply(first, template, owned)
        for wanted in (template, other):
            with pytest.raises(OwnedByAnother, match=f"socket {first.portid} owns it"):
                apply(second, wanted, owned)
        assert NftDatapath().observe(second, template, owned).differences == ()
        first.close()
        assert apply(second, template, owned).result == "claimed"


def test_removal_takes_the_table_and_is_idempotent(
    name: str, nl: Nft, template: Template, owned: int
) -> None:
    nft(name, "add table ip other")
    apply(nl, template, owned)
    with socket_in(name) as stranger, pytest.raises(OwnedByAnother):
        NftDatapath().remove(stranger)
    for _ in range(2):
        NftDatapath().remove(nl)
        assert nl.read(TABLE).records == ()
    assert "table ip other" in run("ip", "netns", "exec", name, "nft", "list", "ruleset")


def test_b11_a_read_back_that_is_empty_is_unverified(nl: Nft, template: Template) -> None:
    blind = NftDatapath(lambda nl, table: msgspec.structs.replace(nl.read(table), records=(), owner=0))
    with pytest.raises(Unverified, match="cannot verify table inet pointsman") as caught:
        blind.apply(nl, template, PLAIN)
    assert caught.value.differences == ("table missing",)


def test_update_that_does_not_take_is_replaced_and_then_unverified(nl: Nft, template: Template) -> None:
    """As if a kernel acknowledged everything and left out the last rule."""

    def forgetful(nl: Nft, table: str) -> State:
        state = nl.read(table)
        return msgspec.structs.replace(state, records=state.records[:-1])

    apply(nl, template, PLAIN)
    nl.events()
    with pytest.raises(Unverified) as caught:
        NftDatapath(forgetful).apply(nl, template, PLAIN)
    assert caught.value.differences == ("rule missing in chain prerouting at 7 (pointsman in-redirect)",)
    assert len(nl.events()) == 2
    assert nl.read(TABLE).records == template.records


def test_foreign_change_between_read_and_commit_is_seen_and_overcome(
    name: str, nl: Nft, template: Template
) -> None:
    meddled: list[int] = []

    def meddle(nl: Nft, table: str) -> State:
        state = nl.read(table)
        if len(meddled) < 3:
            meddled.append(state.generation)
            nft(name, f"add table inet {TABLE}\nadd chain inet {TABLE} foreign")
        return state

    done = NftDatapath(meddle).apply(nl, template, PLAIN)
    assert len(meddled) == 3
    assert NftDatapath().observe(nl, template, PLAIN).differences == ()
    assert done.state.records == template.records


def test_table_that_others_made_meanwhile_is_no_work_of_ours(name: str, nl: Nft, template: Template) -> None:
    def overtaken(nl: Nft, table: str) -> State:
        state = nl.read(table)
        if not state.records:
            nft(name, TEXT)
        return state

    done = NftDatapath(overtaken).apply(nl, template, PLAIN)
    assert (done.result, done.install_ms, done.differences) == ("unchanged", 0, ())


def test_endless_meddling_ends_as_a_transient_error(name: str, nl: Nft, template: Template) -> None:
    reads: list[int] = []

    def meddle(nl: Nft, table: str) -> State:
        state = nl.read(table)
        reads.append(state.generation)
        nft(name, f"add table inet {TABLE}\nadd chain inet {TABLE} x{len(reads)}")
        return state

    with pytest.raises(NftError, match=f"changed by others during {TRIES} attempts") as caught:
        NftDatapath(meddle).apply(nl, template, PLAIN)
    assert caught.value.transient
    assert len(reads) == TRIES


def test_kernel_without_the_flags_says_so(nl: Nft, template: Template) -> None:
    """Flags that no kernel has stand in for those that an old one lacks."""
    with pytest.raises(NftError) as caught:
        apply(nl, template, 0x80)
    assert caught.value.errno in (errno.EINVAL, errno.EOPNOTSUPP)
    assert nl.read(TABLE).records == ()
