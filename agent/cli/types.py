"""Parameter types: strict, and each refusal names a valid example."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import click

from agent.core.names import PodKey
from agent.core.ports import PortSet, Subnets, parse_ports, parse_subnets
from agent.core.redirect import LAST_ID

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]{1,10}")  # Python refuses to read numbers of thousands of digits
_UNITS = {"s": 1, "m": 60, "h": 3600}

IP = IPv4Address | IPv6Address


class Port(click.ParamType[int, object]):
    """One TCP port, 1 to 65535."""

    name = "port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (_NUMBER.fullmatch(text) and 1 <= int(text) <= 65535):
            self.fail(f"cannot take {text[:40]!r} as a port; write a number such as 4143", param, ctx)
        return int(text)


class Id(click.ParamType[int, object]):
    """A user or group id; `least` is 0, or -1 where that means none."""

    name = "id"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (_NUMBER.fullmatch(text.removeprefix("-")) and self._least <= int(text) <= LAST_ID):
            self.fail(f"cannot take {text[:40]!r} as an id; write a number such as 2102", param, ctx)
        return int(text)


class NamespaceList(click.ParamType[frozenset[str], object]):
    """Names of Kubernetes namespaces, comma separated; "" is the empty list."""

    name = "namespaces"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        found = frozenset(name.strip() for name in str(value).split(",") if name.strip())
        for name in sorted(found):
            if not _LABEL.fullmatch(name):
                self.fail(
                    f"cannot take {name[:80]!r} as a namespace; write a list such as kube-system,ci",
                    param,
                    ctx,
                )
        return found


class Ports(click.ParamType[PortSet, object]):
    """A list of ports and ranges; "" is the empty list."""

    name = "ports"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> PortSet:
        if isinstance(value, PortSet):
            return value
        parsed = parse_ports(value)
        if parsed.invalid:
            bad = ", ".join(repr(entry) for entry in parsed.invalid)
            self.fail(f"cannot take {bad} as ports; write a list such as 25,4567-4568", param, ctx)
        return parsed.ports


class SubnetList(click.ParamType[Subnets, object]):
    """A list of CIDRs of both families; "" is the empty list."""

    name = "subnets"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Subnets:
        if isinstance(value, Subnets):
            return value
        parsed = parse_subnets(value)
        if parsed.invalid:
            bad = ", ".join(repr(entry) for entry in parsed.invalid)
            self.fail(
                f"cannot take {bad} as subnets; write a list such as 172.17.0.0/16,fd00::/8", param, ctx
            )
        return parsed.subnets


class Address(click.ParamType[tuple[str, int] | None, object]):
    """HOST:PORT of a listener, or "" for none."""

    name = "address"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int] | None:
        text = str(value)
        if text == "":
            return None
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not _NUMBER.fullmatch(port) or int(port) > 65535:
            self.fail(
                f"cannot take {text[:80]!r} as an address; write 127.0.0.1:4187 or [::1]:4187", param, ctx
            )
        return host, int(port)


class FilesDirectory(click.ParamType[Path, object]):
    """files:DIR, where DIR exists."""

    name = "source"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        kind, _, place = str(value).partition(":")
        if kind != "files" or not place:
            self.fail(f"cannot take {value!r} as a source; write files:/etc/pointsman/manifests", param, ctx)
        path = Path(place)
        if not path.is_dir():
            self.fail(f"cannot read {path}: there is no such directory; make it, or name another", param, ctx)
        return path


class Seconds(click.ParamType[float, object]):
    """A duration in seconds: at least `least`, and above zero."""

    name = "seconds"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        unit = _UNITS.get(text[-1:])
        try:
            seconds = float(text[:-1] if unit else text) * (unit or 1)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e6 or seconds < self._least:
            least = f" of at least {self._least:g}" if self._least else ""
            example = "5, 30 or 10m" if self._least >= 1 else "2, 0.5 or 10m"
            self.fail(
                f"cannot take {text[:40]!r} as seconds; write a number{least}, such as {example}", param, ctx
            )
        return seconds


class PodName(click.ParamType[PodKey, object]):
    """NAMESPACE/POD."""

    name = "pod"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> PodKey:
        if isinstance(value, PodKey):
            return value
        namespace, _, name = str(value).partition("/")
        if not namespace or not name or "/" in name:
            self.fail(
                f"cannot take {str(value)[:80]!r} as a pod; write NAMESPACE/POD, such as default/web",
                param,
                ctx,
            )
        return PodKey(namespace, name)


class IpAddress(click.ParamType[IP, object]):
    """An IPv4 or IPv6 address; IPv4 inside IPv6 is IPv4, as it is on the wire."""

    name = "ip"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> IP:
        address = _address(str(value))
        if address is None:
            self.fail(
                f"cannot take {str(value)[:80]!r} as an IP address; write 10.1.2.3 or fd00::1", param, ctx
            )
        return address


class Endpoint(click.ParamType[tuple[IP, int], object]):
    """IP:PORT, with an IPv6 address in brackets."""

    name = "ip:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[IP, int]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        host, _, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        address = _address(host[1:-1] if bracketed else host)
        right = address is not None and bracketed == (":" in host)
        if address is None or not right or not (_NUMBER.fullmatch(port) and 1 <= int(port) <= 65535):
            self.fail(
                f"cannot take {text[:80]!r} as a destination; write 10.1.2.3:80 or [fd00::1]:443", param, ctx
            )
        return address, int(port)


def _address(text: str) -> IP | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
