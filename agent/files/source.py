"""A directory of manifests as a source of cluster objects: the same events as the API server's.

The directory is re-read when inotify says so, and every second as the net under it (a network
filesystem sends no events, and neither does a netns that appears at a path). Rules:

* a file that cannot be read keeps what it last held, and is named once per content;
* a pod without `metadata.uid` gets one from its name and the inode of its netns, so that a new netns
  at the old path is a new pod;
* the first read is one `Replace` per kind, later ones are the exact differences.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import inotify_simple
import msgspec
import structlog

from agent.core.names import NETNS
from agent.core.objects import Drop, Event, Object, Pod, Put, Replace
from agent.files.manifests import KINDS, ManifestError, parse

SUFFIXES = (".yaml", ".yml", ".json")
PERIOD = 1.0
LARGEST = 8 << 20
UID_SPACE = uuid.UUID("8c5f7f3a-7d0e-5f5c-9f0e-6d1b8f0c4a11")

log = structlog.get_logger("files")

Stamp = tuple[int, int, int]
Key = tuple[type[Object], str, str]


class FilesSource:
    """Endless stream of events from `directory`. One reader."""

    def __init__(self, directory: Path, period: float = PERIOD) -> None:
        self.directory = directory
        self._period = period
        self._files: dict[str, tuple[Stamp | None, tuple[Object, ...]]] = {}
        self._objects: dict[Key, Object] = {}
        self._clashes: frozenset[str] = frozenset()
        self._said = ""

    async def events(self) -> AsyncIterator[Event]:
        """First the whole picture kind by kind, then each difference as it is seen."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        inotify = self._inotify()
        if inotify is not None:
            loop.add_reader(inotify.fileno(), woken.set)
        try:
            self._watch(inotify)
            self._objects = await asyncio.to_thread(self._read)
            for kind in KINDS:
                yield Replace(kind, tuple(o for o in self._objects.values() if isinstance(o, kind)))
            while True:
                await _woken_or_late(woken, self._period)
                if inotify is not None:
                    inotify.read(timeout=0)
                self._watch(inotify)
                for event in self._differences(await asyncio.to_thread(self._read)):
                    yield event
        finally:
            if inotify is not None:
                loop.remove_reader(inotify.fileno())
                inotify.close()

    def _inotify(self) -> inotify_simple.INotify | None:
        """None when the node has no more of them to give: then reading every second must do."""
        try:
            return inotify_simple.INotify(nonblocking=True)
        except OSError as error:
            self._say_once(
                f"cannot watch {self.directory}: {error.strerror}; reading it every second; "
                "raise fs.inotify.max_user_instances"
            )
            return None

    def _watch(self, inotify: inotify_simple.INotify | None) -> None:
        """Ask for events; adding the same directory again is no change, and a new one at the same
        path is picked up."""
        if inotify is None:
            return
        flags = inotify_simple.flags
        try:
            inotify.add_watch(
                self.directory,
                flags.CLOSE_WRITE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.CREATE,
            )
        except OSError as error:
            self._say_once(f"cannot watch {self.directory}: {error.strerror}; reading it every second")

    def _read(self) -> dict[Key, Object]:
        """What the directory holds now. In a thread, one at a time: a large file takes seconds to parse,
        and a network filesystem any time."""
        self._read_directory()
        return self._picture()

    def _read_directory(self) -> None:
        try:
            with os.scandir(self.directory) as entries:
                names = sorted(e.name for e in entries if e.name.endswith(SUFFIXES) and e.name[0] != ".")
        except OSError as error:
            # Missing information removes nothing: the last picture stays.
            self._say_once(f"cannot read {self.directory}: {error.strerror}; keeping what was read before")
            return
        for name in set(self._files) - set(names):
            del self._files[name]
        for name in names:
            self._read_file(name)

    def _read_file(self, name: str) -> None:
        path = self.directory / name
        read, last = self._files.get(name, (None, ()))
        stamp = read
        try:
            stamp = _stamp(path)
            if stamp == read:
                return
            last = parse(_text(path))
            log.debug("manifest read", file=name, objects=len(last))
        except FileNotFoundError:
            return
        except (ManifestError, OSError) as error:
            kept = f"; keeping the last good version ({len(last)} objects)" if last else ""
            log.warning("manifest ignored", file=str(path), error=f"{error}{kept}", reason="BadManifest")
        self._files[name] = (stamp, last)

    def _picture(self) -> dict[Key, Object]:
        picture: dict[Key, Object] = {}
        clashes = set()
        for name, (_, objects) in sorted(self._files.items()):
            for item in objects:
                key = (type(item), item.metadata.namespace, item.metadata.name)
                if key in picture:
                    clashes.add(f"{key[0].__name__} {key[1]}/{key[2]} in {name}")
                    continue
                picture[key] = with_uid(item) if isinstance(item, Pod) else item
        for clash in sorted(clashes - self._clashes):
            log.warning("manifest ignored", error=f"a second {clash}: the first one read stands")
        self._clashes = frozenset(clashes)
        return picture

    def _differences(self, picture: dict[Key, Object]) -> list[Event]:
        before, self._objects = self._objects, picture
        events: list[Event] = []
        for key, item in before.items():
            now = self._objects.get(key)
            if now is None or now.metadata.uid != item.metadata.uid:
                events.append(Drop(item))
        events += [Put(item) for key, item in self._objects.items() if before.get(key) != item]
        return events

    def _say_once(self, message: str) -> None:
        if message != self._said:
            self._said = message
            log.warning(message)


def _stamp(path: Path) -> Stamp:
    """What is different when the content, or the right to read it, is. Raises FileNotFoundError."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        return 0, 0, error.errno or 0
    return status.st_ino, status.st_size, status.st_ctime_ns


def _text(path: Path) -> str:
    if not path.is_file():
        raise ManifestError("cannot read it: it is no regular file")
    if path.stat().st_size > LARGEST:
        raise ManifestError(f"cannot read it: it is larger than {LARGEST >> 20} MiB")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ManifestError(f"cannot read it as UTF-8: {error.reason} at byte {error.start}") from error


async def _woken_or_late(woken: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        return
    finally:
        woken.clear()


def with_uid(pod: Pod) -> Pod:
    """The pod with a UID: its own, else one made of its name and the inode of its netns (0 while the
    netns is not there)."""
    if pod.metadata.uid:
        return pod
    path = pod.annotations.get(NETNS, "")
    try:
        inode = Path(path).stat().st_ino if path else 0
    except (OSError, ValueError):
        inode = 0
    uid = uuid.uuid5(UID_SPACE, f"{pod.key}/{inode}")
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=str(uid)))
