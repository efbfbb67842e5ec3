"""Agents by script on the shim's socket, right ones and wrong ones."""

import contextlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from agent.cni.wire import HEADER, MAGIC, reply


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
    return Request(dict(pairs), body[environment_size:])


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
    listening = (
        "import socket, sys; socket.socket(fileno=0).listen(); print(flush=True); sys.stdout.close(); "
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", listening + "import time; time.sleep(60)"],
            user=uid,
            stdin=listener.fileno(),
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
