"""Whether a network namespace has legacy iptables tables, which netlink does not show."""

import contextlib
import os
from pathlib import Path
from typing import Literal

from agent.node.netns import run_in

Family = Literal[4, 6]

_NAMES: dict[Family, str] = {4: "ip_tables_names", 6: "ip6_tables_names"}
_LONGEST = 4096


class LegacyTables:
    """The kernel's lists of legacy tables of one namespace. Asking does not create a table.

    The files are opened inside the namespace by a thread that ends there, and are kept, since starting
    such a thread costs as much as all the rest of a visit. They keep the namespace alive: close them.
    """

    def __init__(self, netns_fd: int) -> None:
        self._netns_fd = netns_fd
        self._files: dict[Family, int] = {}

    def open_here(self) -> None:
        """Open what there is; for a thread that is in the namespace already."""
        self._files |= _opened(self._closed())

    def families(self) -> list[Family]:
        """Families whose legacy nat table exists now."""
        self._open()
        return [family for family in _NAMES if "nat" in self._names(family)]

    def close(self) -> None:
        """Idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _open(self) -> None:
        closed = self._closed()
        if closed:
            self._files |= run_in(self._netns_fd, lambda: _opened(closed))

    def _closed(self) -> list[Family]:
        # The files come with a kernel module, in every namespace at once, ours too: as long as they
        # are not here it would be in vain to look there.
        return [family for family in _NAMES if family not in self._files and _listed_here(family)]

    def _names(self, family: Family) -> list[str]:
        fd = self._files.get(family)
        if fd is None:
            return []
        try:
            # From the start: the kernel then makes the list anew.
            return os.pread(fd, _LONGEST, 0).decode().split()
        except OSError:  # the module is gone, and a file of the next one has to be opened
            os.close(self._files.pop(family))
            return []


def _listed_here(family: Family) -> bool:
    return Path("/proc/self/net", _NAMES[family]).exists()


def _opened(families: list[Family]) -> dict[Family, int]:
    files: dict[Family, int] = {}
    for family in families:
        with contextlib.suppress(FileNotFoundError):
            # Not /proc/net: that is the namespace of the main thread.
            path = f"/proc/thread-self/net/{_NAMES[family]}"
            files[family] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return files
