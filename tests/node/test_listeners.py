"""Listening ports of real namespaces."""

import contextlib
import errno
import functools
import os
import socket
from collections.abc import Iterator

import pytest

from agent.node import listeners
from agent.node.listeners import Listeners, ListenersUnreadableError, listening
from agent.node.netns import open_netns, run_in
from tests.lab.netns import USER_NAMESPACE_BASE, inside, netns, path_of, user_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


@pytest.fixture
def name() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def fd(name: str) -> Iterator[int]:
    fd = open_netns(path_of(name))
    yield fd
    os.close(fd)


def bound(address: str, port: int, *, v6only: bool = False, backlog: int | None = 5) -> socket.socket:
    """A TCP socket, listening unless `backlog` is None."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
    one.bind((address, port))
    if backlog is not None:
        one.listen(backlog)
    return one


def test_nobody_listens(fd: int) -> None:
    assert listening(fd) == Listeners()


@pytest.mark.parametrize(
    ("address", "v6only", "v4", "v6"),
    [
        ("0.0.0.0", False, True, False),
        ("127.0.0.1", False, True, False),
        ("::", False, True, True),
        ("::", True, False, True),
        ("::1", False, False, True),
        ("::ffff:127.0.0.1", False, True, False),
        ("::ffff:0.0.0.0", False, True, False),
    ],
)
def test_family_of_a_listener(name: str, fd: int, *, address: str, v6only: bool, v4: bool, v6: bool) -> None:
    """What is reported is what connects: asked of the kernel both ways."""
    with inside(name, lambda: bound(address, 4143, v6only=v6only)):
        seen = listening(fd)
        assert (4143 in seen.v4, 4143 in seen.v6) == (v4, v6)
        assert (connects(name, "127.0.0.1"), connects(name, "::1")) == (v4, v6)
        assert seen.uids == {4143: frozenset({0})}
    assert listening(fd) == Listeners()


def connects(name: str, address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with inside(name, lambda: socket.socket(family, socket.SOCK_STREAM)) as client:
        return client.connect_ex((address, 4143)) == 0


def test_only_listening_tcp_counts(name: str, fd: int) -> None:
    """Neither a bound socket, nor UDP, nor the ends of a connection."""
    with (
        inside(name, lambda: bound("127.0.0.1", 8080)) as server,
        inside(name, lambda: bound("127.0.0.1", 8081, backlog=None)),
        inside(name, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as udp,
        inside(name, lambda: bound("127.0.0.1", 9090, backlog=None)) as client,
    ):
        udp.bind(("127.0.0.1", 8082))
        client.connect(("127.0.0.1", 8080))
        accepted, _ = server.accept()
        assert listening(fd) == Listeners(v4=frozenset({8080}), uids={8080: frozenset({0})})
        server.close()
        assert listening(fd) == Listeners()
        accepted.close()


def test_owners_of_a_shared_port(name: str, fd: int) -> None:
    with (
        inside(name, lambda: bound("127.0.0.1", 4140), uid=2102),
        inside(name, lambda: bound("::1", 4140), uid=1000),
        inside(name, lambda: bound("::", 80, v6only=True), uid=65534),
    ):
        assert listening(fd) == Listeners(
            v4=frozenset({4140}),
            v6=frozenset({4140, 80}),
            uids={4140: frozenset({2102, 1000}), 80: frozenset({65534})},
        )


def test_owners_in_a_user_namespace_are_the_hosts() -> None:
    """hostUsers: false."""
    with user_netns() as name, inside(name, lambda: bound("::", 4143), uid=USER_NAMESPACE_BASE + 2102):
        fd = open_netns(path_of(name))
        assert listening(fd).uids == {4143: frozenset({USER_NAMESPACE_BASE + 2102})}
        os.close(fd)


def test_more_listeners_than_fit_into_one_message(name: str, fd: int) -> None:
    # Some 300 fit; a process has 1024 descriptors where nobody has raised its limit.
    ports = range(10_000, 10_450)
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(inside(name, functools.partial(bound, "0.0.0.0", port)))
            stack.enter_context(inside(name, functools.partial(bound, "::", port, v6only=True)))
        seen = listening(fd)
    assert seen.v4 == seen.v6 == frozenset(ports)
    assert seen.uids == dict.fromkeys(ports, frozenset({0}))


def test_only_this_namespace_is_looked_at(fd: int) -> None:
    with bound("127.0.0.1", 0) as of_the_host:
        assert of_the_host.getsockname()[1] not in listening(fd).v4


def test_refusal_of_the_kernel_names_the_module(fd: int) -> None:
    """No module serves this address family, as none serves TCP on a kernel without tcp_diag."""
    with pytest.raises(ListenersUnreadableError, match=r"^\[.*\] cannot list .* tcp_diag") as caught:
        run_in(fd, lambda: listeners._dump(250))
    assert caught.value.errno in (errno.ENOENT, errno.EINVAL)
