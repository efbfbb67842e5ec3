"""Keeps `table inet pointsman` in one pod as a template says: compare, change, read back.

A table that the kernel lets us own (flags owner and persist) refuses changes by anybody else while our
socket is open, and stays as an orphan when it closes; claiming an orphan is one message. Where the
kernel has no such flags the table is plain, and drift is repaired.

One thread at a time per socket. The namespace of a dead pod is no error here: the socket keeps it.
"""

import errno
import time
from collections.abc import Callable

import msgspec

from agent.core.names import TABLE
from agent.node.netns import run_in
from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError
from agent.node.nft.compile import Template
from agent.node.nft.difference import difference
from agent.node.nft.records import PERSIST, TABLE_FLAGS, Record, with_flags
from agent.node.nft.socket import Nft, State
from agent.node.nft.wire import number

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
    Times are milliseconds: of the commits, and of reading back.
    """

    result: str
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
        return run_in(netns_fd, lambda: Nft(events=True))

    def observe(self, nl: Nft, template: Template, flags: int) -> Observed:
        """Compare only. Raises NftError."""
        state = self._read(nl, TABLE)
        return Observed(not state.records, difference(with_flags(template.records, flags), state.records), state)

    def apply(self, nl: Nft, template: Template, flags: int) -> Applied:
        """Make the table equal to the template, in one transaction, and verify it.

        `flags`: OWNER | PERSIST for a table of our own, 0 for a plain one. In place where that is
        possible, so that counters and handles stay.
        Raises OwnedByAnother, Unverified or NftError (transient when others' changes kept overtaking).
        """
        return _Attempts(self._read, nl, with_flags(template.records, flags)).run()
