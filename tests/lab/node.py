"""A node of its own on this machine: network, mounts and cgroups that end together with it.

    machine ---- node (/run and /var/lib are its own) ---- pods (veth pairs of a CNI plugin)

As a process (`python -m tests.lab.node NAME`) it is what keeps the node: it ends when its stdin does, however
that came about, and takes every process of the node with it.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.lab import cgroups
from tests.lab.netns import run

PATIENCE = 10.0
"""Seconds in which the node must be gone."""

_ROOT = Path(__file__).parents[2]
_numbers = itertools.count()


class Node:
    """A node with nothing on it; `cgroup` is the path below which its cgroups are to be."""

    def __init__(self) -> None:
        name = f"pm-{os.getpid()}-node-{next(_numbers)}"
        self.cgroup = f"/{name}"
        self._stack = contextlib.ExitStack()
        self._keeper = self._stack.enter_context(_keeper(name))

    @property
    def netns(self) -> str:
        """A path of its network namespace, for `tests.lab.netns.inside`."""
        return f"/proc/{self._keeper.pid}/ns/net"

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command that shall run on the node; they become that command, with the same PID."""
        places = f"/proc/{self._keeper.pid}/ns"
        return (
            "nsenter", f"--mount={places}/mnt", f"--net={places}/net", f"--wdns={_ROOT}", "--"
        )  # fmt: skip

    def seen(self, path: str | Path) -> Path:
        """Where a file of the node (`/run/netns/...`) can be opened from outside."""
        # Resolved first: an absolute link, such as /var/run, would lead to the machine's own files.
        return Path(f"/proc/{self._keeper.pid}/root", *Path(path).resolve().parts[1:])

    def run(self, *command: str) -> str:
        """Output of a command on the node. Raises RuntimeError with what it wrote on failure."""
        return run(*self.prefix, *command)

    def remove_cgroup(self, below: str) -> None:
        """Remove the directories `below` the node's cgroup, as the kubelet does for a pod that has ended."""
        cgroups.remove(f"{self.cgroup}/{below}")

    def close(self) -> None:
        """End every process of the node, then all that it had. May be repeated."""
        self._stack.close()


@contextlib.contextmanager
def _keeper(name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        "unshare", "--net", "--mount", "--propagation", "private",
        sys.executable, "-m", "tests.lab.node", name,
    ]  # fmt: skip
    # In a session of its own: an interrupt from the keyboard is for the tests, which end the node in order.
    process = subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin
    assert process.stdout
    with process:
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"cannot make the node {name}: needs root; see above what its keeper wrote")
        try:
            yield process
        finally:
            process.stdin.close()
            if status := process.wait(PATIENCE):
                raise RuntimeError(f"cannot end the node {name}: its keeper ended with {status}, see above")


def _mount_all() -> None:
    """Let what runtimes and CNI plugins write to fixed places be the node's own."""
    run("mount", "-t", "tmpfs", "-o", "mode=755", "node", "/run")
    upper, work = Path("/run/node/upper"), Path("/run/node/work")
    for each in (upper, work, Path("/run/netns")):
        each.mkdir(parents=True)
    layers = f"lowerdir=/var/lib,upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", "-o", layers, "node", "/var/lib")


def _inhabitants() -> set[int]:
    """Every process in this mount namespace, but this one."""
    ours = Path("/proc/self/ns/mnt").stat()
    pids: set[int] = set()
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdecimal() and (place / "ns/mnt").stat().st_ino == ours.st_ino:
                pids.add(int(place.name))
    return pids - {os.getpid()}


def _end(cgroup: str) -> None:
    """Kill until nobody is left, then remove the cgroups. Raises TimeoutError with what remains."""
    deadline = time.monotonic() + PATIENCE / 2
    # Containers first, so that their shims still reap them.
    while pids := cgroups.members(cgroup) or _inhabitants():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"cannot end processes {sorted(pids)} of {cgroup}")
        time.sleep(0.005)
    while directories := cgroups.directories(cgroup):
        # A directory is busy for a moment after its last process.
        with contextlib.suppress(OSError):
            cgroups.remove(cgroup)
        if time.monotonic() > deadline:
            raise TimeoutError(f"cannot remove the cgroups {', '.join(map(str, directories))}")
        time.sleep(0.005)


def main() -> None:
    """Keep the node until stdin ends."""
    (name,) = sys.argv[1:]
    outside = Path(f"/proc/{os.getppid()}/ns/mnt")
    if not re.fullmatch(r"pm-\d+-node-\d+", name) or Path("/proc/self/ns/mnt").samefile(outside):
        sys.exit(f"cannot keep the node {name}: started by hand; tests.lab.node.Node starts it")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run("ip", "link", "set", "lo", "up")
    _mount_all()
    print("ready", flush=True)
    sys.stdin.buffer.read()
    _end(f"/{name}")


if __name__ == "__main__":
    main()
