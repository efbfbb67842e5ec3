"""ServiceProfiles: a spec, which may hold anything, into routes, a retry budget and overrides.

One thing that cannot be read makes the whole profile unreadable, since half of somebody's routes is
another policy than the one that was meant. A bad timeout alone costs no more than itself.
"""

from typing import Any

import msgspec

from agent.core.discovery.answers import (
    All,
    AnyOf,
    Match,
    Method,
    Not,
    Path,
    ResponseClass,
    RetryBudget,
    Route,
    Status,
)
from agent.core.discovery.objects import ServiceProfile
from agent.core.discovery.quantities import parse_duration, parse_milli
from agent.core.discovery.untyped import typed
from agent.core.ports import named
from agent.core.reasons import Complaint, Reason

DEEPEST = 32
"""Levels of nested conditions; protobuf's readers stop at 100 messages, and each level is two."""

_LAST_UINT32 = 2**32 - 1


class ProfileFacts(msgspec.Struct, frozen=True):
    """A ServiceProfile. `overrides`: authorities as written, which may lack a port, with their weights.
    `broken`: it cannot be read, and says nothing."""

    namespace: str
    name: str
    routes: tuple[Route, ...] = ()
    retry_budget: RetryBudget | None = None
    overrides: tuple[tuple[str, int], ...] = ()
    broken: bool = False


def read_profile(item: ServiceProfile) -> tuple[ProfileFacts, tuple[Complaint, ...]]:
    """What discovery keeps of a ServiceProfile, and what is wrong with it. Never raises."""
    namespace, name = item.metadata.namespace, item.metadata.name
    reading = _Reading(f"ServiceProfile {namespace}/{name}")
    try:
        spec = typed({} if item.spec is None else item.spec, dict, "spec")
        facts = ProfileFacts(
            namespace,
            name,
            tuple(reading.route(each) for each in _list(spec, "routes")),
            _retry_budget(spec.get("retryBudget")),
            tuple(_override(each) for each in _list(spec, "dstOverrides")),
        )
    except ValueError as error:
        message = f"cannot read {reading.where}: {error}; new streams get the default profile, open ones keep"
        remedy = "correct the ServiceProfile; until then none of its routes is in force for new streams"
        complaint = Complaint(Reason.INVALID_PROFILE, "spec", f"{message} what they have", remedy)
        return ProfileFacts(namespace, name, broken=True), (complaint,)
    return facts, tuple(reading.complaints)


class _Reading:
    def __init__(self, where: str) -> None:
        self.where = where
        self.complaints: list[Complaint] = []

    def route(self, value: object) -> Route:
        route = typed(value, dict, "a route")
        name = typed(route.get("name") or "", str, "name of a route")
        return Route(
            condition=_request(route.get("condition"), DEEPEST),
            responses=tuple(_response_class(each) for each in _list(route, "responseClasses")),
            labels=(("route", name),),
            retryable=typed(route.get("isRetryable") or False, bool, "isRetryable"),
            timeout=self._timeout(typed(route.get("timeout") or "", str, "timeout"), name),
        )

    def _timeout(self, text: str, route: str) -> int:
        nanoseconds = parse_duration(text) if text else 0
        if nanoseconds is not None and nanoseconds >= 0:
            return nanoseconds
        message = f"cannot read timeout {named([text])} of route {named([route])} ({self.where}): it has none"
        remedy = "write a duration such as 200ms or 1m30s"
        self.complaints.append(Complaint(Reason.INVALID_PROFILE, "spec.routes", message, remedy))
        return 0


def _request(value: object, depth: int) -> Match:
    fields = _condition(value, depth)
    found: list[Match] = []
    if (several := fields.get("all")) is not None:
        found.append(All(tuple(_request(each, depth - 1) for each in typed(several, list, "all"))))
    if (several := fields.get("any")) is not None:
        found.append(AnyOf(tuple(_request(each, depth - 1) for each in typed(several, list, "any"))))
    if method := typed(fields.get("method") or "", str, "method"):
        found.append(Method(method.upper()))
    if (other := fields.get("not")) is not None:
        found.append(Not(_request(other, depth - 1)))
    if regex := typed(fields.get("pathRegex") or "", str, "pathRegex"):
        found.append(Path(regex))
    return _together(found)


def _response(value: object, depth: int) -> Match:
    fields = _condition(value, depth)
    found: list[Match] = []
    if (several := fields.get("all")) is not None:
        found.append(All(tuple(_response(each, depth - 1) for each in typed(several, list, "all"))))
    if (several := fields.get("any")) is not None:
        found.append(AnyOf(tuple(_response(each, depth - 1) for each in typed(several, list, "any"))))
    if (status := fields.get("status")) is not None:
        found.append(_status(typed(status, dict, "status")))
    if (other := fields.get("not")) is not None:
        found.append(Not(_response(other, depth - 1)))
    return _together(found)


def _condition(value: object, depth: int) -> dict[str, Any]:
    if depth == 0:
        raise ValueError(f"a condition is nested more than {DEEPEST} deep")
    fields: dict[str, Any] = typed(value, dict, "a condition")
    return fields


def _together(found: list[Match]) -> Match:
    if not found:
        raise ValueError("a condition is empty")
    return found[0] if len(found) == 1 else All(tuple(found))


def _status(fields: dict[str, Any]) -> Status:
    low, high = (typed(fields.get(key) or 0, int, f"status.{key}") for key in ("min", "max"))
    if any(code and not 100 <= code <= 599 for code in (low, high)) or (low and high and low > high):
        raise ValueError(f"a status range is {named([f'{low}-{high}'])}, beyond 100-599 or upside down")
    return Status(low, high)


def _response_class(value: object) -> ResponseClass:
    fields = typed(value, dict, "a response class")
    failure = typed(fields.get("isFailure") or False, bool, "isFailure")
    return ResponseClass(_response(fields.get("condition"), DEEPEST), failure)


def _retry_budget(value: object) -> RetryBudget | None:
    if value is None:
        return None
    fields = typed(value, dict, "retryBudget")
    ratio = fields.get("retryRatio") or 0.0
    retries = fields.get("minRetriesPerSecond") or 0
    ttl = parse_duration(typed(fields.get("ttl") or "", str, "retryBudget.ttl"))
    if type(ratio) not in (int, float) or not 0 <= ratio <= 1e9:
        raise ValueError("retryBudget.retryRatio is no positive number")
    if type(retries) is not int or not 0 <= retries <= _LAST_UINT32:
        raise ValueError("retryBudget.minRetriesPerSecond is no positive integer")
    if ttl is None or ttl < 0:
        raise ValueError(f"retryBudget.ttl is {named([fields.get('ttl') or ''])}, which is no duration")
    return RetryBudget(float(ratio), retries, ttl)


def _override(value: object) -> tuple[str, int]:
    fields = typed(value, dict, "one of dstOverrides")
    authority = typed(fields.get("authority") or "", str, "authority")
    weight = fields.get("weight")
    text = "0" if weight is None else weight if isinstance(weight, str) else repr(weight)
    milli = None if isinstance(weight, bool) else parse_milli(text)
    if milli is None:
        raise ValueError(f"weight of {named([authority])} is {named([text])}, which is no positive quantity")
    return authority, min(milli * 10, _LAST_UINT32)


def _list(fields: dict[str, Any], key: str) -> list[Any]:
    found: list[Any] = typed(fields.get(key) or [], list, key)
    return found
