"""inotify on directories that may come, go, and be replaced."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import inotify_simple

_FLAGS = inotify_simple.flags
_MASK = (
    _FLAGS.CREATE
    | _FLAGS.MODIFY
    | _FLAGS.CLOSE_WRITE
    | _FLAGS.MOVED_TO
    | _FLAGS.MOVED_FROM
    | _FLAGS.DELETE
    | _FLAGS.ATTRIB
    | _FLAGS.DELETE_SELF
    | _FLAGS.MOVE_SELF
    | _FLAGS.ONLYDIR
)


class Events:
    """Calls `wake` on the loop after a change in one of the directories. `fault`: why that is not so, ""
    when it is; whoever polls as well loses nothing but time."""

    def __init__(self, directories: Sequence[Path], wake: Callable[[], object]) -> None:
        self.fault = ""
        self._wake = wake
        self._watches: dict[Path, int | None] = dict.fromkeys(directories)
        self._loop = asyncio.get_running_loop()
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
        except OSError as error:
            self._inotify = None
            self.fault = f"cannot watch for changes: {error.strerror}; raise fs.inotify.max_user_instances"
            return
        self._loop.add_reader(self._inotify.fileno(), self._read)

    def renew(self) -> None:
        """Watch what is at the paths now. For a directory that is watched already, nothing changes."""
        if self._inotify is None:
            return
        self.fault = ""
        for path, old in self._watches.items():
            try:
                new = self._inotify.add_watch(path, _MASK)
            except (FileNotFoundError, NotADirectoryError):
                new = None  # it may come: whoever polls sees it
            except OSError as error:
                new = None
                self.fault = f"cannot watch {path}: {error.strerror}; raise fs.inotify.max_user_watches"
            if old is not None and old != new:
                with contextlib.suppress(OSError):  # ended with its directory
                    self._inotify.rm_watch(old)
            self._watches[path] = new

    def close(self) -> None:
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()

    def _read(self) -> None:
        if self._inotify is not None:
            self._inotify.read(timeout=0)
            self._wake()
