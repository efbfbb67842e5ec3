"""The CNI gate with its surroundings at fault: calls that cross, odd names, no room, no descriptors."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_gate import INJECTED, OTHER, UID, add, attachments, delete
from tests.daemon.test_run import table
from tests.lab.agent import agent, pod_manifest
from tests.lab.cni import arguments, ask, conf, environment
from tests.lab.netns import netns, path_of

THIRD = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c33"


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def second() -> Iterator[str]:
    with netns() as name:
        yield name


# ---- calls that cross -----------------------------------------------------------------------------------


@pytest.mark.parametrize("annotations", [INJECTED, None])
def test_del_before_add_is_answered_leaves_nothing(tmp_path: Path, pod: str, annotations: Any) -> None:
    """As when the runtime has lost patience with ADD. The netns is still there: no end of it tells us."""
    with agent(tmp_path, "--unknown-wait", "0.6") as one, ThreadPoolExecutor(1) as runtime:
        answer = runtime.submit(add, one, "web", pod, annotations=annotations)
        one.wait(lambda: attachments(one), "the call")
        assert delete(one, netns=pod) is None
        error = answer.result()
        if annotations is not None:
            assert (error["code"], error["msg"]) == (
                11,
                "cannot redirect pod default/web: its sandbox has ended",
            )
        time.sleep(0.3)
        assert attachments(one) == []
        assert one.state()["pods"] == []
        assert one.state()["cni"]["strangers"] == []
        assert table(pod) == ""


def test_an_answer_that_comes_late_does_not_move_the_pod_back(tmp_path: Path, pod: str, second: str) -> None:
    with agent(tmp_path, "--unknown-wait", "1") as one, ThreadPoolExecutor(2) as runtime:
        first = runtime.submit(add, one, "web", pod)
        time.sleep(0.4)
        again = runtime.submit(add, one, "web", second, container="c2")
        assert first.result() is None
        one.put(pod_manifest("web", uid=UID))
        assert again.result() is None
        assert one.pod("default/web")["netns"] == str(path_of(second))
        assert "redirect to :4140" in table(second)


def test_an_announced_pod_outlives_its_old_sandbox(tmp_path: Path, pod: str, second: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        assert add(one, "web", pod, annotations=INJECTED) is None
        assert add(one, "web", second, container="c2", annotations=INJECTED) is None
        assert delete(one, "c1", pod) is None
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert one.reason("default/web") == "Redirected"
        assert one.pod("default/web")["netns"] == str(path_of(second))


@pytest.mark.parametrize("restart", [False, True])
def test_a_pod_whose_object_is_deleted_by_force_keeps_its_rules(
    tmp_path: Path, pod: str, restart: bool
) -> None:
    """What its object said, as the proxy's user here, is not what annotations and defaults would say."""
    manifest = pod_manifest("web", uid=UID, annotations=INJECTED)
    proxy = manifest["spec"]["containers"][1]
    proxy["securityContext"] = {"runAsUser": 1337}
    with agent(tmp_path, "--unknown-wait", "0.3", "--table-ownership", "off") as one:
        one.put(manifest)
        assert add(one, "web", pod, annotations=INJECTED) is None
        before = table(pod)
        assert "meta skuid 1337" in before
        one.drop(manifest)
        one.wait_reason("default/web", "Orphaned")
        if restart:
            one.stop()
            one.start()
        # Two rounds in which it could be announced.
        time.sleep(4.5)
        assert table(pod) == before


def test_an_object_that_came_late_counts_as_well_after_it_is_gone(tmp_path: Path, pod: str) -> None:
    manifest = pod_manifest("web", uid=UID, annotations={"config.linkerd.io/skip-outbound-ports": "5432"})
    with agent(tmp_path, "--unknown-wait", "0.1", "--table-ownership", "off") as one:
        assert add(one, "web", pod, annotations=INJECTED) is None
        one.put(manifest)
        one.wait(lambda: "5432" in table(pod), "the object's own list")
        note = one.run_dir / "attachments/c1.eth0.json"
        one.wait(lambda: json.loads(note.read_bytes())["known"], "the note of it")
        one.stop()
        one.drop(manifest)
        one.start()
        time.sleep(2.5)
        assert "5432" in table(pod)
        assert one.state()["pods"] == []


def test_a_successor_knows_whom_the_writer_let_through(tmp_path: Path, pod: str) -> None:
    wait = ("--unknown-wait", "0.2")
    with agent(tmp_path, *wait, name="old") as old, agent(tmp_path, *wait, name="new", start=False) as new:
        new.start()
        new.wait(lambda: new.events("answering the CNI shim"), "the socket taken over")
        assert add(new, "web", pod) is None
        assert old.events("pod let through: its source does not know it; it is redirected as soon as it does")
        old.stop()
        new.wait(lambda: new.state()["writer"], "the writer's lock")
        new.put(pod_manifest("web", uid=UID))
        new.wait_reason("default/web", "Redirected")
        assert new.pod("default/web")["letThrough"]
        assert new.pod("default/web")["status"]["exposedS"] >= 0.2


def test_rules_in_the_old_sandbox_are_no_answer_for_the_new_one(
    tmp_path: Path, pod: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the new one takes longer than ADD may take."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio, agent.gate, agent.node.keeper\n"
        "look_now = agent.node.keeper.Keeper.look_now\n"
        "async def slow(self):\n"
        "    if self.hold is not None: await asyncio.sleep(60)\n"
        "    return await look_now(self)\n"
        "agent.gate.PATIENCE = 0.5\n"
        "agent.node.keeper.Keeper.look_now = slow\n"
    )
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        assert add(one, "web", pod) is None
        error = add(one, "web", second, container="c2")
        assert table(second) == ""
        assert error["code"] == 11
        assert str(path_of(second)) in error["msg"]


def test_of_two_sandboxes_of_one_pod_only_that_with_rules_starts(
    tmp_path: Path, pod: str, second: str
) -> None:
    with agent(tmp_path, "--unknown-wait", "3") as one, ThreadPoolExecutor(2) as runtime:
        first = runtime.submit(add, one, "web", pod)
        one.wait(lambda: attachments(one), "the first call")
        again = runtime.submit(add, one, "web", second, container="c2")
        one.wait(lambda: len(attachments(one)) == 2, "the second call")
        one.put(pod_manifest("web", uid=UID))
        assert again.result() is None
        assert "redirect to :4140" in table(second)
        assert first.result()["code"] == 11
        assert table(pod) == ""


def test_a_writer_that_hangs_holds_up_meshed_pods_alone(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, name="old") as old, agent(tmp_path, name="new", start=False) as new:
        old.put(pod_manifest("web", uid=UID))
        old.put(pod_manifest("plain", uid=OTHER, meshed=False))
        new.start()
        new.wait(lambda: new.events("answering the CNI shim"), "the socket taken over")
        os.kill(old.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert add(new, "plain", pod, uid=OTHER, container="c2") is None
            assert time.monotonic() - began < 1
            error = add(new, "web", pod)
            assert time.monotonic() - began < 9.9
        finally:
            os.kill(old.pid, signal.SIGCONT)
        assert error["code"] == 11
        assert f"cannot have the writing agent (process {old.pid}) answer" in error["msg"]


def test_two_calls_for_one_container_are_both_answered(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "3") as one, ThreadPoolExecutor(2) as runtime:
        answers = [runtime.submit(add, one, "web", pod) for _ in range(2)]
        one.wait(lambda: attachments(one), "the calls")
        one.put(pod_manifest("web", uid=UID))
        assert [answer.result() for answer in answers] == [None, None]
        assert delete(one, netns=pod) is None
        one.wait(lambda: one.state()["netnsHeld"] == 0, "the netns given back")


def test_what_else_a_pod_needs_is_waited_for_as_long_as_the_shim_waits(
    tmp_path: Path, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that came later than the shim's patience would count as an agent that is away."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio, agent.gate, agent.pod_listeners\n"
        "async def ensure(self, keeper): await asyncio.sleep(60)\n"
        "agent.gate.PATIENCE = 1.0\n"
        "agent.pod_listeners.PodListeners.ensure = ensure\n"
    )
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        began = time.monotonic()
        assert add(one, "web", pod) is None
        assert 0.9 < time.monotonic() - began < 5
        assert "redirect to :4140" in table(pod)


def test_an_unknown_pod_is_let_through_before_the_shim_loses_patience(tmp_path: Path, pod: str) -> None:
    """However long the source may be waited for: with `deny`, no answer would refuse it."""
    with agent(tmp_path, "--unknown-wait", "60") as one:
        began = time.monotonic()
        assert add(one, "web", pod) is None
        assert time.monotonic() - began < 9.5


# ---- what stands where a netns should -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "file", "symlink loop", "long", "user namespace", "another pod's"])
def test_a_netns_that_is_none_of_the_pods_holds_up_nobody_else(tmp_path: Path, pod: str, kind: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        path = tmp_path / "netns"
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "file":
                path.write_text("none")
            case "symlink loop":
                path.symlink_to(path)
            case "long":
                path = Path("/", "x" * 5000)
            case "user namespace":
                path = Path(f"/proc/{one.pid}/ns/user")
            case _:
                path = path_of(pod)
                one.put(pod_manifest("owner", uid=THIRD))
                assert add(one, "owner", pod, uid=THIRD, container="c0") is None
        one.put(pod_manifest("web", uid=UID))
        one.put(pod_manifest("plain", uid=OTHER, meshed=False))
        one.wait_reason("default/web", "NetnsMissing")

        def call(name: str, uid: str, container: str) -> Any:
            one_of = environment("ADD", container, path, arguments(name, uid=uid))
            return ask(one.run_dir / "cni.sock", one_of, conf())

        error = call("web", UID, "c1")
        assert error["code"] == 11
        assert str(path)[:80] in error["msg"]
        assert call("plain", OTHER, "c2") is None
        assert call("stranger", "", "c3") is None
        assert [delete(one, container) for container in ("c0", "c1", "c2", "c3")] == [None] * 4
        one.wait(lambda: one.state()["netnsHeld"] == one.state()["cni"]["attachments"] == 0, "their end")


# ---- what is in a call ----------------------------------------------------------------------------------


def test_names_that_are_no_text_do_not_blind_the_agent(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        for container, annotations in (("c1", None), ("c2", INJECTED)):
            args = "K8S_POD_NAME=\udcff;K8S_POD_NAMESPACE=\udcfe;K8S_POD_UID=\udcfd"
            call = environment("ADD", container, path_of(pod), args)
            assert ask(one.run_dir / "cni.sock", call, conf(annotations=annotations)) is None
        one.wait(lambda: attachments(one) == ["c1.eth0.json", "c2.eth0.json"], "both written down")
        assert one.state()["cni"]["attachments"] == 2
        assert "pointsman_cni_requests_total" in one.ask("GET", "/metrics")


@pytest.mark.parametrize("field", ["name", "netns"])
def test_an_error_is_never_longer_than_the_shim_takes(tmp_path: Path, field: str) -> None:
    long = "\x01" * 60_000
    name, where = (long, "/nowhere") if field == "name" else ("web", f"/{long}")
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        call = environment("ADD", "c1", where, arguments(name, uid=UID))
        error = ask(one.run_dir / "cni.sock", call, conf(annotations=INJECTED))
        assert error is not None
        assert len(json.dumps(error)) < 64 << 10


@pytest.mark.parametrize(("verb", "code"), [("ADD", 6), ("CHECK", 6), ("DEL", None), ("GC", None)])
def test_a_configuration_that_is_too_deep_is_one_that_cannot_be_decoded(
    tmp_path: Path, pod: str, verb: str, code: int | None
) -> None:
    with agent(tmp_path) as one:
        call = environment(verb, "c1", path_of(pod), arguments("web", uid=UID))
        deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        error = ask(one.run_dir / "cni.sock", call, deep)
        assert (error["code"] if error is not None else None) == code


# ---- the run directory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["fifo", "device", "directory", "no text", "deep", "large", "another's", "a path"]
)
def test_notes_that_no_agent_has_written_are_passed_over(tmp_path: Path, pod: str, kind: str) -> None:
    precious = tmp_path / "precious.eth0.json"
    precious.write_text("somebody's")
    with agent(tmp_path, start=False) as one:
        directory = one.run_dir / "attachments"
        directory.mkdir()
        note = directory / "c9.eth0.json"
        told = {"containerId": "c9", "ifname": "eth0", "netns": "/gone"}
        match kind:
            case "fifo":
                os.mkfifo(note)
            case "device":
                note.symlink_to("/dev/zero")
            case "directory":
                note.mkdir()
            case "no text":
                note.write_bytes(b'{"containerId": "\xff\xfe"}')
            case "deep":
                note.write_bytes(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
            case "large":
                note.write_bytes(b" " * (3 << 20) + json.dumps(told).encode())
            case "another's":
                note.write_text(json.dumps({**told, "containerId": "c8"}))
            case _:
                note.write_text(json.dumps({**told, "containerId": "../../precious"}))
        one.put(pod_manifest("web", uid=UID))
        one.start()
        assert add(one, "web", pod) is None
        assert one.events("cannot use an attachment's file")
        left = ["c9.eth0.json"] if kind == "directory" else []
        one.wait(lambda: attachments(one) == ["c1.eth0.json", *left], "nothing else")
        time.sleep(2.2)
        assert precious.read_text() == "somebody's"
        assert one.state()["cni"]["attachments"] == 1


def test_what_a_killed_agent_had_not_finished_goes(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, start=False) as one:
        (one.run_dir / "attachments").mkdir()
        (one.run_dir / "attachments/.c9.eth0.json.4711").write_text("{")
        for name in (".cni-0badcafe.new", "cni-0badcafe.sock"):
            subprocess.run(
                [
                    "python3",
                    "-c",
                    "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])",
                    name,
                ],
                cwd=one.run_dir,
                check=True,
            )
        one.put(pod_manifest("web", uid=UID))
        one.start()
        assert add(one, "web", pod) is None
        one.wait(lambda: attachments(one) == ["c1.eth0.json"], "only what is told")
        assert "0badcafe" not in " ".join(path.name for path in one.run_dir.iterdir())


@pytest.mark.parametrize("room", [3, 4, 5])
def test_a_run_directory_without_room_costs_the_socket_and_no_rules(
    tmp_path: Path, pod: str, room: int
) -> None:
    """`room`: inodes that are left for lock, door and sockets. Where there is some again, all is well."""
    with agent(tmp_path, start=False) as one:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"nr_inodes={room + 3}", "none", one.run_dir], check=True
        )
        try:
            for number in range(2):
                (one.run_dir / f"full{number}").touch()
            one.put(pod_manifest("web", pod, uid=UID))
            one.start(wait=False)
            one.wait_reason("default/web", "Redirected")
            assert "redirect to :4140" in table(pod)
            for number in range(2):
                (one.run_dir / f"full{number}").unlink()
            one.wait(lambda: not one.state()["notReady"], "readiness")
            assert add(one, "web", pod) is None
        finally:
            one.close()
            subprocess.run(["umount", "--lazy", one.run_dir], check=True)


def test_a_disk_that_is_full_holds_up_no_pod(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, start=False) as one:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", one.run_dir], check=True)
        try:
            one.put(pod_manifest("web", uid=UID))
            one.start()
            with pytest.raises(OSError, match="No space left"):
                (one.run_dir / "full").write_bytes(b"x" * (1 << 20))
            assert add(one, "web", pod) is None
            assert "redirect to :4140" in table(pod)
            one.wait(lambda: one.events("cannot write down an attachment"), "word of it")
            assert [path.name for path in (one.run_dir / "attachments").iterdir()] == []
            assert delete(one, netns=pod) is None
        finally:
            one.close()
            subprocess.run(["umount", "--lazy", one.run_dir], check=True)


# ---- without libnftables --------------------------------------------------------------------------------


def test_status_is_refused_while_no_rule_set_can_be_made(
    tmp_path: Path, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import agent.gate, agent.node.nft.compile as compiling\n"
        "def flags(self): raise compiling.CompileError('made to fail')\n"
        "agent.gate.PATIENCE = 1.0\n"
        "compiling.Compiler.flags = flags\n"
    )
    with agent(tmp_path, start=False) as one:
        one.put(pod_manifest("web", uid=UID))
        one.put(pod_manifest("plain", uid=OTHER, meshed=False))
        one.start(wait=False)
        one.wait_reason("default/plain", "NotMeshed")
        one.wait((one.run_dir / "cni.sock").exists, "the shim's socket")
        error = ask(one.run_dir / "cni.sock", environment("STATUS"))
        assert error is not None
        assert error["code"] == 50
        assert "cannot redirect pods" in error["msg"]
        error = add(one, "web", pod)
        assert error["code"] == 11
        assert "CompileFailed" in error["msg"]
        assert add(one, "plain", pod, uid=OTHER, container="c2") is None


# ---- descriptors ----------------------------------------------------------------------------------------


def test_an_agent_that_was_short_of_descriptors_is_ready_again(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        inode = (one.run_dir / "cni.sock").stat().st_ino

        def allow(descriptors: int) -> None:
            subprocess.run(["prlimit", f"--pid={one.pid}", f"--nofile={descriptors}:4096"], check=True)

        allow(4)
        said = "cannot find out who answers the CNI shim; tried again"
        deadline = time.monotonic() + 10
        while not one.events(said):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        allow(4096)
        one.wait(lambda: not one.state()["notReady"], "readiness")
        assert add(one, "web", pod) is None
        # Nobody had taken the socket away.
        assert (one.run_dir / "cni.sock").stat().st_ino == inode
        assert not one.events("the shim's socket is gone, or another file lies in its place; made anew")
