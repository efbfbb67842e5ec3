"""Reading, committing and listening in real network namespaces. Root."""

import errno
import os
import re
import shutil

import pytest

from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError
from agent.node.nft.foreign import removal
from agent.node.nft.records import with_flags
from agent.node.nft.socket import Nft, State
from tests.lab.netns import netns, path_of, run, user_netns
from tests.node.pods import nft, opened, socket_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

TABLE = """
table inet pointsman {
	counter hits { packets 7 bytes 420 }
	counter misses { }
	quota volume { over 1 mbytes }
	set ports { type inet_service; flags interval; elements = { 22, 9000-9010 }
	}
	set sources { type ipv6_addr; flags interval; elements = { fd00::/8 }
	}
	map verdicts { type inet_service : verdict; elements = { 80 : goto pin }
	}
	chain pin { dnat ip to ip daddr
	}
	chain output {
		type nat hook output priority -101; policy accept;
		tcp dport { 25, 465, 587 } counter packets 3 bytes 180 goto pin comment "pointsman mail"
		tcp dport vmap @verdicts
		tcp dport @ports counter name hits redirect to :4140
	}
}
"""

# What a foreign firewall may look like: everything that a reader might trip over.
FOREIGN = r"""
table inet appfw {
	ct helper ftp-standard { type "ftp" protocol tcp; l3proto inet
	}
	ct timeout short { protocol tcp; policy = { established : 120 }
	}
	quota volume { over 10 mbytes }
	limit slow { rate 10/second }
	set pairs { type ipv4_addr . inet_service; flags interval; counter
		elements = { 10.0.0.1 . 80, 10.1.0.0/16 . 1000-2000 }
	}
	set seen { type ipv4_addr; flags dynamic,timeout; timeout 1h; size 65535; elements = { 10.9.9.9 }
	}
	map verdicts { type inet_service : verdict; elements = { 80 : jump { }web, 443 : accept }
	}
	chain web { counter accept comment "he said 'no' { } ; and $left"
	}
	chain input {
		type filter hook input priority 0; policy accept;
		tcp dport 21 ct helper set "ftp-standard"
		tcp dport vmap @verdicts
		ip saddr . tcp dport @pairs limit name "slow" accept
		tcp dport { 1-100, 200 } log prefix "x{}" drop
		update @seen { ip saddr }
	}
}
table netdev edge {
	chain ingress { type filter hook ingress device "lo" priority -500; policy accept; }
}
table bridge br { chain c { type filter hook forward priority 0; }
}
table arp a { chain in { type filter hook input priority 0; }
}
""".replace("{ }web", "web")


def listing(name: str, *options: str) -> str:
    """The whole ruleset; how long an element has still to live is no part of it."""
    return re.sub(r" expires \S+", "", run("ip", "netns", "exec", name, "nft", *options, "list", "ruleset"))


def kinds(state: State) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in state.records:
        found[item.kind] = found.get(item.kind, 0) + 1
    return found


# --- reading and committing --------------------------------------------------------------------------


def test_absent_table_reads_empty(nl: Nft) -> None:
    state = nl.read("pointsman")
    assert (state.records, state.flags, state.owner, state.counters) == ((), 0, 0, {})
    assert state.generation == nl.generation()


def test_everything_of_a_table_is_read(name: str, nl: Nft) -> None:
    nft(name, TABLE)
    state = nl.read("pointsman")
    assert kinds(state) == {"table": 1, "chain": 2, "object": 3, "set": 4, "elements": 4, "rule": 4}
    assert state.counters == {"hits": (7, 420), "misses": (0, 0)}
    assert (state.flags, state.owner) == (0, 0)


def test_dump_sent_to_another_namespace_is_the_same_table(name: str, nl: Nft, best: int) -> None:
    nft(name, TABLE)
    records = nl.read("pointsman").records
    with netns() as other, socket_in(other) as far:
        far.commit(batch(with_flags(records, best), generation=far.generation()))
        state = far.read("pointsman")
        assert state.records == with_flags(records, best)
        assert (state.flags, state.owner) == (best, far.portid if best else 0)
        assert state.counters["hits"] == (0, 0)
        far.commit(batch(with_flags(records, best), state.records, replace=True, generation=state.generation))
        assert far.read("pointsman").records == state.records
        far.commit(batch((), state.records))
        assert far.read("pointsman").records == ()


def test_batch_on_a_passed_generation_changes_nothing(name: str, nl: Nft) -> None:
    nft(name, TABLE)
    state = nl.read("pointsman")
    nft(name, "add table ip somebody")
    with pytest.raises(NftError) as caught:
        nl.commit(batch((), state.records, generation=state.generation))
    assert (caught.value.errno, caught.value.transient) == (errno.ERESTART, True)
    assert caught.value.refused == (f"ERESTART transaction on generation {state.generation}",)
    assert nl.read("pointsman").records == state.records


def test_refusals_name_every_message(name: str, nl: Nft) -> None:
    nft(name, TABLE)
    state = nl.read("pointsman")
    broken = tuple(item for item in state.records if item.kind in ("table", "rule"))
    nl.commit(batch((), state.records))
    with pytest.raises(NftError) as caught:
        nl.commit(batch(broken, generation=nl.generation()))
    assert not caught.value.transient
    assert caught.value.errno == errno.ENOENT
    assert "cannot change nf_tables: ENOENT" in str(caught.value)
    assert any(words.startswith("ENOENT rule output #1") for words in caught.value.refused)
    assert nl.read("pointsman").records == ()


def test_other_sockets_table_is_refused_with_eperm(name: str, nl: Nft, owned: int) -> None:
    nft(name, TABLE)
    state = nl.read("pointsman")
    nl.commit(batch((), state.records))
    nl.commit(batch(with_flags(state.records, owned)))
    with socket_in(name) as other:
        assert other.read("pointsman").owner == nl.portid
        with pytest.raises(NftError, match="CAP_NET_ADMIN, or another process owns"):
            other.commit(batch((), state.records))


def test_empty_batch_is_no_commit(nl: Nft) -> None:
    before = nl.generation()
    nl.commit(batch(()))
    assert nl.generation() == before


def test_batch_larger_than_the_send_buffer(name: str, nl: Nft) -> None:
    ranges = ", ".join(
        f"10.{a}.{b}.{c}" for a in range(2) for b in range(0, 250, 2) for c in range(0, 250, 2)
    )
    nft(
        name,
        "table inet pointsman {\n set s { type ipv4_addr; flags interval\n"
        f" elements = {{ {ranges} }}\n }}\n}}",
    )
    state = nl.read("pointsman")
    made = batch(state.records, state.records, replace=True, generation=state.generation)
    assert len(made.data) > 1 << 20
    try:
        nl.commit(made)
    except NftError as error:
        assert error.errno == errno.ENOBUFS, error  # noqa: PT017 - its own events can drown the answer
    assert nl.read("pointsman").records == state.records
    assert len(run("ip", "netns", "exec", name, "nft", "list", "set", "inet", "pointsman", "s")) > 100_000


def test_user_namespaced_pod(best: int) -> None:
    with user_netns() as made, socket_in(made) as nl:
        nft(made, TABLE)
        state = nl.read("pointsman")
        nl.commit(
            batch(with_flags(state.records, best), state.records, replace=True, generation=state.generation)
        )
        assert nl.read("pointsman").owner == (nl.portid if best else 0)


def test_socket_keeps_a_deleted_namespace(nl: Nft) -> None:
    with netns() as made:
        nft(made, TABLE)
        far = opened(made)
    assert not path_of(made).exists()
    assert far.read("pointsman").records
    far.close()
    far.close()


# --- foreign tables ----------------------------------------------------------------------------------


def test_a07_foreign_tables_are_neither_in_the_way_nor_changed(name: str, nl: Nft) -> None:
    nft(name, FOREIGN)
    nft(name, "table ip pointsman {\n chain output { tcp dport 1 drop; }\n}")
    before = listing(name, "-a")
    assert nl.read("pointsman").records == ()
    nft(name, TABLE)
    state = nl.read("pointsman")
    nl.commit(batch(state.records, state.records, replace=True, generation=state.generation))
    nl.commit(batch((), state.records))
    assert listing(name, "-a") == before


def test_chains_of_every_table_are_named(name: str, nl: Nft) -> None:
    nft(name, FOREIGN)
    chains = {(item.family, item.table, item.name): item for item in nl.chains()}
    base = chains["inet", "appfw", "input"]
    assert (base.type, base.hook, base.priority, base.rules) == ("filter", "input", 0, 5)
    plain = chains["inet", "appfw", "web"]
    assert (plain.type, plain.hook, plain.priority) == (None, None, None)
    edge = chains["netdev", "edge", "ingress"]
    assert (edge.hook, edge.priority) == ("ingress", -500)
    assert chains["bridge", "br", "c"].hook == "forward"
    assert chains["arp", "a", "in"].hook == "input"


def test_rules_of_a_foreign_table_are_read_in_order(name: str, nl: Nft) -> None:
    nft(name, FOREIGN)
    rules = nl.table_rules("inet", "appfw")
    assert [item.chain for item in rules].count("input") == 5
    (noted,) = (item for item in rules if item.chain == "web")
    assert noted.comment == "he said 'no' { } ; and $left"
    assert [name for name, _ in noted.expressions] == ["counter", "immediate"]
    assert nl.table_rules("inet", "never") == []


def test_removal_takes_the_named_rules_and_chains_and_nothing_else(name: str, nl: Nft) -> None:
    script = (
        "table ip nat {\n"
        " chain A { tcp dport 80 redirect to :4143; jump B\n }\n chain B { return\n }\n"
        " chain OUTPUT {\n  type nat hook output priority -100; policy accept;\n"
        "  counter; jump A; tcp dport 9 return\n }\n"
        "}\n"
    ).replace("chain A {", "chain B { }\n chain A {", 1)
    nft(name, script)
    generation = nl.generation()
    doomed = [item for item in nl.chains() if item.name in ("A", "B")]
    jumps = [item for item in nl.table_rules("ip", "nat") if item.chain == "OUTPUT"][1:2]
    nft(name, "add table ip other")
    with pytest.raises(NftError, match="ERESTART"):
        nl.commit(removal(jumps, doomed, generation))
    nl.commit(removal(jumps, doomed, nl.generation()))
    assert [item.name for item in nl.chains()] == ["OUTPUT"]
    assert "counter" in listing(name)
    assert "tcp dport 9 return" in listing(name)


@pytest.mark.skipif(shutil.which("iptables-nft") is None, reason="iptables-nft is not installed")
def test_comment_of_an_iptables_nft_rule(name: str, nl: Nft) -> None:
    rule = "-t nat -A OUTPUT -p tcp --dport 80 -m comment --comment proxy-init/x -j REDIRECT --to-port 4140"
    run("ip", "netns", "exec", name, "iptables-nft", *rule.split())
    (found,) = nl.table_rules("ip", "nat")
    assert (found.chain, found.comment) == ("OUTPUT", "proxy-init/x")


def test_namespace_with_thousands_of_foreign_rules(name: str, nl: Nft) -> None:
    rules = "\n".join(f"add rule ip big c tcp dport {port} counter accept" for port in range(1, 5001))
    nft(name, f"add table ip big\nadd chain ip big c\n{rules}\n{TABLE}")
    assert len(nl.table_rules("ip", "big")) == 5000
    assert kinds(nl.read("pointsman"))["rule"] == 4
