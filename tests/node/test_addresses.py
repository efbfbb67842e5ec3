"""Addresses, the IPv6 switches and one sysctl of real namespaces."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.addresses import (
    CLOSE_WAIT_FILE,
    CLOSE_WAIT_MAX,
    InterfaceAddress,
    SysctlError,
    addresses,
    set_close_wait,
)
from agent.node.netns import open_netns
from tests.lab.netns import configure, inside, netns, path_of, user_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

LO = {InterfaceAddress("lo", "127.0.0.1", "host"), InterfaceAddress("lo", "::1", "host")}


@pytest.fixture
def name() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def fd(name: str) -> Iterator[int]:
    fd = open_netns(path_of(name))
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    "link",
    [
        "type dummy",
        "type veth peer name far",
        "link base type macvlan mode bridge",
        "link base type ipvlan",
        "type bridge",
    ],
)
def test_g05_any_kind_of_link(name: str, fd: int, link: str) -> None:
    configure(name, "link add base type veth peer name top", "link set base up", "link set top up")
    try:
        configure(name, f"link add eth0 {link}")
    except RuntimeError as error:
        if "Unknown device type" not in str(error):
            raise
        pytest.skip(f"this kernel has no `{link}`")
    configure(
        name,
        "address add 10.99.0.2/24 dev eth0",
        "address add fd99::2/64 dev eth0 nodad",
        "address add fe80::2/64 dev eth0 nodad",
        "address add 10.99.0.9/32 scope link dev eth0",
    )
    assert LO | {
        InterfaceAddress("eth0", "10.99.0.2", "global"),
        InterfaceAddress("eth0", "10.99.0.9", "link"),
        InterfaceAddress("eth0", "fd99::2", "global"),
        InterfaceAddress("eth0", "fe80::2", "link"),
    } == {one for one in addresses(fd) if one.interface in ("lo", "eth0")}


def test_g05_no_address_at_all(name: str, fd: int) -> None:
    configure(name, "link set lo down")
    inside(name, lambda: Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1"))
    configure(name, "address flush dev lo")
    assert addresses(fd) == ()


def test_two_interfaces_and_a_point_to_point_address(name: str, fd: int) -> None:
    """The local end counts, which is not the attribute that is called the address."""
    configure(name, "link add eth0 type veth peer name net1", "address add 10.9.0.1 peer 10.9.0.2 dev eth0")
    configure(name, "address add 10.8.0.1/24 dev net1 label net1:alias")
    found = {(one.interface, one.address) for one in addresses(fd)}
    assert found == {("lo", "127.0.0.1"), ("lo", "::1"), ("eth0", "10.9.0.1"), ("net1", "10.8.0.1")}


def test_more_addresses_than_fit_into_one_message(name: str, fd: int) -> None:
    many = {f"10.{high}.{low}.1" for high in range(4) for low in range(250)}
    configure(name, *(f"address add {one}/32 dev lo" for one in sorted(many)))
    assert {one.address for one in addresses(fd)} >= many


def test_user_namespaced_pod() -> None:
    with user_netns() as name:
        fd = open_netns(path_of(name))
        assert set(addresses(fd)) == LO
        os.close(fd)


def test_addresses_start_no_process_and_keep_no_descriptor(fd: int) -> None:
    """pyroute2 can serve a namespace from a forked child; it must not here."""
    script = f"""
import os, sys
from agent.node.addresses import addresses
started = []
sys.addaudithook(lambda event, _: started.append(event) if event in EVENTS else None)
EVENTS = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen", "os.exec")
addresses({fd})
before = len(os.listdir("/proc/self/fd"))
for _ in range(50):
    assert addresses({fd})
assert len(os.listdir("/proc/self/fd")) == before
assert not started, started
"""
    done = subprocess.run(
        [sys.executable, "-c", script], pass_fds=[fd], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_close_wait_is_set_in_this_namespace_only(name: str, fd: int) -> None:
    path = Path("/proc", *CLOSE_WAIT_FILE)
    if not inside(name, path.exists):
        with pytest.raises(SysctlError, match="has no conntrack yet"):
            set_close_wait(fd, 77)
        pytest.skip("this kernel has no conntrack")
    before = path.read_text()
    set_close_wait(fd, 77)
    assert inside(name, path.read_text) == "77\n"
    assert path.read_text() == before


def test_close_wait_takes_the_longest_that_it_promises(name: str, fd: int) -> None:
    set_close_wait(fd, CLOSE_WAIT_MAX)
    assert inside(name, Path("/proc", *CLOSE_WAIT_FILE).read_text) == f"{CLOSE_WAIT_MAX}\n"


@pytest.mark.parametrize("seconds", [0, -1, CLOSE_WAIT_MAX + 1])
def test_close_wait_out_of_range(fd: int, seconds: int) -> None:
    with pytest.raises(SysctlError, match=f"cannot set .* to {seconds}: write 1 to") as caught:
        set_close_wait(fd, seconds)
    assert caught.value.errno == errno.EINVAL


def test_close_wait_on_a_read_only_proc(fd: int, tmp_path: Path) -> None:
    """As in a container that is not privileged."""
    subprocess.run(["mount", "-t", "proc", "-o", "ro", "proc", str(tmp_path)], check=True)
    try:
        with pytest.raises(SysctlError, match="mount the host's /proc writable") as caught:
            set_close_wait(fd, 60, proc=str(tmp_path))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert caught.value.errno == errno.EROFS


def test_close_wait_without_conntrack(fd: int, tmp_path: Path) -> None:
    Path(tmp_path, *CLOSE_WAIT_FILE).parent.mkdir(parents=True)
    with pytest.raises(SysctlError, match="the kernel has no conntrack yet") as caught:
        set_close_wait(fd, 60, proc=str(tmp_path))
    assert caught.value.errno == errno.ENOENT
