"""What is kept open of one pod's network namespace, and how it is given back.

The netlink socket is the owner of the pod's table and the subscriber to its changes, so it is kept
for the pod's life. It also keeps the namespace alive: a dead pod's veth stays until the socket is
closed. Hence `ended`, asked twice a second.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from agent.core.attachments import Attachment
from agent.core.names import NETNS
from agent.node.discovery import Sandbox, cgroup_alive, open_sandbox
from agent.node.legacy import LegacyTables
from agent.node.netns import NetnsId, NetnsMissing, identify, open_netns, run_in, shown
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft

Inside = Callable[[int, Callable[[], Nft]], Nft]

NOWHERE = "cannot find its network namespace: no process of the pod is running yet"


class Place:
    """Where a pod's netns is to be found: a path, by the word of CNI where `attached` is given, or a process
    that the scan of /proc saw."""

    def __init__(
        self,
        path: str = "",
        sandbox: Sandbox | None = None,
        ips: tuple[str, ...] = (),
        attached: Attachment | None = None,
    ) -> None:
        self.path = path
        self.sandbox = sandbox
        self.ips = ips
        self.attached = attached
        self._withdrawn = False

    def __str__(self) -> str:
        return self.path or (self.sandbox.path if self.sandbox else "unknown")

    @property
    def source(self) -> Literal["", "cni", "manifest", "proc"]:
        """Who has told of it, "" while nobody has."""
        if self.attached is not None:
            return "cni"
        if self.path:
            return "manifest"
        return "proc" if self.sandbox is not None else ""

    @property
    def unknown(self) -> bool:
        """Nobody has told of any place yet."""
        return not self.path and self.sandbox is None

    def open(self) -> int:
        """A descriptor of the netns, checked. NetnsMissing, HostNetns, NetnsMismatch, NoAddressYet."""
        if self.path and not self.path.startswith("/"):
            raise NetnsMissing(f"cannot use {shown(self.path)}: {NETNS} must be a path that begins with /")
        if self.path:
            return open_netns(self.path)
        if self.sandbox is None:
            raise NetnsMissing(NOWHERE)
        return open_sandbox(self.sandbox, self.ips)

    def withdraw(self) -> None:
        """The runtime has told of the sandbox's end."""
        self._withdrawn = True

    def ended(self, netns: NetnsId) -> bool:
        """The namespace that was opened here is no longer the pod's. One stat, on any thread."""
        if self._withdrawn:
            return True
        if self.path:
            try:
                status = Path(self.path).stat()
            except OSError:
                return True
            return NetnsId(status.st_dev, status.st_ino) != netns
        return self.sandbox is None or not cgroup_alive(self.sandbox)

    def process_gone(self) -> bool:
        """The process that led here has ended: its pod may live on in another netns, so scan again."""
        return self.sandbox is not None and not Path(self.sandbox.path).exists()

    def age(self) -> float | None:
        """Seconds that the pod has run, by its oldest process or since CNI let it through; None where neither
        is known."""
        if self.attached is not None and self.attached.let_through:
            return max(0.0, time.time() - self.attached.since)
        if self.sandbox is None:
            return None
        started = self.sandbox.start_time / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)

    def exists(self) -> bool:
        return Path(self.path).exists() if self.path else self.sandbox is not None


class Hold:
    """Open descriptors of one pod's netns. `verified`: generation at which the table was last read and
    found equal to `text`, None when that is not known. `seen`: generation at the end of the last visit.
    `using`: held by whoever speaks through the socket, since a slow visit runs beside the kernel lane.
    `has_legacy`: the last look around met a legacy nat table."""

    def __init__(self, place: Place, datapath: NftDatapath, inside: Inside = run_in) -> None:
        """`inside` runs a function in the namespace; a thread that ends right after may be made to stay."""
        self.place = place
        with contextlib.ExitStack() as opened:
            self.fd = place.open()
            opened.callback(os.close, self.fd)
            self.netns = identify(self.fd)
            self.legacy = opened.enter_context(contextlib.closing(LegacyTables(self.fd)))

            def sockets() -> Nft:
                self.legacy.open_here()
                return datapath.open_here()

            self.nft = opened.enter_context(contextlib.closing(inside(self.fd, sockets)))
            self._opened = opened.pop_all()
        self.using = threading.Lock()
        self.text = ""
        self.verified: int | None = None
        self.seen: int | None = None
        self.has_legacy = bool(self.legacy.families())

    def ended(self) -> bool:
        return self.place.ended(self.netns)

    def close(self) -> None:
        """Give everything back. May take 15 ms: never on the loop."""
        with self.using:
            self._opened.close()
