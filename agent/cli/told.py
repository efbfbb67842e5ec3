"""What proxies are told, in words: addresses and profiles, and how they change."""

from collections.abc import Iterator, Mapping

import msgspec

from agent.core.discovery.answers import SECOND, WEIGHT, Address, RetryBudget
from agent.core.discovery.explanation import Explanation, Standing, stands
from agent.core.reasons import MEANINGS
from agent.destination.view import Told, ToldProfile, View

NOTHING = "nothing is known of it"


def where(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def whose(address: Address) -> str:
    """An address with the name of what is behind it, where labels tell."""
    labels = dict(address.labels)
    name = labels.get("pod") or labels.get("external_workload")
    return where(address.ip, address.port) + (f" ({name})" if name else "")


def completed(view: View, explained: Explanation | None, before: View | None = None) -> View:
    """With what is not on the wire, where that is known: an address that is on its way out may be named by
    the messages still, and by the explanation no more, and keeps what was known of it `before`."""
    standings = _standings(explained)
    if before is not None:
        standings = {key: stands(told.address) for key, told in before.addresses.items()} | standings
    addresses = {
        key: Told(_with(told.address, standings.get(key)), told.http2) for key, told in view.addresses.items()
    }
    return View(view.exists, view.labels, addresses)


def completed_profile(profile: ToldProfile, explained: Explanation | None) -> ToldProfile:
    """The same of a profile."""
    if profile.endpoint is None:
        return profile
    found = _standings(explained).get((profile.endpoint.ip, profile.endpoint.port))
    return msgspec.structs.replace(profile, endpoint=_with(profile.endpoint, found))


def changed_view(before: View | None, now: View) -> Iterator[str]:
    """A line for each address that came, went or is another; for a set of none, why."""
    known = before.addresses if before is not None else {}
    for key, told in now.addresses.items():
        if key not in known:
            yield f"{'added' if before else 'has'} {described(told.address)}"
        elif known[key] != told:
            yield f"changed {whose(told.address)}: {'; '.join(_changes(known[key], told))}"
    for key, told in known.items():
        if key not in now.addresses:
            yield f"removed {whose(told.address)}"
    if not now.addresses and (before is None or known or before.exists != now.exists):
        yield f"no endpoints; {'the Service exists' if now.exists else 'there is no such Service'}"


def changed_profile(before: Mapping[str, str] | None, now: Mapping[str, str]) -> Iterator[str]:
    """A line for each of the `facts` that is another; of a first profile, for each."""
    if not now:
        yield NOTHING
        return
    for name in {**now, **(before or {})}:
        old, new = (before or {}).get(name, ""), now.get(name, "")
        if old != new:
            yield f"{old} -> {new}" if old and new else new or f"no longer: {old}"


def facts(profile: ToldProfile, rule: str) -> dict[str, str]:
    """A profile in phrases, by what each is about; none for the empty profile."""
    if not profile.document:
        return {}
    opacity = "opaque" if profile.opaque else "not opaque"
    routes = (name or "(without a name)" for name in profile.routes)
    shares = (f"{each.authority} {each.weight / WEIGHT:g}" for each in profile.overrides)
    found = {
        "name": f"Service {profile.name}" if profile.name else "",
        "opacity": f"{opacity}, by {rule}" if rule else opacity,
        "routes": f"routes {', '.join(routes)}" if profile.routes else "",
        "budget": _budget(profile.retry_budget) if profile.retry_budget is not None else "",
        "split": f"split {', '.join(shares)}" if profile.overrides else "",
        "source": f"ServiceProfile {profile.source.namespace}/{profile.source.name}"
        if profile.source
        else "",
    }
    if profile.endpoint is not None:
        labels = ", ".join(f"{name}={value}" for name, value in profile.endpoint.labels)
        found |= {"endpoint": f"endpoint {whose(profile.endpoint)}", **_phrases(profile.endpoint)}
        found["labels"] = f"labels {labels}" if labels else ""
    return {name: phrase for name, phrase in found.items() if phrase}


def described(address: Address) -> str:
    return f"{whose(address)}: {', '.join(text for text in _phrases(address).values() if text)}"


def standing(address: Address) -> str:
    """How the redirection of an address stands, and what follows."""
    state = f"{whose(address)}: {redirection(address) or 'redirection not known'}"
    if not address.withheld:
        return state
    meaning = next((each.meaning for reason, each in MEANINGS.items() if reason == address.withheld), "")
    return f"{state}; no identity is sent ({address.withheld}): {meaning}"


def redirection(address: Address) -> str:
    """Of the pod behind an address; "" where nothing is known."""
    return {"redirected": "redirected", "failed": "not redirected"}.get(address.redirection, "")


def tls(address: Address) -> str:
    """Whether and as whom a proxy expects TLS there."""
    if not address.identity:
        return f"no TLS ({address.withheld})" if address.withheld else "no TLS"
    other = address.server_name if address.server_name != address.identity else ""
    return f"TLS as {address.identity}" + (f", SNI {other}" if other else "")


def hint(address: Address) -> str:
    """The protocol that a proxy is told, "" for none."""
    protocol = address.hint.protocol if address.hint is not None else ""
    return {"h2": "HTTP/2", "opaque": "opaque"}.get(protocol, "")


def _phrases(address: Address) -> dict[str, str]:
    transport = address.hint.transport_port if address.hint is not None else 0
    return {
        "tls": tls(address),
        "hint": f"hint {protocol}" if (protocol := hint(address)) else "",
        "transport": f"transport header to port {transport}" if transport else "",
        "weight": f"weight {address.weight / WEIGHT:g}" if address.weight != WEIGHT else "",
        "authority": f"authority {address.authority}" if address.authority else "",
        "redirection": redirection(address),
    }


def _changes(before: Told, now: Told) -> Iterator[str]:
    old, new = _phrases(before.address), _phrases(now.address)
    old |= {f"label {name}": f"{name} {value}" for name, value in before.address.labels}
    new |= {f"label {name}": f"{name} {value}" for name, value in now.address.labels}
    silent = True
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            silent = False
            yield f"{old.get(name) or 'nothing'} -> {new.get(name) or 'nothing'}"
    if silent or before.http2 != now.http2:
        yield "parameters of HTTP/2"


def _budget(budget: RetryBudget) -> str:
    return (
        f"retry budget {budget.ratio:.6g} of requests and {budget.min_retries}/s within "
        f"{budget.ttl / SECOND:g} s"
    )


def _standings(explained: Explanation | None) -> dict[tuple[str, int], Standing]:
    return {(each.ip, each.port): each for each in explained.addresses} if explained is not None else {}


def _with(address: Address, standing: Standing | None) -> Address:
    if standing is None:
        return address
    return msgspec.structs.replace(address, redirection=standing.redirection, withheld=standing.withheld)
