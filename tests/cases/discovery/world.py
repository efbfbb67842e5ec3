"""The objects of one case as an API server would hold them, and every change of them as it is watched."""

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from tests.cases.discovery.objects import NAMESPACE, Manifest, manifest
from tests.cases.discovery.schema import ConfigText, PodText, Text

KINDS = (
    "Namespace",
    "Node",
    "Service",
    "EndpointSlice",
    "Endpoints",
    "Pod",
    "Server",
    "ServiceProfile",
    "ExternalWorkload",
    "ReplicaSet",
    "Job",
)
"""Every kind that is listed, in the order in which they are."""

State = Literal["redirected", "failed", "pending", "unknown"]
_STATES: dict[str, State] = {"broken": "failed", "working": "redirected"}
"""The product's word for a redirection state of the notation."""


class Unplayable(Exception):  # noqa: N818
    """A sentence of a case that cannot be carried out; the text says why."""


class Key(NamedTuple):
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}".replace(" /", " ")


class Listed(msgspec.Struct, frozen=True):
    """All objects of one kind, as a list call answers."""

    kind: str
    items: tuple[Manifest, ...]


class Put(msgspec.Struct, frozen=True):
    item: Manifest


class Dropped(msgspec.Struct, frozen=True):
    item: Manifest


class Redirected(msgspec.Struct, frozen=True):
    """The agent has found this state at a pod of its own node."""

    uid: str
    state: State


Change = Listed | Put | Dropped | Redirected


class World:
    """Objects by key. Each change is handed to `watch`, unless the watches are cut.

    `namespace`: where an object is made of which a step does not say it. `noted`: what steps and checks tell
    each other.
    """

    def __init__(self, config: ConfigText, texts: tuple[Text, ...]) -> None:
        self.config = config
        self.items: dict[Key, Manifest] = {}
        self.gone: dict[Key, Manifest] = {}
        self.cut = False
        self.noted: dict[str, str] = {}
        self.namespace = next((text.ns for text in texts if text.ns), NAMESPACE)
        self.redirection: dict[Key, State] = {}
        self._watch: Callable[[Change], None] | None = None
        self._versions = itertools.count(1)
        for text in texts:
            key = self.put(manifest(text, config))
            if isinstance(text, PodText) and text.redirection:
                self.redirection[key] = _STATES[text.redirection]

    def watched(self, watch: Callable[[Change], None]) -> None:
        """List every kind to `watch`, then each change as it is made."""
        self._watch = watch
        self.relist()
        for key, state in self.redirection.items():
            self.redirect(key, state)

    def add(self, text: Text) -> Key:
        return self.put(manifest(text, self.config))

    def put(self, item: Manifest) -> Key:
        """Store a manifest: a new object gets a uid and a birthday, an old one a new version."""
        key = key_of(item)
        item = copy.deepcopy(item)
        version = next(self._versions)
        metadata = item["metadata"]
        if key not in self.items:
            metadata["uid"] = f"{version:08x}-0000-4000-8000-000000000000"
            metadata["creationTimestamp"] = (
                f"2026-01-01T{version // 3600:02}:{version // 60 % 60:02}:{version % 60:02}Z"
            )
        metadata["resourceVersion"] = str(version)
        self.items[key] = item
        self._say(Put(copy.deepcopy(item)))
        return key

    @contextlib.contextmanager
    def changed(self, key: Key) -> Iterator[Manifest]:
        """The manifest to change in place; it is stored and told when the block ends."""
        item = copy.deepcopy(self.items[key])
        yield item
        self.put(item)

    def touch(self, key: Key) -> None:
        """A new resourceVersion and nothing else."""
        with self.changed(key):
            pass

    def drop(self, key: Key) -> None:
        self.gone[key] = self.items.pop(key)
        self.redirection.pop(key, None)
        self._say(Dropped(copy.deepcopy(self.gone[key])))

    def recreate(self, key: Key, change: Callable[[Manifest], None] | None = None) -> None:
        """Create an object again that was deleted, as it was but for `change`; its uid is new."""
        item = self.gone.pop(key)
        if change:
            change(item)
        self.put(item)

    def redirect(self, key: Key, state: State) -> None:
        self.redirection[key] = state
        self._say(Redirected(self.items[key]["metadata"]["uid"], state))

    def relist(self) -> None:
        """Answer a list call for every kind."""
        for kind in KINDS:
            items = tuple(copy.deepcopy(item) for key, item in self.items.items() if key.kind == kind)
            self._say(Listed(kind, items))

    def resync(self) -> None:
        """Deliver every object once more, unchanged."""
        for item in self.items.values():
            self._say(Put(copy.deepcopy(item)))

    def keys(self, kind: str) -> list[Key]:
        return [key for key in self.items if key.kind == kind]

    def only(self, kind: str, name: str = "", namespace: str = "") -> Key:
        """The one object of this kind, or of this name. Raises Unplayable when there is none, or a choice."""
        found = [
            key for key in self.keys(kind) if name in ("", key.name) and namespace in ("", key.namespace)
        ]
        if len(found) != 1:
            shown = ", ".join(map(str, found)) or "none"
            raise Unplayable(f"cannot tell which {kind} {name} is meant: {shown}")
        return found[0]

    def named(self, name: str) -> Key:
        """The one object of this name, of any kind. A ServiceProfile may be named without its domain."""
        found = [
            key
            for key in self.items
            if key.name == name or (key.kind == "ServiceProfile" and key.name.split(".svc.")[0] == name)
        ]
        if len(found) != 1:
            raise Unplayable(f"cannot tell what {name} is: {', '.join(map(str, found)) or 'no object'}")
        return found[0]

    def annotations(self, key: Key) -> dict[str, Any]:
        return self.items[key]["metadata"].get("annotations") or {}

    def _say(self, change: Change) -> None:
        if self._watch and (not self.cut or isinstance(change, Redirected)):
            self._watch(change)


def key_of(item: Manifest) -> Key:
    metadata = item["metadata"]
    return Key(item["kind"], metadata.get("namespace", ""), metadata["name"])
