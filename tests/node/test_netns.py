"""Network namespaces: opened without creating, entered without coming back. Real kernel, root."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.netns import (
    THREAD_NETNS,
    HostNetns,
    NetnsId,
    NetnsMissing,
    enter_new_netns,
    host_id,
    identify,
    open_netns,
    run_in,
)
from tests.lab.netns import netns, path_of, user_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


def where_am_i() -> NetnsId:
    status = Path(THREAD_NETNS).stat()
    return NetnsId(status.st_dev, status.st_ino)


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths


@pytest.fixture
def fd() -> Iterator[int]:
    with netns() as name:
        opened = open_netns(path_of(name))
        yield opened
        os.close(opened)


def test_function_runs_inside_and_nobody_else_does(fd: int) -> None:
    threads: list[int] = []

    def look() -> NetnsId:
        threads.append(threading.get_native_id())
        return where_am_i()

    assert run_in(fd, look) == identify(fd)
    assert where_am_i() == host_id() != identify(fd)
    deadline = time.monotonic() + 2
    while Path(f"/proc/self/task/{threads[0]}").exists():
        assert time.monotonic() < deadline


def test_exceptions_come_out(fd: int) -> None:
    def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        run_in(fd, fail)


def test_user_namespaced_pod_can_be_entered() -> None:
    with user_netns() as name:
        opened = open_netns(path_of(name))
        assert run_in(opened, where_am_i) == identify(opened)
        os.close(opened)


def test_i07_missing_path_creates_nothing_and_leaks_nothing() -> None:
    path = path_of("pm-never-made")
    before = descriptors()
    with pytest.raises(NetnsMissing, match="cannot open network namespace /run/netns/pm-never-made"):
        open_netns(path)
    assert not path.exists()
    assert descriptors() == before


@pytest.mark.parametrize("path", ["/proc/self/ns/net", "/proc/thread-self/ns/net"])
def test_the_node_s_own_namespace_is_refused(path: str) -> None:
    before = descriptors()
    with pytest.raises(HostNetns, match="node's own"):
        open_netns(path)
    assert descriptors() == before


def test_link_to_the_node_s_own_namespace_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "netns"
    link.symlink_to("/proc/self/ns/net")
    with pytest.raises(HostNetns):
        open_netns(link)


def test_other_files_are_no_namespace(tmp_path: Path) -> None:
    left_over = tmp_path / "netns"
    left_over.touch()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = descriptors()
    for path in (left_over, fifo, tmp_path):
        with pytest.raises(NetnsMissing, match="it is no namespace file"):
            open_netns(path)
    with pytest.raises(NetnsMissing, match="of another kind"):
        open_netns("/proc/self/ns/uts")
    assert descriptors() == before


def test_process_that_is_gone_is_missing() -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with pytest.raises(NetnsMissing):
        open_netns(f"/proc/{child}/ns/net")


def test_denied_entry_names_the_capability(fd: int) -> None:
    """A child without CAP_SYS_ADMIN, since a process cannot take its own away and give it back."""
    script = (
        "import ctypes\n"
        "from agent.node.netns import run_in\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.setresuid(65534, 65534, 65534)\n"
        f"try: run_in({fd}, lambda: None)\n"
        "except PermissionError as error: print(error.errno, error)\n"
    )
    words = subprocess.run(
        [sys.executable, "-c", script],
        pass_fds=(fd,),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert words.startswith(f"{errno.EPERM} cannot enter network namespace {identify(fd).ino}: ")
    assert "CAP_SYS_ADMIN" in words


def test_fresh_namespace_is_another_one_and_the_process_stays() -> None:
    found: list[NetnsId] = []

    def body() -> None:
        enter_new_netns()
        found.append(where_am_i())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found
    assert found[0] != host_id() == where_am_i()


def test_many_threads_never_meet(fd: int) -> None:
    wrong: list[NetnsId] = []

    def body() -> None:
        for _ in range(50):
            if run_in(fd, where_am_i) != identify(fd):
                wrong.append(identify(fd))
            if where_am_i() != host_id():
                wrong.append(where_am_i())

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
