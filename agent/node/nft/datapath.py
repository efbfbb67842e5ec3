"""Keeps `table inet pointsman` in one pod as a template says: compare, change, read back.

A table that the kernel lets us own (flags owner and persist) refuses changes by anybody else while our
socket is open, and stays as an orphan when it closes; claiming an orphan is one message. Where the
kernel has no such flags the table is plain, and drift is repaired.

One thread at a time per socket. The namespace of a dead pod is no error here: the socket keeps it.
"""

import errno
import functools
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from agent.core.names import TABLE
from agent.node.netns import run_in
from agent.node.nft.batch import Batch, batch, conditional
from agent.node.nft.channel import NftError
from agent.node.nft.compile import Template
from agent.node.nft.difference import difference
from agent.node.nft.records import OWNER, PERSIST, Record, with_flags
from agent.node.nft.socket import Nft, State

Result = Literal["unchanged", "installed", "updated", "replaced", "claimed"]

INSTALLATIONS = 64
"""Templates whose transaction is kept for the next pod."""

TRIES = 20
"""Attempts that others' changes may overtake before the caller is told to come back later."""

NEEDS_REPLACEMENT = {errno.EEXIST, errno.EOPNOTSUPP, errno.EBUSY, errno.EINVAL}
"""Errors of changing in place what only a new table can have: priority, hook, type, ownership."""


class OwnedByAnother(Exception):  # noqa: N818
    """Another live process owns the table: an agent that is still running. Back off."""


class Unverified(Exception):  # noqa: N818
    """The kernel acknowledged the table, but reads back another; `differences` in words."""

    def __init__(self, differences: tuple[str, ...]) -> None:
        self.differences = differences
        super().__init__(f"cannot verify table inet {TABLE}: the kernel reads back: {', '.join(differences)}")


class Applied(msgspec.Struct, frozen=True):
    """What one `apply` did, and the verified `state` after it.

    `result`: "unchanged", "installed" (there was none), "updated" (in place), "replaced" (a new table
    in one transaction) or "claimed" (an equal orphan is ours now). `differences` were found before.
    `lost_counters` are the last values, (packets, bytes), of counters that have gone or started again.
    Times are milliseconds: of the commits, and of the last reading back and comparing.
    """

    result: Result
    differences: tuple[str, ...]
    state: State
    install_ms: float = 0.0
    verify_ms: float = 0.0
    lost_counters: dict[str, tuple[int, int]] = {}


class Observed(msgspec.Struct, frozen=True):
    """A look at the table, which changes nothing. Equal when there are no differences."""

    absent: bool
    differences: tuple[str, ...]
    state: State


class NftDatapath:
    """Applies templates and observes tables. `read` is how a table is read back."""

    def __init__(self, read: Callable[[Nft, str], State] = Nft.read) -> None:
        self._read = read

    def open(self, netns_fd: int) -> Nft:
        """A socket inside the namespace, subscribed to its changes; the caller keeps and closes it.

        Raises NftError, or PermissionError when the namespace must not be entered.
        """
        return run_in(netns_fd, self.open_here)

    def open_here(self) -> Nft:
        """The same for a thread that is in the namespace already."""
        return Nft(events=True)

    def observe(self, nl: Nft, template: Template, flags: int) -> Observed:
        """Compare only. Raises NftError."""
        state = self._read(nl, TABLE)
        return Observed(
            not state.records, difference(with_flags(template.records, flags), state.records), state
        )

    def apply(self, nl: Nft, template: Template, flags: int) -> Applied:
        """Make the table equal to the template, in one transaction, and verify it.

        `flags`: OWNER | PERSIST for a table of our own, 0 for a plain one. In place where that is
        possible, so that counters and handles stay.
        Raises OwnedByAnother, Unverified or NftError (transient when others' changes kept overtaking).
        """
        want = with_flags(template.records, flags)
        done = Applied("unchanged", (), State())
        committed = 0
        replace = False
        for _ in range(TRIES):
            began = time.perf_counter()
            state = self._read(nl, TABLE)
            differences = difference(want, state.records)
            done = msgspec.structs.replace(done, state=state, verify_ms=_milliseconds(began))
            if state.owner not in (0, nl.portid):
                raise OwnedByAnother(f"cannot change table inet {TABLE}: socket {state.owner} owns it")
            if not differences:
                return done
            if state.generation == committed:
                # Nobody else has changed anything since: the kernel did not do what it acknowledged.
                if done.result in ("installed", "replaced"):
                    raise Unverified(differences)
                replace = True
            # Persistence can only be given to a new table. To be refused takes an RCU grace period, 10 ms.
            replace = replace or bool(state.records and (flags ^ state.flags) & PERSIST)
            began = time.perf_counter()
            try:
                nl.commit(_transaction(template, flags, state, replace))
                committed = state.generation + 1
            except NftError as error:
                committed = 0
                if error.errno in NEEDS_REPLACEMENT and not replace:
                    replace = True
                    continue
                if not error.transient:
                    raise
                if error.errno == errno.ERESTART:
                    continue
                # Otherwise nobody knows whether it was applied: the next read tells.
            done = _after(
                done, want, state, replaced=replace, differences=differences, install_ms=_milliseconds(began)
            )
        raise NftError(errno.EINTR, f"keep table inet {TABLE}: changed by others during {TRIES} attempts")

    def remove(self, nl: Nft) -> None:
        """Delete the table, if it is there: connections that it redirected are reset.

        Raises OwnedByAnother or NftError (transient when others' changes kept overtaking).
        """
        for _ in range(TRIES):
            state = self._read(nl, TABLE)
            if not state.records:
                return
            if state.owner not in (0, nl.portid):
                raise OwnedByAnother(f"cannot remove table inet {TABLE}: socket {state.owner} owns it")
            try:
                nl.commit(batch((), state.records, generation=state.generation))
            except NftError as error:
                if not error.transient:
                    raise
        raise NftError(errno.EINTR, f"remove table inet {TABLE}: changed by others during {TRIES} attempts")


def _transaction(template: Template, flags: int, state: State, replace: bool) -> Batch:
    if not state.records:
        return conditional(_installation(template, flags), state.generation)
    want = with_flags(template.records, flags)
    return batch(want, state.records, replace=replace, generation=state.generation)


@functools.lru_cache(INSTALLATIONS)
def _installation(template: Template, flags: int) -> Batch:
    """What makes the table where there is none: the same bytes for every pod."""
    return batch(with_flags(template.records, flags))


def _after(
    done: Applied,
    want: tuple[Record, ...],
    state: State,
    *,
    replaced: bool,
    differences: tuple[str, ...],
    install_ms: float,
) -> Applied:
    """`done` and one more commit, which found `state` in place."""
    kept = () if replaced else {item.name for item in want if item.kind == "object"}
    lost = {name: value for name, value in state.counters.items() if name not in kept}
    return msgspec.structs.replace(
        done,
        result=_result(want, state, replaced),
        differences=done.differences or differences,
        install_ms=done.install_ms + install_ms,
        lost_counters={
            name: max(value, lost.get(name, value)) for name, value in (lost | done.lost_counters).items()
        },
    )


def _result(want: tuple[Record, ...], state: State, replaced: bool) -> Result:
    if not state.records:
        return "installed"
    if replaced:
        return "replaced"
    orphan = state.flags & (OWNER | PERSIST) == PERSIST
    return "claimed" if orphan and state.records[1:] == want[1:] else "updated"


def _milliseconds(began: float) -> float:
    return (time.perf_counter() - began) * 1e3
