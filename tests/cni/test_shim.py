"""The shim between a runtime and an agent: what it prints, and what it tells the agent."""

import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.cni.wire import reply
from agent.core.cni import LATEST
from tests.cni.scripted import SUCCESS, Request, agent, says
from tests.cni.shim import (
    PREVIOUS,
    TABLE,
    UNSTRIPPED,
    Call,
    Done,
    build,
    call,
    call_all,
    calls,
    conf,
    finish,
    start,
    with_previous,
)
from tests.lab.cni import arguments, environment

REFUSAL = b'{"cniVersion":"1.0.0","code":11,"msg":"pod default/web: wait","details":"\\u00e4"}'


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
        '{\n  "ips" : [\t]\r\n , "x":{ } }',
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
    reader, writer = os.pipe()
    os.write(writer, stdin)

    def endless(verb: str) -> Done:
        begun = time.monotonic()
        with start(shim, Call(verb, b""), stdin=reader) as process:
            return finish(process, b"", begun)

    with ThreadPoolExecutor(3) as runtime:
        status, removal, version = runtime.map(endless, ("STATUS", "DEL", "VERSION"))
    os.close(reader)
    os.close(writer)
    assert max(status.seconds, removal.seconds, version.seconds) < 3
    assert status.error["code"] == 5
    assert "stdin" in status.error["msg"]
    assert removal.code == 0
    assert json.loads(version.out)["cniVersion"] == LATEST


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
    with agent(path, SUCCESS) as requests:
        for redirection, words in ((">/dev/full", "No space left"), (">&-", "Bad file descriptor")):
            done = redirected(shim, stdin, redirection)
            assert (done.code, done.out) == (1, b"")
            assert f"cannot write the result: {words}" in done.err
        assert redirected(shim, stdin, "2>&-").out == PREVIOUS.encode()
    assert all(request.stdin == stdin for request in requests)
    assert redirected(shim, stdin, "<&-").error["code"] == 5


@pytest.mark.parametrize(("reads", "words"), [(False, "Broken pipe"), (True, "timed out")])
def test_a_runtime_that_does_not_take_the_result_is_left(
    shim: Path, path: Path, reads: bool, words: str
) -> None:
    """Its end of the pipe is closed, or is open while nobody empties it."""
    stdin = with_previous(conf(path), '{"big":"' + "x" * 500_000 + '"}')
    reader, writer = os.pipe()
    if not reads:
        os.close(reader)
    with agent(path, SUCCESS), start(shim, Call("ADD", stdin), stdout=writer) as process:
        done = finish(process, stdin, time.monotonic())
    os.close(writer)
    if reads:
        os.close(reader)
    assert (done.code, done.seconds < 3) == (1, True)
    assert words in done.err
