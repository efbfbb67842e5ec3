"""Finding pods: real processes in real namespaces and cgroups, and a /proc of files for rare paths."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from agent.node import discovery
from agent.node.discovery import (
    NetnsMismatch,
    NoAddressYet,
    Sandbox,
    Scan,
    Scanner,
    cgroup_alive,
    open_sandbox,
)
from agent.node.netns import HostNetns, NetnsId, NetnsMissing, identify
from tests.lab.netns import configure, inside, netns, path_of, user_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces and cgroups: run as root")

CGROUPS = Path("/sys/fs/cgroup")
CONTAINER = "5f" * 32
TICK = 2 / os.sysconf("SC_CLK_TCK")
"""Seconds after which another process has another start time."""
NEVER = float("inf")
"""A settling time that makes every scan read every process again."""

ENTER = """
import ctypes, itertools, os, sys, time
libc = ctypes.CDLL(None)
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
libc.setns(fds[0], 0x40000000)
print("inside", flush=True)
"""
ONCE = ENTER + "time.sleep(300)"
WANDER = ENTER + "for fd in itertools.cycle(fds): libc.setns(fd, 0x40000000)"


@contextlib.contextmanager
def running(name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """`command`, `sleep` by default, running in the namespace `name`; killed in the end."""
    argv = command or ("sleep", "300")
    process = inside(name, lambda: subprocess.Popen(argv, stdout=subprocess.PIPE))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


@contextlib.contextmanager
def cgroup(mount: str, path: str) -> Iterator[Path]:
    """The cgroup directory `path` under a top of our own, made and removed with its parents."""
    directory = CGROUPS / mount / f"pm-{os.getpid()}" / path
    made = [part for part in (directory, *directory.parents) if not part.exists()]
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        for part in made:
            remove(part)


def remove(directory: Path) -> None:
    """rmdir, waiting for the cgroup's killed processes to leave it."""
    deadline = time.monotonic() + 5
    while directory.exists():
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def join(directory: Path, process: subprocess.Popen[bytes]) -> None:
    (directory / "cgroup.procs").write_text(str(process.pid))


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def new_uid() -> str:
    return str(uuid.uuid4())


def only(*pids: int, under: Path) -> str:
    """A view of /proc with these processes only, so that other pods of the machine do not matter."""
    for pid in pids:
        (under / str(pid)).symlink_to(f"/proc/{pid}")
    return str(under)


class Pod(NamedTuple):
    """What makes a pod here; `directory` is its pod-level cgroup."""

    uid: str
    netns: str
    process: subprocess.Popen[bytes]
    directory: Path


@pytest.fixture
def pod() -> Iterator[Pod]:
    """A running pod with address 10.99.0.2."""
    uid = new_uid()
    with netns() as name, cgroup("unified", f"kubepods/besteffort/pod{uid}/{CONTAINER}") as directory:
        give_address(name, "10.99.0.2/24")
        with running(name) as process:
            join(directory, process)
            yield Pod(uid, name, process, directory.parent)


def give_address(name: str, *addresses: str) -> None:
    configure(name, "link add eth0 type veth peer name far", "link set eth0 up")
    configure(name, *(f"address add {one} dev eth0 {'nodad' if ':' in one else ''}" for one in addresses))


def id_of(name: str) -> NetnsId:
    status = path_of(name).stat()
    return NetnsId(status.st_dev, status.st_ino)


# Real processes in real cgroups


@pytest.mark.parametrize(
    ("mount", "path", "pod_level"),
    [
        ("unified", "kubepods/besteffort/pod{uid}/" + CONTAINER, "kubepods/besteffort/pod{uid}"),
        ("pids", "kubepods/burstable/pod{uid}/" + CONTAINER, "kubepods/burstable/pod{uid}"),
        (
            "systemd",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-"
            + CONTAINER
            + ".scope",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice",
        ),
        (
            "unified",
            "kubepods.slice/kubepods-pod{slice}.slice/crio-" + CONTAINER + ".scope/nested",
            "kubepods.slice/kubepods-pod{slice}.slice",
        ),
    ],
)
def test_finds_a_pod_and_sees_its_end(mount: str, path: str, pod_level: str) -> None:
    uid = new_uid()
    names = {"uid": uid, "slice": uid.replace("-", "_")}
    scanner = Scanner()
    with netns() as name:
        with cgroup(mount, path.format(**names)) as directory, running(name) as process:
            join(directory, process)
            sandbox = scanner.scan().sandboxes[uid]
            assert sandbox.netns == id_of(name)
            assert sandbox.pid == process.pid
            assert Path(sandbox.cgroup) == CGROUPS / mount / f"pm-{os.getpid()}" / pod_level.format(**names)
            assert cgroup_alive(sandbox)
        assert not cgroup_alive(sandbox)
        assert uid not in scanner.scan().sandboxes


def test_host_network_pod_is_not_found() -> None:
    uid = new_uid()
    with (
        cgroup("unified", f"kubepods/pod{uid}/{CONTAINER}") as directory,
        subprocess.Popen(["sleep", "300"]) as process,
    ):
        join(directory, process)
        assert uid not in Scanner().scan().sandboxes
        process.kill()


def test_process_that_enters_its_namespace_late_is_found(pod: Pod) -> None:
    """A runtime's first process is seen in the host's namespace first."""
    late = new_uid()
    wait_then_enter = f"input()\n{ONCE}"
    with cgroup("unified", f"kubepods/pod{late}/{CONTAINER}") as directory:
        process = subprocess.Popen(
            [sys.executable, "-c", wait_then_enter, str(path_of(pod.netns))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            join(directory, process)
            scanner = Scanner()
            assert late not in scanner.scan().sandboxes
            assert process.stdin is not None
            process.stdin.write(b"now\n")
            process.stdin.flush()
            assert first_line(process) == b"inside\n"
            assert scanner.scan().sandboxes[late].netns == id_of(pod.netns)
        finally:
            process.kill()
            process.communicate()


def netns_of(pid: int) -> tuple[int, int]:
    status = Path(f"/proc/{pid}/ns/net").stat()
    return status.st_dev, status.st_ino


def test_settled_process_is_not_read_again(pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid, _, process, _ = pod
    scanner = Scanner(only(process.pid, under=tmp_path), settle=0)
    first = scanner.scan()
    monkeypatch.setattr(discovery, "_content", lambda *_: pytest.fail("a settled process was read again"))
    assert scanner.scan() == first
    assert uid in first.sandboxes


def test_oldest_process_decides(pod: Pod, tmp_path: Path) -> None:
    """A younger process of the pod in another namespace does not move the pod."""
    uid, name, process, directory = pod
    with netns() as other, running(other) as younger:
        time.sleep(TICK)
        join(directory / CONTAINER, younger)
        scan = Scanner(only(younger.pid, process.pid, under=tmp_path)).scan()
        assert scan.sandboxes[uid].netns == id_of(name)
        process.kill()
        process.wait()
        assert Scanner(str(tmp_path)).scan().sandboxes[uid].netns == id_of(other)


def test_reused_pid_is_noticed(pod: Pod) -> None:
    """Another process gets the number of a pod's: neither the scan nor the opening confuses them."""
    uid, _, process, directory = pod
    scanner = Scanner(settle=0)
    sandbox = scanner.scan().sandboxes[uid]
    process.kill()
    process.wait()
    time.sleep(TICK)
    with netns() as other:
        give_address(other, "10.99.0.2/24")
        with process_numbered(sandbox.pid, other) as impostor:
            assert netns_of(impostor.pid) == tuple(id_of(other))
            assert uid not in scanner.scan().sandboxes
            with pytest.raises(NetnsMissing, match="has ended"):
                open_sandbox(sandbox, ["10.99.0.2"])
            join(directory / CONTAINER, impostor)
            again = Scanner().scan().sandboxes[uid]
            assert again.start_time != sandbox.start_time
            assert again.netns == id_of(other)


@contextlib.contextmanager
def process_numbered(pid: int, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the namespace `name` whose PID is `pid`; others may take it first, so try often."""
    for _ in range(2000):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 2))  # one number is for the thread
        with running(name) as process:
            if process.pid == pid:
                yield process
                return
    pytest.fail(f"process number {pid} was never given out")


def test_user_namespaced_pod_is_found_and_opened() -> None:
    """G17: hostUsers: false."""
    uid = new_uid()
    with user_netns() as name, cgroup("unified", f"kubepods/pod{uid}/{CONTAINER}") as directory:
        give_address(name, "10.99.0.2/24")
        with running(name) as process:
            join(directory, process)
            fd = open_sandbox(Scanner().scan().sandboxes[uid], ["10.99.0.2"])
            assert identify(fd) == id_of(name)
            os.close(fd)


# Opening


def test_open_proves_the_address(pod: Pod) -> None:
    uid, name, _, _ = pod
    sandbox = Scanner().scan().sandboxes[uid]
    before = descriptors()
    fd = open_sandbox(sandbox, ["fd99::2", "10.99.0.2"])
    assert identify(fd) == id_of(name)
    os.close(fd)
    os.close(open_sandbox(sandbox, ["::ffff:10.99.0.2"]))
    with pytest.raises(NetnsMismatch, match=r"holds none of 10\.99\.0\.3"):
        open_sandbox(sandbox, ["10.99.0.3"])
    with pytest.raises(NoAddressYet, match="no IP yet"):
        open_sandbox(sandbox, [])
    with pytest.raises(NoAddressYet, match="no IP yet"):
        open_sandbox(sandbox, ["not an address", ""])
    assert descriptors() == before


def test_open_waits_for_the_first_address() -> None:
    """A namespace without interfaces (G05) is not a wrong one."""
    uid = new_uid()
    with (
        netns() as name,
        cgroup("unified", f"kubepods/pod{uid}/{CONTAINER}") as directory,
        running(name) as process,
    ):
        join(directory, process)
        sandbox = Scanner().scan().sandboxes[uid]
        with pytest.raises(NoAddressYet, match="no address yet"):
            open_sandbox(sandbox, ["fd99::2"])
        give_address(name, "fd99::2/64")
        os.close(open_sandbox(sandbox, ["FD99:0:0::2"]))


def test_open_notices_a_process_that_moved(pod: Pod) -> None:
    uid, _, _, _ = pod
    sandbox = Scanner().scan().sandboxes[uid]
    elsewhere = msgspec.structs.replace(sandbox, netns=NetnsId(sandbox.netns.dev, 1))
    with pytest.raises(NetnsMismatch, match="has moved"):
        open_sandbox(elsewhere, ["10.99.0.2"])


def test_open_refuses_the_host() -> None:
    me = Path("/proc/self/stat").read_bytes()
    sandbox = Sandbox(
        uid=new_uid(),
        netns=NetnsId(*netns_of(os.getpid())),
        pid=os.getpid(),
        start_time=int(me.rpartition(b")")[2].split()[19]),
        cgroup="",
        path=f"/proc/{os.getpid()}/ns/net",
    )
    with pytest.raises(HostNetns):
        open_sandbox(sandbox, ["10.99.0.2"])
    assert cgroup_alive(sandbox), "a directory that cannot be seen is no proof of a pod's end"


def test_g02_process_in_another_pods_namespace_never_swaps_two_pods(tmp_path: Path) -> None:
    uid_a, uid_b = new_uid(), new_uid()
    with (
        netns() as net_a,
        netns() as net_b,
        cgroup("unified", f"kubepods/pod{uid_a}/{CONTAINER}") as group_a,
        cgroup("unified", f"kubepods/pod{uid_b}/{CONTAINER}") as group_b,
        running(net_a) as first_a,
        running(net_b) as first_b,
    ):
        give_address(net_a, "10.99.0.2/24")
        give_address(net_b, "10.99.0.3/24")
        join(group_a, first_a)
        join(group_b, first_b)
        time.sleep(TICK)
        paths = (str(path_of(net_b)), str(path_of(net_a)))
        with running(net_a, sys.executable, "-c", WANDER, *paths) as wanderer:
            join(group_a, wanderer)
            assert first_line(wanderer) == b"inside\n"
            proc = only(first_a.pid, first_b.pid, wanderer.pid, under=tmp_path)
            scanner = Scanner(proc, settle=NEVER)
            for _ in range(1000):
                found = scanner.scan().sandboxes
                assert (found[uid_a].netns, found[uid_b].netns) == (id_of(net_a), id_of(net_b))
        with running(net_b) as tool:
            # Nothing but a debug tool is left of pod A, and it sits in B.
            join(group_a, tool)
            first_a.kill()
            first_a.wait()
            found = Scanner(only(tool.pid, under=tmp_path)).scan().sandboxes
            assert found[uid_b].netns == id_of(net_b)
            assert found[uid_a].netns == id_of(net_b)
            with pytest.raises(NetnsMismatch):
                open_sandbox(found[uid_a], ["10.99.0.2"])


# G12: processes that end while they are read


@pytest.mark.parametrize("step", ["_netns", "_start_time", "_content", "_pods", "_oldest"])
def test_g12_process_ends_at_each_step_of_a_scan(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    uid, _, process, _ = pod
    proc = only(process.pid, under=tmp_path)
    monkeypatch.setattr(discovery, step, dying(getattr(discovery, step), process))
    scan = Scanner(proc).scan()
    assert scan.unreadable == (0 if uid in scan.sandboxes else 1)
    assert Scanner(proc).scan() == Scan({}, unreadable=1)


@pytest.mark.parametrize("step", ["open_netns", "_start_time", "_content", "identify", "addresses"])
def test_g12_process_ends_at_each_step_of_opening(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    uid, _, process, _ = pod
    sandbox = Scanner().scan().sandboxes[uid]
    before = descriptors()
    monkeypatch.setattr(discovery, step, dying(getattr(discovery, step), process))
    with contextlib.suppress(NetnsMissing):
        os.close(open_sandbox(sandbox, ["10.99.0.2"]))
    assert process.poll() is not None, "the step was never reached"
    assert descriptors() == before
    with pytest.raises(NetnsMissing):
        open_sandbox(sandbox, ["10.99.0.2"])


def dying(real: Callable[..., object], process: subprocess.Popen[bytes]) -> Callable[..., object]:
    """`real`, with the process ending just before it."""

    def step(*arguments: object) -> object:
        process.kill()
        process.wait()
        return real(*arguments)

    return step


def test_g12_many_processes_end_while_scanning(pod: Pod) -> None:
    uid, name, _, directory = pod
    scanner = Scanner(settle=NEVER)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            with running(name) as process:
                join(directory / CONTAINER, process)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert scanner.scan().sandboxes[uid].netns == id_of(name)
    finally:
        stop.set()
        thread.join()


# Paths of every runtime, in a /proc of files

A = "0b9d5a1c-7e32-4a55-9c1f-3f0c4b8a6d21"
B = "c3f1e8d0-11aa-4bbb-8ccc-d00de00ff001"
A_SLICE, B_SLICE = A.replace("-", "_"), B.replace("-", "_")
STATIC = "d41d8cd98f00b204e9800998ecf8427e"
V1 = "12:pids:{0}\n11:cpu,cpuacct:{0}\n10:memory:{0}\n1:name=systemd:{0}\n"

PATHS = {
    "containerd, systemd, v2": (
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{A_SLICE}.slice/cri-containerd-{CONTAINER}.scope"
        ),
        A,
    ),
    "containerd, systemd, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{A_SLICE}.slice/cri-containerd-{CONTAINER}.scope",
        A,
    ),
    "containerd, cgroupfs, v1": (V1.format(f"/kubepods/burstable/pod{A}/{CONTAINER}"), A),
    "hybrid": (V1.format(f"/kubepods/besteffort/pod{A}/{CONTAINER}") + "0::/", A),
    "v1 where one hierarchy is not the pod's": (
        V1.format(f"/kubepods/pod{A}/{CONTAINER}") + "3:cpuset:/other\n0::/system.slice/containerd.service",
        A,
    ),
    "containerd without runc's systemd": (
        f"0::/system.slice/containerd.service/kubepods-burstable-pod{A_SLICE}.slice:cri-containerd:{CONTAINER}",
        None,
    ),
    "CRI-O": (
        (
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{A_SLICE}.slice/crio-{CONTAINER}.scope/container"
        ),
        A,
    ),
    "CRI-O conmon": (
        f"0::/kubepods.slice/kubepods-pod{A_SLICE}.slice/crio-conmon-{CONTAINER}.scope",
        A,
    ),
    "static pod": (f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}", STATIC),
    "static pod, slice": (
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{CONTAINER}.scope"
        ),
        STATIC,
    ),
    "kind": (
        (
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{A_SLICE}.slice/cri-containerd-{CONTAINER}.scope"
        ),
        A,
    ),
    "docker in docker": (f"0::/docker/{CONTAINER}/kubelet/kubepods/pod{A}/{CONTAINER}", A),
    "cgroup namespace": (f"0::/../../pod{A}/{CONTAINER}", A),
    "cgroup namespace, slice": (f"0::/../kubepods-burstable-pod{A_SLICE}.slice/cri-containerd-x.scope", A),
    "the pod's own directory": (f"0::/kubepods/pod{A}", A),
    "removed directory": (f"0::/kubepods/pod{A}/{CONTAINER} (deleted)", A),
    "system service": ("0::/system.slice/ssh.service", None),
    "podman pod": (f"0::/machine.slice/machine-libpod_pod_{CONTAINER}.slice/libpod-{CONTAINER}.scope", None),
    "UID too long": (f"0::/kubepods/pod{A}0/{CONTAINER}", None),
    "UID of mixed form": (f"0::/kubepods/pod{A.replace('-', '_', 1)}/{CONTAINER}", None),
    "UID in capitals": (f"0::/kubepods/pod{A.upper()}/{CONTAINER}", None),
    "a name with pod inside": (f"0::/user.slice/tripod{A}/{CONTAINER}", None),
    "empty": ("", None),
}


class Tree:
    """A /proc and a cgroup mount made of files."""

    def __init__(self, top: Path) -> None:
        self.proc = top / "proc"
        self.cgroups = top / "cgroup"
        self.proc.mkdir()
        self.cgroups.mkdir()

    def process(
        self, pid: int, cgroup: str, start: int = 100, netns: str = "net", name: str = "sleep"
    ) -> None:
        directory = self.proc / str(pid)
        (directory / "ns").mkdir(parents=True)
        fields = ["S", *"1" * 18, str(start), *"0" * 30]
        (directory / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (directory / "cgroup").write_text(cgroup)
        (self.proc.parent / netns).touch()
        (directory / "ns/net").hardlink_to(self.proc.parent / netns)

    def scan(self) -> Scan:
        return Scanner(str(self.proc), str(self.cgroups)).scan()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(("text", "uid"), PATHS.values(), ids=PATHS)
def test_pod_of_a_cgroup_path(tree: Tree, text: str, uid: str | None) -> None:
    tree.process(7, text)
    scan = tree.scan()
    assert list(scan.sandboxes) == ([uid] if uid else [])
    assert (scan.rejected, scan.unreadable) == ((), 0)


def test_two_pods_in_one_process_are_rejected(tree: Tree) -> None:
    tree.process(7, f"0::/kubepods/pod{A}/{CONTAINER}/kubepods.slice/kubepods-pod{B_SLICE}.slice/x")
    tree.process(8, f"1:cpu:/kubepods/pod{A}/x\n0::/kubepods/pod{B}/y")
    tree.process(9, f"1:cpu:/kubepods/pod{B}/x\n0::/kubepods.slice/kubepods-pod{B_SLICE}.slice/y")
    scan = tree.scan()
    assert [(uid, one.pid) for uid, one in scan.sandboxes.items()] == [(B, 9)]
    assert sorted(scan.rejected) == [f"process {pid} claims 2 pods: {A}, {B}" for pid in (7, 8)]


def test_oldest_wins_whatever_the_number(tree: Tree) -> None:
    tree.process(7, f"0::/kubepods/pod{A}/x", start=300, netns="young")
    tree.process(9, f"0::/kubepods/pod{A}/x", start=200, netns="old", name="a) S 1 (b")
    tree.process(8, f"0::/kubepods/pod{A}/x", start=250, netns="young")
    sandbox = tree.scan().sandboxes[A]
    assert (sandbox.pid, sandbox.start_time) == (9, 200)
    assert sandbox.path == f"{tree.proc}/9/ns/net"


def test_namespace_of_process_1_is_the_hosts(tree: Tree) -> None:
    tree.process(1, "0::/init.scope", netns="host")
    tree.process(7, f"0::/kubepods/pod{A}/x", netns="host")
    tree.process(8, f"0::/kubepods/pod{B}/x", netns="own")
    assert list(tree.scan().sandboxes) == [B]


def test_unreadable_processes_are_counted_and_tried_again(tree: Tree) -> None:
    scanner = Scanner(str(tree.proc), str(tree.cgroups), settle=0)
    (tree.proc / "7").mkdir()
    (tree.proc / "uptime").touch()
    assert scanner.scan() == Scan({}, unreadable=1)
    (tree.proc / "7").rmdir()
    tree.process(7, f"0::/kubepods/pod{A}/x")
    assert list(scanner.scan().sandboxes) == [A]


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        (f"0::/kubepods/burstable/pod{A}/x", f"kubepods/burstable/pod{A}"),
        (f"0::/kubepods/burstable/pod{A}/x", f"unified/kubepods/burstable/pod{A}"),
        (f"4:cpu,cpuacct:/kubepods/pod{A}/x", f"cpu,cpuacct/kubepods/pod{A}"),
        (f"4:cpuacct,cpu:/kubepods/pod{A}/x", f"cpu/kubepods/pod{A}"),
        (f"1:name=systemd:/kubepods/pod{A}/x\n0::/", f"systemd/kubepods/pod{A}"),
        (f"0::/../../pod{A}/x", f"kubepods/besteffort/pod{A}"),
        (f"0::/../pod{A}/x", f"kubepods/pod{A}"),
        (
            f"0::/../../../kubepods-burstable-pod{A_SLICE}.slice/x",
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{A_SLICE}.slice",
        ),
        (
            f"0::/../kubelet-kubepods-pod{A_SLICE}.slice/x",
            f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{A_SLICE}.slice",
        ),
    ],
)
def test_directory_of_the_pod(tree: Tree, text: str, directory: str) -> None:
    tree.process(7, text)
    assert tree.scan().sandboxes[A].cgroup == ""
    (tree.cgroups / directory).mkdir(parents=True)
    sandbox = tree.scan().sandboxes[A]
    assert sandbox.cgroup == str(tree.cgroups / directory)
    assert cgroup_alive(sandbox)
    (tree.cgroups / directory).rmdir()
    assert not cgroup_alive(sandbox)


def test_cost_of_a_scan_with_2000_processes(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: speed belongs to the benchmarks."""
    uid, name, _, directory = pod
    script = "echo $$ > $0; for i in $(seq 2000); do sleep 300 & done; echo ready; wait"
    argv = ["sh", "-c", script, str(directory / CONTAINER / "cgroup.procs")]
    shell = inside(name, lambda: subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True))
    try:
        assert first_line(shell) == b"ready\n"
        scanner = Scanner(settle=0)
        costs = []
        for _ in range(3):
            start = time.perf_counter()
            scan = scanner.scan()
            costs.append((time.perf_counter() - start) * 1e3)
        with capsys.disabled():
            print(f"\n2,000 processes of one pod: first scan {costs[0]:.1f} ms, later {costs[1]:.1f} ms")
        assert uid in scan.sandboxes
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()
