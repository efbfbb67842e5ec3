"""Expectations in words, as checks: a phrase of a known shape is held against a stream, else it is prose."""

import re
from typing import Any

from tests.cases.discovery import sights
from tests.cases.discovery.client import Stream
from tests.cases.discovery.expect import Check, Scene
from tests.cases.discovery.sights import Shape
from tests.cases.discovery.words import split

_PARENTHESES = re.compile(r"\s*\([^()]*\)\s*$")


def phrase(written: Any, stream: Stream, scene: Scene) -> list[Check] | None:
    """The checks of a phrase on a stream; None when some part of it is not understood."""
    text = str(written).lower() if isinstance(written, bool) else str(written).strip()
    for attempt in (text, _PARENTHESES.sub("", text)):
        for pattern, shape in _SHAPES:
            if (match := pattern.fullmatch(attempt)) and (held := shape(match, stream, scene)):
                return [Check(stream, text, held)]
    for separator in (";", ",", " +"):
        parts = split(text, separator)
        if len(parts) > 1:
            found = [phrase(_within(part, separator), stream, scene) for part in parts]
            return None if None in found else [check for each in found for check in each or ()]
    return None


def _within(part: str, separator: str) -> str:
    """Beside an identity or a transport port, `opaque` is the hint as well."""
    return "opaque hint" if separator == " +" and part == "opaque" else part


def _shape(pattern: str, shape: Shape) -> tuple[re.Pattern[str], Shape]:
    return re.compile(pattern), shape


_BARE_HINTS = {"tls": None, "hint": None}
_SHAPES: tuple[tuple[re.Pattern[str], Shape], ...] = (
    _shape(r"(?P<key>status|stream|first|msgs):? (?P<value>[A-Za-z_-]+|\d+)", sights.named_item),
    _shape(r"(?P<value>[A-Z]+(?:_[A-Z]+)+|UNAVAILABLE)", sights.status),
    _shape(r"profile open", sights.profile_open),
    _shape(r"server alive", sights.as_item("stream", "open")),
    _shape(r"empty-profile", sights.as_item("first", "empty-profile")),
    _shape(r"first: none \(exists (?P<exists>true|false)\)", sights.first_none),
    _shape(r"no endpoints", sights.as_item("view", [])),
    _shape(r"view (?P<which>both|one|all(?: \w+)?)", sights.view_words),
    _shape(r"opaque(?: true| on both)?|true", sights.opaque(True)),
    _shape(r"not(?: opaque)?|opaque false|false", sights.opaque(False)),
    _shape(r"(true|false) then (true|false)", sights.opaque_then),
    _shape(r"opaque hint", sights.opaque_hint),
    _shape(r"hint opaque", sights.address({"hint": "opaque"})),
    _shape(r"h2(?: hint)?", sights.address({"hint": "h2"})),
    _shape(r"(?:opaque_transport )?(?P<port>\d{2,5})", sights.transport),
    _shape(r"no transport", sights.address({"opaque_transport": None})),
    _shape(r"no hint", sights.address({"hint": None})),
    _shape(r"hint present but empty", sights.address({"hint": "", "opaque_transport": None})),
    _shape(r"http2 set", sights.some("http2", True)),
    _shape(r"http2 unset", sights.address({"http2": None})),
    _shape(r"identity", sights.some("tls", True)),
    _shape(r"no identity", sights.address({"tls": None})),
    _shape(r"uri identity", sights.some("uri_identity", True)),
    _shape(r"server_name", sights.some("server_name", True)),
    _shape(r"hint/tls/http2 all unset", sights.address({**_BARE_HINTS, "http2": None})),
    _shape(r"bare hints", sights.address(_BARE_HINTS)),
    _shape(r"labels (?:present|kept)", sights.some("labels", True)),
    _shape(r"full(?: endpoint)?(?: (?P<at>\S+:\d+))?", sights.full),
    _shape(r"identical to the answer for a Ready pod(?P<at>)", sights.full),
    _shape(r"bare endpoint(?: on both| at the same address)?", sights.bare),
    _shape(r"(?:addr|endpoint) (?P<at>\S+:\d+)", sights.placed),
    _shape(r"some answer within 1 s", sights.answers),
    _shape(
        r"labels?\.(?P<key>[\w-]+)(?: = (?P<value>\S+)(?: \(newest\))?(?: on both(?: streams)?)?)?",
        sights.label,
    ),
    _shape(r"labels? (?P<labels>\S+=\S*(?: \S+=\S*)*)", sights.labels),
    _shape(r"only (?:an? )?(?P<kind>add|remove)s?(?: of (?P<ip>\S+))?", sights.only),
    _shape(r"(?P<first>add) (?P<one>\S+) then (?P<second>remove) (?P<other>\S+)", sights.order),
    _shape(r"no remove before an add", sights.no_faults),
    _shape(r"(?:addr has the )?new identity", sights.identity),
    _shape(r"default(?: profile)?", sights.default_profile),
    _shape(r"no profile_ref", sights.as_item("profile", {"profile_ref": None})),
    _shape(r"kind ServiceProfile, name, namespace", sights.profile_ref),
    _shape(r"stored as null", sights.stored_as_null),
    _shape(r"(?P<said>route )?(?P<route>[\w-]+)(?P<new> \(new\))?", sights.route),
    _shape(r"(?P<pod>[\w-]+): (?P<words>.+)", sights.of_pod),
)
