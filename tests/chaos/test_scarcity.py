"""What an agent lacks: a library, a kernel feature, room on a disk, descriptors, rights, a /proc."""

import asyncio
import contextlib
import ctypes
import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import inotify_simple
import pytest

from agent.core.objects import Put, Replace
from agent.files.manifests import KINDS
from agent.files.source import FilesSource
from tests.chaos.tables import listing
from tests.lab.agent import Agent, agent, descriptors, pod_manifest
from tests.lab.netns import netns, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

PR_CAPBSET_DROP = 24
NET_ADMIN, SYS_ADMIN = 12, 21
LAST_CAPABILITY = int(Path("/proc/sys/kernel/cap_last_cap").read_text())


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@contextlib.contextmanager
def tiny_disk(path: Path, *options: str) -> Iterator[Path]:
    """A file system in memory, of one page unless `options` say otherwise."""
    path.mkdir()
    run("mount", "-t", "tmpfs", "-o", ",".join(options or ("size=4k",)), "pm-chaos", str(path))
    try:
        yield path
    finally:
        run("umount", "--lazy", str(path))


def test_i01_libnftables_is_missing_and_comes(
    tmp_path: Path, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "nftables.py").write_text("raise ImportError('libnftables.so.1: cannot open it')\n")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    with agent(tmp_path, start=False) as one:
        one.put(pod_manifest("web", pod))
        one.start(wait=False)
        one.wait_reason("default/web", "CompileFailed")
        message = one.pod("default/web")["status"]["message"]
        assert message.startswith("cannot ")
        assert "libnftables.so.1" in message
        assert "python3-nftables" in message
        (line,) = one.events("cannot compile rule sets")
        assert "python3-nftables" in line["message"]
        assert one.ask("GET", "/live") == "ok\n"
        shutil.rmtree(shadow)
        one.wait_reason("default/web", "Redirected", seconds=35)


def test_c20_a_kernel_that_knows_no_such_flags(
    tmp_path: Path, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe asks this kernel for a flag that it really does not have, and is really refused."""
    seam = tmp_path / "seam"
    seam.mkdir()
    (seam / "sitecustomize.py").write_text(
        f"import sys; sys.path.append({str(Path.cwd())!r})\n"
        "from agent.node.nft import records\nrecords.PERSIST = 1 << 30\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(seam))
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        assert one.state()["ownedTables"] is False
        whole = listing(pod)
        run("ip", "netns", "exec", pod, "nft", "flush", "ruleset")
        one.wait(lambda: one.pod("default/web")["status"]["drifts"] == 1, "a repair", 2)
        assert listing(pod) == whole
        assert one.stop() == 0
        assert listing(pod) == whole


def test_run_dir_and_log_on_a_disk_without_room(tmp_path: Path, pod: str) -> None:
    with tiny_disk(tmp_path / "disk", "size=12k") as disk, agent(disk, start=False) as one:
        one.put(pod_manifest("web", pod))
        filler = disk / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(bytes(1 << 16))
        one.start()
        one.wait_reason("default/web", "Redirected")
        assert one.state()["writer"]
        assert one.log.read_bytes() == b""
        # Room again: the log goes on, and says that it has a gap.
        filler.unlink()
        run("ip", "netns", "exec", pod, "nft", "add", "table", "ip", "foreign")
        one.wait(lambda: one.events("foreign change, our table is intact"), "a line", 5)
        (gap,) = one.events("log lines lost")
        assert gap["count"] >= 3
        assert one.stop() == 0


def test_run_dir_without_inodes_is_named_with_a_remedy(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "nr_inodes=3") as disk:
        for name in ("a", "b", "c"):
            with contextlib.suppress(OSError):
                (disk / name).write_text("")
        (tmp_path / "manifests").mkdir()
        done = run_agent(tmp_path / "manifests", disk)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert str(disk) in done.stderr
        assert "--run-dir" in done.stderr
        assert "Traceback" not in done.stderr


def test_run_dir_that_is_read_only_is_named_with_a_remedy(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as disk:
        run("mount", "-o", "remount,ro", str(disk))
        (tmp_path / "manifests").mkdir()
        for run_dir in (disk, disk / "below"):
            done = run_agent(tmp_path / "manifests", run_dir)
            assert done.returncode == 1
            assert "Read-only file system" in done.stderr
            assert str(disk) in done.stderr
            assert "Traceback" not in done.stderr


def run_agent(manifests: Path, run_dir: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "agent", "run", "--source", f"files:{manifests}"]
    return subprocess.run(
        [*command, "--run-dir", str(run_dir), "--admin-address", ""],
        capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["plain", "json"])
def test_a_log_that_nobody_reads_any_more(tmp_path: Path, pod: str, form: str) -> None:
    """A broken pipe is no reason to leave the pods alone."""
    with agent(tmp_path, "--log-format", form, start=False) as one:
        os.mkfifo(one.log)
        reader = os.open(one.log, os.O_RDONLY | os.O_NONBLOCK)
        one.start()
        assert b"writing to pods" in os.read(reader, 1 << 16)
        os.close(reader)
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        assert one.stop() == 0


def test_the_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        with agent(tmp_path) as one:
            assert resource.prlimit(one.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_run_out_and_come_back(tmp_path: Path) -> None:
    """Those who found none are retried; those who have theirs are kept."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(agent(tmp_path))
        names = [stack.enter_context(netns()) for _ in range(12)]
        one.put(pod_manifest("first", names[0]))
        one.wait_reason("default/first", "Redirected")
        limits = resource.prlimit(one.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, (descriptors(one.pid) + 8, limits[1]))
        for number, name in enumerate(names[1:]):
            one.put(pod_manifest(f"pod-{number}", name))
        time.sleep(3)
        assert one.running
        said = [line for line in one.log.read_text().splitlines() if "CommitRefused" in line]
        assert said
        assert all("raise the agent's limit of open files" in line for line in said), said
        assert all('"message": "cannot ' in line and "[Errno" not in line for line in said), said
        resource.prlimit(one.pid, resource.RLIMIT_NOFILE, limits)
        for number in range(11):
            one.wait_reason(f"default/pod-{number}", "Redirected", seconds=20)
        assert one.reason("default/first") == "Redirected"


def start_with_few_rights(one: Agent) -> None:
    """Root with NET_ADMIN and SYS_ADMIN, and nothing else."""

    def start() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in set(range(LAST_CAPABILITY + 1)) - {NET_ADMIN, SYS_ADMIN}:
            assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
        one.start(wait=False)

    # Capabilities are a thread's, and its children have what it has.
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()


async def test_no_inotify_left_on_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short is the node's, shared with everybody, so it is not really used up here."""

    def refused(**_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(inotify_simple, "INotify", refused)
    events = FilesSource(tmp_path, period=0.05).events()
    assert [type(await anext(events)) for _ in KINDS] == [Replace] * len(KINDS)
    (tmp_path / "pod.yaml").write_text("kind: Pod\nmetadata: {name: web}\n")
    assert isinstance(await asyncio.wait_for(anext(events), 5), Put)


def test_processes_that_may_not_be_looked_at(tmp_path: Path, pod: str) -> None:
    """Without SYS_PTRACE discovery is blind, which shows; pods that name their netns are kept."""
    with agent(tmp_path, start=False) as one:
        one.put(pod_manifest("web", pod))
        one.put(pod_manifest("elsewhere", uid="11111111-2222-3333-4444-555555555555"))
        start_with_few_rights(one)
        one.wait_reason("default/web", "Redirected")
        one.wait_reason("default/elsewhere", "NetnsMissing")
        one.wait(lambda: metric(one, "pointsman_proc_unreadable") > 0, "the count", 5)
        run("ip", "netns", "exec", pod, "nft", "add", "table", "ip", "foreign")
        one.wait(lambda: one.pod("default/web")["status"]["foreignChanges"] == 1, "the event", 2)


def metric(one: Agent, name: str) -> float:
    page: str = one.ask("GET", "/metrics")
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")))


def test_a_proc_full_of_nonsense_and_then_none_at_all(tmp_path: Path, pod: str) -> None:
    proc = tmp_path / "proc"
    for pid in ("1", "7", "70"):
        (proc / pid / "ns").mkdir(parents=True)
    (proc / "2").write_text("")
    (proc / "3").symlink_to("3")
    (proc / "7" / "ns" / "net").write_text("")
    (proc / "7" / "stat").write_text("7 (half")
    (proc / "70" / "ns" / "net").write_text("")
    (proc / "70" / "stat").write_text("70 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0")
    (proc / "70" / "cgroup").write_bytes(b"\xff no colon\n::\n")
    with agent(tmp_path, "--proc", str(proc), "--round", "0.2") as one:
        one.put(pod_manifest("elsewhere", uid="11111111-2222-3333-4444-555555555555"))
        one.wait_reason("default/elsewhere", "NetnsMissing")
        time.sleep(1)
        shutil.rmtree(proc)
        time.sleep(1)
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        proc.mkdir()
        time.sleep(1)
        assert one.ask("GET", "/ready") == "ok\n"
        told = [line for line in one.lines() if str(proc) in str(line)]
        assert 1 <= len(told) <= 6
