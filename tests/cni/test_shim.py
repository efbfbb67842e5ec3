"""The shim as a runtime sees it: what it prints, what it tells the agent, and what it does without one."""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from agent.cni.wire import reply
from agent.core.cni import LATEST, VERSIONS
from tests.cni.shim import (
    AWAY_AFTER,
    SANITIZED,
    SUCCESS,
    UNSTRIPPED,
    VERBS,
    Call,
    Done,
    Request,
    agent,
    build,
    call,
    call_all,
    conf,
    finish,
    foreign_agent,
    frame,
    full_pipe,
    says,
    silent,
    start,
)
from tests.lab.cni import arguments, environment

PREVIOUS = '{ "cniVersion":"1.0.0",\n\t"ips" : [ {"address":"10.9.0.2/32"} ], "dns":{} }'
REFUSAL = b'{"cniVersion":"1.0.0","code":11,"msg":"pod default/web: wait","details":"\\u00e4"}'


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim as it is shipped."""
    return build(tmp_path_factory.mktemp("shim") / "pointsman-cni")


@pytest.fixture(scope="session", params=["packaged", "sanitized"])
def shim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, packaged: Path) -> Path:
    if request.param == "packaged":
        return packaged
    return build(tmp_path_factory.mktemp("sanitized") / "pointsman-cni", SANITIZED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cni.sock"


def with_previous(stdin: bytes, previous: str = PREVIOUS) -> bytes:
    """The configuration with a prevResult, byte for byte."""
    return b'{"prevResult": ' + previous.encode() + b" ," + stdin[1:]


TABLE = [
    (verb, version, policy) for verb, version, policy in itertools.product(VERBS, VERSIONS, ("allow", "deny"))
]


def calls(path: Path) -> list[Call]:
    return [
        Call(verb, with_previous(conf(path, version, whenAgentAway=policy))) for verb, version, policy in TABLE
    ]


# ---- the program ------------------------------------------------------------------------------------------


def test_the_program_is_small_static_and_allocates_nothing(packaged: Path, tmp_path: Path) -> None:
    assert packaged.stat().st_size <= 60 << 10
    headers = subprocess.check_output(["readelf", "-dlW", packaged], text=True)
    assert "There is no dynamic section" in headers
    assert "INTERP" not in headers
    symbols = subprocess.check_output(["nm", build(tmp_path / "shim", UNSTRIPPED)], text=True)
    names = {line.split()[-1] for line in symbols.splitlines()}
    assert "main" in names
    assert not {name for name in names if any(word in name for word in ("alloc", "printf", "fopen", "free"))}


def test_the_default_socket_is_the_agents(packaged: Path) -> None:
    assert b"\0/run/pointsman/cni.sock\0" in packaged.read_bytes()


# ---- with an agent ----------------------------------------------------------------------------------------


def test_success_is_the_previous_result_and_silence(shim: Path, path: Path) -> None:
    with agent(path, SUCCESS) as requests:
        for (verb, _, _), done in zip(TABLE, call_all(shim, calls(path)), strict=True):
            expected = PREVIOUS.encode() if verb == "ADD" else b""
            assert (done.code, done.out, done.err) == (0, expected, "")
    assert len(requests) == len(TABLE)


def test_a_refusal_is_printed_as_the_agent_words_it(shim: Path, path: Path) -> None:
    with agent(path, says(reply(REFUSAL))):
        for done in call_all(shim, calls(path)):
            assert (done.code, done.out, done.err) == (1, REFUSAL, "")


def test_the_agent_gets_the_environment_and_the_configuration_as_they_are(shim: Path, path: Path) -> None:
    stdin = conf(path, runtimeConfig={"io.kubernetes.cri.pod-annotations": {"a": "\u00e4\U0001f600"}})
    with agent(path, SUCCESS) as requests:
        call(shim, "ADD", stdin, CNI_PATH=None, CNI_ARGS="A=ä;;", OTHER="x", CNI_OTHER="y")
        call(shim, "DEL", stdin + b" \n", CNI_NETNS="", CNI_IFNAME=None)
    usual: dict[str, str] = environment("ADD", "c1", "/run/netns/x", "A=ä;;")
    del usual["CNI_PATH"]
    assert requests[0] == Request(usual, stdin)
    usual = {**environment("DEL", "c1", "", arguments("web", uid="u-1"))}
    del usual["CNI_IFNAME"]
    assert requests[1] == Request(usual, stdin + b" \n")


def test_an_answer_may_come_in_pieces(shim: Path, path: Path) -> None:
    pieces = [bytes([byte]) for byte in reply(REFUSAL)]
    with agent(path, says(*pieces)):
        assert call(shim, "ADD", conf(path)).out == REFUSAL
    longest = b'{"msg":"' + b"x" * ((64 << 10) - 10) + b'"}'
    with agent(path, says(reply(longest))):
        assert call(shim, "ADD", conf(path)).out == longest


@pytest.mark.parametrize(
    "previous",
    [
        '{"a":1}',
        "{\n  \"ips\" : [\t]\r\n , \"x\":{ } }",
        '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1500,"socketPath":"/s","pciID":"0000:00:1f.6"}]}',
        '{"routes":[{"dst":"0.0.0.0/0","mtu":1,"advmss":2,"priority":3,"table":4,"scope":0}],"n":-1.5E+10}',
        '{"ü":"\\u00fc \\ud83d\\ude00 \\" } ] \\\\","z":[null,true,false,0,"{"]}',
        '{"ip4":{"ip":"10.1.2.3/24"},"prevResult":{"prevResult":null}}',
        "{}",
        '{"big":"' + "x" * 30_000 + '"}',
    ],
)
def test_prev_result_is_echoed_byte_for_byte(shim: Path, path: Path, previous: str) -> None:
    with agent(path, SUCCESS):
        assert call(shim, "ADD", with_previous(conf(path), previous)).out == previous.encode()


def test_a_result_longer_than_a_pipe_is_printed_whole(shim: Path, path: Path) -> None:
    previous = '{"big":"' + "x" * 900_000 + '"}'
    with agent(path, SUCCESS) as requests:
        stdin = with_previous(conf(path), previous)
        assert call(shim, "ADD", stdin).out == previous.encode()
    assert requests[0].stdin == stdin


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [
        ('{"cniVersion":"0.4.0","socket":"S"}', '{"cniVersion":"0.4.0"}'),
        ('{"cniVersion":"0.4.0","prevResult":null,"socket":"S"}', '{"cniVersion":"0.4.0"}'),
        ('{"cniVersion":"1.0.0","prevResult":{"a":1},"prevResult":{"b":2},"socket":"S"}', '{"b":2}'),
        ('{"cniVersion":"1.0.0","prevResult":{"a":1},"prevResult":null,"socket":"S"}', '{"cniVersion":"1.0.0"}'),
        ('{"cniVersion":"1.0.0","prev\\u0052esult":{"a":1},"socket":"S"}', '{"a":1}'),
        ('{"cniVersion":"1.0.0","x":{"prevResult":{"a":1}},"socket":"S"}', '{"cniVersion":"1.0.0"}'),
        ('{"cniVersion":"1.0\\u002e0","socket":"\\/nowhere","socket":"S"}', '{"cniVersion":"1.0.0"}'),
        ('{"cniVersion":"9","cniVersion":"1.1.0","socket":"S"}', '{"cniVersion":"1.1.0"}'),
        # libcni takes a configuration without a version for 0.1.0, and passes on what the plugins print.
        ('{"socket":"S"}', '{"cniVersion":"0.1.0"}'),
        ('{"cniVersion":"","prevResult":{"ip4":{}},"socket":"S"}', '{"ip4":{}}'),
        ('{"cniVersion":null,"socket":"S"}', '{"cniVersion":"0.1.0"}'),
    ],
)
def test_what_the_configuration_means(shim: Path, path: Path, stdin: str, expected: str) -> None:
    with agent(path, SUCCESS):
        done = call(shim, "ADD", stdin.replace('"S"', json.dumps(str(path))).encode())
    assert (done.code, done.out.decode(), done.err) == (0, expected, "")


def test_a_thousand_calls_are_all_answered(packaged: Path, path: Path) -> None:
    waiting: list[socket.socket] = []

    def together(connection: socket.socket, _: Request) -> bool:
        """Answers nobody before two hundred and fifty have asked."""
        waiting.append(connection)
        if len(waiting) == 250:
            for each in waiting:
                each.sendall(reply(b""))
            waiting.clear()
        return True

    with agent(path, together) as requests:
        for batch in range(4):
            names = [f"web-{batch}-{number}" for number in range(250)]
            asked = [
                Call("ADD", with_previous(conf(path), f'{{"for":"{name}"}}'), {"CNI_CONTAINERID": name})
                for name in names
            ]
            results = [(done.code, done.out.decode()) for done in call_all(packaged, asked)]
            assert results == [(0, f'{{"for":"{name}"}}') for name in names]
    assert len({request.environment["CNI_CONTAINERID"] for request in requests}) == 1000


# ---- without an agent -------------------------------------------------------------------------------------

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


@contextlib.contextmanager
def hanging_up_at_once(path: Path) -> Iterator[None]:
    """Reads nothing and closes, so that the shim's request is still unread."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


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


@pytest.mark.parametrize("state", NO_AGENT)
def test_without_an_agent_the_configuration_decides(shim: Path, path: Path, state: str) -> None:
    making, words = NO_AGENT[state]
    with making(path):
        answered = call_all(shim, calls(path))
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


EXEMPT = {"exemptNamespaces": ["kube-system", "a\\u002db", "ü"], "agentPod": "linkerd-cni/linkerd-cni-"}


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
    with plain_agent_away(path):
        done = call(shim, "ADD", stdin, CNI_ARGS=args)
    if passes:
        assert (done.code, done.out) == (0, PREVIOUS.encode())
    else:
        assert done.error["code"] == 11


def plain_agent_away(path: Path) -> AbstractContextManager[None]:
    """An agent that counts as away at once, not only after the time for which a restart is waited for."""
    return foreign_agent(path, 65534)


def test_a_pod_that_has_no_args_is_named_by_its_container(shim: Path, path: Path) -> None:
    with plain_agent_away(path):
        done = call(shim, "ADD", conf(path), CNI_ARGS=None)
    assert "container c1: passed without the agent" in done.err


def test_hostile_names_stay_inside_the_error_object(shim: Path, path: Path) -> None:
    name = 'w"e\\b\n\x01\t\x7f\u00e4\U0001f600' + "x" * 300
    with plain_agent_away(path):
        stdin = conf(path, whenAgentAway="deny")
        done = call(shim, "ADD", stdin, CNI_ARGS=f"K8S_POD_NAME={name};K8S_POD_NAMESPACE=default")
        assert done.error["msg"].startswith(f"pod default/{name[:200]}")
        for raw in (b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xf0\x9f"):
            done = call(shim, "ADD", stdin, CNI_ARGS=f"K8S_POD_NAME=a{os.fsdecode(raw)}b")
            assert done.error["msg"].startswith("pod default/a\ufffd")
            assert "b: agent" in done.error["msg"]
        done = call(shim, "ADD", conf(path), CNI_ARGS="K8S_POD_NAME=a\nb")
        assert "pod default/a?b: passed" in done.err
        assert done.err.count("\n") == 1


# ---- time -------------------------------------------------------------------------------------------------


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
    with agent(path, silent):
        with ThreadPoolExecutor(len(VERBS)) as runtime:
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


def feed(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None


# ---- stdin and stdout -------------------------------------------------------------------------------------


def test_a_slow_stdin_is_read_to_its_end(shim: Path, path: Path) -> None:
    stdin = with_previous(conf(path))
    with agent(path, SUCCESS) as requests, start(shim, Call("ADD", stdin), bufsize=0) as process:
        assert process.stdin is not None
        for byte in stdin:
            process.stdin.write(bytes([byte]))
            time.sleep(0.001)
        assert finish(process, b"", time.monotonic()).out == PREVIOUS.encode()
    assert requests[0].stdin == stdin


@pytest.mark.parametrize("stdin", [b"", b'{"cniVersion":"1.0.0",'])
def test_a_stdin_that_does_not_end_is_left_in_time(shim: Path, stdin: bytes) -> None:
    done = {}
    for verb in ("STATUS", "DEL", "VERSION"):
        begun = time.monotonic()
        reader, writer = os.pipe()
        os.write(writer, stdin)
        with start(shim, Call(verb, b""), stdin=reader) as process:
            done[verb] = finish(process, b"", begun)
        os.close(reader)
        os.close(writer)
        assert done[verb].seconds < 3.5
    assert done["STATUS"].error["code"] == 5
    assert "stdin" in done["STATUS"].error["msg"]
    assert done["DEL"].code == 0
    assert json.loads(done["VERSION"].out)["cniVersion"] == LATEST


def test_a_mebibyte_is_read_and_not_a_byte_more(shim: Path, path: Path) -> None:
    stdin = with_previous(conf(path))
    whole = stdin + b" " * ((1 << 20) - len(stdin))
    with agent(path, SUCCESS) as requests:
        assert call(shim, "ADD", whole).out == PREVIOUS.encode()
        for more in (1, 1 << 20):
            done = call(shim, "ADD", whole + b" " * more)
            assert done.error["code"] == 6
            assert done.error["msg"].endswith("longer than 1 MiB at byte 1048576")
    assert [request.stdin for request in requests] == [whole]


def redirected(shim: Path, stdin: bytes, redirection: str) -> Done:
    """An ADD with one of its streams closed, or opened elsewhere, by a shell."""
    usual = environment("ADD", "c1", "/run/netns/x")
    command = ["sh", "-c", f'exec "$0" {redirection}', str(shim)]
    done = subprocess.run(command, input=stdin, env=usual, capture_output=True, check=False, timeout=20)
    return Done(done.returncode, done.stdout, done.stderr.decode(), 0)


def test_a_result_that_cannot_be_written_is_a_failure(shim: Path, path: Path) -> None:
    stdin = with_previous(conf(path))
    with agent(path, SUCCESS) as requests, full_pipe() as full:
        for redirection, words in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
            done = redirected(shim, stdin, redirection)
            assert (done.code, done.out) == (1, b"")
            assert f"cannot write the result: {words}" in done.err
        reader, writer = os.pipe()
        os.close(reader)
        for stdout, words in ((writer, "Broken pipe"), (full, "timed out")):
            with start(shim, Call("ADD", stdin), stdout=stdout) as process:
                done = finish(process, stdin, time.monotonic())
            assert done.code == 1
            assert words in done.err
            assert done.seconds < 3
        os.close(writer)
        assert redirected(shim, stdin, "2>&-").out == PREVIOUS.encode()
    assert all(request.stdin == stdin for request in requests)
    assert redirected(shim, stdin, "<&-").error["code"] == 5


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"", "it is empty"),
        (b"   ", "ends too early at byte 3"),
        (b"no", "expected an object at byte 0"),
        (b"[1]", "expected an object at byte 0"),
        (b'"x"', "expected an object at byte 0"),
        (b"\xef\xbb\xbf{}", "expected an object at byte 0"),
        (b"{", "ends too early at byte 1"),
        (b'{"a":1', "ends too early at byte 6"),
        (b'{"a":1,}', "expected a string at byte 7"),
        (b'{"a" 1}', "expected a colon at byte 5"),
        (b'{"a":1 "b":2}', "expected a comma or a closing bracket at byte 7"),
        (b'{"a":1}x', "something follows the object at byte 7"),
        (b'{"a":1}\0', "something follows the object at byte 7"),
        (b'{"a":1}{}', "something follows the object at byte 7"),
        (b'{"a":[1,]}', "expected a value at byte 8"),
        (b'{"a":[1}}', "expected a comma or a closing bracket at byte 7"),
        (b'{"a":01}', "expected a comma or a closing bracket at byte 6"),
        (b'{"a":1.}', "expected a digit at byte 7"),
        (b'{"a":-}', "expected a digit at byte 6"),
        (b'{"a":+1}', "expected a value at byte 5"),
        (b'{"a":NaN}', "expected a value at byte 5"),
        (b'{"a":nul}', "expected a value at byte 8"),
        (b'{"a":"\n"}', "control character in a string at byte 6"),
        (b'{"a":"\\x"}', "unknown escape in a string at byte 7"),
        (b'{"a":"\\u12g4"}', "expected a hexadecimal digit at byte 10"),
        (b"{'a':1}", "expected a string at byte 1"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b",}", "expected a string"),
        (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "nested too deeply at byte 69"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"cniVersion":1}', "cniVersion is not a short string at byte 14"),
        (b'{"cniVersion":"1.0.0\\u0000"}', "cniVersion is not a short string at byte 14"),
        (b'{"prevResult":[]}', "prevResult is not an object at byte 14"),
        (b'{"prevResult":"{}"}', "prevResult is not an object at byte 14"),
    ],
)
def test_bad_configurations_are_named(shim: Path, stdin: bytes, words: str) -> None:
    for verb in ("ADD", "CHECK", "STATUS"):
        done = call(shim, verb, stdin)
        assert done.error["code"] == 6
        assert done.error["cniVersion"] == LATEST
        assert done.error["msg"].startswith("cannot decode the configuration on stdin: ")
        assert words in done.error["msg"]
    done = call(shim, "VERSION", stdin)
    assert json.loads(done.out) == {"cniVersion": LATEST, "supportedVersions": list(VERSIONS)}


def test_invalid_utf8_in_a_string_is_carried(shim: Path, path: Path) -> None:
    previous = b'{"a":"\xff\xc3"}'
    stdin = conf(path)[:-1] + b',"\xff":1,"prevResult":' + previous + b"}"
    with agent(path, SUCCESS) as requests:
        assert call(shim, "ADD", stdin).out == previous
    assert requests[0].stdin == stdin


@pytest.mark.parametrize("verb", ["DEL", "GC"])
@pytest.mark.parametrize("stdin", [b"", b"no", b'{"socket":1}', b'{"cniVersion":"9.9"}', b" " * (2 << 20)])
def test_a_removal_never_fails_for_its_configuration(tmp_path: Path, path: Path, verb: str, stdin: bytes) -> None:
    shim = build(tmp_path / "shim", f"""{UNSTRIPPED} -DDEFAULT_SOCKET='"{path}"'""")
    refusal = b'{"code":6,"msg":"cannot decode"}'
    with agent(path, says(reply(refusal))) as requests:
        done = call(shim, verb, stdin)
    assert [request.environment["CNI_COMMAND"] for request in requests] == [verb]
    readable = stdin.startswith(b"{")
    assert (done.code, done.out) == ((1, refusal) if readable else (0, b""))
    done = call(shim, verb, stdin)
    assert (done.code, done.out) == (0, b"")


# ---- environment, versions, settings ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [*VERSIONS, "0.2.0", None])
def test_version_is_answered_without_an_agent(shim: Path, version: str | None) -> None:
    nothing = dict.fromkeys(environment("VERSION"), None) | {"CNI_COMMAND": "VERSION"}
    done = call(shim, "VERSION", conf(None, version), **nothing)
    known = version if version in VERSIONS else LATEST
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {"cniVersion": known, "supportedVersions": list(VERSIONS)}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "1.2.0", "2.0.0", "1.0", 'x"\\', "1.0.0 "])
def test_other_versions_are_refused(shim: Path, path: Path, version: str) -> None:
    with agent(path, SUCCESS):
        for verb in ("ADD", "CHECK", "STATUS"):
            error = call(shim, verb, conf(path, version)).error
            assert (error["code"], error["cniVersion"]) == (1, LATEST)
            assert version in error["msg"]
            assert all(known in error["details"] for known in VERSIONS)
        for verb in ("DEL", "GC"):
            assert call(shim, verb, conf(path, version)).code == 0


@pytest.mark.parametrize(
    ("verb", "needs"),
    [
        ("ADD", ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")),
        ("CHECK", ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")),
        ("DEL", ("CNI_CONTAINERID",)),
        ("STATUS", ()),
        ("GC", ()),
    ],
)
def test_what_each_verb_needs(shim: Path, path: Path, verb: str, needs: tuple[str, ...]) -> None:
    with agent(path, SUCCESS):
        for name, value in itertools.product(environment(verb), (None, "")):
            done = call(shim, verb if name != "CNI_COMMAND" else "", conf(path, "0.4.0"), **{name: value})
            if name == "CNI_COMMAND":
                assert (done.error["code"], done.error["cniVersion"]) == (4, LATEST)
            elif name in needs:
                assert (done.error["code"], done.error["cniVersion"]) == (4, "0.4.0")
                assert done.error["msg"] == f"invalid environment: {verb} needs {name}"
            else:
                assert done.code == 0


@pytest.mark.parametrize("command", ["", "add", "ADD ", "UPDATE", "x" * 100_000])
def test_unknown_verbs_are_refused_without_reading(shim: Path, command: str) -> None:
    done = call(shim, command, b"")
    assert (done.error["code"], done.error["cniVersion"]) == (4, LATEST)
    assert "CNI_COMMAND" in done.error["msg"]


def test_an_environment_of_64_kib_is_carried_and_not_a_byte_more(shim: Path, path: Path) -> None:
    usual = environment("ADD", "c1", "/run/netns/x")
    room = (64 << 10) - sum(len(key) + len(value) + 2 for key, value in usual.items())
    with agent(path, SUCCESS) as requests:
        assert call(shim, "ADD", conf(path), CNI_ARGS="x" * room).code == 0
        assert len(requests[0].environment["CNI_ARGS"]) == room
        assert call(shim, "ADD", conf(path), CNI_ARGS="x" * (room + 1)).error["code"] == 4


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("whenAgentAway", "Deny"),
        ("whenAgentAway", ""),
        ("whenAgentAway", True),
        ("whenAgentAway", "deny\0"),
        ("whenAgentAway", "x" * 5000),
        ("socket", "cni.sock"),
        ("socket", ""),
        ("socket", 7),
        ("socket", "/a\0b"),
        ("socket", "/" + "s" * 107),
        ("exemptNamespaces", "kube-system"),
        ("exemptNamespaces", ["kube-system", 1]),
        ("exemptNamespaces", {"kube-system": True}),
        ("agentPod", "linkerd-cni"),
        ("agentPod", "/linkerd-cni-"),
        ("agentPod", "linkerd-cni/"),
        ("agentPod", ["linkerd-cni/x"]),
    ],
)
def test_invalid_settings_are_named_and_hold_up_nobody_who_is_exempt(
    shim: Path, path: Path, setting: str, value: Any
) -> None:
    given = {"socket": str(path), "agentPod": "agents/a-", "exemptNamespaces": ["kube-system"], setting: value}
    stdin = with_previous(json.dumps({"cniVersion": "0.3.1", **given}).encode())
    with agent(path, SUCCESS):
        for verb in ("ADD", "CHECK", "STATUS"):
            error = call(shim, verb, stdin).error
            assert (error["code"], error["cniVersion"]) == (7, "0.3.1")
            assert f'"{setting}"' in error["msg"]
            assert "install-cni" in error["details"]
        ours, critical = arguments("a-1", "agents"), arguments("coredns", "kube-system")
        exempt = critical if setting == "agentPod" else ours
        done = call(shim, "ADD", stdin, CNI_ARGS=exempt)
        assert (done.code, done.out) == (0, PREVIOUS.encode())
        assert f'"{setting}"' in done.err
        assert call(shim, "DEL", stdin).code == 0


@pytest.mark.parametrize("setting", ["socket", "whenAgentAway", "exemptNamespaces", "agentPod"])
def test_null_is_the_default(shim: Path, path: Path, setting: str) -> None:
    given = {"socket": str(path), setting: None}
    done = call(shim, "ADD", with_previous(json.dumps({"cniVersion": "1.0.0", **given}).encode()))
    assert (done.code, done.out) == (0, PREVIOUS.encode())


def test_the_longest_path_of_a_socket_works(shim: Path, tmp_path: Path) -> None:
    path = tmp_path / ("s" * (107 - len(str(tmp_path)) - 1))
    with agent(path, SUCCESS):
        done = call(shim, "ADD", conf(path))
    assert (len(str(path)), done.code, done.err) == (107, 0, "")
