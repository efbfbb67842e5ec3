"""The CNI gate of the real agent, called as the shim calls it, over real network namespaces."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_run import handles, table
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.cni import arguments, ask, conf, environment
from tests.lab.netns import netns, path_of, run

UID = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c11"
OTHER = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c22"
INJECTED = {"linkerd.io/proxy-version": "stable-2.14.0", "config.linkerd.io/skip-outbound-ports": "3306"}


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def second() -> Iterator[str]:
    with netns() as name:
        yield name


def add(one: Agent, name: str, netns: str, *, uid: str = UID, container: str = "c1", **given: Any) -> Any:
    call = environment("ADD", container, path_of(netns), arguments(name, uid=uid))
    return ask(one.run_dir / "cni.sock", call, conf(**given))


def delete(one: Agent, container: str = "c1", netns: str = "") -> Any:
    return ask(one.run_dir / "cni.sock", environment("DEL", container, path_of(netns) if netns else ""))


def of_kind(one: Agent, kind: str) -> Any:
    return ask(one.run_dir / "cni.sock", environment(kind))


def attachments(one: Agent) -> list[str]:
    directory = one.run_dir / "attachments"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_add_answers_when_the_rules_are_in_the_kernel(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        assert add(one, "web", pod) is None
        assert "redirect to :4140" in table(pod)
        state = one.pod("default/web")
        assert (state["status"]["reason"], state["netns"]) == ("Redirected", str(path_of(pod)))
        assert state["status"]["exposedS"] is None


def test_a_pod_that_the_source_learns_of_meanwhile_is_waited_for(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one, ThreadPoolExecutor(1) as runtime:
        answer = runtime.submit(add, one, "web", pod)
        time.sleep(0.3)
        assert not answer.done()
        one.put(pod_manifest("web", uid=UID))
        assert answer.result() is None
        assert "redirect to :4140" in table(pod)


def test_an_unknown_pod_is_let_through_and_repaired_when_it_is_known(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.3") as one:
        assert add(one, "web", pod) is None
        assert table(pod) == ""
        assert one.events("pod let through: its source does not know it; it is redirected as soon as it does")
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "Redirected")
        assert one.pod("default/web")["status"]["exposedS"] >= 0.3


def test_an_unknown_pod_with_the_injectors_annotations_is_redirected_by_them(
    tmp_path: Path, pod: str
) -> None:
    with agent(tmp_path, "--unknown-wait", "0.2") as one:
        assert add(one, "web", pod, annotations=INJECTED) is None
        assert "3306" in table(pod)
        one.wait_reason("default/web", "Redirected")
        # Its object comes, and says other things.
        one.put(pod_manifest("web", uid=UID, annotations={"config.linkerd.io/skip-outbound-ports": "5432"}))
        one.wait(lambda: "5432" in table(pod) and "3306" not in table(pod), "the object's own list")
        assert len(one.state()["pods"]) == 1


def test_an_announced_pod_is_kept_by_the_next_agent_too(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1", "--table-ownership", "off") as one:
        assert add(one, "web", pod, annotations=INJECTED) is None
        one.wait(lambda: attachments(one) == ["c1.eth0.json"], "the attachment written down")
        one.kill()
        one.start()
        one.wait_reason("default/web", "Redirected")
        run("ip", "netns", "exec", pod, "nft", "flush", "ruleset")
        one.wait(lambda: "3306" in table(pod), "the repair")


def test_an_announced_pod_ends_with_del(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        assert add(one, "web", pod, annotations=INJECTED) is None
        assert delete(one) is None
        one.wait(lambda: one.state()["pods"] == [], "the pod's end")
        one.wait(lambda: attachments(one) == [], "the attachment forgotten")


def test_an_unmeshed_pod_is_let_through_untouched(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("plain", uid=UID, meshed=False))
        one.wait_reason("default/plain", "NotMeshed")
        assert add(one, "plain", pod) is None
        assert table(pod) == ""


def test_a_pod_without_uid_of_its_own_is_known_by_name(tmp_path: Path, pod: str) -> None:
    """A manifest that names no UID, and a runtime that does."""
    with agent(tmp_path) as one:
        one.put(pod_manifest("web"))
        one.wait_reason("default/web", "NetnsMissing")
        assert add(one, "web", pod) is None
        assert "redirect to :4140" in table(pod)


def test_the_predecessor_of_the_same_name_is_not_taken_for_the_pod(
    tmp_path: Path, pod: str, second: str
) -> None:
    with agent(tmp_path, "--unknown-wait", "0.2") as one:
        one.put(pod_manifest("web-0", uid=UID))
        assert add(one, "web-0", pod) is None
        before = handles(pod)
        assert add(one, "web-0", second, uid=OTHER, container="c2") is None
        assert table(second) == ""
        assert handles(pod) == before


def test_a_new_sandbox_of_the_same_pod_moves_it(tmp_path: Path, pod: str, second: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        assert add(one, "web", pod) is None
        assert add(one, "web", second, container="c2") is None
        assert "redirect to :4140" in table(second)
        # The old sandbox goes only now, as when kubelet cleans up late.
        assert delete(one, "c1", pod) is None
        time.sleep(0.2)
        state = one.pod("default/web")
        assert (state["status"]["reason"], state["netns"]) == ("Redirected", str(path_of(second)))


def test_c14_del_twice_the_second_time_without_netns(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        assert add(one, "web", pod) is None
        one.wait(lambda: attachments(one) == ["c1.eth0.json"], "the attachment written down")
        assert delete(one, netns=pod) is None
        one.wait(lambda: attachments(one) == [], "the attachment forgotten")
        one.wait(lambda: one.state()["netnsHeld"] == 0, "the netns given back")
        assert delete(one) is None
        assert delete(one, "never-seen") is None


def test_g06_a_late_del_never_touches_the_newer_owner(tmp_path: Path, pod: str, second: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("old", uid=UID))
        one.put(pod_manifest("new", uid=OTHER))
        assert add(one, "old", pod) is None
        assert add(one, "new", second, uid=OTHER, container="c2") is None
        before = handles(second)
        assert delete(one, "c1") is None
        assert add(one, "new", second, uid=OTHER, container="c2") is None
        assert handles(second) == before
        assert one.reason("default/new") == "Redirected"


def test_check_compares_and_changes_nothing(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--table-ownership", "off") as one:
        check = environment("CHECK", "c1", path_of(pod), arguments("web", uid=UID))
        one.put(pod_manifest("web", uid=UID))
        assert add(one, "web", pod) is None
        before = handles(pod)
        assert ask(one.run_dir / "cni.sock", check, conf()) is None
        assert handles(pod) == before
        one.put(pod_manifest("web", uid=UID, annotations={"pointsman.io/redirect": "disabled"}))
        one.wait_reason("default/web", "Draining")
        assert ask(one.run_dir / "cni.sock", check, conf()) is None


def test_check_fails_for_a_meshed_pod_that_is_not_redirected(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        check = environment("CHECK", "c1", path_of(pod), arguments("web", uid=UID))
        error = ask(one.run_dir / "cni.sock", check, conf())
        assert error["code"] == 11
        assert "default/web" in error["msg"]
        assert "NetnsMissing" in error["msg"]


def test_gc_forgets_what_is_not_listed(tmp_path: Path, pod: str, second: str) -> None:
    with agent(tmp_path) as one:
        for name, where, uid, container in (("a", pod, UID, "c1"), ("b", second, OTHER, "c2")):
            one.put(pod_manifest(name, uid=uid))
            assert add(one, name, where, uid=uid, container=container) is None
        listed = conf(**{"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]})
        assert ask(one.run_dir / "cni.sock", environment("GC"), listed) is None
        one.wait(lambda: attachments(one) == ["c2.eth0.json"], "the unlisted one forgotten")
        one.wait(lambda: one.state()["netnsHeld"] == 1, "the unlisted netns given back")
        assert one.reason("default/b") == "Redirected"


def test_status_is_refused_only_when_nothing_can_be_redirected(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        assert of_kind(one, "STATUS") is None


def test_a_meshed_pod_with_the_nodes_own_netns_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        call = environment("ADD", "c1", f"/proc/{os.getpid()}/ns/net", arguments("web", uid=UID))
        error = ask(one.run_dir / "cni.sock", call, conf())
        assert error["code"] == 11
        assert "the node's own network namespace" in error["msg"]
        one.put(pod_manifest("web", uid=UID, meshed=False))
        one.wait(lambda: ask(one.run_dir / "cni.sock", call, conf()) is None, "leave to pass")
    assert "pointsman" not in run("nft", "list", "tables")


def test_a_netns_that_is_gone_is_refused_at_once(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        began = time.monotonic()
        call = environment("ADD", "c1", "/run/netns/pm-never-made", arguments("web", uid=UID))
        error = ask(one.run_dir / "cni.sock", call, conf())
        assert (error["code"], error["cniVersion"]) == (11, "1.0.0")
        assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"CNI_COMMAND": "FROBNICATE"}, 4),
        ({"CNI_CONTAINERID": "../../etc/passwd"}, 4),
        ({"CNI_CONTAINERID": ""}, 4),
        ({"CNI_IFNAME": "a/b"}, 4),
        ({"CNI_IFNAME": ".."}, 4),
        ({"CNI_NETNS": ""}, 4),
    ],
)
def test_bad_environments_are_named(tmp_path: Path, change: dict[str, str], code: int, pod: str) -> None:
    with agent(tmp_path) as one:
        call = {**environment("ADD", "c1", path_of(pod), arguments("web", uid=UID)), **change}
        error = ask(one.run_dir / "cni.sock", call, conf())
        assert error["code"] == code
        assert next(iter(change)) in error["msg"]


def test_a_thousand_calls_at_once(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.2") as one, ThreadPoolExecutor(100) as runtime:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        calls = [
            environment(
                "ADD" if number % 2 else "DEL",
                f"c{number % 7}" if number % 2 else f"x{number}",
                path_of(pod),
                arguments("web", uid=UID),
            )
            for number in range(1000)
        ]
        answers = list(runtime.map(lambda call: ask(one.run_dir / "cni.sock", call, conf()), calls))
        assert answers == [None] * 1000
        assert one.reason("default/web") == "Redirected"


def test_what_is_no_call_is_refused_and_nobody_is_the_worse_for_it(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        for junk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PMCNI\0\0\x01" + b"\xff" * 8, os.urandom(4096)):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(5)
                peer.connect(str(one.run_dir / "cni.sock"))
                peer.sendall(junk)
                peer.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(1) == b""
        one.put(pod_manifest("web", uid=UID))
        assert add(one, "web", pod) is None


def test_a_restarted_agent_knows_where_its_pods_are(tmp_path: Path, pod: str, second: str) -> None:
    with agent(tmp_path, "--no-discovery") as one:
        one.put(pod_manifest("web", uid=UID))
        one.put(pod_manifest("gone", uid=OTHER))
        assert add(one, "web", pod) is None
        assert add(one, "gone", second, uid=OTHER, container="c2") is None
        before = handles(pod)
        one.kill()
        subprocess.run(["ip", "netns", "del", second], check=True)
        (one.run_dir / "attachments" / "torn.json").write_bytes(b'{"containerId": "c')
        one.start()
        one.wait_reason("default/web", "Redirected")
        assert handles(pod) == before
        one.wait(lambda: attachments(one) == ["c1.eth0.json"], "the ended attachment forgotten")


def test_a_successor_has_the_writer_answer_until_it_writes_itself(
    tmp_path: Path, pod: str, second: str
) -> None:
    with agent(tmp_path, name="old") as old, agent(tmp_path, name="new", start=False) as new:
        old.put(pod_manifest("a", uid=UID))
        old.put(pod_manifest("b", uid=OTHER))
        new.start()
        new.wait(lambda: new.events("answering the CNI shim"), "the socket taken over")
        assert not new.state()["writer"]
        assert add(new, "a", pod) is None
        assert "redirect to :4140" in table(pod)
        before = handles(pod)
        assert old.stop() == 0
        assert add(new, "b", second, uid=OTHER, container="c2") is None
        assert "redirect to :4140" in table(second)
        new.wait(lambda: new.state()["writer"], "the writer's lock")
        new.wait_reason("default/a", "Redirected")
        assert handles(pod) == before
        assert sorted(path.name for path in new.run_dir.glob("*cni*")) == sorted(
            ["cni.sock", *(path.name for path in new.run_dir.glob("cni-*.sock"))]
        )
        assert len(list(new.run_dir.glob("cni-*.sock"))) == 1


def test_calls_go_on_while_the_writer_is_killed(tmp_path: Path) -> None:
    """Adds all the time, over the kill of the writer with a successor beside it: none is refused."""
    with agent(tmp_path, name="old") as old, agent(tmp_path, name="new", start=False) as new, netns() as pod:
        old.put(pod_manifest("web", uid=UID))
        new.start()
        new.wait(lambda: new.events("answering the CNI shim"), "the socket taken over")
        answers: list[Any] = []
        stop = threading.Event()

        def runtime() -> None:
            while not stop.is_set():
                answers.append(add(new, "web", pod))

        thread = threading.Thread(target=runtime)
        thread.start()
        try:
            time.sleep(0.3)
            old.kill()
            new.wait(lambda: new.state()["writer"], "the writer's lock")
            time.sleep(0.3)
        finally:
            stop.set()
            thread.join()
        assert len(answers) > 20
        assert set(map(json.dumps, answers)) == {"null"}


def test_an_observing_agent_lets_all_pass_and_takes_no_socket_from_another(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, name="one") as one, agent(tmp_path, "--observe", name="eye", start=False) as eye:
        inode = (one.run_dir / "cni.sock").stat().st_ino
        eye.start(wait=False)
        eye.wait(
            lambda: eye.events("started") and len(list(eye.run_dir.glob("cni-*.sock"))) == 2, "its start"
        )
        time.sleep(0.5)
        assert (one.run_dir / "cni.sock").stat().st_ino == inode
        one.kill()
        eye.wait(lambda: eye.events("answering the CNI shim"), "the socket, now that nobody has it")
        eye.put(pod_manifest("web", uid=UID))
        assert add(eye, "web", pod) is None
        assert table(pod) == ""


def test_every_call_is_counted_and_timed(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        one.put(pod_manifest("web", uid=UID))
        one.put(pod_manifest("plain", uid=OTHER, meshed=False))
        add(one, "web", pod)
        add(one, "plain", pod, uid=OTHER, container="c2")
        add(one, "who", pod, uid=str(uuid.uuid4()), container="c3")
        delete(one, "c3")
        of_kind(one, "NONSENSE")
        metrics = one.ask("GET", "/metrics")
        for labels in (
            'command="ADD",result="redirected"',
            'command="ADD",result="unmeshed"',
            'command="ADD",result="unknown"',
            'command="DEL",result="done"',
            'command="other",result="invalid"',
        ):
            assert f"pointsman_cni_requests_total{{{labels}}} 1.0" in metrics
        assert 'pointsman_cni_request_duration_seconds_count{command="ADD"} 3.0' in metrics


def test_only_the_agents_own_user_may_call(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        path = one.run_dir / "cni.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        script = (
            "import os, socket, sys\n"
            "peer = socket.socket(socket.AF_UNIX)\n"
            "peer.connect(sys.argv[1]) if os.geteuid() else None\n"
        )
        path.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", f"import os; os.setuid(65534)\n{script}\nprint(peer.recv(1))", str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        # The directory keeps others out, and what gets in is not served.
        assert "PermissionError" in done.stderr or done.stdout == "b''\n"


@pytest.mark.parametrize("harm", ["removed", "plain file", "directory removed"])
def test_a_socket_that_is_taken_away_is_made_anew(tmp_path: Path, pod: str, harm: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        path = one.run_dir / "cni.sock"
        if harm == "directory removed":
            shutil.rmtree(one.run_dir)
        else:
            path.unlink()
        if harm == "plain file":
            path.write_text("not a socket")
        deadline = time.monotonic() + 10
        while not (path.exists() and path.is_socket()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert add(one, "web", pod) is None
        assert "redirect to :4140" in table(pod)


def test_a_fault_of_ours_refuses_and_never_lets_pass(
    tmp_path: Path, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call must be answered whatever happens: none at all counts as an agent that is away."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text(
        "import agent.core.gate\n"
        "def judge(status): raise RuntimeError('made to fail')\n"
        "agent.core.gate.judge = judge\n"
    )
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        error = add(one, "web", pod)
        assert error["code"] == 11
        assert "a fault of pointsman" in error["msg"]
        assert 'command="ADD",result="failed"' in one.ask("GET", "/metrics")
