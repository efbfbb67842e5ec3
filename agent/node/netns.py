"""Network namespaces: name them, open them safely, and run one function inside one.

A thread that has entered a namespace never comes back from it: it ends there. So no later job can
find itself in the wrong namespace, and there is no restore that could fail.
"""

import _thread
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeVar, cast

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
NS_GET_NSTYPE = 0xB703
"""ioctl on an nsfs file: its CLONE_* type. Every other file system answers ENOTTY."""

MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENXIO, errno.ELOOP, errno.ENAMETOOLONG)

SHOWN = 200
"""Characters of a path in the text of an error: people write anything into an annotation."""

# /proc/self shows the main thread's namespace, whatever the calling thread has entered.
THREAD_NETNS = "/proc/thread-self/ns/net"
PROCESS_NETNS = "/proc/self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


class NetnsMissing(Exception):  # noqa: N818
    """There is no network namespace (any more) at this path."""


class HostNetns(Exception):  # noqa: N818
    """The path leads to the namespace of this process, which is the node's own: never touched."""


class NetnsId(NamedTuple):
    """Identity of a namespace, for as long as something keeps it: device and inode of its nsfs file."""

    dev: int
    ino: int


def host_id() -> NetnsId:
    """The namespace that this process lives in; the agent runs with the node's network."""
    status = Path(PROCESS_NETNS).stat()
    return NetnsId(status.st_dev, status.st_ino)


def identify(fd: int) -> NetnsId:
    """Identity of the namespace behind an open descriptor."""
    status = os.fstat(fd)
    return NetnsId(status.st_dev, status.st_ino)


def open_netns(path: str | Path) -> int:
    """Open a namespace file read-only; nothing is ever created. The caller closes the descriptor.

    Raises NetnsMissing (no file, no possible path, process gone, or the leftover file of an ended
    namespace), HostNetns, PermissionError that names the missing capability, or another OSError.
    """
    action = f"open network namespace {shown(path)}"
    try:
        # O_NONBLOCK: a FIFO at this path must not hold up the agent.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise NetnsMissing(f"cannot {action}: no path can hold these characters") from error
    except OSError as error:
        if error.errno in MISSING:
            raise NetnsMissing(f"cannot {action}: {error.strerror}") from error
        raise _failure(
            error.errno or 0, action, "CAP_SYS_PTRACE for /proc/PID/ns, or access to the file"
        ) from error
    try:
        _check(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def shown(path: str | Path) -> str:
    """A path on one line, and not too long a one."""
    text = str(path)
    if text.isprintable() and len(text) <= SHOWN:
        return text
    return ascii(text[:SHOWN]) + ("..." if len(text) > SHOWN else "")


def run_in(fd: int, function: Callable[[], T]) -> T:
    """Run `function` in a throw-away thread inside the namespace of `fd`; its exceptions propagate.

    Sockets that it makes stay in the namespace and may be used from any thread afterwards.
    Raises PermissionError when the namespace must not be entered.
    """
    outcome: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()

    def inside() -> None:
        try:
            _enter(fd)
            outcome.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            outcome.put((None, error))

    # Bare, since a Thread makes its starter wait for its start: this is in the way of a pod's start.
    _thread.start_new_thread(inside, ())
    result, error = outcome.get()
    if error is not None:
        raise error
    return cast("T", result)


def stay_in(fd: int, function: Callable[[], T]) -> T:
    """The same on the calling thread, which has to end right after: it does not come back."""
    _enter(fd)
    return function()


def enter_new_netns() -> None:
    """Move the calling thread into a fresh, empty namespace, for good. Raises PermissionError.

    Only for a process that has nothing else to do: there is no way back.
    """
    before = Path(THREAD_NETNS).stat().st_ino
    if _libc.unshare(CLONE_NEWNET):
        raise _failure(ctypes.get_errno(), "make a scratch network namespace")
    if Path(THREAD_NETNS).stat().st_ino == before:
        raise RuntimeError("cannot make a scratch network namespace: unshare had no effect")


def _enter(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET):
        raise _failure(ctypes.get_errno(), f"enter network namespace {identify(fd).ino}")
    status = Path(THREAD_NETNS).stat()
    if NetnsId(status.st_dev, status.st_ino) != identify(fd):
        raise RuntimeError(f"cannot enter network namespace {identify(fd).ino}: setns had no effect")


def _check(fd: int, path: str | Path) -> None:
    try:
        kind = fcntl.ioctl(fd, NS_GET_NSTYPE)
    except OSError as error:
        raise NetnsMissing(f"cannot use {shown(path)}: it is no namespace file (any more)") from error
    if kind != CLONE_NEWNET:
        raise NetnsMissing(f"cannot use {shown(path)}: it is a namespace of another kind ({kind:#x})")
    if identify(fd) == host_id():
        raise HostNetns(f"cannot use {shown(path)}: it is the node's own network namespace")


def _failure(code: int, action: str, need: str = "CAP_SYS_ADMIN") -> OSError:
    """An error whose text is all its own, since OSError would put the number before it."""
    message = f"cannot {action}: {os.strerror(code)}"
    if code in (errno.EPERM, errno.EACCES):
        error: OSError = PermissionError(f"{message}; needs {need}; denied by an LSM?")
    else:
        error = OSError(message)
    error.errno = code
    return error
