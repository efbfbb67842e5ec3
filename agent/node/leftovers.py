"""What linkerd-init left behind in a pod's network namespace, and its removal.

linkerd-init makes two chains in the `nat` table of iptables and of ip6tables, by a dozen commands per
family. It can end after any of them, so the existence of a chain says nothing: what counts is which
direction is really redirected.

The nft flavour is read and removed by netlink. The legacy flavour is invisible to it, and only
iptables-legacy can read it; running that makes the kernel create the table, so it is run in namespaces
that have the table already.
"""

import contextlib
import errno
import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from typing import Literal

import msgspec

from agent.node.legacy import Family, LegacyTables
from agent.node.netns import run_in
from agent.node.nft.channel import NftError
from agent.node.nft.foreign import Chain, Rule, removal
from agent.node.nft.socket import Nft
from agent.node.nft.wire import attrs, number, text

INBOUND, OUTBOUND = "PROXY_INIT_REDIRECT", "PROXY_INIT_OUTPUT"
HOOKS = {INBOUND: "PREROUTING", OUTBOUND: "OUTPUT"}
"""The built-in chain that has to jump to each chain of linkerd-init."""
TIMEOUT = 10
"""Seconds for one run of iptables-legacy, of which it may wait LOCK_WAIT for the xtables lock."""
LOCK_WAIT = 5
TRIES = 20
"""Transactions that may be lost to somebody who changes the namespace at the same time."""

Flavour = Literal["nft", "legacy"]
State = Literal["complete", "inboundOnly", "outboundOnly", "partial", "unknown"]

_STATES: dict[tuple[bool, bool], State] = {
    (True, True): "complete",
    (True, False): "inboundOnly",
    (False, True): "outboundOnly",
    (False, False): "partial",
}
_TABLES: dict[str, Family] = {"ip": 4, "ip6": 6}
_COMMANDS: dict[Family, str] = {4: "iptables-legacy", 6: "ip6tables-legacy"}
_SBIN = "/usr/sbin:/sbin"
# Where the first port is in struct nf_nat_ipv4_multi_range_compat and in struct nf_nat_range.
_PORT_OFFSET: dict[Family, int] = {4: 16, 6: 36}
_JUMP, _GOTO = 0xFFFFFFFD, 0xFFFFFFFC


class Leftover(msgspec.Struct, frozen=True):
    """The rules of linkerd-init of one family.

    `state`: "complete" redirects both directions, "inboundOnly" and "outboundOnly" one of them,
    "partial" none; "unknown" is a legacy nat table that iptables-legacy is missing or failed to read, of
    linkerd-init or of somebody else, and `why` says what was in the way. `chains` are those that exist;
    a port is None when its chain redirects nothing. `flushed` are chains that are entered and redirect
    nothing: a first run never leaves them so, only a later one that was cut off between its flush and its
    last rule, or somebody else's flush.
    """

    flavour: Flavour
    family: Family
    state: State
    chains: tuple[str, ...] = ()
    inbound_port: int | None = None
    outbound_port: int | None = None
    why: str = ""
    flushed: tuple[str, ...] = ()

    @property
    def half_done(self) -> bool:
        return self.state not in ("complete", "unknown")

    @property
    def progress(self) -> str:
        """How far linkerd-init came, in a few words with the state among them."""
        if not self.half_done:
            return self.state
        what = "partial, redirects nothing" if self.state == "partial" else self.state
        return f"half done{' by a later run' if self.flushed else ''} ({what})"


class LegacyToolMissing(Exception):  # noqa: N818
    """There is a legacy nat table, and no iptables-legacy here that could look into it."""


class LegacyToolFailed(Exception):  # noqa: N818
    """iptables-legacy ended with an error, or without doing what it was told."""


class _Verdict(msgspec.Struct, frozen=True):
    """The part of a rule that matters: the chain it is in, and where it jumps or redirects to."""

    chain: str
    target: str
    port: int | None = None


def find(nl: Nft, netns_fd: int, tables: LegacyTables | None = None) -> tuple[Leftover, ...]:
    """What linkerd-init left in the namespace of `netns_fd`, in which `nl` was made. Changes nothing.

    `tables` of that namespace, kept by a caller who asks again and again, save most of the time. May
    run a program for each legacy nat table. Raises NftError.
    """
    found = []
    chains = _nft_chains(nl)
    rules = _nft_rules(nl) if chains else []
    for name, family in _TABLES.items():
        present = [chain.name for chain in chains if chain.family == name]
        if present:
            verdicts = [
                _Verdict(rule.chain, _jump(rule), _port(rule, family))
                for rule in rules
                if rule.family == name
            ]
            found.append(_leftover("nft", family, present, verdicts))
    for family in tables.families() if tables else _legacy_families(netns_fd):
        try:
            saved = _save(netns_fd, family)
        except (LegacyToolMissing, LegacyToolFailed) as error:
            found.append(Leftover("legacy", family, "unknown", why=str(error)))
            continue
        if present := _declared(saved):
            found.append(_leftover("legacy", family, present, filter(None, map(_legacy_verdict, saved))))
    return tuple(found)


def cleanup(nl: Nft, netns_fd: int) -> tuple[str, ...]:
    """Remove the chains of linkerd-init and the rules that jump to them; say what was removed.

    The nft flavour goes in one transaction for both families, a legacy table by one replacement with
    its other rules and their counters kept. From then on connections are redirected only by others, so
    this is for pods whose own table is verified. Safe to repeat.

    Raises NftError, LegacyToolFailed, and LegacyToolMissing when there is a legacy table that cannot be
    looked into; the nft flavour is gone by then.
    """
    removed = _clean_nft(nl)
    for family in _legacy_families(netns_fd):
        saved = _save(netns_fd, family)
        kept = [line for line in saved if not _ours(line)]
        if kept == saved:
            continue
        _restore(netns_fd, family, kept)
        if any(map(_ours, _save(netns_fd, family))):
            raise LegacyToolFailed(
                f"cannot remove the legacy IPv{family} rules of linkerd-init: they are still there, or there "
                "again; is linkerd-init running?"
            )
        removed += tuple(f"legacy IPv{family} nat chain {name}" for name in _declared(saved))
    return removed


def _leftover(
    flavour: Flavour, family: Family, chains: Iterable[str], verdicts: Iterable[_Verdict]
) -> Leftover:
    ports: dict[str, int] = {}
    entered = set()
    for verdict in verdicts:
        if verdict.port is not None:
            ports.setdefault(verdict.chain, verdict.port)
        if HOOKS.get(verdict.target) == verdict.chain:
            entered.add(verdict.target)
    works = entered & ports.keys()
    return Leftover(
        flavour,
        family,
        _STATES[INBOUND in works, OUTBOUND in works],
        tuple(sorted(chains)),
        ports.get(INBOUND),
        ports.get(OUTBOUND),
        flushed=tuple(sorted(entered - works)),
    )


def _nft_chains(nl: Nft) -> list[Chain]:
    return [one for one in nl.chains() if one.table == "nat" and one.family in _TABLES and one.name in HOOKS]


def _nft_rules(nl: Nft) -> list[Rule]:
    return [rule for family in _TABLES for rule in nl.table_rules(family, "nat")]


def _clean_nft(nl: Nft) -> tuple[str, ...]:
    removed: tuple[str, ...] = ()
    failure = NftError(errno.EAGAIN, "remove the chains of linkerd-init: they come back")
    for _ in range(TRIES):
        generation = nl.generation()
        chains = _nft_chains(nl)
        if not chains:
            return removed
        jumps = [rule for rule in _nft_rules(nl) if _jump(rule) in HOOKS]
        removed = tuple(f"nft table {one.family} nat chain {one.name}" for one in chains)
        try:
            nl.commit(removal(jumps, chains, generation))
        except NftError as error:
            if not error.transient:
                raise
            failure = error
    raise failure


def _jump(rule: Rule) -> str:
    """The chain that a rule jumps or goes to, "" without one."""
    for name, data in rule.expressions:
        if name == "immediate":
            verdict = dict(attrs(_immediate(data).get(2, b"")))
            if number(verdict.get(1, b"")) in (_JUMP, _GOTO):
                return text(verdict[2])
    return ""


def _port(rule: Rule, family: Family) -> int | None:
    """The port that a rule redirects to: by an xt target, or natively as iptables may do one day."""
    loaded = b""
    for name, data in rule.expressions:
        if name == "immediate":
            loaded = _immediate(data).get(1, b"")
        elif name == "redir":
            return number(loaded) or None
        elif name == "target" and text((found := dict(attrs(data)))[1]) == "REDIRECT":
            at = _PORT_OFFSET[family]
            return number(found[3][at : at + 2]) or None
    return None


def _immediate(data: bytes) -> dict[int, bytes]:
    """What an immediate expression holds: 1 a value, or 2 a verdict."""
    return dict(attrs(dict(attrs(data)).get(2, b"")))


def _legacy_families(netns_fd: int) -> list[Family]:
    with contextlib.closing(LegacyTables(netns_fd)) as tables:
        return tables.families()


def _legacy_verdict(line: str) -> _Verdict | None:
    """Of a line such as `[0:0] -A PREROUTING -p tcp -j REDIRECT --to-ports 4143`; None if it is no rule."""
    if not line.startswith(("[", "-A")):
        return None
    words = shlex.split(line)
    chain = words[words.index("-A") + 1]
    after = dict(itertools.pairwise(words))
    port = after.get("--to-ports", "").partition("-")[0]
    return _Verdict(chain, after.get("-j") or after.get("-g") or "", int(port) if port else None)


def _declared(lines: Iterable[str]) -> list[str]:
    """The chains of linkerd-init that lines such as `:PROXY_INIT_OUTPUT - [0:0]` declare."""
    names = (line[1:].partition(" ")[0] for line in lines if line.startswith(":"))
    return [name for name in names if name in HOOKS]


def _ours(line: str) -> bool:
    """A line that declares a chain of linkerd-init, is a rule in one, or jumps to one."""
    verdict = _legacy_verdict(line)
    ends = (verdict.chain, verdict.target) if verdict else _declared([line])
    return not HOOKS.keys().isdisjoint(ends)


def _save(netns_fd: int, family: Family) -> list[str]:
    """Lines of the legacy nat table, with its counters."""
    saved = _run(netns_fd, family, "save", "-c", "-t", "nat").splitlines()
    # iptables-save can end with 0 although it failed.
    if "COMMIT" not in saved:
        raise LegacyToolFailed(f"cannot read the legacy IPv{family} nat table: its listing is not complete")
    return saved


def _restore(netns_fd: int, family: Family, lines: Iterable[str]) -> None:
    script = "\n".join(lines) + "\n"
    _run(netns_fd, family, "restore", "-c", "-w", str(LOCK_WAIT), "-T", "nat", script=script)


def _run(netns_fd: int, family: Family, action: str, *options: str, script: str | None = None) -> str:
    """Output of iptables-legacy-ACTION, started in the namespace."""
    name = f"{_COMMANDS[family]}-{action}"
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
    if path is None:
        raise LegacyToolMissing(
            f"cannot read or change the legacy IPv{family} nat table: no {name} in PATH; install the "
            "package iptables, or restart the pod without linkerd-init"
        )
    command = [path, *options]
    # A child starts in the namespace of the thread that made it.
    try:
        done = run_in(
            netns_fd,
            lambda: subprocess.run(
                command, input=script, capture_output=True, text=True, timeout=TIMEOUT, check=False
            ),
        )
    except subprocess.TimeoutExpired as error:
        raise LegacyToolFailed(f"cannot run {' '.join(command)}: no end after {TIMEOUT} s") from error
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise LegacyToolFailed(f"cannot run {' '.join(command)}: {reason}")
    return done.stdout
