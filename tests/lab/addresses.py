"""Addresses that a lab may use, chosen so that they never meet an address or a subnet of the test."""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import Literal

Family = Literal[4, 6]
FAMILIES: tuple[Family, Family] = (4, 6)

_CANDIDATES: dict[Family, tuple[str, ...]] = {
    4: ("198.18.77.0/24", "203.0.113.0/24", "100.101.102.0/24", "10.213.47.0/24", "172.29.61.0/24"),
    6: ("2001:db8:77::/120", "fd5a:77::/120", "fc77::/120", "2001:2:77::/120"),
}


def family_of(address: str) -> Family:
    """4 or 6. Raises ValueError for anything that is not an address."""
    return ipaddress.ip_address(address).version


def host_prefix(address: str) -> str:
    """`address` with its full prefix length, /32 or /128."""
    return f"{address}/{ipaddress.ip_address(address).max_prefixlen}"


class Addresses:
    """An endless-enough supply (about 250 of each family) of unused host addresses.

    `avoid` holds addresses and networks as text. Where every candidate network lies inside an avoided one
    (0.0.0.0/0), single addresses are still avoided.
    """

    def __init__(self, avoid: Iterable[str] = ()) -> None:
        self._avoid = [ipaddress.ip_network(text, strict=False) for text in avoid]
        self._hosts = {family: self._choose(family) for family in _CANDIDATES}

    def fresh(self, family: Family) -> str:
        """An address that nobody has got from here before. Raises StopIteration when all are used up."""
        return next(self._hosts[family])

    def _choose(self, family: Family) -> Iterator[str]:
        avoid = [network for network in self._avoid if network.version == family]
        candidates = [ipaddress.ip_network(text) for text in _CANDIDATES[family]]
        free = [net for net in candidates if not any(net.overlaps(other) for other in avoid)]
        taken = {network.network_address for network in avoid if network.num_addresses == 1}
        return (str(host) for host in (free or candidates)[0].hosts() if host not in taken)
