"""Which CNI configuration a node's runtime uses, and where our entry stands in it. Pure: files as values in,
edits as values out.

**What runtimes do.** They take the files `*.conf`, `*.conflist`, `*.json` of one directory in the order of
their names, bytewise. CRI-O passes over those it cannot use, and so does the choice here; containerd takes
the first one, and has no network at all while that is broken. `.conflist` is a chain of plugins, the others
hold one plugin.

**Where our entry goes.**

| what the runtime uses | our entry |
|---|---|
| a list | at the end of its `plugins` |
| one plugin with `delegates` (multus) | at the end of the first delegate, the pod's default network |
| any other plugin; a symbolic link | in a list of ours beside it, `X-pointsman.conflist` for `X.conf` |

The list beside sorts directly before the file that it continues, so it is the one that is used from the
moment that it is there, and the foreign file is never touched: its owner may look for it, rewrite it (ours
follows) or remove it (ours goes as well). It is not used for delegates, since a multus that looks for the
network to delegate to would find the list, and itself in it.
"""

import json
from collections.abc import Sequence

import msgspec

from agent.core.chain import (
    NEIGHBOURS,
    TYPE,
    Entry,
    bare,
    chains,
    delegates,
    home,
    kind,
    ours,
    plugins,
    settled,
)
from agent.core.jsontext import Node, canonical, parse

SUFFIXES = (".conf", ".conflist", ".json")
BESIDE = "-pointsman.conflist"


class File(msgspec.Struct, frozen=True):
    """One file of the directory: its text, or the `fault` that keeps it from being read. `plain`: a regular
    file, which may be replaced; not a symbolic link, which must not."""

    name: str
    text: str = ""
    fault: str = ""
    plain: bool = True


class Fault(msgspec.Struct, frozen=True):
    """A file that no runtime can use, and why."""

    file: str
    why: str


class Edit(msgspec.Struct, frozen=True):
    """One file to be replaced at once by `text`, or to be removed."""

    file: str
    text: str | None


class Picture(msgspec.Struct, frozen=True):
    """The directory as it is.

    `picked`: file from which the runtime takes its network, "" when it has none. `holder`: file in which our
    entry is, or is to be: the same one, or ours beside it. `chain`: types of the plugins there, in order, and
    `position` our entry's place in it, None when it is missing. `current`: all is as it should be there.
    `neighbours`: other plugins that redirect. `edits`: what makes everything right, in this order.
    """

    picked: str = ""
    holder: str = ""
    chain: tuple[str, ...] = ()
    position: int | None = None
    current: bool = False
    neighbours: tuple[str, ...] = ()
    broken: tuple[Fault, ...] = ()
    edits: tuple[Edit, ...] = ()


def look(files: Sequence[File], entry: Entry) -> Picture:
    """What the runtime uses, and the edits that put our entry there. Where else an entry of ours stands, it
    is kept current, since a multus that generates its configuration copies it from there."""
    present = {file.name: file for file in files}
    broken: list[Fault] = []
    wanted: dict[str, str] = {}
    picked = holder = ""
    for file in sorted(files, key=_order):
        if file.name.endswith(BESIDE):
            continue
        place, text = beside(file.name), None
        try:
            root = read(file)
        except ValueError as error:
            broken.append(Fault(file.name, str(error)))
            if place in present and _usable(present[place]):
                text = settled(present[place].text, entry, insert=True)  # the last good version is in use
        else:
            if file.plain and _takes_entry(file, root):
                place, text = file.name, settled(file.text, entry, insert=not picked)
            elif place in present or not picked:
                text = _continued(file, root, present.get(place), entry)
        if text is None or place in wanted:
            continue
        wanted[place] = text
        if not picked:
            picked, holder = file.name, place
    edits = [Edit(name, text) for name, text in wanted.items() if _text(present, name) != text]
    edits += [Edit(name, None) for name in present if name.endswith(BESIDE) and name not in wanted]
    shown = _shown(present, picked, holder)
    return msgspec.structs.replace(
        shown, broken=tuple(broken), edits=tuple(edits), current=_current(shown, edits)
    )


def cleared(files: Sequence[File]) -> tuple[Edit, ...]:
    """The edits that take every entry of ours out. What is broken, or no regular file, is left as it is."""
    edits = []
    for file in sorted(files, key=_order):
        if file.name.endswith(BESIDE):
            edits.append(Edit(file.name, None))
        elif file.plain and _names_us(file) and (text := _bare(file)) is not None:
            edits.append(Edit(file.name, text))
    return tuple(edits)


def naming_us(files: Sequence[File]) -> tuple[str, ...]:
    """Files through which our binary may still be called: also broken ones, which may be mended."""
    return tuple(file.name for file in sorted(files, key=_order) if _names_us(file))


def read(file: File) -> Node:
    """A file as the configuration that a runtime takes it for. Raises ValueError, which says why none can."""
    if file.fault:
        raise ValueError(file.fault)
    root = parse(file.text)
    if not isinstance(root.value, dict):
        raise ValueError("it is no JSON object")
    for member in ("name", "cniVersion"):
        if not isinstance(root.value.get(member, ""), str):
            raise ValueError(f"`{member}` is no string")
    if not _is_list(file):
        if not kind(root):
            raise ValueError(
                "`type` is missing" + ("; a list must be named .conflist" if plugins(root) else "")
            )
        return root
    if "name" not in root.value:
        raise ValueError("`name` is missing")
    if not plugins(root):
        raise ValueError("`plugins` is missing or empty")
    if not all(map(kind, plugins(root))):
        raise ValueError("a plugin has no `type`")
    if all(kind(plugin) == TYPE for plugin in plugins(root)):
        raise ValueError(f"it has no plugin but {TYPE}, so pods would get no network")
    return root


def _order(file: File) -> bytes:
    return file.name.encode(errors="surrogateescape")


def beside(name: str) -> str:
    """Name of our list that continues a file."""
    return name.rpartition(".")[0] + BESIDE


def _is_list(file: File) -> bool:
    return file.name.endswith(".conflist")


def _takes_entry(file: File, root: Node) -> bool:
    """Whether our entry can stand in the file itself."""
    return _is_list(file) or (
        not plugins(root) and any(kind(one) or plugins(one) for one in delegates(root)[:1])
    )


def _text(present: dict[str, File], name: str) -> str | None:
    return present[name].text if name in present and not present[name].fault else None


def _usable(file: File) -> bool:
    try:
        read(file)
    except ValueError:
        return False
    return True


def _names_us(file: File) -> bool:
    return TYPE in file.text and _bare(file) != file.text


def _bare(file: File) -> str | None:
    """None where it is no JSON."""
    try:
        return bare(file.text)
    except ValueError:
        return None


def _continued(file: File, root: Node, there: File | None, entry: Entry) -> str:
    """The list of ours that continues a foreign configuration. What neighbours have added to it is kept, or
    they and we would undo each other's work."""
    base = file.text
    if not _is_list(file):
        plugin = {key: value for key, value in root.value.items() if key != "cniVersion"}
        head = {key: root.value[key] for key in ("cniVersion",) if key in root.value}
        listed = head | {"name": root.value.get("name", ""), "plugins": [plugin]}
        base = json.dumps(listed, indent=2) + "\n"
    if there is not None and _usable(there) and _foreign(there.text, base) == _foreign(base, base):
        base = there.text
    return settled(base, entry, insert=True)


def _foreign(text: str, base: str) -> str:
    """A list without us, and without the neighbours that the base does not have, to be compared."""
    value = parse(text).value
    known = {plugin["type"] for plugin in parse(base).value["plugins"]}
    added = {TYPE, *(neighbour for neighbour in NEIGHBOURS if neighbour not in known)}
    rest = [plugin for plugin in value["plugins"] if plugin["type"] not in added]
    return canonical(value | {"plugins": rest})


def _shown(present: dict[str, File], picked: str, holder: str) -> Picture:
    """The chain that is in use."""
    if not picked:
        return Picture()
    held = present.get(holder, present[picked])
    root = read(held if _usable(held) else present[picked])
    chain = home(root)
    spot = chain.items if chain is not None else (delegates(root) or (root,))[:1]
    types = tuple(map(kind, spot))
    every = {kind(root), *types, *(kind(plugin) for chain in chains(root) for plugin in chain.items)}
    return Picture(
        picked=picked,
        holder=holder,
        chain=types,
        position=ours(chain)[-1] if chain is not None and ours(chain) else None,
        neighbours=tuple(name for name in NEIGHBOURS if name in every),
    )


def _current(shown: Picture, edits: list[Edit]) -> bool:
    return bool(shown.picked) and all(edit.file != shown.holder for edit in edits)
