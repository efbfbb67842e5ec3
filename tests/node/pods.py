"""One pod's table, as the tests of the datapath make it, look at it and tamper with it."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator

from agent.core.names import TABLE
from agent.core.ports import PortSet, Subnets
from agent.core.ruleset import render
from agent.core.spec import RedirectSpec
from agent.node.netns import open_netns, run_in
from agent.node.nft.compile import Template
from agent.node.nft.datapath import Applied, NftDatapath
from agent.node.nft.socket import Nft
from tests.lab.netns import path_of, run

PLAIN = 0

SPEC = RedirectSpec(
    inbound_port=4143,
    outbound_port=4140,
    proxy_uid=2102,
    proxy_gid=None,
    skip_inbound=PortSet.of(22, (9000, 9010)),
    proxy_ports=PortSet.of(4190, 4191),
    skip_outbound=PortSet.of((4567, 4568), 5432),
    skip_subnets=Subnets(v4=("10.0.0.0/8",), v6=("fd00::/8",)),
    only_inbound=None,
    ipv6=True,
    local_only=True,
)
TEXT = render(SPEC)


def listener() -> Nft:
    return Nft(events=True)


def opened(name: str, make: Callable[[], Nft] = listener) -> Nft:
    """A socket inside the namespace `name`; the caller closes it."""
    fd = open_netns(path_of(name))
    try:
        return run_in(fd, make)
    finally:
        os.close(fd)


@contextlib.contextmanager
def socket_in(name: str, make: Callable[[], Nft] = listener) -> Iterator[Nft]:
    with contextlib.closing(opened(name, make)) as nl:
        yield nl


def apply(nl: Nft, template: Template, flags: int) -> Applied:
    return NftDatapath().apply(nl, template, flags)


def nft(name: str, script: str) -> str:
    return run("ip", "netns", "exec", name, "nft", "-f", "-", script=script)


def listing(name: str) -> str:
    """The table with handles and counter values; who owns it is in the first lines."""
    return run("ip", "netns", "exec", name, "nft", "-a", "list", "table", "inet", TABLE)


def handles(name: str) -> dict[str, str]:
    """Handle of every table, chain, set and counter. Those of rules move when rules are rewritten."""
    found = re.findall(
        r"^\t?(table|chain|set|counter)(?: inet)? (\S+) \{ # (?:.*)handle (\d+)", listing(name), re.M
    )
    return {f"{kind} {named}": handle for kind, named, handle in found}


def values(nl: Nft) -> dict[str, tuple[int, int]]:
    return {key: value for key, value in nl.read(TABLE).counters.items() if value != (0, 0)}


def with_values(name: str, text: str) -> None:
    """Install a text by nft, as a table whose counters have counted already."""
    nft(name, text.replace("counter out_redirect { }", "counter out_redirect { packets 7 bytes 420 }"))
