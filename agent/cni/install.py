"""The shim and our entry in the node's CNI configuration: put there, looked at, taken away.

The shim comes first and goes last, so that no configuration ever names a binary that is not there. All that
is known is read afresh from the node each time; nothing else has to survive a restart.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from agent.cni.confs import apply, files, read
from agent.cni.directory import Directory
from agent.core.chain import TYPE, Away, Entry
from agent.core.conflist import Fault, Picture, cleared, look, naming_us

SHIM = Path(__file__).with_name(TYPE)
ATTEMPTS = 10
"""Looks at a configuration that changes while it is edited, before that is left for later."""

_REMEDIES = {
    errno.ENOSPC: "free space on the node's disk",
    errno.EDQUOT: "free space on the node's disk",
    errno.EROFS: "mount the directory writable into the agent's container",
    errno.EACCES: "run as root, with the directory mounted writable",
    errno.EPERM: "run as root, with the directory mounted writable",
    errno.EBUSY: "is the file a mount of its own? Mount its directory instead",
    errno.EWOULDBLOCK: "wait for it, or end it",
}

ShimState = Literal["current", "differs", "missing"]


class CannotInstallError(Exception):
    """Something could not be read, written or removed; the message names it and what helps."""


class CniSettings(msgspec.Struct, frozen=True):
    """What is to be installed, and where. `shim`: the binary that is copied to `bin_dir`."""

    conf_dir: Path = Path("/etc/cni/net.d")
    bin_dir: Path = Path("/opt/cni/bin")
    socket: Path = Path("/run/pointsman/cni.sock")
    when_agent_away: Away = "allow"
    exempt_namespaces: frozenset[str] = frozenset({"kube-system"})
    agent_pod: str = ""
    shim: Path = SHIM

    @property
    def entry(self) -> Entry:
        return Entry(
            socket=str(self.socket),
            when_agent_away=self.when_agent_away,
            exempt_namespaces=tuple(sorted(self.exempt_namespaces)),
            agent_pod=self.agent_pod,
        )


class Inspection(msgspec.Struct, frozen=True, rename="camel"):
    """The node as it is.

    `file`: the configuration that the runtime uses, "" when there is none. `holder`: the file in which our
    entry is or belongs. `chain`: types of the plugins there in order, with our entry at `position`, None
    when it is missing. `current`: the entry is as the settings want it. `pending`: files that are to be
    changed, or removed, for all to be right. `shim`: the binary in `bin_dir`.
    """

    conf_dir: str
    bin_dir: str
    file: str = ""
    holder: str = ""
    chain: tuple[str, ...] = ()
    position: int | None = None
    current: bool = False
    neighbours: tuple[str, ...] = ()
    broken: tuple[Fault, ...] = ()
    pending: tuple[str, ...] = ()
    shim: ShimState = "missing"

    @property
    def installed(self) -> bool:
        """Pods that start now come by us, perhaps with the settings of another version."""
        return self.position is not None and self.shim != "missing"

    @property
    def right(self) -> bool:
        """Nothing is to be done."""
        return not self.pending and self.shim == "current"

    @property
    def follows(self) -> bool:
        """Our list beside is in use, and what it continues has changed."""
        return self.holder != self.file and self.installed


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The node after an attempt, and the files that were written or removed for it."""

    inspection: Inspection
    written: tuple[str, ...] = ()


class Installer:
    """Everything raises CannotInstallError. To be used from one thread at a time; other processes may install
    as well."""

    def __init__(self, settings: CniSettings) -> None:
        self.settings = settings

    @contextmanager
    def tenancy(self) -> Iterator[bool]:
        """The right to write on this node, for as long as this lasts. False where another process has it."""
        with ExitStack() as held:
            with self._errors("use", self.settings.bin_dir):
                self.settings.bin_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
                binaries = held.enter_context(Directory(self.settings.bin_dir))
            yield binaries.try_lock()

    def inspect(self) -> Inspection:
        """Look, and change nothing."""
        with self._errors("read", self.settings.conf_dir):
            if not self.settings.conf_dir.is_dir():
                return self._inspection(Picture())
            with Directory(self.settings.conf_dir) as confs:
                return self._inspection(look(files(read(confs)), self.settings.entry))

    def traces(self) -> tuple[str, ...]:
        """Paths of all that `remove` would write or remove, in its order."""
        conf_dir, bin_dir = self.settings.conf_dir, self.settings.bin_dir
        names: dict[str, None] = {}
        with self._errors("read", conf_dir):
            if conf_dir.is_dir():
                with Directory(conf_dir) as confs:
                    found = files(read(confs))
                names = dict.fromkeys([*(edit.file for edit in cleared(found)), *naming_us(found)])
        with self._errors("read", bin_dir):
            shim = [str(bin_dir / TYPE)] if os.path.lexists(bin_dir / TYPE) else []
        return (*(str(conf_dir / name) for name in names), *shim)

    def install(self, only: str | None = None) -> Outcome:
        """Put shim and entry where they belong. `only`: and only if this is the file that the runtime uses;
        without any configuration the shim alone is put there."""
        settings = self.settings
        written: list[str] = []
        if not settings.conf_dir.is_dir():
            return Outcome(self.inspect())
        with self._errors("write", settings.conf_dir), Directory(settings.conf_dir, lock=True) as confs:
            for _ in range(ATTEMPTS):
                found = read(confs)
                picture = look(files(found), settings.entry)
                if only is not None and picture.picked != only:
                    break
                written += self._place_shim()
                if apply(confs, found, picture.edits, written):
                    break
        return Outcome(self.inspect(), tuple(written))

    def remove(self) -> Outcome:
        """Take the entry out, then the shim; which stays when some file may still call it."""
        conf_dir = self.settings.conf_dir
        written: list[str] = []
        with self._errors("write", conf_dir), ExitStack() as held:
            if conf_dir.is_dir():
                self._clear(held.enter_context(Directory(conf_dir, lock=True)), written)
            written += self._remove_shim()
        return Outcome(self.inspect(), tuple(written))

    def _clear(self, confs: Directory, written: list[str]) -> None:
        for _ in range(ATTEMPTS):
            found = read(confs)
            if apply(confs, found, cleared(files(found)), written):
                break
        if left := naming_us(files(read(confs))):
            raise CannotInstallError(
                f"cannot take our entry out of {', '.join(left)} in {confs.path}: no JSON in a regular file; "
                f"take it out by hand, then remove {self.settings.bin_dir / TYPE}"
            )

    def _remove_shim(self) -> list[str]:
        """Under the lock of the configuration's directory."""
        with self._errors("remove", self.settings.bin_dir):
            if not self.settings.bin_dir.is_dir():
                return []
            with Directory(self.settings.bin_dir) as binaries:
                binaries.sweep()
                if TYPE not in binaries.names():
                    return []
                binaries.remove(TYPE)
        return [str(self.settings.bin_dir / TYPE)]

    def _place_shim(self) -> list[str]:
        """Under the lock of the configuration's directory."""
        with self._errors("write", self.settings.bin_dir):
            data = self._shim()
            self.settings.bin_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
            with Directory(self.settings.bin_dir) as binaries:
                binaries.sweep()
                if _is_shim(binaries, data):
                    return []
                binaries.replace(TYPE, data, mode=0o755)
        return [str(self.settings.bin_dir / TYPE)]

    def _shim(self) -> bytes:
        try:
            return self.settings.shim.read_bytes()
        except FileNotFoundError:
            raise CannotInstallError(
                f"cannot find the shim {self.settings.shim}; run `make shim`, or name one with --shim"
            ) from None

    def _inspection(self, picture: Picture) -> Inspection:
        return Inspection(
            conf_dir=str(self.settings.conf_dir),
            bin_dir=str(self.settings.bin_dir),
            file=picture.picked,
            holder=picture.holder,
            chain=picture.chain,
            position=picture.position,
            current=picture.current,
            neighbours=picture.neighbours,
            broken=picture.broken,
            pending=tuple(edit.file for edit in picture.edits),
            shim=self._shim_state(),
        )

    def _shim_state(self) -> ShimState:
        with self._errors("read", self.settings.bin_dir):
            if not (self.settings.bin_dir / TYPE).exists():
                return "missing"
            data = self._shim()
            with Directory(self.settings.bin_dir) as binaries:
                return "current" if _is_shim(binaries, data) else "differs"

    @contextmanager
    def _errors(self, verb: str, directory: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = directory / error.filename if isinstance(error.filename, str | Path) else directory
            remedy = _REMEDIES.get(error.errno or 0, "look at the node's disk")
            words = error.strerror or str(error)
            raise CannotInstallError(f"cannot {verb} {where}: {words}; {remedy}") from error


def _is_shim(binaries: Directory, data: bytes) -> bool:
    try:
        there = binaries.read(TYPE)
    except OSError:
        return False
    return there.plain and there.data == data and stat.S_IMODE(there.stat.st_mode) == 0o755
