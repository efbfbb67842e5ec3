"""What a client knows by the messages that it was sent: the inverse of `encode` and `profile`."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import msgspec

from agent.core.discovery.answers import Address, Hint, Labels, Override, Ref, RetryBudget
from agent.destination.gojson import go_struct
from agent.destination.proto.destination_pb2 import DestinationProfile, TlsIdentity, Update, WeightedAddr
from agent.destination.proto.net_pb2 import TcpAddress

Key = tuple[str, int]
"""IP and port of an address."""


class Told(msgspec.Struct, frozen=True):
    """One address; what is not on the wire has its default. `http2`: its parameters as Go's JSON."""

    address: Address
    http2: dict[str, Any] | None = None


class View(msgspec.Struct, frozen=True):
    """A set of endpoints, as the messages of one call add up. `exists`: whether the Service does."""

    exists: bool
    labels: dict[str, str] = {}
    addresses: dict[Key, Told] = {}


class ToldProfile(msgspec.Struct, frozen=True):
    """One DestinationProfile. `document`: all of it, as Go's JSON; the rest as in `answers.Profile`, but for
    `routes`: their names, "" for one that has none."""

    document: dict[str, Any]
    name: str = ""
    opaque: bool = False
    routes: tuple[str, ...] = ()
    retry_budget: RetryBudget | None = None
    overrides: tuple[Override, ...] = ()
    endpoint: Address | None = None
    source: Ref | None = None


def applied(view: View | None, messages: Iterable[bytes]) -> View:
    """The view after these updates, applied as proxies do. None: nothing has been sent before."""
    exists = view is not None and view.exists
    labels = {} if view is None else view.labels
    addresses = {} if view is None else dict(view.addresses)
    for message in messages:
        update = Update.FromString(message)
        match update.WhichOneof("update"):
            case "add":
                exists, labels = True, dict(sorted(update.add.metric_labels.items()))
                addresses |= {_key(each.addr): _told(each) for each in update.add.addrs}
            case "remove":
                for each in update.remove.addrs:
                    addresses.pop(_key(each), None)
            case "no_endpoints":
                exists, addresses = update.no_endpoints.exists, {}
    return View(exists, labels, addresses)


def read_profile(message: bytes) -> ToldProfile:
    found = DestinationProfile.FromString(message)
    budget, source = found.retry_budget, found.profile_ref.resource
    return ToldProfile(
        document=go_struct(found),
        name=found.fully_qualified_name,
        opaque=found.opaque_protocol,
        routes=tuple(route.metrics_labels.get("route", "") for route in found.routes),
        retry_budget=RetryBudget(
            budget.retry_ratio, budget.min_retries_per_second, budget.ttl.ToNanoseconds()
        )
        if found.HasField("retry_budget")
        else None,
        overrides=tuple(Override(each.authority, each.weight) for each in found.dst_overrides),
        endpoint=_told(found.endpoint).address if found.HasField("endpoint") else None,
        source=Ref(source.group, source.kind, source.name, source.namespace, source.port)
        if source.name
        else None,
    )


def _told(sent: WeightedAddr) -> Told:
    ip, port = _key(sent.addr)
    tls = sent.tls_identity
    labels: Labels = tuple(sorted(sent.metric_labels.items()))
    address = Address(
        ip,
        port,
        labels=labels,
        weight=sent.weight,
        identity=_identity(tls),
        server_name=tls.server_name.name,
        uri=tls.WhichOneof("strategy") == "uri_like_identity",
        hint=_hint(sent) if sent.HasField("protocol_hint") else None,
        http2=sent.HasField("http2"),
        authority=sent.authority_override.authority_override,
    )
    return Told(address, go_struct(sent.http2) if sent.HasField("http2") else None)


def _identity(tls: TlsIdentity) -> str:
    return tls.uri_like_identity.uri or tls.dns_like_identity.name


def _hint(sent: WeightedAddr) -> Hint:
    hint = sent.protocol_hint
    port = hint.opaque_transport.inbound_port
    match hint.WhichOneof("protocol"):
        case "h2":
            return Hint("h2", port)
        case "opaque":
            return Hint("opaque", port)
    return Hint("", port)


def _key(address: TcpAddress) -> Key:
    ip = address.ip
    if ip.WhichOneof("ip") != "ipv6":
        return str(IPv4Address(ip.ipv4)), address.port
    wide = IPv6Address(ip.ipv6.first << 64 | ip.ipv6.last)
    return str(wide.ipv4_mapped or wide), address.port
