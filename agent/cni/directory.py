"""A directory of the node in which files are replaced at once, or not at all.

A power failure at any moment leaves the old file or the new one: written beside it under a name that no
runtime reads, flushed, renamed, and the directory flushed. The file beside has to be in the same directory:
containerd looks again when a file is renamed away or written there, and not when one arrives from elsewhere.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from pathlib import Path
from types import TracebackType

import msgspec

TEMPORARY = ".pointsman-"
"""Beginning of the names of files that are still being written. Without one of the suffixes that are read."""
LARGEST = 2 << 20
"""Bytes of a file that is read; containerd's own bound for a configuration."""
PATIENCE = 2.0
"""Seconds to wait for another installer of ours, which needs milliseconds."""


class Changed(Exception):  # noqa: N818
    """Somebody else has written the file since it was read."""


class Content(msgspec.Struct, frozen=True):
    """A regular file as it was read. `stat`: of the file itself, to tell whether it still is the same one;
    `plain`: its name is no symbolic link."""

    data: bytes
    stat: os.stat_result
    plain: bool


class Directory:
    """`path`, held by its descriptor: what is renamed over it meanwhile is another directory. To enter it
    raises OSError where it is missing; `lock`: one process at a time, and what killed ones left is swept."""

    def __init__(self, path: Path, *, lock: bool = False) -> None:
        self.path = path
        self._lock = lock
        self._fd = -1

    def __enter__(self) -> "Directory":
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self._lock:
                self._take()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def names(self) -> tuple[str, ...]:
        """Of everything in it that is no directory."""
        with os.scandir(self._fd) as entries:
            return tuple(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))

    def read(self, name: str) -> Content:
        """Raises OSError: also EINVAL for what is no regular file, and EFBIG for one that is too large."""
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", name)
            if len(data := file.read(LARGEST + 1)) > LARGEST:
                raise OSError(errno.EFBIG, f"it is larger than {LARGEST >> 20} MiB", name)
        named = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        return Content(data, found, plain=not stat.S_ISLNK(named.st_mode))

    def replace(self, name: str, data: bytes, *, mode: int, before: Content | None = None) -> None:
        """Put `data` in the place of `name`. `before`: the file that was read there, whose mode and owner are
        kept, and without which `mode` is given; Changed is raised when it is no longer that one. Raises
        OSError; nothing is left of an attempt."""
        temporary = f"{TEMPORARY}{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o600, dir_fd=self._fd)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if before is not None and before.plain:
                    mode = stat.S_IMODE(before.stat.st_mode)
                    _give(fd, before.stat.st_uid, before.stat.st_gid)
                os.fchmod(fd, mode)
                os.fsync(fd)
            if before is not None and before.plain and not self._is_still(name, before):
                raise Changed(name)
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            os.fsync(self._fd)
        except OSError as error:
            error.filename, error.filename2 = name, None
            raise
        finally:
            with contextlib.suppress(OSError):  # it was renamed, or could not be made
                os.unlink(temporary, dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """No error when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)
        os.fsync(self._fd)

    def sweep(self) -> None:
        """Remove what installers left that were killed. Only under the lock: others' may be in use."""
        for name in self.names():
            if name.startswith(TEMPORARY):
                self.remove(name)

    def try_lock(self) -> bool:
        """Take the directory's lock, which ends with this process at the latest, without waiting for it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _take(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self.try_lock():
            if time.monotonic() > until:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process holds its lock", str(self.path))
            time.sleep(0.01)
        self.sweep()

    def _is_still(self, name: str, before: Content) -> bool:
        try:
            now = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return _identity(now) == _identity(before.stat)


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _give(fd: int, uid: int, gid: int) -> None:
    """Only when needed: an agent without CAP_CHOWN may leave what is its own."""
    made = os.fstat(fd)
    if (made.st_uid, made.st_gid) != (uid, gid):
        os.fchown(fd, uid, gid)
