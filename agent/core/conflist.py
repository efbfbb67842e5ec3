"""Which CNI configuration a node's runtime uses, and where our entry stands in it. Pure: files as values in,
edits as values out.

**What runtimes do.** They take the files `*.conf`, `*.conflist`, `*.json` of one directory in the order of their
names, bytewise. CRI-O passes over those it cannot use, and so does the choice here; containerd takes the
first one, and has no network at all while that is broken. `.conflist` is a chain of plugins, the others
hold one plugin.

**Where our entry goes.**

| what the runtime uses | our entry |
|---|---|
| a list | at the end of its `plugins` |
| one plugin with `delegates` (multus) | at the end of the first delegate, the pod's default network |
| any other single plugin; a symbolic link | in a list of ours beside it, `X-pointsman.conflist` for `X.conf` |

The list beside sorts directly before the file that it continues, so it is the one that is used from the
moment that it is there, and the foreign file is never touched: its owner may look for it, rewrite it (ours
follows) or remove it (ours goes as well). It is not used for multus, which would delegate to it, and so to
itself.

**Putting in and taking out** change our own element alone (core/jsontext.py), so what is left after removal is,
byte for byte, what was there before, whoever has written in between; no copy has to be kept for it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from agent.core.jsontext import Node, appended, canonical, parse, without

TYPE = "pointsman-cni"
"""Our plugin's type, which is the name of its binary."""
SUFFIXES = (".conf", ".conflist", ".json")
BESIDE = "-pointsman.conflist"
NEIGHBOURS = ("linkerd-cni", "istio-cni")
"""Plugins that redirect pods as well. Their installers move them to the end of the list, so they may stand
behind ours: two programs that both insist on the last place would rewrite the file for ever."""

Away = Literal["allow", "deny"]


class Entry(msgspec.Struct, frozen=True):
    """What the shim has to know. `socket`: the agent's. `when_agent_away`: what becomes of pods then.
    `exempt_namespaces` are never held back, nor is `agent_pod`, NAMESPACE/NAME-PREFIX."""

    socket: str = "/run/pointsman/cni.sock"
    when_agent_away: Away = "allow"
    exempt_namespaces: tuple[str, ...] = ()
    agent_pod: str = ""

    def plugin(self) -> dict[str, Any]:
        """The element of `plugins`. It carries no cniVersion: libcni puts in that of the list."""
        plugin: dict[str, Any] = {
            "type": TYPE,
            "socket": self.socket,
            "whenAgentAway": self.when_agent_away,
        }
        if self.exempt_namespaces:
            plugin["exemptNamespaces"] = list(self.exempt_namespaces)
        if self.agent_pod:
            plugin["agentPod"] = self.agent_pod
        plugin["capabilities"] = {"io.kubernetes.cri.pod-annotations": True}
        return plugin


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
    `position` our entry's place in it. `current`: that entry is the only one, in its place, as it
    should be. `neighbours`: other plugins that redirect. `edits`: what makes everything right, in this order.
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
    """What the runtime uses, and the edits that put our entry there. Where else an entry of ours stands, it is
    kept current, since a multus that generates its configuration copies it from there."""
    ours = {file.name: file for file in files if file.name.endswith(BESIDE)}
    roots: dict[str, Node] = {}
    broken: list[Fault] = []
    picked, holder = "", ""
    edits: dict[str, str] = {}
    kept: set[str] = set()
    for file in sorted((file for file in files if file.name not in ours), key=_order):
        beside = ours.get(_beside(file.name))
        try:
            root = roots[file.name] = read(file)
        except ValueError as error:
            broken.append(Fault(file.name, str(error)))
            if beside is None or beside.name in kept or not _usable(beside):
                continue
            # Its last good version is in use.
            place, text = beside.name, settled(beside.text, entry, insert=not picked)
        else:
            if file.plain and (_plugins(root) or _delegates(root)):
                place, text = file.name, settled(file.text, entry, insert=not picked)
            elif (beside is None and picked) or _beside(file.name) in kept:
                continue
            else:
                place = _beside(file.name)
                text = _continued(file.text, root, beside, entry)
        kept.add(place)
        edits[place] = text
        if not picked:
            picked, holder = file.name, place
    return _picture(files, entry, picked, holder, broken, edits, kept)


def cleared(files: Sequence[File]) -> tuple[Edit, ...]:
    """The edits that take every entry of ours out. A broken file is left as it is."""
    edits = []
    for file in sorted(files, key=_order):
        if file.name.endswith(BESIDE):
            edits.append(Edit(file.name, None))
        elif not file.fault and file.plain and (text := _bare(file.text)) != file.text:
            edits.append(Edit(file.name, text))
    return tuple(edits)
