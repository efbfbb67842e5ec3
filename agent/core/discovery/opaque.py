"""Lists of opaque ports, which may name ports besides numbering them."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from agent.core.discovery.names import OPAQUE_PORTS
from agent.core.ports import ParsedPorts, PortSet, list_complaints, parse_ports
from agent.core.reasons import Complaint

Named = tuple[tuple[str, int], ...]

_LONGEST_CACHED = 256


def parse_opaque(text: str, ports: Mapping[str, int]) -> ParsedPorts:
    """Read `http,3306,9000-9010`. `ports`: what the names of the object's own ports stand for; a name wins
    over the reading as a number or range. `""` is an empty list. Never raises."""
    entries = [entry.strip() for entry in text.split(",")]
    read = parse_ports([ports.get(entry, entry) for entry in entries if entry])
    return read if any(entries) or not text else ParsedPorts(blank=True)


@lru_cache(maxsize=4096)
def _cached(text: str, ports: Named) -> ParsedPorts:
    """Most lists are written by the injector, alike for thousands of objects."""
    return parse_opaque(text, dict(ports))


def _parsed(text: str, ports: Named) -> ParsedPorts:
    return _cached(text, ports) if len(text) <= _LONGEST_CACHED else parse_opaque(text, dict(ports))


def opaque_ports(text: str, ports: Named) -> PortSet:
    """The ports of a list that was written for many objects, for the one whose ports have these names."""
    return _parsed(text, ports).ports


def read_opaque(
    annotations: Mapping[str, str], ports: Mapping[str, int], where: str
) -> tuple[PortSet | None, Iterator[Complaint]]:
    """The list that an object carries itself, None where it carries none; and what is wrong with it."""
    text = annotations.get(OPAQUE_PORTS)
    if text is None:
        return None, iter(())
    parsed = _parsed(text, tuple(ports.items()))
    return parsed.ports, list_complaints(parsed, OPAQUE_PORTS, where)
