"""Addresses and per-namespace settings of a pod's network namespace, read and written from the host.

Every function runs in a throw-away thread inside the namespace (`run_in`). pyroute2 sockets are
opened there, without its `netns=` argument: that argument forks a child process per socket.
"""

import errno
import os
import socket
from pathlib import Path

import msgspec
from pyroute2 import IPRoute, NetlinkError

from agent.node.netns import run_in

SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
CLOSE_WAIT = "net.netfilter.nf_conntrack_tcp_timeout_close_wait"
CLOSE_WAIT_FILE = ("sys", *CLOSE_WAIT.split("."))
CLOSE_WAIT_MAX = 0x7FFFFFFF // 1000
"""Seconds; the kernel keeps the value in jiffies, in a signed 32 bit number, at 1000 Hz at most."""


class InterfaceAddress(msgspec.Struct, frozen=True, order=True):
    """One address of one interface: `interface` is its name, `address` has no prefix length.

    `scope` is "global", "site", "link", "host" or, for a scope without a name, its number.
    """

    interface: str
    address: str
    scope: str


class AddressesUnreadableError(OSError):
    """rtnetlink refused the dump of addresses. `errno` is the kernel's answer."""


class SysctlError(OSError):
    """A sysctl could not be read or set. `errno` tells why; the message has the remedy."""


def addresses(netns_fd: int) -> tuple[InterfaceAddress, ...]:
    """All addresses of all interfaces of the namespace, whatever their kind; () when there are none.

    For a point-to-point address it is the local end. Raises AddressesUnreadableError, and what
    `run_in` raises when the namespace cannot be entered.
    """
    try:
        return run_in(netns_fd, _addresses)
    except NetlinkError as error:
        raise AddressesUnreadableError(
            error.code, f"cannot list addresses by rtnetlink: {os.strerror(error.code)}"
        ) from error


def set_close_wait(netns_fd: int, seconds: int, proc: str = "/proc") -> None:
    """Set how long conntrack keeps a half-closed connection of this namespace, in seconds.

    `proc` is a mount of procfs. Raises SysctlError: EROFS or EACCES where its sys/net cannot be written
    (the usual case in a container that is not privileged), ENOENT when conntrack is not loaded, EINVAL
    for a number outside 1 to CLOSE_WAIT_MAX.
    """
    if not 1 <= seconds <= CLOSE_WAIT_MAX:
        raise SysctlError(
            errno.EINVAL, f"cannot set {CLOSE_WAIT} to {seconds}: write 1 to {CLOSE_WAIT_MAX} seconds"
        )
    run_in(netns_fd, lambda: _write_close_wait(Path(proc, *CLOSE_WAIT_FILE), seconds))


def _addresses() -> tuple[InterfaceAddress, ...]:
    names = dict(socket.if_nameindex())
    with IPRoute() as rtnetlink:
        return tuple(
            InterfaceAddress(
                # An interface can come between the two look-ups; its number then stands for the name.
                interface=names.get(entry["index"], str(entry["index"])),
                address=entry.get("IFA_LOCAL") or entry.get("IFA_ADDRESS"),
                scope=SCOPES.get(entry["scope"], str(entry["scope"])),
            )
            for entry in rtnetlink.get_addr()
        )


def _write_close_wait(path: Path, seconds: int) -> None:
    try:
        # Without O_CREAT: a missing file must stay ENOENT, procfs would answer EACCES.
        with path.open("r+") as file:
            file.write(str(seconds))
    except OSError as error:
        raise SysctlError(
            error.errno, f"cannot set {CLOSE_WAIT} to {seconds}: {error.strerror}; {_remedy(error.errno)}"
        ) from error


def _remedy(number: int | None) -> str:
    if number == errno.ENOENT:
        return "the kernel has no conntrack yet: set it after the redirect rules are in place"
    return "mount the host's /proc writable into the agent's container, or remove the annotation"
