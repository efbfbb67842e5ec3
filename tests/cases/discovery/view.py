"""What a proxy holds after the messages of one stream, and what no stream may ever do.

Get: the first `add` replaces everything, later ones add or overwrite, `remove` takes away,
`no_endpoints` clears. GetProfile: the last message stands.
"""

import ipaddress
from typing import Any, Literal

import msgspec

from tests.cases.discovery.wire import Message, decode

Kind = Literal["add", "remove", "none", "profile", "empty-profile"]


class Seen(msgspec.Struct, frozen=True):
    """One message: what it was, its own facts, its bytes, and seconds since its stream was opened.

    `facts` of `add` are addresses by `ip:port`, of `remove` a list of `ip:port`, of `none` a bool (exists),
    of a profile the profile.
    """

    kind: Kind
    facts: Any
    raw: bytes
    after: float


class View:
    """State of one stream. `faults` tells each message that breaks a rule of all streams."""

    def __init__(self, method: Literal["Get", "Profile"]) -> None:
        self.method = method
        self.seen: list[Seen] = []
        self.addresses: dict[str, Message] = {}
        self.set_labels: dict[str, str] = {}
        self.exists: bool | None = None
        self.profile: Message | None = None
        self.faults: list[str] = []

    @property
    def opaque(self) -> bool | None:
        """What a proxy takes the port for: the profile's word, or all addresses' hint. None: no word."""
        if self.method == "Profile":
            return None if self.profile is None else bool(self.profile["opaque_protocol"])
        hints = {address["hint"] == "opaque" for address in self.addresses.values()}
        return hints.pop() if len(hints) == 1 else None

    @property
    def endpoints(self) -> list[Message]:
        """The addresses of Get, or the one endpoint of the last profile."""
        if self.method == "Get":
            return list(self.addresses.values())
        endpoint = self.profile and self.profile["endpoint"]
        return [endpoint] if endpoint else []

    def take(self, raw: bytes, after: float) -> None:
        """Apply the next message. Raises WireError when it is none."""
        if self.seen and self.seen[-1].raw == raw:
            self.faults.append(f"message {len(self.seen) + 1} is the one before it once more")
        if self.method == "Profile":
            self.profile = profile(decode("DestinationProfile", raw))
            self.seen.append(Seen("profile" if raw else "empty-profile", self.profile, raw, after))
            return
        update = decode("Update", raw)
        if len(update) != 1:
            self.faults.append(f"an Update says {sorted(update) or 'nothing'}")
        if (added := update.get("add")) is not None:
            self._add(added, raw, after)
        elif (removed := update.get("remove")) is not None:
            self._remove([endpoint_of(each) for each in removed.get("addrs", [])], raw, after)
        else:
            self._clear(update.get("no_endpoints", {}).get("exists", False), raw, after)

    def _add(self, added: Message, raw: bytes, after: float) -> None:
        new: dict[str, Message] = {}
        for each in map(address, added.get("addrs", [])):
            if each["at"] in new:
                self.faults.append(f"add names {each['at']} twice")
            new[each["at"]] = each
        if not new:
            self.faults.append("add without addresses")
        labels = added.get("metric_labels", {})
        same = sorted(at for at, each in new.items() if self.addresses.get(at) == each)
        if same and labels == self.set_labels:
            self.faults.append(f"add repeats {', '.join(same)}")
        self.addresses |= new
        self.set_labels = labels
        self.exists = True
        self.seen.append(Seen("add", new, raw, after))

    def _remove(self, removed: list[str], raw: bytes, after: float) -> None:
        if not self.seen:
            self.faults.append("the first message is a remove")
        absent = sorted(set(removed) - set(self.addresses))
        if absent or not removed:
            self.faults.append(f"remove of {', '.join(absent) or 'nothing'}, which is not held")
        for at in removed:
            self.addresses.pop(at, None)
        self.seen.append(Seen("remove", removed, raw, after))

    def _clear(self, exists: bool, raw: bytes, after: float) -> None:
        self.addresses.clear()
        self.exists = exists
        self.seen.append(Seen("none", exists, raw, after))


def endpoint_of(tcp: Message) -> str:
    """`ip:port`, IPv6 in brackets."""
    ip, port = tcp.get("ip", {}), tcp.get("port", 0)
    if "ipv6" in ip:
        halves = ip["ipv6"]
        number = halves.get("first", 0) << 64 | halves.get("last", 0)
        return f"[{ipaddress.IPv6Address(number)}]:{port}"
    return f"{ipaddress.IPv4Address(ip.get('ipv4', 0))}:{port}"


def address(weighted: Message) -> Message:
    """One WeightedAddr in the words of the cases; what is not set is None. `hint` "": present but empty."""
    identity, hint = weighted.get("tls_identity"), weighted.get("protocol_hint")
    names = identity or {}
    dns, uri = names.get("dns_like_identity", {}).get("name"), names.get("uri_like_identity", {}).get("uri")
    at = endpoint_of(weighted.get("addr", {}))
    protocol = None if hint is None else next((word for word in ("h2", "opaque") if word in hint), "")
    return {
        "at": at,
        "addr": at,
        "weight": weighted.get("weight", 0),
        "labels": weighted.get("metric_labels", {}),
        "tls": None if identity is None else dns or uri or "",
        "dns_identity": dns,
        "uri_identity": uri,
        "server_name": names.get("server_name", {}).get("name"),
        "hint": protocol,
        "opaque_transport": (hint or {}).get("opaque_transport", {}).get("inbound_port"),
        "authority_override": weighted.get("authority_override", {}).get("authority_override"),
        "http2": weighted.get("http2"),
    }


def profile(message: Message) -> Message:
    """A DestinationProfile in the words of the cases."""
    budget = message.get("retry_budget")
    endpoint = message.get("endpoint")
    return {
        "fully_qualified_name": message.get("fully_qualified_name", ""),
        "opaque_protocol": message.get("opaque_protocol", False),
        "routes": message.get("routes", []),
        "dst_overrides": message.get("dst_overrides", []),
        "endpoint": None if endpoint is None else address(endpoint),
        "retry_budget": None if budget is None else _budget(budget),
        "parent_ref": message.get("parent_ref", {}).get("resource"),
        "profile_ref": message.get("profile_ref", {}).get("resource"),
    }


def _budget(message: Message) -> Message:
    ttl = message.get("ttl", {})
    return {
        "ratio": round(message.get("retry_ratio", 0.0), 6),
        "min": message.get("min_retries_per_second", 0),
        "ttl_s": ttl.get("seconds", 0) + ttl.get("nanos", 0) / 1e9,
    }
