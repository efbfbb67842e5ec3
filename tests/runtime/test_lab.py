"""The lab itself: pods run, traffic stays on the node, and nothing is left, whatever ends it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.discovery import Scanner
from tests.lab import cgroups
from tests.lab.containerd import Containerd, containerd
from tests.lab.cri import Refused
from tests.lab.images import Built
from tests.lab.leftovers import everything, remaining
from tests.lab.netns import inside, run
from tests.lab.record import fail

ROOT = Path(__file__).parents[2]
RULES = """
table inet lab {
  chain out {
    type nat hook output priority -101;
    meta skuid 2102 return
    oifname lo return
    meta l4proto tcp redirect to :4140
  }
  chain in {
    type nat hook prerouting priority -101;
    meta l4proto tcp redirect to :4143
  }
}
"""


@pytest.fixture
def runtime(tmp_path: Path, built: Built) -> Iterator[Containerd]:
    with containerd(tmp_path, built) as made:
        yield made


def _marks(runtime: Containerd) -> tuple[str, ...]:
    return (runtime.node.cgroup[1:], str(runtime.directory))


def _ask(address: str, port: int) -> str:
    """The answer of the lab's program at this address, from where the caller is."""
    with socket.create_connection((address, port), timeout=3) as client:
        client.shutdown(socket.SHUT_WR)
        return client.makefile().read()


def test_a_pod_runs_and_nothing_is_left(tmp_path: Path, built: Built) -> None:
    machine = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    with contextlib.closing(Containerd(tmp_path, built)) as runtime:
        marks = _marks(runtime)
        before = everything(marks)
        runtime.start()
        sandbox = runtime.cri.run_pod("web")
        app = runtime.cri.run_container(sandbox, "app", "serve", 8080)
        runtime.cri.wait_said(app, "ready")
        pod = runtime.cri.pod(sandbox)
        assert pod.ready
        assert (pod.name, pod.namespace) == ("web", "default")
        assert inside(runtime.node.netns, lambda: _ask(pod.ip, 8080)) == "app 8080 from 10.88.0.1\n"
        kinds = {line.split()[0] for line in everything(marks) - before}
        assert kinds == {"cgroup", "process"}

        runtime.cri.stop_container(app)
        assert runtime.cri.container(app).exit_code == 0
        runtime.end_pod(sandbox)
        assert runtime.cri.pods() == []
        assert not any(pod.uid in str(each) for each in cgroups.directories(runtime.node.cgroup))
        assert not runtime.node.seen(pod.netns).exists()
    # The node itself was there before.
    gone = everything(marks)
    assert not remaining(before, marks)
    assert not any(line.startswith("process") for line in gone)
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == machine


def test_the_answer_is_the_route(runtime: Containerd) -> None:
    cri = runtime.cri
    server = cri.run_pod("server")
    proxies = [cri.run_container(server, "proxy", "proxy", 4143, 4140, uid=2102)]
    app = cri.run_container(server, "app", "serve", 8080)
    client = cri.run_pod("client")
    proxies.append(cri.run_container(client, "proxy", "proxy", 4143, 4140, uid=2102))
    for container in (*proxies, app):
        cri.wait_said(container, "ready")
    there, here = cri.pod(server).ip, cri.pod(client).ip

    direct = cri.run_container(client, "direct", "connect", there, 8080)
    assert cri.wait_exited(direct).exit_code == 0
    assert cri.said(direct) == [f"app 8080 from {here}"]

    for sandbox in (server, client):
        net = f"--net={runtime.netns(sandbox)}"
        run("nsenter", net, "nft", "-f", "-", script=RULES)
    meshed = cri.run_container(client, "meshed", "connect", there, 8080)
    assert cri.wait_exited(meshed).exit_code == 0
    assert cri.said(meshed) == [
        f"outbound {there}:8080",
        f"inbound {there}:8080",
        # The proxy is on the pod's own side, so the application sees the pod.
        f"app 8080 from {there}",
    ]


def test_bytes_come_back(runtime: Containerd) -> None:
    sandbox = runtime.cri.run_pod("web")
    app = runtime.cri.run_container(sandbox, "app", "serve", 8080)
    runtime.cri.wait_said(app, "ready")
    address = (runtime.cri.pod(sandbox).ip, 8080)
    client = inside(runtime.node.netns, lambda: socket.create_connection(address, timeout=3))
    with client, client.makefile() as answer:
        assert answer.readline() == "app 8080 from 10.88.0.1\n"
        client.sendall(b"hello\n")
        assert answer.readline() == "hello\n"


def test_a_client_says_why_it_got_no_answer(runtime: Containerd) -> None:
    sandbox = runtime.cri.run_pod("web")
    client = runtime.cri.run_container(sandbox, "client", "connect", "127.0.0.1", 8080)
    assert runtime.cri.wait_exited(client).exit_code == 1
    assert runtime.cri.said(client) == ["cannot connect: Connection refused"]


def test_discovery_finds_a_pod(runtime: Containerd) -> None:
    uid = str(uuid.uuid4())
    sandbox = runtime.cri.run_pod("web", uid=uid)
    found = Scanner().scan().sandboxes[uid]
    pod = runtime.cri.pod(sandbox)
    assert found.pid == pod.pid
    assert found.netns.ino == runtime.node.seen(pod.netns).stat().st_ino
    assert Path(found.cgroup).is_dir()
    runtime.end_pod(sandbox)
    assert not Path(found.cgroup).exists()


def test_the_node_is_not_the_machine(runtime: Containerd) -> None:
    assert Path(runtime.node.netns).stat().st_ino != Path("/proc/self/ns/net").stat().st_ino
    assert runtime.node.run("ls", "/run/netns") == ""
    sandbox = runtime.cri.run_pod("web")
    name = Path(runtime.cri.pod(sandbox).netns).name
    assert runtime.node.run("ls", "/run/netns") == f"{name}\n"
    assert not Path("/run/netns", name).exists()


@pytest.mark.parametrize("end", [Containerd.stop, Containerd.kill])
def test_pods_outlive_their_runtime(runtime: Containerd, end: object) -> None:
    sandbox = runtime.cri.run_pod("web")
    app = runtime.cri.run_container(sandbox, "app", "serve", 8080)
    runtime.cri.wait_said(app, "ready")
    pod = runtime.cri.pod(sandbox)
    assert callable(end)
    end(runtime)
    assert inside(runtime.node.netns, lambda: _ask(pod.ip, 8080)) == "app 8080 from 10.88.0.1\n"
    runtime.start()
    assert runtime.cri.pod(sandbox) == pod
    assert runtime.cri.container(app).state == "running"
    runtime.end_pod(sandbox)


def test_a_failing_chain_is_said(tmp_path: Path, built: Built) -> None:
    with containerd(tmp_path, built, [{"type": "record"}]) as runtime:
        fail(runtime.plugins / "record", {"cniVersion": "1.0.0", "code": 11, "msg": "not now"})
        with pytest.raises(Refused, match="not now"):
            runtime.cri.run_pod("web")
        assert runtime.cri.pods() == []
        assert runtime.node.run("ls", "/run/netns") == ""


def test_nothing_is_left_after_a_failure(tmp_path: Path, built: Built) -> None:
    marks = [str(tmp_path)]
    before = everything(marks)

    def interrupted() -> None:
        with containerd(tmp_path, built) as runtime:
            marks.append(runtime.node.cgroup[1:])
            runtime.cri.run_container(runtime.cri.run_pod("web"), "app", "serve", 8080)
            assert everything(marks) > before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert len(marks) == 2
    assert not remaining(before, marks)


ORPHAN = """
import sys
from pathlib import Path
from tests.lab.containerd import containerd
from tests.lab.images import Built
images, record, directory = map(Path, sys.argv[1:])
with containerd(directory, Built(images, record)) as runtime:
    runtime.cri.run_container(runtime.cri.run_pod("web"), "app", "serve", 8080)
    print(runtime.node.cgroup, flush=True)
    sys.stdin.read()
"""


def test_nothing_is_left_after_a_kill(tmp_path: Path, built: Built) -> None:
    before = everything([str(tmp_path)])
    command = [sys.executable, "-c", ORPHAN, str(built.images), str(built.record), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        cgroup = process.stdout.readline().decode().strip()
        marks = (cgroup[1:], str(tmp_path))
        assert {line.split()[0] for line in everything(marks) - before} == {"cgroup", "process"}
        assert len(cgroups.members(cgroup)) >= 2
        process.send_signal(signal.SIGKILL)
    assert not remaining(before, marks, seconds=10)


def test_leftovers_are_seen() -> None:
    mark = f"pm-{os.getpid()}-left"
    before = everything([mark])
    with contextlib.ExitStack() as stack:
        directory = cgroups.hierarchies()[0] / mark
        directory.mkdir()
        stack.callback(directory.rmdir)
        run("ip", "netns", "add", mark)
        stack.callback(run, "ip", "netns", "delete", mark)
        sleeper = stack.enter_context(subprocess.Popen(["sleep", "60"], executable="/bin/sleep"))
        stack.callback(sleeper.kill)
        (directory / "cgroup.procs").write_text(str(sleeper.pid))
        started = time.monotonic()
        left = remaining(before, [mark], seconds=0.1)
        assert time.monotonic() - started >= 0.1
        assert [line for line in left if line.startswith("process")] == [f"process {sleeper.pid} sleep 60"]
        assert f"cgroup {directory}" in left
        assert f"network namespace /run/netns/{mark}" in left
        assert f"mount /run/netns/{mark}" in left
        sleeper.kill()
        sleeper.wait()
        # Its cgroup may be busy for a moment yet.
        while cgroups.members(f"/{mark}"):
            time.sleep(0.005)
    assert not remaining(before, [mark])
