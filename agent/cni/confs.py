"""The configurations in the runtime's directory, between files and values."""

import stat
from collections.abc import Sequence

from agent.cni.directory import Changed, Content, Directory
from agent.core.conflist import SUFFIXES, Edit, File, beside

Found = dict[str, tuple[File, Content | None]]
"""By name: the value, and what was read for it."""


def files(found: Found) -> list[File]:
    return [file for file, _ in found.values()]


def read(confs: Directory) -> Found:
    """What a runtime would read, by name."""
    found: Found = {}
    for name in confs.names():
        if name.endswith(SUFFIXES):
            try:
                content = confs.read(name)
            except FileNotFoundError:
                if name in confs.names():
                    found[name] = File(name, fault="it is a symbolic link to nothing", plain=False), None
            except OSError as error:
                found[name] = File(name, fault=error.strerror or str(error), plain=False), None
            else:
                text = content.data.decode(errors="surrogateescape")
                found[name] = File(name, text, plain=content.plain), content
    return found


def apply(confs: Directory, found: Found, edits: Sequence[Edit], written: list[str]) -> bool:
    """Make the edits, and note them in `written`. False when somebody else wrote meanwhile."""
    for edit in edits:
        if edit.text is None:
            confs.remove(edit.file)
        else:
            _, before = found.get(edit.file, (None, None))
            data = edit.text.encode(errors="surrogateescape")
            try:
                confs.replace(edit.file, data, mode=_mode(found, edit.file), before=before)
            except Changed:
                return False
        written.append(str(confs.path / edit.file))
    return True


def _mode(found: Found, name: str) -> int:
    """Of a list beside: not more than what it continues allows."""
    sources = (content for file, content in found.values() if content and beside(file.name) == name)
    return min((stat.S_IMODE(content.stat.st_mode) for content in sources), default=0o600)
