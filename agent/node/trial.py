"""A trial connection from inside a pod's netns: proof that outbound TCP is redirected, not only that
rules are there.

The address is reserved for documentation and never answers. The SYN passes the output hook before
`connect` returns, so the kernel's counter tells at once, whether or not a proxy listens.
"""

import errno
import os
import socket

import msgspec

from agent.core.spec import RedirectSpec
from agent.node.hold import Hold
from agent.node.netns import run_in
from agent.node.visit import read_counters

TARGETS = {socket.AF_INET: "192.0.2.2", socket.AF_INET6: "2001:db8::2"}
FIRST_PORT = 1404
NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL}


class Trial(msgspec.Struct, frozen=True):
    """`result`: "redirected", "escaped" or "unverifiable"; `why` in one sentence."""

    result: str
    why: str


def trial(hold: Hold, spec: RedirectSpec) -> Trial:
    """Try one connection and compare the counter of redirected connections before and after.

    By IPv4; by IPv6, if that is redirected, where the pod has no route for IPv4.
    """
    port = next((p for p in range(FIRST_PORT, 1 << 16) if p not in spec.skip_outbound), None)
    if port is None:
        return Trial("unverifiable", "every outbound port is skipped")
    if spec.proxy_uid == 0:
        return Trial("unverifiable", "the proxy runs as root, as this trial does, and is exempt")
    if spec.hold_outbound:
        return Trial("unverifiable", "outbound is held back until the proxy listens")
    first = _try(hold, socket.AF_INET, port)
    return _try(hold, socket.AF_INET6, port) if first.result == "unverifiable" and spec.ipv6 else first


def _try(hold: Hold, family: socket.AddressFamily, port: int) -> Trial:
    target = TARGETS[family]
    before = read_counters(hold).get("out_redirect", 0)
    code = run_in(hold.fd, lambda: _connect(family, port))
    after = read_counters(hold).get("out_redirect", 0)
    where = f"[{target}]:{port}" if family is socket.AF_INET6 else f"{target}:{port}"
    if after > before:
        return Trial("redirected", f"a connection to {where} was counted by out_redirect")
    if code in NO_ROUTE:
        return Trial("unverifiable", f"the pod has no route to {target}: {os.strerror(code)}")
    return Trial("escaped", f"a connection to {where} was not counted by out_redirect")


def _connect(family: socket.AddressFamily, port: int) -> int:
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
        return one.connect_ex((TARGETS[family], port))
