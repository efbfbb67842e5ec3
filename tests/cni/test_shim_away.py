"""The shim without an agent: whom it lets pass, what it says, and how long it takes."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from agent.cni.wire import reply
from tests.cni.scripted import SUCCESS, Request, agent, foreign_agent, frame, hanging_up_at_once, says, silent
from tests.cni.shim import (
    AWAY_AFTER,
    PREVIOUS,
    TABLE,
    VERBS,
    Call,
    Done,
    call,
    call_all,
    calls,
    conf,
    feed,
    finish,
    start,
    with_previous,
)
from tests.lab.cni import arguments

REFUSAL = b'{"cniVersion":"1.0.0","code":11,"msg":"pod default/web: wait","details":"\\u00e4"}'


Making = Callable[[Path], AbstractContextManager[Any]]


def stale(path: Path) -> AbstractContextManager[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return contextlib.nullcontext()


def plain_file(path: Path) -> AbstractContextManager[None]:
    path.write_text("not a socket")
    return contextlib.nullcontext()


def telling(*parts: bytes) -> Making:
    return lambda path: agent(path, says(*parts))


NO_AGENT: dict[str, tuple[Making, str]] = {
    "nothing": (lambda _: contextlib.nullcontext(), "No such file or directory"),
    "a stale socket": (stale, "Connection refused"),
    "a plain file": (plain_file, "Connection refused"),
    "another user's": (lambda path: foreign_agent(path, 65534), "does not belong to root but to uid 65534"),
    "one that closes": (telling(), "broke before a whole answer came"),
    "one that hangs up": (hanging_up_at_once, "broke before a whole answer came"),
    "half a header": (telling(reply(b"")[:9]), "broke before a whole answer came"),
    "half a body": (telling(reply(REFUSAL)[:-1]), "broke before a whole answer came"),
    "no magic": (telling(frame(0, magic=b"PMCNI\0\0\2")), "magic"),
    "another protocol": (telling(b"HTTP/1.1 400\r\n\r\n"), "magic"),
    "a strange exit code": (telling(frame(2)), "neither 0 nor 1"),
    "a long body": (telling(frame(1, REFUSAL, length=(64 << 10) + 1)), "longer than 64 KiB"),
    "a huge body": (telling(frame(1, length=0xFFFFFFFF)), "longer than 64 KiB"),
    "a body for nothing": (telling(frame(0, b"{}")), "beside exit code 0"),
    "no error object": (telling(frame(1)), "not a JSON object"),
    "text for a body": (telling(frame(1, b"no such pod")), "not a JSON object"),
    "more than a body": (telling(frame(0) + b"{}"), "more follows"),
}


@pytest.fixture(scope="session")
def answers(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Done]]]:
    """What came of the table in each state, three states at a time since many take the whole window."""

    def answer(state: str) -> tuple[Path, list[Done]]:
        path = tmp_path_factory.mktemp("state") / "cni.sock"
        with NO_AGENT[state][0](path):
            return path, call_all(shim, calls(path))

    with ThreadPoolExecutor(3) as runtime:
        return dict(zip(NO_AGENT, runtime.map(answer, NO_AGENT), strict=True))


@pytest.mark.parametrize("state", NO_AGENT)
def test_without_an_agent_the_configuration_decides(
    answers: dict[str, tuple[Path, list[Done]]], state: str
) -> None:
    words = NO_AGENT[state][1]
    path, answered = answers[state]
    for (verb, version, policy), done in zip(TABLE, answered, strict=True):
        if policy == "deny" and verb in ("ADD", "STATUS"):
            assert done.error["code"] == {"ADD": 11, "STATUS": 50}[verb]
            assert done.error["cniVersion"] == version
            assert done.error["msg"] == f"pod default/web: agent not reachable on {path}"
            assert words in done.error["details"]
            assert "set whenAgentAway to allow" in done.error["details"]
            assert done.err == ""
        else:
            assert (done.code, done.out) == (0, PREVIOUS.encode() if verb == "ADD" else b"")
            assert done.err.startswith(f"pointsman-cni: {verb}: pod default/web: passed without the agent: ")
            assert words in done.err
            assert done.err.count("\n") == 1


EXEMPT: dict[str, Any] = {
    "exemptNamespaces": ["kube-system", "ü"],
    "agentPod": "linkerd-cni/linkerd-cni-",
}


@pytest.mark.parametrize(
    ("args", "passes"),
    [
        (arguments("web", "default", "u"), False),
        (arguments("linkerd-cni-x7k2p", "linkerd-cni", "u"), True),
        (arguments("linkerd-cni", "linkerd-cni", "u"), False),
        (arguments("web", "linkerd-cni", "u"), False),
        (arguments("linkerd-cni-x7k2p", "default", "u"), False),
        (arguments("linkerd-cni-x7k2p", "linkerd-cni-2", "u"), False),
        (arguments("coredns", "kube-system", "u"), True),
        (arguments("coredns", "kube-system-2", "u"), False),
        (arguments("coredns", "kube", "u"), False),
        (arguments("x", "ü", "u"), True),
        ("", True),
        ("IgnoreUnknown=1", True),
        ("K8S_POD_NAME=;K8S_POD_NAMESPACE=default", True),
        ("K8S_POD_NAME=web", False),
        ("K8S_POD_NAMESPACE=kube-system;K8S_POD_NAME=web", True),
        ("K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system;IgnoreUnknown=1;X;=;Y=", True),
        ("K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system;K8S_POD_NAMESPACE=default", False),
        ("XK8S_POD_NAME=web;K8S_POD_NAMESPACE=default", True),
        ('K8S_POD_NAME="web";K8S_POD_NAMESPACE="kube-system"', True),
        ('"K8S_POD_NAME=web;K8S_POD_NAMESPACE=kube-system"', True),
        (" K8S_POD_NAME = web ; K8S_POD_NAMESPACE = 'kube-system' \n", True),
        ("k8s_pod_name=web", True),
        (arguments("web" * 20_000, "default", "u"), False),
        (arguments("web", "kube-system" + "x" * 20_000, "u"), False),
    ],
)
def test_deny_lets_pass_whom_nothing_may_hold_up(shim: Path, path: Path, args: str, passes: bool) -> None:
    stdin = with_previous(conf(path, whenAgentAway="deny", **EXEMPT))
    with agent_away(path):
        done = call(shim, "ADD", stdin, CNI_ARGS=args)
    if passes:
        assert (done.code, done.out) == (0, PREVIOUS.encode())
    else:
        assert done.error["code"] == 11


def agent_away(path: Path) -> AbstractContextManager[None]:
    """An agent that counts as away at once, not only after the time for which a restart is waited for."""
    return foreign_agent(path, 65534)


@pytest.mark.parametrize(
    ("args", "subject"),
    [
        (None, "container c1"),
        ("K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop", "pod shop/web"),
        ("K8S_POD_NAME=web;K8S_POD_NAMESPACE=", "pod default/web"),
        ("K8S_POD_NAME=web", "pod default/web"),
    ],
)
def test_who_was_let_pass_is_named(shim: Path, path: Path, args: str | None, subject: str) -> None:
    with agent_away(path):
        done = call(shim, "ADD", conf(path), CNI_ARGS=args)
        assert done.err.startswith(f"pointsman-cni: ADD: {subject}: passed without the agent: {path}: ")
        assert "node: passed" in call(shim, "STATUS", conf(path), CNI_ARGS=None, CNI_CONTAINERID=None).err


def test_hostile_names_stay_inside_the_error_object(shim: Path, path: Path) -> None:
    name = 'w"e\\b\n\x01\t\x7f\u00e4\U0001f600' + "x" * 300
    with agent_away(path):
        stdin = conf(path, whenAgentAway="deny")
        done = call(shim, "ADD", stdin, CNI_ARGS=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default")
        assert done.error["msg"].startswith(f"pod default/{name[:200]}")
        for raw in (
            b"\xff",
            b"\xc3",
            b"\xe2\x82",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xc0\xaf",
            b"\xf0\x9f",
        ):
            done = call(shim, "ADD", stdin, CNI_ARGS=f"K8S_POD_NAME=a{os.fsdecode(raw)}b")
            assert done.error["msg"].startswith("pod default/a\ufffd")
            assert "b: agent" in done.error["msg"]
        done = call(shim, "ADD", conf(path), CNI_ARGS="K8S_POD_NAME=a\nb")
        assert "pod default/a?b: passed" in done.err
        assert done.err.count("\n") == 1


def test_f25_an_agent_that_starts_late_is_waited_for(shim: Path, path: Path) -> None:
    begun = time.monotonic()
    stdin = conf(path, whenAgentAway="deny")
    with start(shim, Call("ADD", stdin)) as process:
        time.sleep(AWAY_AFTER / 2)
        with agent(path, SUCCESS):
            done = finish(process, stdin, begun)
    assert (done.code, done.err) == (0, "")


def test_f25_an_agent_that_never_returns_costs_its_window_and_no_more(shim: Path, path: Path) -> None:
    done = call(shim, "ADD", conf(path, whenAgentAway="deny"))
    assert done.error["code"] == 11
    assert AWAY_AFTER - 0.1 <= done.seconds < AWAY_AFTER + 1
    for verb in ("DEL", "CHECK", "STATUS", "GC"):
        assert call(shim, verb, conf(path)).seconds < AWAY_AFTER


def test_a_restart_of_the_agent_in_the_middle_is_ridden_over(shim: Path, path: Path) -> None:
    """Broken when the first window is nearly over: the break opens a new one."""
    taken = threading.Event()

    def working(connection: socket.socket, _: Request) -> None:
        taken.set()
        time.sleep(AWAY_AFTER - 0.2)
        connection.sendall(reply(b"")[:3])

    begun = time.monotonic()
    stdin = with_previous(conf(path, whenAgentAway="deny"))
    with start(shim, Call("ADD", stdin)) as process:
        with agent(path, working) as first:
            feed(process, stdin)
            assert taken.wait(5)
        time.sleep(AWAY_AFTER / 2)
        with agent(path, SUCCESS) as second:
            done = finish(process, b"", begun)
    assert (done.code, done.out, done.err) == (0, PREVIOUS.encode(), "")
    assert first == second


def test_an_agent_that_hangs_up_on_everyone_is_not_asked_for_ever(shim: Path, path: Path) -> None:
    with agent(path, says()) as requests:
        done = call(shim, "ADD", conf(path))
    assert (done.code, len(requests) > 3) == (0, True)
    assert done.seconds < AWAY_AFTER + 1


def test_a_full_backlog_is_waited_for(shim: Path, path: Path) -> None:
    stdin = conf(path, whenAgentAway="deny")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(str(path))
        begun = time.monotonic()
        process = start(shim, Call("ADD", stdin))
        feed(process, stdin)
        time.sleep(0.3)
        assert process.poll() is None
        listener.settimeout(5)
        listener.accept()[0].close()
        with listener.accept()[0] as connection:
            connection.sendall(reply(b""))
            assert finish(process, b"", begun).code == 0


def test_an_agent_that_never_answers_costs_add_ten_seconds_and_del_two(packaged: Path, path: Path) -> None:
    with agent(path, silent), ThreadPoolExecutor(len(VERBS)) as runtime:
        done = list(runtime.map(lambda verb: call(packaged, verb, with_previous(conf(path))), VERBS))
    took = {verb: each.seconds for verb, each in zip(VERBS, done, strict=True)}
    assert 9.5 < took["ADD"] < 12
    assert max(took["DEL"], took["STATUS"]) < 3
    assert max(took["CHECK"], took["GC"]) < 7
    assert [each.code for each in done] == [0] * len(VERBS)
    assert all("no answer in time" in each.err for each in done)
    assert done[0].out == PREVIOUS.encode()


def test_an_agent_that_reads_nothing_costs_no_more(shim: Path, path: Path) -> None:
    """The request is longer than what the socket holds."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        done = call(shim, "DEL", with_previous(conf(path), '{"a":"' + "x" * 900_000 + '"}'))
    assert (done.code, done.seconds < 3) == (0, True)
    assert "no answer in time" in done.err
