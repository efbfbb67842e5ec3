"""Which network namespace belongs to which pod, read from /proc alone: no runtime socket, no API.

A process tells its pod by the name of a cgroup above it (`pod<uid>`), and its network namespace by
/proc/PID/ns/net. Everything here may be stale the moment it is read, so a `Sandbox` is only a claim:
`open_sandbox` opens it and proves it.
"""

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import msgspec

from agent.node.addresses import addresses
from agent.node.netns import NetnsId, NetnsMissing, host_id, identify, open_netns

SETTLE = 10.0
"""Seconds after which a process is taken to stay where it is: a runtime's first process is seen
before it has entered its namespace and its cgroup."""
FULL_EVERY = 60
"""Every so many scans all processes are read again, for those that moved later in life."""

_POD = re.compile(
    r"(?:.*-)?pod(?P<uid>[0-9a-f]{8}(?P<dash>[-_]?)[0-9a-f]{4}"
    r"(?:(?P=dash)[0-9a-f]{4}){2}(?P=dash)[0-9a-f]{12})(?:\.slice)?"
)
"""A pod's own directory in a cgroup path: `pod<uid>` from the cgroupfs driver, or
`kubepods-burstable-pod<uid>.slice` with `_` for `-`. The UID of a static pod has neither."""
_QOS_PARENTS = ("kubepods", "kubepods/burstable", "kubepods/besteffort")
_OUR_OWN_FAULT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Sandbox(msgspec.Struct, frozen=True):
    """A claim that a pod lives in a network namespace, with the process that makes it.

    `uid` is the pod's UID as the API writes it; `start_time` is in clock ticks since boot and makes
    `pid` unique; `cgroup` is the pod's cgroup directory as a path here, "" when it cannot be seen
    from here; `path` leads to the namespace as long as the process lives.
    """

    uid: str
    netns: NetnsId
    pid: int
    start_time: int
    cgroup: str
    path: str


class Scan(msgspec.Struct, frozen=True):
    """What one scan found: sandboxes by pod UID, one each.

    `unreadable` counts the processes that ended while they were read or may not be read, `denied`
    those of them that may not be read (missing SYS_PTRACE when it is most of them); `rejected`
    names processes that claim more than one pod.
    """

    sandboxes: dict[str, Sandbox]
    unreadable: int = 0
    denied: int = 0
    rejected: tuple[str, ...] = ()


class NoAddressYet(Exception):  # noqa: N818
    """The pod or its namespace has no address yet, so that the two cannot be matched. Try later."""


class NetnsMismatch(Exception):  # noqa: N818
    """The namespace is not this pod's: its process sits in another one, or it holds no address of the pod."""


class _Process(msgspec.Struct, frozen=True):
    """What is known of one process; `inode` of its /proc directory is unique while it lives."""

    inode: int
    since: float
    settled: bool = False
    sandbox: Sandbox | None = None
    rejected: str | None = None


class Scanner:
    """Finds the sandboxes of this node in /proc, incrementally.

    `proc` and `cgroup` are where the host's procfs and cgroup file systems are mounted; `settle` in
    seconds, see SETTLE. A scan costs about 2 ms per 1,000 processes that were seen before, and 30 ms per
    1,000 new ones of pods: not for an event loop. Not thread-safe.
    """

    def __init__(self, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup", settle: float = SETTLE) -> None:
        self._proc = proc
        self._cgroup = Path(cgroup)
        self._settle = settle
        self._processes: dict[int, _Process] = {}
        self._directories: dict[str, str] = {}
        self._scans = 0

    def scan(self) -> Scan:
        """Read the processes that are new since the last scan, or young; forget those that ended.

        A process that cannot be read is counted and tried again in the next scan. Raises OSError only
        for faults of this process or of the mount itself, such as EMFILE.
        """
        again = self._scans % FULL_EVERY == 0
        self._scans += 1
        hosts = self._hosts()
        now = time.monotonic()
        processes: dict[int, _Process] = {}
        unreadable = denied = 0
        for pid, inode in self._list():
            known = self._processes.get(pid)
            if known is None or known.inode != inode:
                known = _Process(inode, now)
            if again or not known.settled:
                try:
                    known = self._read(pid, known, now, hosts)
                except (OSError, ValueError, IndexError) as error:
                    # The latter two: what is read there is no process's status.
                    if isinstance(error, OSError) and error.errno in _OUR_OWN_FAULT:
                        raise
                    unreadable += 1
                    denied += isinstance(error, PermissionError)
                    known = _Process(inode, known.since)
            processes[pid] = known
        self._processes = processes
        sandboxes = _oldest(one.sandbox for one in processes.values() if one.sandbox)
        self._directories = {uid: one.cgroup for uid, one in sandboxes.items()}
        rejected = tuple(one.rejected for one in processes.values() if one.rejected)
        return Scan(sandboxes, unreadable, denied, rejected)

    def _list(self) -> Iterator[tuple[int, int]]:
        """PID and inode of each process. procfs keeps the inode as long as the process lives."""
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    yield int(entry.name), entry.inode()

    def _hosts(self) -> frozenset[NetnsId]:
        """Namespaces that no pod owns: the agent's own, and that of process 1 where it may be read."""
        try:
            return frozenset({host_id(), _netns(f"{self._proc}/1/ns/net")})
        except OSError:
            return frozenset({host_id()})

    def _read(self, pid: int, known: _Process, now: float, hosts: frozenset[NetnsId]) -> _Process:
        settled = now - known.since >= self._settle
        # Through this descriptor every look-up is about the process, and never about the next
        # one with its number: after its end they all fail.
        directory = os.open(f"{self._proc}/{pid}", os.O_PATH | os.O_DIRECTORY)
        try:
            netns = _netns("ns/net", directory)
            if netns in hosts:
                return _Process(known.inode, known.since, settled)
            start_time = _start_time(_content("stat", directory))
            pods = _pods(_content("cgroup", directory))
        finally:
            os.close(directory)
        if len(pods) != 1:
            return _Process(known.inode, known.since, settled, rejected=_rejection(pid, pods))
        ((uid, places),) = pods.items()
        if not self._directories.get(uid):
            self._directories[uid] = self._pod_directory(places)
        path = f"{self._proc}/{pid}/ns/net"
        sandbox = Sandbox(uid, netns, pid, start_time, self._directories[uid], path)
        return _Process(known.inode, known.since, settled, sandbox)

    def _pod_directory(self, places: list[tuple[str, list[str]]]) -> str:
        """The first of these places that is there, "" when none can be seen from here."""
        for controllers, parts in places:
            for mount in _mounts(controllers):
                for below in _below(parts):
                    directory = self._cgroup / mount / below
                    if directory.is_dir():
                        return str(directory)
        return ""


def open_sandbox(sandbox: Sandbox, ips: Iterable[str]) -> int:
    """Open the network namespace of a sandbox and prove that it is the pod's; the caller closes it.

    Proof is that the process is still the one that was scanned, is still in the same namespace, and
    that the namespace holds one of the pod's addresses `ips`: a process can have entered the
    namespace of another pod. Raises NoAddressYet, NetnsMismatch, NetnsMissing when the process has
    ended, and what `open_netns` raises.
    """
    wanted = _canonical(ips)
    if not wanted:
        raise NoAddressYet(f"cannot match pod {sandbox.uid} with {sandbox.path}: the pod has no IP yet")
    fd = open_netns(sandbox.path)
    try:
        _prove(sandbox, wanted, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def cgroup_alive(sandbox: Sandbox) -> bool:
    """False when the pod's cgroup directory was there when it was scanned and now is not.

    kubelet removes it when all containers of the pod have ended, so False is proof of a pod's end. A
    directory that cannot be seen from here proves nothing: True.
    """
    return not sandbox.cgroup or Path(sandbox.cgroup).is_dir()


def _prove(sandbox: Sandbox, wanted: frozenset[str], fd: int) -> None:
    who = f"process {sandbox.pid} of pod {sandbox.uid}"
    try:
        # Read after the opening, so that the descriptor is of the process that was scanned and not of
        # the next one with its number; within one clock tick the identity below still tells.
        start_time = _start_time(_content(str(Path(sandbox.path).parents[1] / "stat")))
    except (FileNotFoundError, ProcessLookupError):
        start_time = None
    if start_time != sandbox.start_time:
        raise NetnsMissing(f"cannot open the network namespace of {who}: it has ended; scan again")
    if identify(fd) != sandbox.netns:
        raise NetnsMismatch(f"cannot use the network namespace of {who}: it has moved; scan again")
    held = addresses(fd)
    if wanted & _canonical(one.address for one in held):
        return
    if all(one.interface == "lo" or one.scope != "global" for one in held):
        raise NoAddressYet(f"cannot match {who} with its network namespace: it has no address yet")
    raise NetnsMismatch(
        f"cannot use the network namespace of {who}: it holds none of {', '.join(sorted(wanted))}; "
        "the process has entered another pod's namespace, or the pod's status is stale"
    )


def _canonical(texts: Iterable[str]) -> frozenset[str]:
    """One spelling per address; IPv4 inside IPv6 counts as IPv4, what is no address as nothing."""
    found = set()
    for text in texts:
        try:
            address = ip_address(text)
        except ValueError:
            continue
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        found.add(str(mapped or address))
    return frozenset(found)


def _oldest(claims: Iterable[Sandbox]) -> dict[str, Sandbox]:
    """One claim per pod: of the oldest process, since a pod's first one never leaves its namespace."""
    oldest: dict[str, Sandbox] = {}
    for claim in sorted(claims, key=lambda one: (one.start_time, one.pid)):
        oldest.setdefault(claim.uid, claim)
    return oldest


def _rejection(pid: int, pods: Iterable[str]) -> str | None:
    uids = sorted(pods)
    return f"process {pid} claims {len(uids)} pods: {', '.join(uids[:4])}" if uids else None


def _netns(path: str, directory: int | None = None) -> NetnsId:
    status = os.stat(path, dir_fd=directory)
    return NetnsId(status.st_dev, status.st_ino)


def _content(path: str, directory: int | None = None) -> bytes:
    with open(path, "rb", 0, opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as file:
        return file.read()


def _start_time(stat: bytes) -> int:
    """Field 22 of /proc/PID/stat. The name of the process, field 2, may hold blanks and parentheses."""
    return int(stat.rpartition(b")")[2].split()[19])


def _pods(text: bytes) -> dict[str, list[tuple[str, list[str]]]]:
    """Pod UIDs named in /proc/PID/cgroup, each with its (controllers, path down to the pod) pairs."""
    pods: dict[str, list[tuple[str, list[str]]]] = {}
    for line in os.fsdecode(text).splitlines():
        _, controllers, path = line.split(":", 2)
        parts = path.split("/")
        for index, part in enumerate(parts):
            if found := _POD.fullmatch(part):
                uid = found["uid"].replace("_", "-")
                pods.setdefault(uid, []).append((controllers, parts[1 : index + 1]))
    return pods


def _mounts(controllers: str) -> tuple[str, ...]:
    """Where a hierarchy is mounted below the cgroup root: version 2 alone or hybrid, else version 1."""
    if not controllers:
        return ("", "unified")
    return (controllers.removeprefix("name="), *controllers.split(","))


def _below(parts: list[str]) -> Iterator[str]:
    """Where a pod's directory can be below the mount.

    An agent in a cgroup namespace of its own sees the others as `/../../<their end of the path>`. The
    rest follows from the name: a systemd slice a-b-c.slice is in a.slice/a-b.slice.
    """
    known = [part for part in parts if part != ".."]
    yield "/".join(known)
    if len(known) == len(parts):
        return
    name = known[-1]
    if name.endswith(".slice"):
        words = name.removesuffix(".slice").split("-")
        yield "/".join("-".join(words[:end]) + ".slice" for end in range(1, len(words) + 1))
    else:
        yield from (f"{above}/{name}" for above in _QOS_PARENTS)
