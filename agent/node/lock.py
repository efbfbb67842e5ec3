"""One writer on a node: an flock that the kernel gives back whatever way its holder ends."""

import contextlib
import fcntl
import os
from pathlib import Path


class WriterLock:
    """Exclusive lock on a file. Held by the process that may write to the pods' kernel state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def take(self, instance: str = "") -> bool:
        """Try once, without waiting, and leave one's own name. OSError when the file cannot be opened."""
        if self._fd is not None:
            return True
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        # Only a note of who writes, the lock itself is the kernel's. On a full disk it is missing, and
        # nothing else.
        with contextlib.suppress(OSError):
            os.truncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n{instance}\n".encode(), 0)
        return True

    def holder(self) -> str:
        """Pid that the present holder wrote, or "" when nobody did. In a pid namespace of its own."""
        return self._note()[0]

    def instance(self) -> str:
        """Name that the present holder goes by among the agents of this node, or ""."""
        return self._note()[1]

    def _note(self) -> tuple[str, str]:
        try:
            pid, _, instance = self.path.read_text(encoding="ascii").strip().partition("\n")
        except (OSError, UnicodeDecodeError):
            return "", ""
        return pid, instance

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
