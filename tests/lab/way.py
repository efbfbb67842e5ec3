"""Where a connection of a test starts and ends, and what has to be laid so that it can be real traffic."""

import contextlib
import ipaddress
import itertools
from collections.abc import Iterator
from typing import Literal

import msgspec

from tests.lab.addresses import Family
from tests.lab.pod import Pod

# Below the ephemeral range, each used once in 12,768. With a port that an older connection has left in
# connection tracking, a redirected connection may clash; the kernel then gives it another source port.
source_ports = itertools.cycle(range(20_000, 32_768))

_LOOPBACK = {4: "127.0.0.1", 6: "::1"}


class NotOnAWireError(Exception):
    """A connection that no real packet can be; the message says why."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One connection to be made: direction as the pod sees it, `port` its destination port.

    Addresses that are None are chosen by the lab. `uid` and `gid` are those of the pod's process, as the pod
    sees them; a `gid` of None is one that nothing else uses. `mapped`: IPv4 through an IPv6 socket.
    """

    direction: Literal["in", "out"]
    port: int | None = None
    protocol: str = "tcp"
    family: Family = 4
    source: str | None = None
    destination: str | None = None
    uid: int = 1000
    gid: int | None = None
    interface: str = "eth0"
    syn: bool = True
    mapped: bool = False


class Way(msgspec.Struct, frozen=True):
    """A laid way: namespaces of both ends, and the addresses that the packet will carry.

    `source` is None where the kernel chooses it. `forwarded`: through the pod, not to it.
    """

    start: str
    end: str
    source: str | None
    destination: str
    forwarded: bool = False


@contextlib.contextmanager
def laid(pod: Pod, probe: Probe) -> Iterator[Way]:
    """Addresses and routes for `probe`, for as long as the context lasts. Raises NotOnAWireError."""
    _check(probe)
    with contextlib.ExitStack() as stack:
        lay = _out if probe.direction == "out" else _in
        try:
            way = lay(pod, probe, stack)
        except RuntimeError as error:
            raise NotOnAWireError(str(error)) from error
        yield way


def _out(pod: Pod, probe: Probe, stack: contextlib.ExitStack) -> Way:
    if probe.source:
        stack.enter_context(pod.holding(pod.name, probe.source))
    if probe.interface == "lo":
        destination = probe.destination or _LOOPBACK[probe.family]
        if not ipaddress.ip_address(destination).is_loopback:
            stack.enter_context(pod.holding(pod.name, destination))
        return Way(pod.name, pod.name, probe.source, destination)
    link = pod.link(probe.interface)
    destination = probe.destination or link.there[probe.family]
    if ipaddress.ip_address(destination).is_loopback or pod.owns(pod.name, destination):
        raise NotOnAWireError(f"the kernel sends {destination} over lo, never over {probe.interface}")
    stack.enter_context(pod.holding(pod.world, destination))
    if probe.interface != "eth0":
        stack.enter_context(pod.routing(link, destination))
    if probe.source and probe.source != pod.address[probe.family]:
        stack.enter_context(pod.routing_back(probe.source))
    return Way(pod.name, pod.world, probe.source, destination)


def _in(pod: Pod, probe: Probe, stack: contextlib.ExitStack) -> Way:
    if probe.interface == "lo":
        raise NotOnAWireError("nothing from outside arrives on lo")
    link = pod.link(probe.interface)
    destination = probe.destination or link.here[probe.family]
    if probe.source and (ipaddress.ip_address(probe.source).is_loopback or pod.owns(pod.name, probe.source)):
        raise NotOnAWireError(f"a packet from {probe.source} cannot arrive from outside")
    if ipaddress.ip_address(destination).is_loopback:
        raise NotOnAWireError(f"a packet to {destination} cannot arrive from outside")
    if pod.owns(pod.name, destination):
        source = probe.source or link.there[probe.family]
        stack.enter_context(pod.holding(pod.world, source))
        return Way(pod.world, pod.name, source, destination)
    return _through(pod, probe, destination, stack)


def _through(pod: Pod, probe: Probe, destination: str, stack: contextlib.ExitStack) -> Way:
    """From a namespace behind the pod to the world, as a container of docker in docker sends."""
    inner = pod.inner()
    source = probe.source or inner.there[probe.family]
    stack.enter_context(pod.holding(inner.far, source))
    stack.enter_context(pod.routing(inner, source))
    stack.enter_context(pod.holding(pod.world, destination))
    stack.enter_context(pod.routing_back(source))
    return Way(inner.far, pod.world, source, destination, forwarded=True)


def _check(probe: Probe) -> None:
    for address in filter(None, (probe.source, probe.destination)):
        parsed = ipaddress.ip_address(address)
        if parsed.version != probe.family:
            raise NotOnAWireError(f"{address} is no address of IPv{probe.family}")
        if parsed.is_multicast or parsed.is_unspecified or address == "255.255.255.255":
            raise NotOnAWireError(f"{address} is not the address of one host")
        if parsed.version == 6 and parsed.is_link_local:
            raise NotOnAWireError(f"{address} has no meaning beyond one link")
