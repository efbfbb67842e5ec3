"""The shim under test: built by the Makefile's own rule, called as a runtime calls it, and its agents by script."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from agent.cni.wire import HEADER, MAGIC, reply
from tests.lab import cni

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "agent" / "cni" / "shim.c"

UNSTRIPPED = "musl-gcc -static -no-pie"
SANITIZED = "gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all"

VERBS = ("ADD", "DEL", "CHECK", "STATUS", "GC")
AWAY_AFTER = 1.5
"""Seconds for which ADD tries an agent that cannot be reached."""

_SANITIZER_OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def build(program: Path, compiler: str = "") -> Path:
    """`program`, compiled as it is shipped, or by another compiler command. RuntimeError when it fails."""
    command = ["make", "-s", "-C", str(ROOT), f"SHIM={program}", str(program)]
    done = subprocess.run([*command, *([f"SHIM_CC={compiler}"] if compiler else [])], check=False)
    if done.returncode:
        raise RuntimeError(f"cannot compile {SOURCE}: install gcc, make and musl-tools")
    return program


class Done(msgspec.Struct, frozen=True):
    """What one call came to. `seconds` are wall time."""

    code: int
    out: bytes
    err: str
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which is all there is on stdout. AssertionError when there is none."""
        assert self.code == 1, self
        found: dict[str, Any] = json.loads(self.out)
        return found


class Call(msgspec.Struct, frozen=True):
    """A verb, its configuration, and what differs from an ordinary environment; None unsets a variable."""

    verb: str
    stdin: bytes
    environment: dict[str, str | None] = {}


def conf(path: Path | None, version: str | None = "1.0.0", **more: Any) -> bytes:
    """A configuration; `path` is that of the agent's socket."""
    found = {"name": "net", "type": "pointsman-cni", "cniVersion": version, "socket": path and str(path), **more}
    return json.dumps({key: value for key, value in found.items() if value is not None}).encode()


def start(program: Path, call: Call, **streams: Any) -> subprocess.Popen[bytes]:
    """The process of a call. Without `stdin` among `streams`, it is a pipe to be written."""
    usual = cni.environment(call.verb, "c1", "/run/netns/x", cni.arguments("web", uid="u-1"))
    environment = {**usual, **call.environment}
    given = {key: value for key, value in environment.items() if value is not None}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(program)], env={**_SANITIZER_OPTIONS, **given}, **{**pipes, **streams})


def finish(process: subprocess.Popen[bytes], stdin: bytes, begun: float) -> Done:
    """What a started call came to. It is killed after 20 s, which none may take."""
    with process:
        try:
            out, err = process.communicate(stdin, timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Done(process.returncode, out or b"", (err or b"").decode(), time.monotonic() - begun)


def call(program: Path, verb: str, stdin: bytes, **environment: str | None) -> Done:
    """One call from beginning to end."""
    begun = time.monotonic()
    return finish(start(program, Call(verb, stdin, environment)), stdin, begun)


def call_all(program: Path, calls: Iterable[Call]) -> list[Done]:
    """All of them at once. Their configurations must fit into a pipe, which they need not empty."""
    started = []
    for each in calls:
        begun = time.monotonic()
        process = start(program, each)
        with contextlib.suppress(BrokenPipeError), _stdin(process) as pipe:
            pipe.write(each.stdin)
        process.stdin = None
        started.append((process, begun))
    return [finish(process, b"", begun) for process, begun in started]


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


class Request(msgspec.Struct, frozen=True):
    """What a scripted agent was asked."""

    environment: dict[str, str]
    stdin: bytes


Script = Callable[[socket.socket, Request], bool | None]
"""What an agent does with a request. The connection is closed afterwards, unless it returns True."""


def says(*parts: bytes) -> Script:
    """Sends each part for itself."""

    def script(connection: socket.socket, _: Request) -> None:
        for part in parts:
            connection.sendall(part)

    return script


def silent(_connection: socket.socket, _request: Request) -> bool:
    return True


def frame(code: int, body: bytes = b"", *, magic: bytes = MAGIC, length: int | None = None) -> bytes:
    """A reply that need not be right."""
    return struct.pack("<8sII", magic, code, len(body) if length is None else length) + body


SUCCESS = says(reply(b""))


@contextlib.contextmanager
def agent(path: Path, script: Script, *, backlog: int = 4096) -> Iterator[list[Request]]:
    """An agent on the socket `path` that follows `script`; yields the requests as they come.

    At the end its socket's file is removed. A request that never becomes whole is dropped.
    """
    requests: list[Request] = []
    held: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            keep = False
            # A shim that has given up takes no more answers.
            with contextlib.suppress(OSError):
                request = receive(connection)
                if request is not None:
                    requests.append(request)
                    keep = bool(script(connection, request))
            held.append(connection) if keep else connection.close()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(backlog)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield requests
        finally:
            path.unlink(missing_ok=True)
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def receive(connection: socket.socket) -> Request | None:
    """One whole request, None when the shim hangs up before. AssertionError when it is not one."""
    header = _exactly(connection, HEADER.size)
    if header is None:
        return None
    magic, environment_size, stdin_size = HEADER.unpack(header)
    assert magic == MAGIC
    body = _exactly(connection, environment_size + stdin_size)
    if body is None:
        return None
    environment = body[:environment_size]
    assert environment.endswith(b"\0")
    pairs = (entry.decode().split("=", 1) for entry in environment[:-1].split(b"\0"))
    return Request({key: value for key, value in pairs}, body[environment_size:])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


@contextlib.contextmanager
def foreign_agent(path: Path, uid: int) -> Iterator[None]:
    """A socket on which a process of another user listens."""
    listening = "import socket, sys; socket.socket(fileno=0).listen(); print(flush=True); sys.stdout.close(); "
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", listening + "import time; time.sleep(60)"],
            user=uid,
            stdin=listener,
            stdout=subprocess.PIPE,
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"\n"
                yield
            finally:
                process.kill()
                path.unlink()


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """The writing end of a pipe that nobody empties."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, b"x" * 4096):
                pass
        os.set_blocking(writer, True)
        yield writer
    finally:
        os.close(reader)
        os.close(writer)
