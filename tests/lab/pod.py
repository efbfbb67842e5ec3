"""A pod's network namespace wired to the rest of the world, as a point-to-point CNI plugin would do it.

    inner ---- inner0 [pod] eth0 ---- eth0 [world]

Every address is a host address with routes of its own, so that no subnet of the lab can meet one of a test.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.lab.addresses import FAMILIES, Addresses, Family, family_of, host_prefix
from tests.lab.netns import USER_NAMESPACE_BASE, configure, inside, netns, path_of, user_netns

_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
}

# A prefix route through lo is a reject route: until the local route is there, it would refuse packets.
_IPV6_ADDRESS = " nodad noprefixroute"


class Link(msgspec.Struct, frozen=True):
    """A veth pair of the pod: `here` are its own addresses on it by family, `there` those of the far end.

    `far` is the namespace at the far end.
    """

    name: str
    far: str
    here: dict[Family, str]
    there: dict[Family, str]


class Pod:
    """The namespaces `name` (the pod), `world` and, once asked for, one behind the pod.

    `uid_base` is the host uid of the pod's uid 0.
    """

    def __init__(self, name: str, world: str, addresses: Addresses, uid_base: int = 0) -> None:
        self.name = name
        self.world = world
        self.uid_base = uid_base
        self._addresses = addresses
        self._links: dict[str, Link] = {}
        self._held: set[tuple[str, str]] = set()
        self._stack = contextlib.ExitStack()

    @property
    def path(self) -> Path:
        """The pod's namespace file."""
        return path_of(self.name)

    @property
    def address(self) -> dict[Family, str]:
        """The pod's own addresses on eth0."""
        return self._links["eth0"].here

    def link(self, interface: str, own: dict[Family, str] | None = None) -> Link:
        """The pod's `interface` towards the world; made, with `own` as its addresses, when it is missing."""
        if interface not in self._links:
            self._links[interface] = self._wire(interface, self.world, interface, own or {})
        return self._links[interface]

    def inner(self) -> Link:
        """The link to a namespace behind the pod, as docker in docker has; made when it is missing."""
        if "inner0" not in self._links:
            name = self._stack.enter_context(netns())
            link = self._links["inner0"] = self._wire("inner0", name, "eth0", {})
            configure(name, *_default_routes(link.here))
        return self._links["inner0"]

    def owns(self, name: str, address: str) -> bool:
        """Whether `address` is local in the namespace `name`, which is one of the lab's."""
        if (name, address) in self._held:
            return True
        ends = [(self.name, link.here) for link in self._links.values()]
        ends += [(link.far, link.there) for link in self._links.values()]
        return any(each == name and address in end.values() for each, end in ends)

    @contextlib.contextmanager
    def holding(self, name: str, address: str) -> Iterator[None]:
        """Make `address` local in the namespace `name` (on its `lo`) for as long as the context lasts.

        Raises RuntimeError with the words of `ip` when the kernel refuses the address.
        """
        if self.owns(name, address):
            yield
            return
        options = _IPV6_ADDRESS if family_of(address) == 6 else ""
        configure(name, f"addr add {host_prefix(address)} dev lo{options}")
        self._held.add((name, address))
        try:
            inside(name, lambda: _await_local(address))
            yield
        finally:
            self._held.discard((name, address))
            configure(name, f"addr del {host_prefix(address)} dev lo")

    @contextlib.contextmanager
    def routing(self, link: Link, address: str) -> Iterator[None]:
        """Send what the pod sends to `address` through `link`, for as long as the context lasts."""
        via = link.there[family_of(address)]
        with _route(self.name, address, via, link.name):
            yield

    @contextlib.contextmanager
    def routing_back(self, address: str) -> Iterator[None]:
        """Send what the world sends to `address` to the pod, for as long as the context lasts."""
        with _route(self.world, address, self.address[family_of(address)], "eth0"):
            yield

    def close(self) -> None:
        """Remove the namespace behind the pod, if there is one."""
        self._stack.close()

    def _wire(self, interface: str, far: str, far_interface: str, own: dict[Family, str]) -> Link:
        mac_here, mac_there = (f"02:00:00:00:{len(self._links):02x}:0{end}" for end in (1, 2))
        inside(far, _set_sysctls)
        link = Link(
            name=interface,
            far=far,
            here={family: own.get(family) or self._addresses.fresh(family) for family in FAMILIES},
            there={family: self._addresses.fresh(family) for family in FAMILIES},
        )
        configure(
            self.name,
            f"link add {interface} address {mac_here}"
            f" type veth peer name {far_interface} address {mac_there} netns {far}",
            f"link set {interface} up",
        )
        configure(far, f"link set {far_interface} up", *_end(far_interface, link.there, link.here, mac_here))
        configure(self.name, *_end(interface, link.here, link.there, mac_there))
        inside(far, lambda: _await_local(link.there[6]))
        inside(self.name, lambda: _await_local(link.here[6]))
        return link


def _await_local(address: str) -> None:
    """Wait until packets to `address` are delivered: a new IPv6 address gets its route a moment later."""
    kind = socket.AF_INET6 if family_of(address) == 6 else socket.AF_INET
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        # To a local address the kernel goes by the local route, and from that very address.
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as looking:
            looking.connect((address, 9))
            if looking.getsockname()[0] == address:
                return
        time.sleep(0.0005)
    raise RuntimeError(f"cannot use {address}: it is not local 2 s after it was added")


def _end(interface: str, own: dict[Family, str], far: dict[Family, str], far_mac: str) -> Iterator[str]:
    """Commands for one end of a link: addresses, the neighbour, and a route to it."""
    for family in FAMILIES:
        yield f"addr add {host_prefix(own[family])} dev {interface}" + (_IPV6_ADDRESS if family == 6 else "")
        yield f"neigh replace {far[family]} lladdr {far_mac} dev {interface} nud permanent"
        yield f"route add {host_prefix(far[family])} dev {interface}"


def _default_routes(via: dict[Family, str]) -> Iterator[str]:
    yield f"route add 0.0.0.0/0 via {via[4]} dev eth0"
    yield f"route add ::/0 via {via[6]} dev eth0"


@contextlib.contextmanager
def _route(name: str, address: str, via: str, interface: str) -> Iterator[None]:
    if address == via:  # the link has a route to its far end already
        yield
        return
    configure(name, f"route add {host_prefix(address)} via {via} dev {interface}")
    try:
        yield
    finally:
        configure(name, f"route del {host_prefix(address)} via {via} dev {interface}")


def _set_sysctls() -> None:
    for name, value in _SETTINGS.items():
        Path("/proc/sys", name).write_text(value)


@contextlib.contextmanager
def pod_and_world(
    addresses: Addresses | None = None, own: dict[Family, str] | None = None, *, user_namespace: bool = False
) -> Iterator[Pod]:
    """A pod with one interface, eth0; `own` are its addresses where they are given.

    `user_namespace`: the pod's network namespace belongs to a user namespace of its own (hostUsers: false).
    """
    with user_netns() if user_namespace else netns() as name, netns() as world:
        pod = Pod(name, world, addresses or Addresses(), USER_NAMESPACE_BASE if user_namespace else 0)
        with contextlib.closing(pod):
            inside(name, _set_sysctls)
            configure(name, *_default_routes(pod.link("eth0", own).there))
            yield pod
