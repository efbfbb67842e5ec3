"""The attachments on file, one small file each in the run directory, for the agent that comes next.

After ADD nobody can be asked where a pod's netns is, other than by a scan of /proc, for which not every agent
has the rights. The directory is on a tmpfs, as the namespaces are: both end with a reboot. A file is a hint
where to look, never a proof of rules, so one that is lost costs a scan.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import structlog

from agent.core.attachments import Attachment

MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ELOOP, errno.ENAMETOOLONG)
LARGEST = 2 << 20
"""Bytes of a file: what a call brings is at most half of it."""

log = structlog.get_logger("cni")


class Ledger:
    """Files in `directory`, written by a thread of its own, in order: no call waits for it. Faults are logged
    and cost nothing else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._tidy = False

    def save(self, attachment: Attachment) -> None:
        self._writer.submit(self._save, attachment)

    def forget(self, attachment: Attachment) -> None:
        self._writer.submit(self._forget, attachment)

    def close(self) -> None:
        """Wait until all is written."""
        self._writer.shutdown()

    def _save(self, attachment: Attachment) -> None:
        path = self._path(attachment)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tidy_up()
            temporary.write_bytes(msgspec.json.encode(attachment))
            temporary.rename(path)
        except OSError as error:
            log.warning("cannot write down an attachment", file=str(path), error=error.strerror)
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _forget(self, attachment: Attachment) -> None:
        try:
            self._path(attachment).unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove an attachment's file", error=str(error))

    def _tidy_up(self) -> None:
        """Remove what killed agents had not finished, once: only the agent that writes writes here."""
        if not self._tidy:
            for path in self._directory.glob(".*.json.*"):
                path.unlink(missing_ok=True)
        self._tidy = True

    def load(self) -> list[Attachment]:
        """All that can be read, oldest first. One that cannot is named, and removed if it is a file."""
        found = []
        for path in self._directory.glob("*.json"):
            try:
                attachment = msgspec.json.decode(_content(path), type=Attachment)
                if self._path(attachment) != path:
                    raise ValueError(f"it is about another container: {attachment.container_id[:80]!r}")
                found.append(attachment)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError) as error:
                log.warning("cannot use an attachment's file", file=str(path), error=str(error))
                with contextlib.suppress(OSError):
                    path.unlink()
        return sorted(found, key=lambda attachment: attachment.since)

    def _path(self, attachment: Attachment) -> Path:
        return self._directory / f"{attachment.container_id}.{attachment.ifname}.json"


def _content(path: Path) -> bytes:
    """Of a regular file, not too large a one: nobody waits for a FIFO or a device. OSError, ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            raise ValueError("it is no file that an agent has written")
        return os.read(fd, LARGEST)
    finally:
        os.close(fd)


def inode_of(path: str) -> tuple[int, int] | None:
    """Device and inode of a netns file, None when they cannot be read."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def all_ended(attachments: Iterable[Attachment]) -> list[Attachment]:
    """Those whose netns is positively gone."""
    return [attachment for attachment in attachments if ended(attachment)]


def ended(attachment: Attachment) -> bool:
    """Whether the netns of an attachment is positively gone: no file there any more, or another's."""
    try:
        status = Path(attachment.netns).stat()
    except OSError as error:
        return error.errno in MISSING
    except ValueError:
        return True
    return attachment.inode is not None and attachment.inode != (status.st_dev, status.st_ino)
