"""What a proxy asks for (`path`) and who asks (`context_token`), read as upstream reads them."""

import re
from ipaddress import IPv6Address
from typing import Any

import msgspec

from agent.core.ports import LAST_PORT

DEFAULT_PORT = 80
_LONGEST_LABEL = 63
_LONGEST_NAME = 253
_PORT = re.compile(r"\+?0*([1-9][0-9]{0,4})")
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")


class Invalid(Exception):  # noqa: N818
    """The call can never be answered (INVALID_ARGUMENT); the message is for people."""


class ServiceTarget(msgspec.Struct, frozen=True):
    """A name under the cluster domain. `hostname`: that of one endpoint (pod DNS), "" = the whole Service."""

    service: str
    namespace: str
    hostname: str
    port: int


class AddressTarget(msgspec.Struct, frozen=True):
    """An IP in canonical form."""

    ip: str
    port: int


Target = ServiceTarget | AddressTarget


class Client(msgspec.Struct, frozen=True):
    """Who asks: its namespace, node and pod name; "" where that is not known."""

    namespace: str = ""
    node: str = ""
    pod: str = ""


def parse_authority(path: str, cluster_domain: str) -> Target:
    """Read `host`, `host:port` or `[ip6]:port`; without a port it is 80.

    A host is an IP, `SERVICE.NAMESPACE.svc.DOMAIN` or `HOSTNAME.SERVICE.NAMESPACE.svc.DOMAIN`. Raises Invalid
    for everything else.
    """
    host, port = _split(path) if ":" in path else (path, DEFAULT_PORT)
    ip = canonical_ip(host)
    if ip is not None:
        return AddressTarget(ip, port)
    labels = host.split(".")
    suffix = ["svc", *cluster_domain.split(".")]
    if len(labels) <= len(suffix) or labels[-len(suffix) :] != suffix:
        raise Invalid(f"cannot resolve {_shown(host)}: it is no name under svc.{cluster_domain}, and no IP")
    labels = labels[: -len(suffix)]
    if len(labels) not in (2, 3):
        raise Invalid(f"cannot resolve {_shown(host)}: write SERVICE.NAMESPACE.svc.{cluster_domain}")
    if not all(1 <= len(label) <= _LONGEST_LABEL for label in labels):
        raise Invalid(f"cannot resolve {_shown(host)}: a label of a name has 1-{_LONGEST_LABEL} characters")
    *hostname, service, namespace = labels
    return ServiceTarget(service, namespace, "".join(hostname), port)


def parse_token(text: str) -> Client:
    """Read `{"ns": ..., "nodeName": ..., "pod": ...}` or the old form `ns:NAMESPACE`. Never raises: what
    cannot be read says nothing."""
    try:
        fields = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        fields = None
        parts = text.strip().split(":")
        if len(parts) == 2 and parts[0] == "ns":
            return Client(namespace=parts[1])
    client = _client(fields) if isinstance(fields, dict) else None
    return client or Client()


def canonical_ip(text: str) -> str | None:
    """The one text of an IP literal; an IPv4-mapped IPv6 address is the IPv4 one. None for any other text,
    such as one with a zone, or with leading zeros in an octet."""
    if _IPV4.fullmatch(text):
        return text
    if ":" not in text or "%" in text:
        return None
    try:
        address = IPv6Address(text)
    except ValueError:
        return None
    return str(address.ipv4_mapped or address)


def split_host_port(text: str) -> tuple[str, str] | None:
    """Host and port, neither looked at, of `host:port` or `[ip6]:port`; None for any other form. The rules
    are those of Go's net.SplitHostPort."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        good = bool(closed) and colon == ":" and "[" not in host
    else:
        host, colon, port = text.rpartition(":")
        good = bool(colon) and not any(mark in host for mark in ":[]")
    return (host, port) if good and not any(mark in port for mark in ":[]") else None


def _split(path: str) -> tuple[str, int]:
    parts = split_host_port(path)
    if parts is None:
        raise Invalid(f"cannot read {_shown(path)}: write HOST:PORT, an IPv6 address as [IP]:PORT")
    match = _PORT.fullmatch(parts[1])
    if match is None or int(match[1]) > LAST_PORT:
        raise Invalid(f"cannot read {_shown(path)}: a port is a number of 1-{LAST_PORT}")
    return parts[0], int(match[1])


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_NAME else f"{text[:60]}...")


def _client(fields: dict[str, Any]) -> Client | None:
    """None when a known field holds anything but text. Keys are matched without regard to case."""
    found = {"ns": "", "nodename": "", "pod": ""}
    for key, value in fields.items():
        if key.lower() in found and value is not None:
            if not isinstance(value, str):
                return None
            found[key.lower()] = value
    return Client(found["ns"], found["nodename"], found["pod"])
