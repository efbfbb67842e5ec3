"""Every kind of drift, named and repaired; and what is none. Real network namespaces, root."""

import os
import re
from collections.abc import Callable

import pytest

from agent.core.names import TABLE
from agent.core.ruleset import drain
from agent.node.nft.compile import Compiler, Template
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft
from tests.lab.netns import run
from tests.node.pods import (
    PLAIN,
    TEXT,
    apply,
    handles,
    listing,
    nft,
    values,
    with_values,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


# Each: what somebody does (given the listing where handles are needed), and the words for it.
DRIFT: dict[str, tuple[str | Callable[[str], str], str]] = {
    "extra-port": (
        "add element inet pointsman out_skip_ports { 80 }",
        "extra element 80 in set out_skip_ports",
    ),
    "missing-port": (
        "delete element inet pointsman out_skip_ports { 5432 }",
        "element 5432 missing in set out_skip_ports",
    ),
    "merged-port": (
        (
            "delete element inet pointsman out_skip_ports { 5432 }\n"
            "add element inet pointsman out_skip_ports { 5432-5433 }"
        ),
        "extra element 5432-5433 in set out_skip_ports",
    ),
    "extra-v6": (
        "add element inet pointsman in_skip_src6 { 2001:db8::/32 }",
        "extra element 2001:db8::/32 in set in_skip_src6",
    ),
    "missing-v4": (
        "delete element inet pointsman in_skip_src4 { 10.0.0.0/8 }",
        "element 10.0.0.0/8 missing in set in_skip_src4",
    ),
    "set-flushed": (
        "flush set inet pointsman out_skip_ports",
        "element 5432 missing in set out_skip_ports",
    ),
    "rule-inserted": ("insert rule inet pointsman output accept", "extra rule in chain output at 1"),
    "rule-appended": ("add rule inet pointsman prerouting drop", "extra rule in chain prerouting at 8"),
    "rule-deleted": (
        lambda listed: f"delete rule inet pointsman output handle {handle_of(listed, 'out-skip-port')}",
        "rule missing in chain output at 5 (pointsman out-skip-port)",
    ),
    "rules-swapped": (
        lambda listed: (
            f"delete rule inet pointsman output handle {handle_of(listed, 'out-lo')}\n"
            "add rule inet pointsman output "
            'oifname "lo" counter name "out_skip_lo" goto pin comment "pointsman out-lo"'
        ),
        "extra rule in chain output at 6 (pointsman out-lo)",
    ),
    "comment-changed": (
        lambda listed: (
            f"replace rule inet pointsman pin handle {handle_of(listed, 'pin-ip6')} "
            'dnat ip6 to ip6 daddr comment "mine now"'
        ),
        "extra rule in chain pin at 2 (mine now)",
    ),
    "chain-flushed": (
        "flush chain inet pointsman output",
        "rule missing in chain output at 6 (pointsman out-redirect)",
    ),
    "table-flushed": ("flush table inet pointsman", "rule missing in chain output at 1"),
    "table-deleted": ("delete table inet pointsman", "table missing"),
    "ruleset-flushed": ("flush ruleset", "table missing"),
    "dormant": ("add table inet pointsman { flags dormant; }", "table is dormant"),
    "policy": (
        "add chain inet pointsman output { policy drop; }",
        "chain output policy is drop, should be accept",
    ),
    "extra-chain": ("add chain inet pointsman x", "extra chain x"),
    "extra-base-chain": (
        "table inet pointsman {\n chain x { type filter hook output priority 0; drop; }\n}",
        "extra chain x",
    ),
    "extra-jumps": (
        (
            "table inet pointsman {\n chain w { }\n chain x { jump w; }\n}\n"
            "insert rule inet pointsman output jump x"
        ),
        "extra chain w",
    ),
    "extra-set": ("add set inet pointsman x { type ipv4_addr; }", "extra set x"),
    "extra-map": (
        (
            "table inet pointsman {\n chain y { }\n"
            " map x { type inet_service : verdict; elements = { 1 : jump y }\n }\n}"
        ),
        "extra map x",
    ),
    "extra-counter": ("add counter inet pointsman x", "extra counter x"),
    "anonymous-set": ("insert rule inet pointsman output tcp dport { 1, 2, 80 } drop", "extra set __set0"),
}


def handle_of(listed: str, rule: str) -> str:
    (found,) = re.findall(rf'"pointsman {rule}[^"]*" # handle (\d+)', listed)
    return str(found)


@pytest.mark.parametrize("case", DRIFT)
def test_drift_is_named_and_repaired_in_place(name: str, nl: Nft, template: Template, case: str) -> None:
    with_values(name, TEXT)
    assert apply(nl, template, PLAIN).result == "unchanged"
    before = handles(name)
    change, words = DRIFT[case]
    nft(name, change if isinstance(change, str) else change(listing(name)))
    assert any(event.comm == "nft" and not event.own for event in nl.events())
    seen = NftDatapath().observe(nl, template, PLAIN)
    assert any(words in each for each in seen.differences), seen.differences
    done = apply(nl, template, PLAIN)
    assert done.differences == seen.differences
    assert apply(nl, template, PLAIN).result == "unchanged"
    if words == "table missing":
        assert (done.result, seen.absent) == ("installed", True)
    else:
        assert (done.result, seen.absent, handles(name)) == ("updated", False, before)
        assert values(nl) == {"out_redirect": (7, 420)}


@pytest.mark.parametrize(
    "script",
    [
        "reset counters",
        "add table inet other",
        f"table ip {TABLE} {{\n chain output {{ type nat hook output priority -110; tcp dport 1 drop; }}\n}}",
        f"delete table inet {TABLE}\n{TEXT}",
    ],
    ids=("counters", "other-table", "other-family", "same-again"),
)
def test_what_is_no_drift(name: str, nl: Nft, template: Template, script: str) -> None:
    with_values(name, TEXT)
    nft(name, script)
    assert NftDatapath().observe(nl, template, PLAIN).differences == ()
    assert apply(nl, template, PLAIN).result == "unchanged"


def test_a02_one_rule_is_back_exactly_once(name: str, nl: Nft, template: Template) -> None:
    apply(nl, template, PLAIN)
    before = re.sub(r" # handle \d+", "", listing(name))
    nft(name, f"delete rule inet {TABLE} output handle {handle_of(listing(name), 'out-redirect')}")
    apply(nl, template, PLAIN)
    assert re.sub(r" # handle \d+", "", listing(name)) == before


def test_a07_foreign_tables_are_byte_identical(name: str, nl: Nft, compiler: Compiler, best: int) -> None:
    nft(
        name,
        "table inet appfw {\n"
        ' ct helper ftp { type "ftp" protocol tcp;\n }\n'
        " map verdicts { type inet_service : verdict; elements = { 80 : accept }\n }\n"
        " set pairs { type ipv4_addr . inet_service; elements = { 10.0.0.1 . 80 }\n }\n"
        " chain input { type filter hook input priority 0\n"
        """  tcp dport 21 ct helper set "ftp" comment "a 'b' { }"\n }\n"""
        "}\n",
    )
    command = ("ip", "netns", "exec", name, "nft", "-a", "list", "table", "inet", "appfw")
    before = run(*command)
    for text, flags in ((TEXT, PLAIN), (TEXT, best), (drain(), best), (drain(), PLAIN)):
        apply(nl, compiler.compile(text), flags)
        assert run(*command) == before
