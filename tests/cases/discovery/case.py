"""A case of the destination service: config, objects, calls, steps; what only a story reads is prose."""

import json
import re
from typing import Any, Literal

import msgspec

from tests.cases.discovery.schema import (
    CaseText,
    ConfigText,
    PodText,
    ProfileText,
    ServiceText,
    SliceText,
    Text,
    text_of,
)
from tests.cases.load import Entry
from tests.cases.model import CaseError

Method = Literal["Get", "Profile"]

_CALL = re.compile(
    r"(?P<method>Get|Profile) (?P<path>\[[^\]]+\]\S*|[^\s()]+)"
    r"(?: \((?P<client>[^)]*)\)| without nodeName)?(?P<twice> x2)?"
)
_NAMED = re.compile(r"\.(?P<namespace>[^.]+)\.svc\.")
_LINK = "another cluster"
_LIKE = re.compile(r"like (?P<id>\w+)(?: (?:plus|but|with|without)? ?(?P<change>.+))?")


class Call(msgspec.Struct, frozen=True):
    """One stream to open."""

    method: Method
    path: str
    token: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Step(msgspec.Struct, frozen=True):
    """What is done ("" for nothing: the first answers), and what is expected then."""

    do: str
    expect: tuple[Any, ...]


class Case(msgspec.Struct, frozen=True):
    """`calls` is empty when `call` is prose; `prose` says what in `objects` could not be read."""

    id: str
    title: str
    config: ConfigText
    objects: tuple[Text, ...]
    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    data: Any
    call: str
    prose: str = ""

    @property
    def namespace(self) -> str:
        """The namespace in which a name of the first call is, "" when it asks for an address."""
        match = _NAMED.search(self.calls[0].path) if self.calls else None
        return match["namespace"] if match else ""

    @property
    def multicluster(self) -> bool:
        """Whether it needs a linked cluster: it says so, or a Service of it lives elsewhere."""
        marks = {key for each in self.objects for key in (*(each.ann or ()), *(each.labels or ()))}
        return _LINK in self.prose or any(key.startswith("multicluster.linkerd.io/") for key in marks)


def cases(entries: tuple[Entry, ...]) -> dict[str, Case | CaseError]:
    """Every case of a file by id; one that is malformed is its CaseError."""
    found: dict[str, Case | CaseError] = {}
    for entry in entries:
        try:
            found[entry.id] = _case(entry, found)
        except CaseError as error:
            found[entry.id] = error
        except (msgspec.ValidationError, ValueError) as error:
            found[entry.id] = CaseError(f"cannot use {entry.id} ({entry.where}): {error}")
    return found


def _case(entry: Entry, before: dict[str, Case | CaseError]) -> Case:
    text = msgspec.convert({**entry.data, "id": entry.id}, type=CaseText)
    objects, prose, model = _objects(text.objects, before)
    steps = [Step(_text(each.do), _items(each.expect)) for each in text.steps]
    if text.expect is not None:
        steps.insert(0, Step("", _items(text.expect)))
    written = [text.call] if isinstance(text.call, str) else text.call
    calls = _calls(written, text.token, model)
    return Case(
        id=entry.id,
        title=text.title,
        config=text.cfg,
        objects=(*objects, *_implied(objects, calls)),
        calls=calls,
        steps=tuple(steps),
        data=text.data,
        call="; ".join(written),
        prose=prose,
    )


def _text(written: Any) -> str:
    return "" if written is None else str(written)


def _items(written: Any) -> tuple[Any, ...]:
    if written is None:
        return ()
    return tuple(written) if isinstance(written, list) else (written,)


def _calls(written: list[str], token: str, model: Case | None) -> tuple[Call, ...]:
    """The calls, or none when any of them is prose. `...` is the path of the case that this one is like."""
    found: list[Call] = []
    for line in written:
        for part in line.split("; "):
            match = _CALL.fullmatch(part.strip())
            if not match:
                return ()
            path = match["path"]
            if path == "...":
                if not model or not model.calls:
                    return ()
                path = model.calls[0].path
            call = Call(_method(match["method"]), path, _token(match["client"], token))
            found += [call] * (2 if match["twice"] else 1)
    return tuple(found)


def _method(word: str) -> Method:
    return "Get" if word == "Get" else "Profile"


def _token(client: str | None, default: str) -> str:
    """`(n1)` is a node, `(ns team)` a namespace."""
    if not client:
        return default
    if client.startswith("ns "):
        return json.dumps({"ns": client.removeprefix("ns ")})
    return json.dumps({"ns": "x", "nodeName": client})


def _objects(
    written: str | list[Any], before: dict[str, Case | CaseError]
) -> tuple[tuple[Text, ...], str, Case | None]:
    """Objects, what of them is prose, and the case that this one is like."""
    lines = [written] if isinstance(written, str) else written
    if len(lines) == 1 and isinstance(lines[0], str):
        match = _LIKE.fullmatch(lines[0])
        model = before.get(match["id"]) if match else None
        if match and isinstance(model, Case):
            changed = _changed(model.objects, match["change"] or "")
            if changed is not None:
                return changed, "", model
        return (), lines[0], None
    found: list[Text] = []
    prose: list[str] = []
    for each in lines:
        if isinstance(each, dict) and "link" in each:
            prose.append(f"{_LINK}: {each['link']}")
        else:
            found.append(text_of(each))
    return tuple(found), "; ".join(prose), None


def _implied(objects: tuple[Text, ...], calls: tuple[Call, ...]) -> tuple[Text, ...]:
    """The Service of a ServiceProfile where the case names none: it is at the address that is asked for."""
    profiles = [each for each in objects if isinstance(each, ProfileText)]
    if not profiles or not calls or any(isinstance(each, ServiceText) for each in objects):
        return ()
    service, _, namespace = profiles[0].sp.partition(".")
    ip, _, port = calls[0].path.rpartition(":")
    return (ServiceText(svc=service, ns=namespace, ip=[ip.strip("[]")], ports=[f"- {port}"]),)


def _changed(objects: tuple[Text, ...], change: str) -> tuple[Text, ...] | None:
    """The objects with a change in words; None when it is not understood."""
    if not change:
        return objects
    if match := re.fullmatch(r'"(?P<ip>\S+)" without hint', change):
        return _map_slices(objects, lambda eps: [*eps, match["ip"]])
    if re.fullmatch(r"slice endpoints ready=false", change):
        return _map_slices(objects, lambda eps: [f"{each} ready=false" for each in eps])
    if match := re.fullmatch(r"(?:both|all) pods on (?P<node>\S+)", change):
        return tuple(
            msgspec.structs.replace(each, node=match["node"]) if isinstance(each, PodText) else each
            for each in objects
        )
    return None


def _map_slices(objects: tuple[Text, ...], change: Any) -> tuple[Text, ...]:
    return tuple(
        msgspec.structs.replace(each, eps=change(each.eps)) if isinstance(each, SliceText) else each
        for each in objects
    )
