"""What a step expects, as checks on streams: the formal items of the notation, and phrases in words."""

from collections.abc import Callable
from typing import Any

import msgspec

from tests.cases.discovery.case import Case
from tests.cases.discovery.client import Stream
from tests.cases.discovery.match import best, differences
from tests.cases.discovery.objects import at
from tests.cases.discovery.view import Seen
from tests.cases.discovery.world import World

Held = Callable[[], list[str]]
"""What is not as expected, at this moment."""


class Scene(msgspec.Struct):
    """What checks look at. `since`: messages each stream had when the step began; `silent` is set by a check
    that wants a second without any message."""

    case: Case
    world: World
    streams: list[Stream]
    since: dict[int, int] = {}
    silent: bool = False

    def new(self, stream: Stream) -> list[Seen]:
        """Messages of the stream that this step has caused."""
        return stream.view.seen[self.since.get(id(stream), 0) :]


class Check(msgspec.Struct, frozen=True):
    """One expectation of one stream."""

    stream: Stream
    written: str
    held: Held

    def failures(self) -> list[str]:
        return [f"{self.stream}: [{self.written}] {each}" for each in self.held()]


def spread(items: tuple[Any, ...], streams: list[Stream]) -> list[tuple[Any, list[Stream]]]:
    """Each item with the streams that it is about: one after the other where there are as many items of a
    sort as streams, else all of them."""
    words = [each for each in items if not isinstance(each, dict)]
    mappings = [each for each in items if isinstance(each, dict)]
    alike = len({tuple(each) for each in mappings}) == 1
    found: list[tuple[Any, list[Stream]]] = []
    for group, one_each in ((words, True), (mappings, alike)):
        if one_each and len(streams) > 1 and len(group) == len(streams):
            found += [(item, [stream]) for item, stream in zip(group, streams, strict=True)]
        else:
            found += [(item, streams) for item in group]
    return found


def formal(key: str, wanted: Any, stream: Stream, scene: Scene) -> Held | None:
    """The check of one formal item; None when it is not about streams of this kind, or there is none."""
    view = stream.view
    if key in _ONLY_GET and stream.call.method != "Get":
        return None
    match key:
        case "status":
            return lambda: _equal(wanted, stream.status)
        case "stream":
            open_ = wanted == "open"
            said = f"{stream.status}: {stream.details}"
            return lambda: [] if (stream.status is None) == open_ else [f"it is {said if open_ else 'open'}"]
        case "first":
            return lambda: _equal(wanted, view.seen[0].kind if view.seen else stream.status)
        case "no_endpoints":
            return lambda: differences(wanted, {"exists": view.exists})
        case "within_s":
            return lambda: [] if view.seen and view.seen[0].after <= wanted else _late(stream)
        case "view":
            places = _everywhere(scene.world) if isinstance(wanted, str) else sorted(wanted)
            return lambda: _equal(places, sorted(view.addresses)) or _unanswered(stream)
        case "msgs":
            scene.silent |= wanted == 0
            return lambda: _count(wanted, scene.new(stream))
        case "addr":
            return lambda: best(_without_at(wanted), view.endpoints, wanted.get("at"))
        case "profile" if stream.call.method == "Profile":
            return lambda: _unanswered(stream) or differences(wanted, view.profile)
        case "set_labels":
            return lambda: _equal(wanted, view.set_labels)
        case _:
            return None


FORMAL = (
    "status",
    "stream",
    "first",
    "no_endpoints",
    "within_s",
    "view",
    "msgs",
    "addr",
    "profile",
    "set_labels",
)
_ONLY_GET = ("view", "no_endpoints", "set_labels")


def _equal(wanted: Any, got: Any) -> list[str]:
    return [] if wanted == got else [f"expected {wanted}, got {got}"]


def _count(wanted: int, new: list[Seen]) -> list[str]:
    if len(new) == wanted:
        return []
    return [f"expected {wanted} messages, got {len(new)}: {', '.join(map(told, new)) or 'none'}"]


def told(seen: Seen) -> str:
    """One message in a few words."""
    if seen.kind in ("add", "remove"):
        return f"{seen.kind} {' '.join(seen.facts)}"
    if seen.kind == "none":
        return f"no_endpoints exists={str(seen.facts).lower()}"
    return seen.kind


def _late(stream: Stream) -> list[str]:
    seen = stream.view.seen
    return [f"its first message came after {seen[0].after:.1f} s" if seen else "no message"]


def _unanswered(stream: Stream) -> list[str]:
    return (
        [] if stream.view.seen else [f"no message, status {stream.status or 'open'} {stream.details}".strip()]
    )


def _without_at(wanted: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in wanted.items() if key != "at"}


def _everywhere(world: World) -> list[str]:
    """Every address of every slice, whatever its conditions: `both`, `all three`."""
    found = set()
    for key in world.keys("EndpointSlice"):
        item = world.items[key]
        for each in item["endpoints"]:
            for port in item["ports"] or ():
                found |= {at(ip, port["port"]) for ip in each["addresses"]}
    return sorted(found)
