"""The kernel's own view of a pod, and what a container with NET_ADMIN can do to it."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agent.core.names import TABLE
from tests.cases.stories.stage import wait
from tests.lab.agent import PATIENCE
from tests.lab.netns import inside, run

_NETFILTER = "12"
"""NETLINK_NETFILTER, as /proc writes it."""


def nft(netns: str, *command: str) -> str:
    """Output of one nft command inside a pod, as a container with NET_ADMIN would run it.

    Raises RuntimeError with what nft wrote when it is refused.
    """
    return run("ip", "netns", "exec", netns, "nft", *command)


def table(netns: str) -> str:
    """Our table with all handles, without counter values and owner; "" when there is none."""
    command = ["ip", "netns", "exec", netns, "nft", "-as", "list", "table", "inet", TABLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    lines = (line.split(" progname")[0] for line in done.stdout.splitlines())
    return "\n".join(line for line in lines if not line.startswith("\tflags "))


def content(netns: str) -> str:
    """Our table without its handles: equal where the rules are."""
    return re.sub(r" # handle \d+", "", table(netns))


class Socket(NamedTuple):
    """A program's netfilter socket in a namespace; `drops`: messages that its full queue could not take."""

    portid: int
    drops: int


def netfilter_sockets(netns: str) -> list[Socket]:
    """The sockets by which programs speak to nf_tables in a namespace."""
    lines = inside(netns, lambda: Path("/proc/thread-self/net/netlink").read_text()).splitlines()[1:]
    rows = [line.split() for line in lines]
    return [Socket(int(row[2]), int(row[8])) for row in rows if row[1] == _NETFILTER and row[2] != "0"]


def descriptors_of(pid: int, inode: int) -> int:
    """How many descriptors of a process lead to the namespace with this inode."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += entry.stat().st_ino == inode
    return found


@contextlib.contextmanager
def sandbox(uid: str, netns: str | None) -> Iterator[None]:
    """A process of the pod `uid`, in a cgroup as containerd makes it; `netns` None: on the node's network.

    Raises OSError where no cgroup can be made.
    """
    mount = next(path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if path.exists())
    top = mount / f"pm-{os.getpid()}-{uid}"
    made = [
        top,
        top / "kubepods",
        top / "kubepods" / f"pod{uid}",
        top / "kubepods" / f"pod{uid}" / ("5f" * 32),
    ]
    with contextlib.ExitStack() as stack:
        for directory in made:
            directory.mkdir()
            stack.callback(_remove, directory)
        process = _start(netns)
        stack.callback(process.wait)
        stack.callback(process.kill)
        (made[-1] / "cgroup.procs").write_text(str(process.pid))
        yield


def _start(netns: str | None) -> "subprocess.Popen[bytes]":
    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "300"])

    return inside(netns, start) if netns else start()


def _remove(directory: Path) -> None:
    """rmdir; the kernel takes a moment until a killed process has left its cgroup."""

    def removed() -> bool:
        try:
            directory.rmdir()
        except OSError:
            return False
        return True

    wait(removed, f"end of cgroup {directory}")
