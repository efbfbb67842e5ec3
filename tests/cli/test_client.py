"""What the user is told when the agent is away, refuses, is stuck, or speaks another language."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.client import (
    Agent,
    AgentAwayError,
    AgentDeniedError,
    AgentError,
    PodUnknownError,
    RefusedError,
)
from tests.cli.conftest import Cli


@contextlib.contextmanager
def answering(run_dir: Path, answer: bytes) -> Iterator[None]:
    """A server on the agent's socket that is alive, and answers one request with these bytes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "agent.sock"))
        listener.listen()

        def serve() -> None:
            for said in (http("200 OK", "ok"), answer):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            thread.join(5)


def http(status: str, body: str) -> bytes:
    return f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (http("200 OK", "{}"), AgentError, "is it of another version?"),
        (http("200 OK", "<html>"), AgentError, "is it of another version?"),
        (http("404 Not Found", "cannot find pod a/b"), PodUnknownError, "`pointsman redirections` lists"),
        (http("409 Conflict", "cannot do it: busy"), RefusedError, "cannot do it: busy"),
        (http("503 Service Unavailable", "the loop is stuck"), AgentError, "the loop is stuck; look at the"),
        (http("500 Internal Server Error", ""), AgentError, "status 500"),
        (b"nonsense\r\n\r\n", AgentAwayError, "cannot reach the agent at"),
        (b"", AgentAwayError, "cannot reach the agent at"),
    ],
)
def test_answers_that_are_none(tmp_path: Path, answer: bytes, kind: type[AgentError], words: str) -> None:
    with answering(tmp_path, answer), pytest.raises(kind, match="cannot") as caught:
        Agent(tmp_path).visit("a/b")

    assert words in caught.value.message
    assert type(caught.value) is kind


@pytest.mark.parametrize("run_dir", ["missing", "stale", "x" * 120])
def test_an_agent_that_is_away(cli: Cli, tmp_path: Path, run_dir: str) -> None:
    directory = tmp_path / run_dir
    directory.mkdir(exist_ok=True)
    if run_dir == "stale":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(directory / "agent.sock"))

    for command in (["redirections"], ["explain", "a/b"], ["cleanup", "--all"]):
        result = cli(*command, "--run-dir", directory)
        assert result.exit_code == 1
        assert f"cannot reach the agent at {directory / 'agent.sock'}: " in result.stderr
        assert "is `pointsman run` running, with the same --run-dir?" in result.stderr
        assert result.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: run as root")
def test_a_socket_that_may_not_be_used(tmp_path: Path) -> None:
    """Tried by a child, which is another user than root."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        (tmp_path / "agent.sock").chmod(0o600)
        tmp_path.chmod(0o755)
        child = os.fork()
        if child == 0:
            try:
                os.setresuid(65534, 65534, 65534)
                Agent(tmp_path).state()
            except AgentDeniedError as error:
                os._exit(7 if "run this command as root" in error.message else 8)
            finally:
                os._exit(9)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
