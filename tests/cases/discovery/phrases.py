"""Expectations in words, as checks: a phrase of a known shape is held against a stream, any other is prose."""

import re
from collections.abc import Callable
from typing import Any

from tests.cases.discovery.client import Stream
from tests.cases.discovery.expect import Check, Held, Scene, formal, told
from tests.cases.discovery.match import DEFAULT_BUDGET, best, differences

Shape = Callable[[re.Match[str], Stream, Scene], Held | None]
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


def split(text: str, separator: str) -> list[str]:
    """Parts of a text, divided where no bracket and no quotation mark is open."""
    parts, depth, quoted, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(separator, at):
            parts.append(text[start:at].strip())
            start = at + len(separator)
    return [*parts, text[start:].strip()]


def _within(part: str, separator: str) -> str:
    """Beside an identity or a transport port, `opaque` is the hint as well."""
    return "opaque hint" if separator == " +" and part == "opaque" else part


def _as_item(key: str, value: Any) -> Shape:
    return lambda match, stream, scene: formal(key, value, stream, scene)


def _named_item(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    key, value = match["key"], match["value"]
    return formal(key, int(value) if value.isdecimal() else value, stream, scene)


def _first_none(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = match["exists"] == "true"
    return lambda: (
        [] if [(each.kind, each.facts) for each in stream.view.seen[:1]] == [("none", wanted)]
        else [f"expected no_endpoints exists={match['exists']}, got {' '.join(map(told, stream.view.seen[:1]))}"]
    )


def _opaque(wanted: bool) -> Shape:
    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
        return lambda: [] if stream.view.opaque is wanted else [f"opaque is {stream.view.opaque}"]

    return shape


def _opaque_then(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = [word == "true" for word in match.groups()]

    def held() -> list[str]:
        got = [bool(seen.facts["opaque_protocol"]) for seen in scene.new(stream)]
        return [] if got == wanted else [f"opaque was {got}"]

    return held


def _address(wanted: dict[str, Any]) -> Shape:
    """Every address of the stream is like this."""

    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
        return lambda: _all(wanted, stream)

    return shape


def _all(wanted: dict[str, Any], stream: Stream) -> list[str]:
    held = stream.view.endpoints
    return [each for one in held for each in differences(wanted, one, one["at"])] if held else ["no address"]


def _some(name: str, present: bool) -> Shape:
    """Whether every address has something under this name."""

    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
        def held() -> list[str]:
            wrong = [each["at"] for each in stream.view.endpoints if bool(each[name]) is not present]
            return [] if stream.view.endpoints and not wrong else [f"{name} at {wrong or 'no address'}"]

        return held

    return shape


def _opaque_hint(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    def held() -> list[str]:
        own = [] if stream.view.opaque else [f"opaque is {stream.view.opaque}"]
        return own + _all({"hint": "opaque"}, stream)

    return held


def _transport(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    return lambda: _all({"opaque_transport": int(match["port"])}, stream)


def _full(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    """Labels, identity and a hint, at the address that is named or asked for."""

    def held() -> list[str]:
        endpoints = stream.view.endpoints
        if len(endpoints) != 1:
            return [f"{len(endpoints)} addresses"]
        one = endpoints[0]
        wanted = match["at"] or one["at"]
        lacking = [name for name in ("tls", "server_name", "hint") if not one[name]]
        lacking += [] if one["labels"].get("pod") or one["labels"].get("external_workload") else ["labels"]
        return ([f"it has no {', '.join(lacking)}"] if lacking else []) + (
            [] if one["at"] == wanted else [f"it is at {one['at']}"]
        )

    return held


def _bare(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = {"labels": {}, "tls": None, "hint": None, "http2": None, "weight": 10_000}
    if stream.call.path[0].isdigit() or stream.call.path.startswith("["):
        wanted["at"] = stream.call.path
    return lambda: _all(wanted, stream)


def _labels(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    pairs = dict(word.split("=", 1) for word in match["labels"].split())
    return lambda: _all({"labels": {key: value.strip("'") for key, value in pairs.items()}}, stream)


def _label(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    key, value = match["key"], match["value"]
    if value is not None:
        return lambda: _all({"labels": {key: value}}, stream)
    return lambda: [
        f"{each['at']} has no label {key}" for each in stream.view.endpoints if key not in each["labels"]
    ] or ([] if stream.view.endpoints else ["no address"])


_POD_WORDS: dict[str, Callable[[str], dict[str, Any]]] = {
    r"local|remote|unknown": lambda word: {"labels": {"zone_locality": word}},
    r"(?:weight )?\d+": lambda word: {"weight": int(word.split()[-1])},
    r"zone label empty": lambda word: {"labels": {"zone": ""}},
}


def _of_pod(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    """`a: local, weight 100000`: the address of pod a."""
    wanted: list[dict[str, Any]] = [{"labels": {"pod": match["pod"]}}]
    for word in split(match["words"], ","):
        found = [make(word) for shape, make in _POD_WORDS.items() if re.fullmatch(shape, word)]
        if not found:
            return None
        wanted += found

    def held() -> list[str]:
        of_pod = [each for each in stream.view.endpoints if each["labels"].get("pod") == match["pod"]]
        return [one for each in wanted for one in best(each, of_pod)]

    return held


def _only(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    """Nothing but messages of this kind, about this address where one is named."""
    kind, suffix = match["kind"], match["ip"]

    def held() -> list[str]:
        new = scene.new(stream)
        good = new and all(each.kind == kind for each in new)
        if good and suffix:
            good = all(at.rpartition(":")[0].endswith(suffix) for each in new for at in each.facts)
        return [] if good else [f"the messages are: {', '.join(map(told, new)) or 'none'}"]

    return held


def _order(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = [(match["first"], match["one"]), (match["second"], match["other"])]

    def about(facts: Any, address: str) -> bool:
        if address in ("v4", "v6"):
            return all((at[0] == "[") is (address == "v6") for at in facts)
        return all(at.rpartition(":")[0].strip("[]") == address for at in facts)

    def held() -> list[str]:
        new = scene.new(stream)
        good = [each.kind for each in new] == [kind for kind, _ in wanted] and all(
            about(seen.facts, address) for seen, (_, address) in zip(new, wanted, strict=True)
        )
        return [] if good else [f"the messages are: {', '.join(map(told, new)) or 'none'}"]

    return held


def _identity(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    wanted = scene.world.noted.get("identity")
    return (lambda: _all({"tls": wanted}, stream)) if wanted else None


def _default_profile(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = {"routes": [], "dst_overrides": [], "retry_budget": DEFAULT_BUDGET, "profile_ref": None}

    def held() -> list[str]:
        named = stream.view.profile and stream.view.profile["fully_qualified_name"]
        return differences(wanted, stream.view.profile) if named else ["it has no name"]

    return held


def _route(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    name = match["route"]
    profiles = [key for key in (*scene.world.items, *scene.world.gone) if key.kind == "ServiceProfile"]
    items = [scene.world.items.get(key) or scene.world.gone[key] for key in profiles]
    if not match["said"] and name not in {each["name"] for item in items for each in item["spec"]["routes"]}:
        return None
    changed = match["new"] is not None

    def held() -> list[str]:
        routes = (stream.view.profile or {}).get("routes", [])
        got = [route.get("metrics_labels", {}).get("route") for route in routes]
        if got != [name]:
            return [f"its routes are {got}"]
        return ["it is the old one"] if changed and not routes[0].get("is_retryable") else []

    return held


def _view_words(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    """`view both`; `view one`: the one endpoint that the call names by its hostname."""
    if match["which"] != "one":
        return formal("view", match["which"], stream, scene)
    hostname = stream.call.path.split(".")[0]
    slices = [scene.world.items[key] for key in scene.world.keys("EndpointSlice")]
    ips = {ip for item in slices for each in item["endpoints"] if each.get("hostname") == hostname
           for ip in each["addresses"]}

    def held() -> list[str]:
        got = {at.rpartition(":")[0].strip("[]") for at in stream.view.addresses}
        return [] if got == ips else [f"expected {ips}, got {got}"]

    return held


def _profile_ref(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    def held() -> list[str]:
        keys = scene.world.keys("ServiceProfile")
        wanted = [
            {"group": "linkerd.io", "kind": key.kind, "name": key.name, "namespace": key.namespace} for key in keys
        ]
        got = (stream.view.profile or {}).get("profile_ref")
        return [] if got in wanted else [f"profile_ref is {got}"]

    return held


def _stored_as_null(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    slices = [scene.world.items[key] for key in scene.world.keys("EndpointSlice")]
    return lambda: [f"{item['metadata']['name']} has ports" for item in slices if item["ports"] is not None]


def _answers(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    def held() -> list[str]:
        seen = stream.view.seen
        return [] if seen and seen[0].after <= 1 else ["no message within 1 s"]

    return held


def _shape(pattern: str, shape: Shape) -> tuple[re.Pattern[str], Shape]:
    return re.compile(pattern), shape


_BARE_HINTS = {"tls": None, "hint": None}
_SHAPES: tuple[tuple[re.Pattern[str], Shape], ...] = (
    _shape(r"(?P<key>status|stream|first|msgs):? (?P<value>[A-Za-z_-]+|\d+)", _named_item),
    _shape(r"(?P<value>[A-Z]+(?:_[A-Z]+)+|UNAVAILABLE)", lambda m, s, c: formal("status", m["value"], s, c)),
    _shape(r"profile open", lambda m, s, c: lambda: [] if s.view.profile and not s.status else [f"{s.status}"]),
    _shape(r"server alive", _as_item("stream", "open")),
    _shape(r"empty-profile", _as_item("first", "empty-profile")),
    _shape(r"first: none \(exists (?P<exists>true|false)\)", _first_none),
    _shape(r"no endpoints", lambda m, s, c: formal("view", [], s, c)),
    _shape(r"view (?P<which>both|one|all(?: \w+)?)", _view_words),
    _shape(r"opaque(?: true| on both)?|true", _opaque(True)),
    _shape(r"not(?: opaque)?|opaque false|false", _opaque(False)),
    _shape(r"(true|false) then (true|false)", _opaque_then),
    _shape(r"opaque hint", _opaque_hint),
    _shape(r"hint opaque", _address({"hint": "opaque"})),
    _shape(r"h2", _address({"hint": "h2"})),
    _shape(r"(?:opaque_transport )?(?P<port>\d{2,5})", _transport),
    _shape(r"no transport", _address({"opaque_transport": None})),
    _shape(r"no hint", _address({"hint": None})),
    _shape(r"hint present but empty", _address({"hint": "", "opaque_transport": None})),
    _shape(r"http2 set", _some("http2", True)),
    _shape(r"http2 unset", _address({"http2": None})),
    _shape(r"identity", _some("tls", True)),
    _shape(r"no identity", _address({"tls": None})),
    _shape(r"uri identity", _some("uri_identity", True)),
    _shape(r"server_name", _some("server_name", True)),
    _shape(r"hint/tls/http2 all unset", _address({**_BARE_HINTS, "http2": None})),
    _shape(r"bare hints", _address(_BARE_HINTS)),
    _shape(r"labels (?:present|kept)", _some("labels", True)),
    _shape(r"full(?: endpoint)?(?: (?P<at>\S+:\d+))?", _full),
    _shape(r"identical to the answer for a Ready pod(?P<at>)", _full),
    _shape(r"bare endpoint(?: on both| at the same address)?", _bare),
    _shape(r"(?:addr|endpoint) (?P<at>\S+:\d+)", lambda m, s, c: lambda: _all({"at": m["at"]}, s)),
    _shape(r"some answer within 1 s", _answers),
    _shape(r"labels?\.(?P<key>[\w-]+)(?: = (?P<value>\S+)(?: \(newest\))?(?: on both(?: streams)?)?)?", _label),
    _shape(r"labels? (?P<labels>\S+=\S*(?: \S+=\S*)*)", _labels),
    _shape(r"only (?:an? )?(?P<kind>add|remove)s?(?: of (?P<ip>\S+))?", _only),
    _shape(r"(?P<first>add) (?P<one>\S+) then (?P<second>remove) (?P<other>\S+)", _order),
    _shape(r"no remove before an add", lambda m, s, c: lambda: list(s.view.faults)),
    _shape(r"(?:addr has the )?new identity", _identity),
    _shape(r"default(?: profile)?", _default_profile),
    _shape(r"no profile_ref", lambda m, s, c: formal("profile", {"profile_ref": None}, s, c)),
    _shape(r"kind ServiceProfile, name, namespace", _profile_ref),
    _shape(r"stored as null", _stored_as_null),
    _shape(r"(?P<said>route )?(?P<route>[\w-]+)(?P<new> \(new\))?", _route),
    _shape(r"(?P<pod>[\w-]+): (?P<words>.+)", _of_pod),
)
