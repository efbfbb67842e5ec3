"""The agent's doors for people and machines, each served by threads of its own.

`/live`, `/ready` and `/metrics` on a TCP address; these and `/state`, `/visit`, `/trial`, `/leftovers`,
`/cleanup`, `/drain` and `/remove` on a unix socket that only root can open. Threads, so that `/live`
can tell that the loop is stuck. Two agents overlap during an upgrade: the TCP port is shareable, and
the successor's socket is renamed over the predecessor's; nobody unlinks a socket that is not its own.
"""

import contextlib
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec
import structlog
from prometheus_client import CollectorRegistry, generate_latest

log = structlog.get_logger("admin")

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class Refused(Exception):  # noqa: N818
    """What was asked for must not be done now; the message says why."""


class Door(msgspec.Struct, frozen=True):
    """What the endpoints ask of the daemon. All may be called from any thread.

    `stuck`: why the process should be restarted, or "". `not_ready`: what readiness waits for.
    `private`: by method and path, what only root may ask; takes the fields of the query and gives JSON. It
    may raise TimeoutError when the loop is stuck, LookupError when there is no such pod, and Refused.
    """

    registry: CollectorRegistry
    stuck: Callable[[], str]
    not_ready: Callable[[], tuple[str, ...]]
    private: dict[tuple[str, str], Callable[[dict[str, str]], bytes]]


Answer = tuple[str, str, bytes]


class Application:
    """The WSGI application. `private` adds what only root may see and do."""

    def __init__(self, door: Door, private: bool) -> None:
        self._door = door
        self._private = private

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        try:
            status, kind, body = self._answer(method, path, query)
        except TimeoutError:
            status, kind, body = "503 Service Unavailable", TEXT, b"the agent's event loop does not answer\n"
        except LookupError as error:
            status, kind, body = "404 Not Found", TEXT, f"{error.args[0]}\n".encode()
        except Refused as error:
            status, kind, body = "409 Conflict", TEXT, f"{error}\n".encode()
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    def _answer(self, method: str, path: str, query: dict[str, str]) -> Answer:
        door = self._door
        match method, path:
            case "GET", "/live":
                return _verdict(door.stuck())
            case "GET", "/ready":
                return _verdict("; ".join(door.not_ready()))
            case "GET", "/metrics":
                return "200 OK", METRICS, generate_latest(door.registry)
        action = door.private.get((method, path)) if self._private else None
        if action is not None:
            return "200 OK", JSON, action(query)
        return "404 Not Found", TEXT, b"there is /live, /ready and /metrics\n"


def _verdict(problem: str) -> Answer:
    if problem:
        return "503 Service Unavailable", TEXT, f"{problem}\n".encode()
    return "200 OK", TEXT, b"ok\n"


class _Handler(WSGIRequestHandler):
    timeout = 10

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        log.debug(format % args)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the signature
        """A peer that says nothing, or goes away in the middle, is no news."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            log.debug("a request came to nothing", error=str(error))
        else:
            log.error("unexpected failure of a request", exc_info=error)


class _TcpServer(_Server):
    allow_reuse_address = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Tcp6Server(_TcpServer):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """A peer on a unix socket has no address, and the handler wants one."""
        connection, _ = self.socket.accept()
        return connection, ("local", 0)


class Admin:
    """Both doors, open from construction to `close`. OSError when one cannot be opened."""

    def __init__(self, door: Door, address: tuple[str, int] | None, path: Path) -> None:
        self._servers: list[WSGIServer] = []
        self.port = 0
        self._path = path
        try:
            self._open_unix(door, path)
            if address is not None:
                self._open_tcp(door, address)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Answer no more. The socket file goes only if it still is ours."""
        if self._servers and _inode(self._path) == self._inode:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []

    def _open_tcp(self, door: Door, address: tuple[str, int]) -> None:
        kind = _Tcp6Server if ":" in address[0] else _TcpServer
        try:
            server = kind(address, _Handler)
        except OSError as error:
            where = f"{address[0]} port {address[1]}"
            raise OSError(
                f"cannot listen on {where}: {error.strerror}; choose another --admin-address"
            ) from error
        self.port = server.server_port
        self._serve(server, Application(door, private=False))

    def _open_unix(self, door: Door, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        try:
            server = _UnixServer(str(temporary), _Handler)  # type: ignore[arg-type]
            temporary.chmod(0o600)
            temporary.rename(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            words = f"{error.strerror or error}; choose another --run-dir"
            raise OSError(f"cannot listen on {path}: {words}") from error
        self._inode = _inode(path)
        self._serve(server, Application(door, private=True))

    def _serve(self, server: WSGIServer, application: Application) -> None:
        server.set_app(application)
        self._servers.append(server)
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="admin", daemon=True
        ).start()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
