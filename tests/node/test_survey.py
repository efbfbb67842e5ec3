"""What a look at a pod's listeners and addresses finds, in real namespaces."""

import contextlib
import os
import socket

import msgspec
import pytest

from agent.node.netns import open_netns
from agent.node.survey import survey
from tests.lab.netns import configure, inside, netns, path_of
from tests.node.pods import SPEC

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


@pytest.mark.parametrize(
    ("addresses", "listens", "ipv6", "missing"),
    [
        (("10.7.0.2/24",), "127.0.0.1", False, None),
        (("10.7.0.2/24",), None, False, "(IPv4)"),
        ((), None, False, "(IPv4)"),
        (("10.7.0.2/24", "fd99::2/64"), "127.0.0.1", True, "(IPv6)"),
        (("10.7.0.2/24", "fd99::2/64"), "::1", True, "(IPv4)"),
        (("fd99::2/64",), "::1", True, None),
        (("fd99::2/64",), "127.0.0.1", True, "(IPv6)"),
        (("fd99::2/64",), None, False, "(IPv4)"),
    ],
)
def test_a_proxy_must_listen_in_the_families_of_its_pod(
    addresses: tuple[str, ...], listens: str | None, ipv6: bool, missing: str | None
) -> None:
    spec = msgspec.structs.replace(SPEC, ipv6=ipv6)
    ports = (spec.inbound_port, spec.outbound_port)
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(netns())
        configure(name, "link add eth0 type veth peer name far", "link set far up", "link set eth0 up")
        for address in addresses:
            configure(name, f"addr add {address} dev eth0" + (" nodad" if ":" in address else ""))
        for port in ports if listens else ():
            stack.enter_context(inside(name, lambda port=port: _listener(str(listens), port)))
        fd = open_netns(path_of(name))
        stack.callback(os.close, fd)
        found = [each for each in survey(fd, spec, (), None) if each.reason == "ProxyNotListening"]
    assert [missing in each.message for each in found if missing] == ([True, True] if missing else [])
    assert len(found) == (2 if missing else 0)


@pytest.mark.parametrize(
    ("ips", "complaints"),
    [
        (("10.7.0.2",), 1),
        (("::ffff:10.7.0.2", ""), 1),
        (("",), 0),
        (("10.7.0.300", "fe80::1%eth0", "none"), 0),
        ((), 0),
    ],
)
def test_addresses_of_a_status_that_are_none_say_nothing(ips: tuple[str, ...], complaints: int) -> None:
    with netns() as name:
        configure(name, "link add eth0 type veth peer name net1")
        for link, address in (("eth0", "10.7.0.2/24"), ("net1", "10.8.0.2/24")):
            configure(name, f"link set {link} up", f"addr add {address} dev {link}")
        fd = open_netns(path_of(name))
        try:
            found = [each for each in survey(fd, SPEC, ips, None) if each.reason == "SecondaryInterface"]
        finally:
            os.close(fd)
    assert [each.subject for each in found] == ["net1"] * complaints


def _listener(address: str, port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    one.bind((address, port))
    one.listen()
    return one
