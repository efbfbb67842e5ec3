"""Network namespaces of a test: made, entered by throw-away threads, and always removed again."""

import atexit
import contextlib
import ctypes
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

USER_NAMESPACE_BASE = 100_000
"""Host uid that is uid 0 of a pod with a user namespace of its own."""

_CLONE_NEWNET = 0x40000000
_ID_MASK = 0xFFFFFFFF
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()
_live: set[str] = set()


def path_of(name: str) -> Path:
    """Where the namespace `name` is mounted."""
    return Path("/run/netns") / name


def run(*command: str, script: str | None = None) -> str:
    """Output of `command`, fed with `script`. Raises RuntimeError with what the command wrote on failure."""
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(
            f"cannot run {' '.join(command)!r}: {done.stderr.strip() or done.returncode}\n{script or ''}"
        )
    return done.stdout


def configure(name: str, *commands: str) -> None:
    """Run `ip` commands, one transaction after the other, inside the namespace `name`."""
    run("ip", "-n", name, "-batch", "-", script="\n".join(commands) + "\n")


@contextlib.contextmanager
def netns() -> Iterator[str]:
    """A new namespace with `lo` up; yields its name, `pm-<pid>-<n>`."""
    with _named() as name:
        run("ip", "netns", "add", name)
        configure(name, "link set lo up")
        yield name


@contextlib.contextmanager
def user_netns() -> Iterator[str]:
    """As `netns`, but owned by a new user namespace that maps 65,536 ids from `USER_NAMESPACE_BASE` on."""
    with _named() as name:
        holder = subprocess.Popen(["unshare", "--user", "--net", "sleep", "60"])
        try:
            _wait_for_other_netns(holder.pid)
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{kind}").write_text(f"0 {USER_NAMESPACE_BASE} 65536\n")
            run("ip", "netns", "attach", name, str(holder.pid))
        finally:
            holder.kill()
            holder.wait()
        configure(name, "link set lo up")
        yield name


@contextlib.contextmanager
def _named() -> Iterator[str]:
    name = f"pm-{os.getpid()}-{next(_numbers)}"
    _live.add(name)
    try:
        yield name
    finally:
        _remove(name)


def _remove(name: str) -> None:
    _live.discard(name)
    if path_of(name).exists():
        run("ip", "netns", "delete", name)


@atexit.register
def _remove_all() -> None:
    for name in tuple(_live):
        _remove(name)


def _wait_for_other_netns(pid: int) -> None:
    ours = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}/ns/net").readlink() == ours:
        if time.monotonic() > deadline:
            raise RuntimeError("cannot make a user namespace: unshare has not entered one after 5 s")
        time.sleep(0.002)


def inside(name: str, function: Callable[[], T], *, uid: int = 0, gid: int = 0) -> T:
    """Result of `function`, called in the namespace `name` with file-system ids `uid` and `gid` (host view).

    nft's `meta skuid` and `meta skgid` read the file-system ids of the moment a socket is made. Changing only
    these keeps CAP_NET_RAW and CAP_NET_BIND_SERVICE. The thread ends afterwards; exceptions are passed on.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            enter(name)
            _assume(uid, gid)
            result.append(function())
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread as it is
            failure.append(error)

    thread = threading.Thread(target=body, name=f"inside-{name}")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def enter(name: str) -> None:
    """Move the calling thread into the namespace `name`, for good."""
    path = path_of(name)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {path}")
        if os.fstat(fd).st_ino != Path("/proc/thread-self/ns/net").stat().st_ino:
            raise RuntimeError(f"cannot enter network namespace {path}: the thread is somewhere else")
    finally:
        os.close(fd)


def _assume(uid: int, gid: int) -> None:
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    # Both report the previous id, never an error: an impossible id makes no change, and so reads it.
    if (_libc.setfsuid(-1) & _ID_MASK, _libc.setfsgid(-1) & _ID_MASK) != (uid, gid):
        raise PermissionError(f"cannot take file-system ids {uid}:{gid}: run as root")
