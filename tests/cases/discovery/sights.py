"""What a phrase of an expectation looks at on a stream: each makes the check that the words ask for."""

import re
from collections.abc import Callable
from typing import Any

from tests.cases.discovery.client import Stream
from tests.cases.discovery.expect import Held, Scene, formal, told
from tests.cases.discovery.match import DEFAULT_BUDGET, best, differences
from tests.cases.discovery.words import split

Shape = Callable[[re.Match[str], Stream, Scene], Held | None]
"""From a phrase's words to its check; None when the words mean nothing here."""


def as_item(key: str, value: Any) -> Shape:
    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
        return formal(key, value, stream, scene)

    return shape


def named_item(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    key, value = match["key"], match["value"]
    return formal(key, int(value) if value.isdecimal() else value, stream, scene)


def first_none(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = match["exists"] == "true"
    return lambda: (
        []
        if [(each.kind, each.facts) for each in stream.view.seen[:1]] == [("none", wanted)]
        else [
            f"expected no_endpoints exists={match['exists']}, got {' '.join(map(told, stream.view.seen[:1]))}"
        ]
    )


def opaque(wanted: bool) -> Shape:
    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
        return lambda: [] if stream.view.opaque is wanted else [f"opaque is {stream.view.opaque}"]

    return shape


def opaque_then(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted = [word == "true" for word in match.groups()]

    def held() -> list[str]:
        got = [bool(seen.facts["opaque_protocol"]) for seen in scene.new(stream)]
        return [] if got == wanted else [f"opaque was {got}"]

    return held


def address(wanted: dict[str, Any]) -> Shape:
    """Every address of the stream is like this."""

    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
        return lambda: every(wanted, stream)

    return shape


def every(wanted: dict[str, Any], stream: Stream) -> list[str]:
    held = stream.view.endpoints
    return [each for one in held for each in differences(wanted, one, one["at"])] if held else ["no address"]


def some(name: str, present: bool) -> Shape:
    """Whether every address has something under this name."""

    def shape(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
        def held() -> list[str]:
            wrong = [each["at"] for each in stream.view.endpoints if bool(each[name]) is not present]
            return [] if stream.view.endpoints and not wrong else [f"{name} at {wrong or 'no address'}"]

        return held

    return shape


def opaque_hint(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    def held() -> list[str]:
        own = [] if stream.view.opaque else [f"opaque is {stream.view.opaque}"]
        return own + every({"hint": "opaque"}, stream)

    return held


def transport(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    return lambda: every({"opaque_transport": int(match["port"])}, stream)


def full(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
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


def bare(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted: dict[str, Any] = {"labels": {}, "tls": None, "hint": None, "http2": None, "weight": 10_000}
    if stream.call.path[0].isdigit() or stream.call.path.startswith("["):
        wanted["at"] = stream.call.path
    return lambda: every(wanted, stream)


def labels(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    pairs = dict(word.split("=", 1) for word in match["labels"].split())
    return lambda: every({"labels": {key: value.strip("'") for key, value in pairs.items()}}, stream)


def label(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    key, value = match["key"], match["value"]
    if value is not None:
        return lambda: every({"labels": {key: value}}, stream)
    return lambda: (
        [f"{each['at']} has no label {key}" for each in stream.view.endpoints if key not in each["labels"]]
        or ([] if stream.view.endpoints else ["no address"])
    )


_POD_WORDS: dict[str, Callable[[str], dict[str, Any]]] = {
    r"local|remote|unknown": lambda word: {"labels": {"zone_locality": word}},
    r"(?:weight )?\d+": lambda word: {"weight": int(word.split()[-1])},
    r"zone label empty": lambda _: {"labels": {"zone": ""}},
}


def of_pod(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
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


def only(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    """Nothing but messages of this kind, about this address where one is named."""
    kind, suffix = match["kind"], match["ip"]

    def held() -> list[str]:
        new = scene.new(stream)
        good = new and all(each.kind == kind for each in new)
        if good and suffix:
            good = all(at.rpartition(":")[0].endswith(suffix) for each in new for at in each.facts)
        return [] if good else [f"the messages are: {', '.join(map(told, new)) or 'none'}"]

    return held


def order(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
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


def identity(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    wanted = scene.world.noted.get("identity")
    return (lambda: every({"tls": wanted}, stream)) if wanted else None


def default_profile(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    wanted: dict[str, Any] = {
        "routes": [],
        "dst_overrides": [],
        "retry_budget": DEFAULT_BUDGET,
        "profile_ref": None,
    }

    def held() -> list[str]:
        named = stream.view.profile and stream.view.profile["fully_qualified_name"]
        return differences(wanted, stream.view.profile) if named else ["it has no name"]

    return held


def route(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
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


def view_words(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    """`view both`; `view one`: the one endpoint that the call names by its hostname."""
    if match["which"] != "one":
        return formal("view", match["which"], stream, scene)
    hostname = stream.call.path.split(".")[0]
    slices = [scene.world.items[key] for key in scene.world.keys("EndpointSlice")]
    ips = {
        ip
        for item in slices
        for each in item["endpoints"]
        if each.get("hostname") == hostname
        for ip in each["addresses"]
    }

    def held() -> list[str]:
        got = {at.rpartition(":")[0].strip("[]") for at in stream.view.addresses}
        return [] if got == ips else [f"expected {ips}, got {got}"]

    return held


def profile_ref(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    def held() -> list[str]:
        keys = scene.world.keys("ServiceProfile")
        wanted = [
            {"group": "linkerd.io", "kind": key.kind, "name": key.name, "namespace": key.namespace}
            for key in keys
        ]
        got = (stream.view.profile or {}).get("profile_ref")
        return [] if got in wanted else [f"profile_ref is {got}"]

    return held


def stored_as_null(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    slices = [scene.world.items[key] for key in scene.world.keys("EndpointSlice")]
    return lambda: [f"{item['metadata']['name']} has ports" for item in slices if item["ports"] is not None]


def answers(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    def held() -> list[str]:
        seen = stream.view.seen
        return [] if seen and seen[0].after <= 1 else ["no message within 1 s"]

    return held


def status(match: re.Match[str], stream: Stream, scene: Scene) -> Held | None:
    return formal("status", match["value"], stream, scene)


def profile_open(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    return lambda: [] if stream.view.profile and not stream.status else [f"status {stream.status}"]


def placed(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    return lambda: every({"at": match["at"]}, stream)


def no_faults(match: re.Match[str], stream: Stream, scene: Scene) -> Held:
    return lambda: list(stream.view.faults)
