"""Stories about ServiceProfiles: which one is chosen, what of it is refused, how it is translated."""

import re
from collections.abc import Callable
from typing import Any

from tests.cases.discovery.objects import Manifest
from tests.cases.discovery.stories.stage import CLUSTER_IP, Bench, Story, service
from tests.cases.discovery.wire import Message
from tests.cases.discovery.world import World

_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE")
_PATH = f"{CLUSTER_IP}:80"


async def choice(bench: Bench) -> None:
    for written, wanted in bench.case.data.items():
        match = re.match(r"token (?:ns (?P<json>\w+)|(?P<legacy>ns:\w+))", written)
        token = "" if not match else match["legacy"] or f'{{"ns":"{match["json"]}"}}'
        async with bench.run(*bench.case.objects) as run:
            stream = await run.profile(bench.case.calls[0].path, token)
            await run.holds(stream, wanted, {"msgs": 1})


def _broken(written: str) -> dict[str, Any]:
    """The spec of a ServiceProfile with this mistake."""
    good = {"name": "bad", "condition": {"pathRegex": "/bad"}}
    if match := re.fullmatch(r"status min (\d+)(?: max (\d+))?", written):
        status = {"min": int(match[1])} | ({"max": int(match[2])} if match[2] else {})
        return {"routes": [{**good, "responseClasses": [{"condition": {"status": status}}]}]}
    if match := re.fullmatch(r"retryBudget ttl '(\w+)'", written):
        budget = {"retryRatio": 0.5, "minRetriesPerSecond": 3, "ttl": match[1]}
        return {"routes": [good], "retryBudget": budget}
    conditions: dict[str, Manifest] = {
        "condition {}": {"condition": {}},
        "all: [null]": {"condition": {"all": [None]}},
    }
    return {"routes": [{"name": "bad", **conditions.get(written, {})}]}


def _respecified(spec: dict[str, Any]) -> Callable[[World], None]:
    def change(world: World) -> None:
        with world.changed(world.only("ServiceProfile")) as item:
            item["spec"] = spec

    return change


async def invalid(bench: Bench) -> None:
    for written in bench.case.data:
        async with bench.run(service(), {"sp": "web.shop", "routes": ["good"]}) as run:
            held = await run.profile(_PATH)
            await run.holds(held, "route good")
            run.begin()
            await run.act(_respecified(_broken(written)))
            new = await run.profile(_PATH)
            kept = await run.holds(held, "route good", {"msgs": 0, "stream": "open"})
            if not (await run.holds(new, "default", {"within_s": 1}) and kept):
                run.failures[-1] += f" (with {written})"
            if not run.service.complaints("ServiceProfile"):
                run.failures.append(f"no complaint names the ServiceProfile (with {written})")
            await run.act(_respecified({"routes": [{"name": "new", "condition": {"pathRegex": "/new"}}]}))
            for stream in (held, new):
                await run.holds(stream, "route new")


def condition(message: Message) -> str:
    """A RequestMatch or ResponseMatch as the cases write it."""
    for key in ("all", "any"):
        if key in message:
            return f"{key}[{', '.join(map(condition, message[key].get('matches', [])))}]"
    if "not" in message:
        return f"not {condition(message['not'])}"
    if "path" in message:
        return f"path {message['path'].get('regex', '')}"
    if "method" in message:
        method = message["method"]
        known = method.get("registered")
        return f"method {_METHODS[known]}" if known is not None else f"unregistered {method['unregistered']}"
    if "status" in message:
        return f"status {message['status'].get('min', 0)}-{message['status'].get('max', 0)}"
    return "nothing"


def _same(wanted: str, got: str) -> bool:
    """`not path` stands for any path."""
    return wanted in (got, re.sub(r"not path [^],]*", "not path", got))


async def _translated(bench: Bench, spec: Manifest) -> Message:
    """The one route of a ServiceProfile with this spec, as a proxy reads it."""
    async with bench.run(service(), {"sp": "web.shop", "routes": spec["routes"]}) as run:
        stream = await run.profile(_PATH)
        await run.holds(stream, "route r")
        routes: list[Message] = (stream.view.profile or {}).get("routes", [])
        return routes[0] if routes else {}


async def request_matches(bench: Bench) -> None:
    for each in bench.case.data:
        route = await _translated(bench, {"routes": [{"name": "r", "condition": each["in"]}]})
        got = condition(route.get("condition", {}))
        if not _same(each["out"], got):
            bench.runs[-1].failures.append(f"{each['in']}: expected {each['out']}, got {got}")


async def response_classes(bench: Bench) -> None:
    for each in bench.case.data:
        classes = [{"condition": each["in"], "isFailure": True}]
        route = {"name": "r", "condition": {"pathRegex": "/r"}, "responseClasses": classes}
        found = (await _translated(bench, {"routes": [route]})).get("response_classes", [])
        got = condition(found[0].get("condition", {})) if len(found) == 1 else f"{len(found)} classes"
        if got != each["out"] or not found[0].get("is_failure"):
            bench.runs[-1].failures.append(f"{each['in']}: expected {each['out']}, got {got}")


async def timeouts(bench: Bench) -> None:
    for written, wanted in bench.case.data.items():
        route = {"name": "r", "condition": {"pathRegex": "/r"}, "timeout": written}
        got = (await _translated(bench, {"routes": [route]})).get("timeout")
        if got != (None if isinstance(wanted, str) else wanted):
            bench.runs[-1].failures.append(f"timeout {written!r}: expected {wanted}, got {got}")


async def overrides(bench: Bench) -> None:
    path = bench.case.calls[0].path
    for each in bench.case.data:
        wanted = re.sub(r" \(.*\)$", "", each["out"])
        override = {"authority": each["authority"], "weight": each["weight"]}
        asked = service(path.rpartition(":")[0])
        async with bench.run(asked, {"sp": "web.shop", "dstOverrides": [override]}) as run:
            stream = await run.profile(path)
            authority, weight = wanted.split()
            expected = {"authority": authority, **({"weight": int(weight)} if int(weight) else {})}
            await run.holds(stream, {"profile": {"dst_overrides": [expected]}})


STORIES: dict[str, Story] = {
    "E04": choice,
    "E09": invalid,
    "E10": request_matches,
    "E11": response_classes,
    "E12": timeouts,
    "E13": overrides,
}
