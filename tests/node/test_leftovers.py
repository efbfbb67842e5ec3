"""linkerd-init's twelve commands, stopped after each of them, by every iptables that is here."""

import errno
import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node import leftovers
from agent.node.leftovers import (
    Family,
    Flavour,
    Leftover,
    LegacyToolFailed,
    LegacyToolMissing,
    State,
    cleanup,
    find,
)
from agent.node.netns import open_netns, run_in
from agent.node.nft.batch import Batch
from agent.node.nft.foreign import Chain, Rule, removal
from agent.node.nft.socket import Nft
from tests.lab.netns import inside, netns, path_of
from tests.linkerd_init import COMMANDS, COMPLETE, INBOUND_ONLY, PARTIAL

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

CHAINS = ("PROXY_INIT_OUTPUT", "PROXY_INIT_REDIRECT")
BINARIES = ("iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy")
FOREIGN = (
    ("-t", "nat", "-N", "KEEP"),
    ("-t", "nat", "-A", "KEEP", "-p", "tcp", "--dport", "9", "-j", "REDIRECT", "--to-ports", "1009"),
    (
        *("-t", "nat", "-I", "OUTPUT", "1", "-p", "tcp", "--dport", "7", "-j", "KEEP"),
        *("-m", "comment", "--comment", 'say "-j PROXY_INIT_OUTPUT" {\'}'),
    ),
    ("-t", "nat", "-A", "PREROUTING", "-p", "udp", "--dport", "53", "-j", "RETURN"),
    ("-t", "mangle", "-A", "OUTPUT", "-p", "tcp", "--dport", "7", "-j", "MARK", "--set-mark", "5"),
)
"""Rules of somebody else, one with a comment that is hard to read."""


class Place:
    """A namespace with the two descriptors that the functions take."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fd = open_netns(path_of(name))
        self.nl = run_in(self.fd, Nft)

    def run(self, *command: str, script: str | None = None) -> str:
        argv = ["ip", "netns", "exec", self.name, *command]
        return subprocess.run(argv, input=script, capture_output=True, text=True, check=True).stdout

    def find(self) -> tuple[Leftover, ...]:
        return find(self.nl, self.fd)

    def cleanup(self) -> tuple[str, ...]:
        return cleanup(self.nl, self.fd)

    def init(self, binary: str, count: int = 12) -> None:
        """The first `count` commands of linkerd-init."""
        for command in COMMANDS(binary)[:count]:
            self.run(*command)

    def foreign(self, binary: str) -> None:
        """Rules of somebody else, with counters that are not 0."""
        for rule in FOREIGN:
            self.run(binary, *rule)
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with inside(self.name, functools.partial(socket.socket, family)) as client:
                assert client.connect_ex((address, 7)) == errno.ECONNREFUSED

    def snapshot(self) -> str:
        """All rules of all kinds, with handles where there are any and with their counters.

        Policy counters are left out: iptables-legacy itself sets them to 0 when it adds a chain.
        """
        nft = self.run("nft", "-a", "list", "ruleset")
        legacy = [
            line for binary in BINARIES if "legacy" in binary and legacy_works for line in self.saved(binary)
        ]
        return nft + "\n".join(re.sub(r"^(:\S+ \S+) .*", r"\1", line) for line in legacy)

    def saved(self, binary: str) -> list[str]:
        """Lines of iptables-save, without its comments and their times."""
        return [line for line in self.run(f"{binary}-save", "-c").splitlines() if not line.startswith("#")]

    def close(self) -> None:
        self.nl.close()
        os.close(self.fd)


@pytest.fixture
def place() -> Iterator[Place]:
    with netns() as name:
        place = Place(name)
        yield place
        place.close()


def _legacy_refused() -> str:
    """Why iptables-legacy cannot be tested here, "" when it can."""
    if os.geteuid() != 0 or not shutil.which("iptables-legacy"):
        return "iptables-legacy is not installed"
    with netns() as name:
        for binary in ("iptables-legacy", "ip6tables-legacy"):
            argv = ["ip", "netns", "exec", name, binary, "-t", "nat", "-S"]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"this kernel has no legacy tables: {done.stderr.strip()}"
    return ""


legacy_refused = _legacy_refused()
legacy_works = not legacy_refused
needs_legacy = pytest.mark.skipif(bool(legacy_refused), reason=legacy_refused)
each_binary = pytest.mark.parametrize(
    "binary", [pytest.param(one, marks=[needs_legacy] if "legacy" in one else []) for one in BINARIES]
)


def expected(binary: str, count: int) -> tuple[Leftover, ...]:
    """What has to be found after `count` commands."""
    if count < PARTIAL:
        return ()
    flavour: Flavour = "nft" if "nft" in binary else "legacy"
    family: Family = 6 if "6" in binary else 4
    state: State = "partial" if count < INBOUND_ONLY else "inboundOnly" if count < COMPLETE else "complete"
    chains = CHAINS if count >= 6 else ("PROXY_INIT_REDIRECT",)
    inbound, outbound = 4143 if count >= 4 else None, 4140 if count >= 10 else None
    return (Leftover(flavour, family, state, chains, inbound, outbound),)


@each_binary
def test_init_killed_after_each_command(place: Place, binary: str) -> None:
    """A01: only what redirects counts, never that a chain exists."""
    assert place.find() == ()
    for count, command in enumerate(COMMANDS(binary), 1):
        place.run(*command)
        assert place.find() == expected(binary, count), command


@each_binary
@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 6, 8, 10, 11, 12])
def test_cleanup_takes_out_exactly_these(place: Place, binary: str, count: int) -> None:
    """A10: what somebody else has made is the same afterwards, handles and counters included."""
    place.run(*COMMANDS(binary)[0])
    place.foreign(binary)
    before = place.snapshot()
    place.init(binary, count)
    found = place.find()
    assert found == expected(binary, count)
    removed = place.cleanup()
    assert len(removed) == sum(len(entry.chains) for entry in found)
    assert place.find() == ()
    assert place.snapshot() == before
    assert place.cleanup() == ()
    place.init(binary)
    assert place.find() == expected(binary, 12), "linkerd-init can come back"


@needs_legacy
def test_counters_of_a_legacy_table_stay(place: Place) -> None:
    place.init("iptables-legacy")
    place.foreign("iptables-legacy")
    before = place.saved("iptables-legacy")
    assert ":POSTROUTING ACCEPT [1:60]" in before
    assert any(line.startswith("[1:60] -A OUTPUT") and "KEEP" in line for line in before)
    place.cleanup()
    ours = re.compile(r'(^:|-A |[^"]-j )PROXY_INIT')
    assert place.saved("iptables-legacy") == [line for line in before if not ours.search(line)]


@needs_legacy
def test_all_flavours_at_once(place: Place) -> None:
    for binary in BINARIES:
        place.init(binary)
    assert place.find() == tuple(leftover for binary in BINARIES for leftover in expected(binary, 12))
    assert place.cleanup() == (
        "nft table ip nat chain PROXY_INIT_REDIRECT",
        "nft table ip nat chain PROXY_INIT_OUTPUT",
        "nft table ip6 nat chain PROXY_INIT_REDIRECT",
        "nft table ip6 nat chain PROXY_INIT_OUTPUT",
        "legacy IPv4 nat chain PROXY_INIT_OUTPUT",
        "legacy IPv4 nat chain PROXY_INIT_REDIRECT",
        "legacy IPv6 nat chain PROXY_INIT_OUTPUT",
        "legacy IPv6 nat chain PROXY_INIT_REDIRECT",
    )
    assert "PROXY_INIT" not in place.snapshot()


def test_other_options(place: Place) -> None:
    for command in COMMANDS(
        "iptables-nft", inbound_port=5143, outbound_port=5140, proxy_uid=1337, skip_inbound=("1:79", 443)
    ):
        place.run(*command)
    assert place.find() == (Leftover("nft", 4, "complete", CHAINS, 5143, 5140),)
    place.cleanup()
    assert "PROXY_INIT" not in place.snapshot()


def test_outbound_only(place: Place) -> None:
    for command in COMMANDS("iptables-nft")[5:]:
        place.run(*command)
    assert place.find() == (Leftover("nft", 4, "outboundOnly", ("PROXY_INIT_OUTPUT",), None, 4140),)


def test_jump_from_another_hook_is_no_redirect(place: Place) -> None:
    for command in COMMANDS("iptables-nft")[:4]:
        place.run(*command)
    place.run("iptables-nft", "-t", "nat", "-A", "OUTPUT", "-j", "PROXY_INIT_REDIRECT")
    assert place.find() == (Leftover("nft", 4, "partial", ("PROXY_INIT_REDIRECT",), 4143),)


def test_flushed_chain_redirects_nothing(place: Place) -> None:
    """The window of a second run: the chains are there and are jumped to, but are empty."""
    place.init("iptables-nft")
    place.run("iptables-nft", "-t", "nat", "-F", "PROXY_INIT_OUTPUT")
    flushed = ("PROXY_INIT_OUTPUT",)
    assert place.find() == (Leftover("nft", 4, "inboundOnly", CHAINS, 4143, None, flushed=flushed),)
    place.run("iptables-nft", "-t", "nat", "-F", "PROXY_INIT_REDIRECT")
    assert place.find() == (Leftover("nft", 4, "partial", CHAINS, flushed=CHAINS),)


def test_chains_that_jump_to_each_other(place: Place) -> None:
    """linkerd-init of 2021 went from the outbound chain to the inbound one; others may jump there too."""
    place.foreign("iptables-nft")
    before = place.snapshot()
    place.init("iptables-nft")
    jump = ("-p", "tcp", "--dport", "5", "-j", "PROXY_INIT_REDIRECT")
    place.run("iptables-nft", "-t", "nat", "-I", "PROXY_INIT_OUTPUT", *jump)
    place.run("iptables-nft", "-t", "nat", "-A", "KEEP", *jump)
    assert len(place.cleanup()) == 2
    assert place.snapshot() == before


def test_native_nft_rules(place: Place) -> None:
    """As a later iptables-nft may write them: redir with a register in place of an xt target."""
    place.run(
        *("nft", "-f", "-"),
        script="""table ip6 nat {
            chain PROXY_INIT_REDIRECT { meta l4proto tcp counter redirect to :4143
            }
            chain PREROUTING { type nat hook prerouting priority -100; counter goto PROXY_INIT_REDIRECT
            }
        }
        table ip nat { chain PROXY_INIT_REDIRECT { counter
            }
        }
        table ip other { chain PROXY_INIT_OUTPUT { counter
            }
        }
        table inet nat { chain PROXY_INIT_OUTPUT { counter
            }
        }""",
    )
    assert place.find() == (
        Leftover("nft", 4, "partial", ("PROXY_INIT_REDIRECT",)),
        Leftover("nft", 6, "inboundOnly", ("PROXY_INIT_REDIRECT",), 4143),
    )
    place.cleanup()
    assert place.find() == ()
    assert place.snapshot().count("chain PROXY_INIT_OUTPUT") == 2, "linkerd-init never writes there"


def test_b12_both_families_go_in_one_transaction(place: Place) -> None:
    place.init("iptables-nft")
    place.init("ip6tables-nft")
    before = place.nl.generation()
    assert len(place.cleanup()) == 4
    assert place.nl.generation() == before + 1


def test_cleanup_is_tried_again_when_somebody_else_writes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit comes between look and removal, twice: nothing stale is applied, and it ends well."""
    place.init("iptables-nft")
    disturbances = [("-I", "OUTPUT", "1", "-j", "PROXY_INIT_OUTPUT"), ("-A", "OUTPUT", "-j", "RETURN")]

    def late(rules: list[Rule], chains: list[Chain], generation: int) -> Batch:
        if disturbances:
            place.run("iptables-nft", "-t", "nat", *disturbances.pop())
        return removal(rules, chains, generation)

    monkeypatch.setattr(leftovers, "removal", late)
    assert len(place.cleanup()) == 2
    assert not disturbances
    assert "PROXY_INIT" not in place.snapshot()


@needs_legacy
def test_b10_looking_does_not_make_a_legacy_table(place: Place) -> None:
    place.init("iptables-nft")
    place.find()
    place.cleanup()
    for name in ("ip_tables_names", "ip6_tables_names"):
        assert inside(place.name, Path(f"/proc/thread-self/net/{name}").read_text) == ""


@needs_legacy
@pytest.mark.parametrize("binary", ["iptables-legacy", "ip6tables-legacy"])
def test_b10_foreign_legacy_table_is_no_leftover(place: Place, binary: str) -> None:
    place.foreign(binary)
    before = place.snapshot()
    assert place.find() == ()
    assert place.cleanup() == ()
    assert place.snapshot() == before


@needs_legacy
def test_without_the_legacy_tool(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Said, not guessed; the nft flavour goes all the same."""
    place.init("iptables-nft")
    place.init("iptables-legacy")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(leftovers, "_SBIN", str(tmp_path))
    nft, unknown = place.find()
    assert (nft,) == expected("iptables-nft", 12)
    assert (unknown.flavour, unknown.family, unknown.state) == ("legacy", 4, "unknown")
    assert "no iptables-legacy-save in PATH" in unknown.why
    with pytest.raises(LegacyToolMissing, match=r"no iptables-legacy-save in PATH; install the package"):
        place.cleanup()
    assert place.find() == (unknown,)
    monkeypatch.undo()
    assert place.find() == expected("iptables-legacy", 12)


@needs_legacy
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("echo no >&2; exit 4", "no$"),
        ("exit 0", "listing is not complete"),
        ("exec sleep 60", r"no end after 0\.2 s"),
    ],
)
def test_legacy_tool_that_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, words: str
) -> None:
    """B11: exit code 0 and an empty listing is a failure too."""
    place.init("iptables-legacy")
    tool = tmp_path / "iptables-legacy-save"
    tool.write_text(f"#!/bin/sh\n{program}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(leftovers, "TIMEOUT", 0.2)
    (unknown,) = place.find()
    assert unknown.state == "unknown"
    assert re.search(words, unknown.why)
    with pytest.raises(LegacyToolFailed, match=words):
        place.cleanup()
