"""Port lists, subnet lists and listen addresses, as people and injectors write them.

Reading never raises and never drops anything silently: what is not understood is handed back,
cut short for messages, beside what is. The text of an entry never reaches a rule: only numbers and
networks that were parsed from it do.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)

import msgspec

from agent.core.reasons import Complaint, Reason

LAST_PORT = 65535

_BLANKS = " \t"
_NAMED_LENGTH = 40
_ENTRY = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_UPSTREAM_ENTRY = re.compile(r"\+?0*([0-9]{1,5})(?:-\+?0*([0-9]{1,5}))?")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
_LISTEN = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([0-9.]{7,15})):([0-9]{1,5})")
_CIDR = re.compile(_ADDRESS.pattern + r"/[0-9]{1,3}")

Range = tuple[int, int]


class PortSet(msgspec.Struct, frozen=True):
    """A set of TCP ports: inclusive ranges, ascending, neither overlapping nor adjacent.

    Equal sets are equal values. `of` takes ports and ranges in any order; the constructor raises
    ValueError for ranges that are not in the form above.
    """

    ranges: tuple[Range, ...] = ()

    def __post_init__(self) -> None:
        last = -2
        for low, high in self.ranges:
            if not last + 1 < low <= high <= LAST_PORT:
                raise ValueError(
                    f"cannot take {low}-{high}: ranges must ascend with gaps, within 0-{LAST_PORT}"
                )
            last = high

    @classmethod
    def of(cls, *ports: int | Range) -> "PortSet":
        """The set of these ports and inclusive `(low, high)` ranges."""
        return cls(_merge((port, port) if isinstance(port, int) else port for port in ports))

    def __contains__(self, port: int) -> bool:
        at = bisect_right(self.ranges, (port, LAST_PORT)) - 1
        return at >= 0 and port <= self.ranges[at][1]

    def __or__(self, other: "PortSet") -> "PortSet":
        return PortSet(_merge((*self.ranges, *other.ranges)))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ",".join(self.elements())

    @property
    def everything(self) -> bool:
        """True when no port is left out; port 0, which nobody can use, does not count."""
        return (self | PortSet.of(0)).ranges == ((0, LAST_PORT),)

    def elements(self) -> tuple[str, ...]:
        """One text per range, as nftables and Linkerd both write it: `22`, `9000-9010`."""
        return tuple(f"{low}" if low == high else f"{low}-{high}" for low, high in self.ranges)


class ParsedPorts(msgspec.Struct, frozen=True):
    """What a port list says.

    `invalid`: entries that were rejected. `differs`: entries that are in `ports`, but that
    linkerd-init would have dropped. Both hold each entry once, cut to a length fit for messages.
    `blank`: something was written, but no entry: only blanks and commas.
    """

    ports: PortSet = PortSet()
    invalid: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    blank: bool = False


class Subnets(msgspec.Struct, frozen=True):
    """Networks of both families in canonical form (`10.0.0.0/8`), collapsed and ascending."""

    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.v4 or self.v6)

    def __str__(self) -> str:
        return ",".join((*self.v4, *self.v6))


class ParsedSubnets(msgspec.Struct, frozen=True):
    """What a subnet list says; `invalid` and `blank` as in ParsedPorts.

    `bare`: for those of `invalid` that are addresses without a prefix length, what to write instead.
    """

    subnets: Subnets = Subnets()
    invalid: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    blank: bool = False


class ListenAddress(msgspec.Struct, frozen=True):
    """Where a proxy listens: IP version 4 or 6, and a port of 1-65535."""

    version: int
    port: int


def parse_ports(value: object) -> ParsedPorts:
    """Read `22,9000-9010`, `22`, or a list of such texts and numbers. Never raises.

    Blanks around an entry are accepted; empty entries say nothing; None is an empty list.
    """
    ranges: list[Range] = []
    invalid: dict[str, None] = {}
    differs: dict[str, None] = {}
    for entry in _entries(value):
        found = _range(entry)
        if found is None:
            invalid[_shorten(entry)] = None
            continue
        ranges.append(found)
        if isinstance(entry, str) and entry != entry.strip(_BLANKS):
            differs[_shorten(entry)] = None
    blank = bool(value) and not ranges and not invalid
    return ParsedPorts(PortSet(_merge(ranges)), tuple(invalid), tuple(differs), blank)


def upstream_ports(text: str) -> PortSet:
    """What linkerd-init makes of a list: no blanks are trimmed, what does not parse is dropped."""
    ranges: list[Range] = []
    for entry in text.split(","):
        if match := _UPSTREAM_ENTRY.fullmatch(entry):
            low, high = int(match[1]), int(match[2] or match[1])
            if low <= high <= LAST_PORT:
                ranges.append((low, high))
    return PortSet(_merge(ranges))


def parse_subnets(value: object) -> ParsedSubnets:
    """Read `10.0.0.0/8, fd99::/64` or a list of such texts. Never raises.

    Host bits may be set. An address without a prefix length is rejected, and named in `bare`.
    """
    v4: list[IPv4Network] = []
    v6: list[IPv6Network] = []
    invalid: dict[str, None] = {}
    bare: dict[str, None] = {}
    for entry in _entries(value):
        network = _network(entry)
        if isinstance(network, IPv4Network):
            v4.append(network)
        elif isinstance(network, IPv6Network):
            v6.append(network)
        else:
            invalid[_shorten(entry)] = None
            if address := _bare_address(entry):
                bare[address] = None
    blank = bool(value) and not v4 and not v6 and not invalid
    subnets = Subnets(tuple(map(str, collapse_addresses(v4))), tuple(map(str, collapse_addresses(v6))))
    return ParsedSubnets(subnets, tuple(invalid), tuple(bare), blank)


def parse_listen(text: str) -> tuple[ListenAddress, ...] | None:
    """Read `127.0.0.1:4140,[::1]:4140`. None if any part is no literal address with a port.

    That is what the proxy demands too: it does not start with half of a list. Never raises.
    """
    found: list[ListenAddress] = []
    for entry in text.split(","):
        match = _LISTEN.fullmatch(entry.strip(_BLANKS))
        if match is None or not 1 <= int(match[3]) <= LAST_PORT:
            return None
        try:
            address = IPv6Address(match[1]) if match[1] else IPv4Address(match[2])
        except ValueError:
            return None
        found.append(ListenAddress(address.version, int(match[3])))
    return tuple(found)


def named(entries: Sequence[str]) -> str:
    """Entries quoted for a message, whatever they hold; long ones are cut, and at most eight are named."""
    text = ", ".join(repr(_shorten(entry)) for entry in entries[:8])
    return text if len(entries) <= 8 else f"{text} and {len(entries) - 8} more"


def list_complaints(parsed: ParsedPorts | ParsedSubnets, subject: str, where: str) -> Iterator[Complaint]:
    """What a person should know about a list that they wrote as `subject`, on `where`."""
    if parsed.blank:
        message = f"cannot find an entry ({where}): the list is empty"
        remedy = 'write "" for an empty list, or remove the annotation'
        yield Complaint(Reason.INVALID_ANNOTATION, subject, message, remedy)
    if parsed.invalid:
        applied = parsed.ports if isinstance(parsed, ParsedPorts) else parsed.subnets
        rest = "the rest is applied" if applied else "nothing is left, the list is empty"
        message = f"cannot read {named(parsed.invalid)} ({where}): {rest}"
        remedy = "write ports and ranges, such as 25,9000-9010"
        if isinstance(parsed, ParsedSubnets):
            remedy = f"write {','.join(parsed.bare[:8]) or 'networks, such as 10.0.0.0/8'}"
        yield Complaint(Reason.INVALID_ANNOTATION, subject, message, remedy)
    if isinstance(parsed, ParsedPorts) and parsed.differs:
        message = f"cannot be read by linkerd-init: {named(parsed.differs)} ({where}); here it is applied"
        yield Complaint(Reason.PORTS_DIFFER, subject, message, "remove the blanks around the commas")


def _merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _entries(value: object) -> Iterator[object]:
    """The entries that say something: texts cut at commas but not trimmed, anything else as it is."""
    if value is None:
        return
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, str):
            yield from (entry for entry in item.split(",") if entry.strip(_BLANKS))
        else:
            yield item


def _range(entry: object) -> Range | None:
    if isinstance(entry, int) and not isinstance(entry, bool):
        low = high = entry
    elif isinstance(entry, str) and (match := _ENTRY.fullmatch(entry.strip(_BLANKS))):
        low, high = int(match[1]), int(match[2] or match[1])
    else:
        return None
    return (low, high) if 0 <= low <= high <= LAST_PORT else None


def _network(entry: object) -> IPv4Network | IPv6Network | None:
    if not isinstance(entry, str) or not _CIDR.fullmatch(text := entry.strip(_BLANKS)):
        return None
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _bare_address(entry: object) -> str | None:
    """`10.1.2.3/32` for the text `10.1.2.3`, None for anything that is no address."""
    if not isinstance(entry, str) or not _ADDRESS.fullmatch(text := entry.strip(_BLANKS)):
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return f"{address}/{address.max_prefixlen}"


def _shorten(entry: object) -> str:
    """An entry for a message. Only texts and small numbers are printed; hostile values are not."""
    if isinstance(entry, str):
        return entry if len(entry) <= _NAMED_LENGTH else f"{entry[:20]}... ({len(entry)} characters)"
    if isinstance(entry, int) and entry.bit_length() <= 64:
        return str(entry)
    return f"a value of type {type(entry).__name__}"
