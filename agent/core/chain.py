"""Our entry in the chains of plugins of one CNI configuration: put in, found, kept current, taken out.

Every edit puts in, or takes out, our own element alone (core/jsontext.py). So what is left after removal is,
byte for byte, what would stand there without us, whoever has written in between, and no copy of it is kept.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from agent.core.jsontext import Node, appended, canonical, parse, without

TYPE = "pointsman-cni"
"""Our plugin's type, which is the name of its binary."""

NEIGHBOURS = ("linkerd-cni", "istio-cni")
"""Plugins that redirect pods as well. Their installers move them to the end of a list, so they may stand
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


def settled(text: str, entry: Entry, *, insert: bool) -> str:
    """The text with one current entry, in its place, in every chain that has any; and, to `insert` it, in the
    chain where it belongs. Raises ValueError for what is no JSON."""
    if insert:
        text = _with_list(text)
    while (changed := _nearer(text, entry, insert)) is not None:
        text = changed
    return text


def bare(text: str) -> str:
    """The text without any entry of ours. Raises ValueError for what is no JSON."""
    while (changed := _barer(text)) is not None:
        text = changed
    return text


def plugins(node: Node) -> tuple[Node, ...]:
    """The elements of `plugins`; () where there are none."""
    return _items(node, "plugins")


def delegates(node: Node) -> tuple[Node, ...]:
    """What a multus hands the pod's default network to is the first; () where it takes a `clusterNetwork`
    by name."""
    found = () if "clusterNetwork" in node.members else _items(node, "delegates")
    return found if all(isinstance(delegate.value, dict) for delegate in found) else ()


def kind(node: Node) -> str:
    """The `type` of a plugin, "" where there is none."""
    value = node.members["type"].value if "type" in node.members else ""
    return value if isinstance(value, str) else ""


def home(root: Node) -> Node | None:
    """The array in which our entry belongs, None where there is none yet."""
    holder = root if plugins(root) else next(iter(delegates(root)), root)
    return holder.members["plugins"] if plugins(holder) else None


def chains(node: Node) -> Iterator[Node]:
    """Every array of plugins, those of delegates included."""
    if plugins(node):
        yield node.members["plugins"]
    for inner in (*plugins(node), *_items(node, "delegates")):
        yield from chains(inner)


def ours(chain: Node) -> list[int]:
    """Where in a chain entries of ours stand."""
    return [index for index, plugin in enumerate(chain.items) if kind(plugin) == TYPE]


def _items(node: Node, member: str) -> tuple[Node, ...]:
    return node.members[member].items if member in node.members else ()


def _nearer(text: str, entry: Entry, insert: bool) -> str | None:
    """One edit nearer to what it should be, None when it is."""
    root = parse(text)
    wanted = home(root) if insert else None
    for chain in chains(root):
        at = ours(chain)
        if at and _right(chain, at[-1], entry):
            if len(at) > 1:
                return without(text, chain, at[0])
        elif at or chain is wanted:
            return appended(text, chain, entry.plugin())
    return None


def _right(chain: Node, index: int, entry: Entry) -> bool:
    same = canonical(chain.items[index].value) == canonical(entry.plugin())
    return same and all(kind(other) in NEIGHBOURS for other in chain.items[index + 1 :])


def _with_list(text: str) -> str:
    """The text with a list in place of a first delegate that is a single plugin."""
    root = parse(text)
    if home(root) is not None or not delegates(root):
        return text
    first = delegates(root)[0]
    head = {"name": first.value.get("name", root.value.get("name", ""))}
    head |= {key: first.value[key] for key in ("cniVersion",) if key in first.value}
    plugin = text[first.start : first.end]
    return f'{text[: first.start]}{json.dumps(head)[:-1]}, "plugins": [{plugin}]}}{text[first.end :]}'


def _barer(text: str) -> str | None:
    """The text with one entry of ours less, None when there is none."""
    root = parse(text)
    for delegate in delegates(root):
        if _is_ours(delegate):
            plugin = plugins(delegate)[0]
            return text[: delegate.start] + text[plugin.start : plugin.end] + text[delegate.end :]
    for chain in chains(root):
        if at := ours(chain):
            return without(text, chain, at[-1])
    return None


def _is_ours(delegate: Node) -> bool:
    """Whether `_with_list` made this list. One that looks the same means the same as its plugin alone."""
    chain = plugins(delegate)
    if (
        len(chain) != 2
        or kind(chain[1]) != TYPE
        or not set(delegate.members) <= {"name", "cniVersion", "plugins"}
    ):
        return False
    versions = [
        node.members["cniVersion"].value for node in (chain[0], delegate) if "cniVersion" in node.members
    ]
    return len(versions) != 1 and len({*map(canonical, versions)}) < 2
