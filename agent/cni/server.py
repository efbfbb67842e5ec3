"""The unix sockets to which the shim speaks.

Each agent listens at two paths: one of its own name, for another agent that relays to it, and the
one that the shim knows. The latter is taken over by rename, so there is never a moment without it; nobody
unlinks it, since between a look and an unlink it may have become a successor's. After an agent's
end the file refuses connections, which the shim takes for "away", as it should.
"""

import asyncio
import contextlib
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import structlog

from agent.cni.wire import Call, Garbled, body_in, call_in, reply

BACKLOG = 4096
READ_TIMEOUT = 10.0
"""Seconds that a shim may take to say what it wants; its own deadline for ADD is as long."""
GRACE = 2.0
"""Seconds that calls under way may take when the agent stops. Those that are cut off are made again by
the shim, to whoever listens then."""

PAUSE = 0.1
"""Seconds without taking calls when descriptors have run out."""
CHUNK = 1 << 17

T = TypeVar("T")

_CREDENTIALS = struct.Struct("3i")

log = structlog.get_logger("cni")


class Server:
    """Answers calls with `answer`, which gets each and gives the error object, b"" for success."""

    def __init__(self, answer: Callable[[Call], Awaitable[bytes]], public: Path, private: Path) -> None:
        self._answer = answer
        self._public = public
        self._private = private
        self._listeners: dict[Path, socket.socket] = {}
        self._calls: set[asyncio.Task[None]] = set()

    def open_private(self) -> None:
        """Listen for agents that relay. OSError."""
        self._listen(self._private)

    def open_public(self) -> None:
        """Listen for the shim from now on, in place of whoever did so before. OSError."""
        self._listen(self._public)

    def reachable(self) -> bool:
        """Whether the shim finds somebody: us, or an agent that has taken over. False when the socket was
        removed, when something else lies in its place, and when it is of an agent that has ended. OSError
        when this process has no descriptor left to find out."""
        try:
            there = stat.S_ISSOCK(self._public.stat().st_mode)
        except OSError:
            return False
        return there and answers(self._public)

    async def close(self) -> None:
        """Take no more calls, and let those under way end, within GRACE."""
        while self._listeners:
            self._deafen(self._listeners.popitem()[1])
        with contextlib.suppress(FileNotFoundError):
            self._private.unlink()
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=GRACE)
            for task in late:
                task.cancel()

    def _listen(self, path: Path) -> None:
        # Not by the process's number: each agent may be the first one of its own PID namespace.
        temporary = path.with_name(f".{self._private.stem}.new")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(temporary))
            temporary.chmod(0o600)
            listener.listen(BACKLOG)
            temporary.rename(path)
        except OSError as error:
            listener.close()
            with contextlib.suppress(OSError):
                temporary.unlink()
            words = f"{error.strerror or error}; choose another --run-dir"
            raise OSError(f"cannot listen on {path}: {words}") from error
        if path in self._listeners:
            self._deafen(self._listeners[path])
        self._listeners[path] = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _deafen(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()

    def _accept(self, listener: socket.socket) -> None:
        """Take the callers that wait. By hand, since a stream for each would cost more than its call."""
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: they wait in the backlog, and must not spin the loop.
                log.error("cannot take a call; tried again", error=error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(PAUSE, self._listen_on, listener)
                return
            task = asyncio.create_task(self._serve(connection))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    def _listen_on(self, listener: socket.socket) -> None:
        if listener in self._listeners.values():
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                await self._converse(connection)
            except (OSError, EOFError, TimeoutError) as error:
                log.debug("a call came to nothing", error=str(error) or type(error).__name__)
            except Garbled as error:
                log.warning("call refused", error=str(error))

    async def _converse(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        _, uid = peer(connection)
        if uid != os.geteuid():
            log.warning("call refused", error=f"cannot serve user {uid}: only root may call")
            return
        async with asyncio.timeout(READ_TIMEOUT):
            call = await received_from(connection, call_in)
        answer = reply(await self._answer(call))
        await asyncio.get_running_loop().sock_sendall(connection, answer)


async def relay(path: Path, call: Call) -> bytes:
    """Have another agent answer. Raises OSError, Garbled or EOFError when it cannot."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        await loop.sock_connect(connection, str(path))
        await loop.sock_sendall(connection, call.frame)
        return await received_from(connection, body_in)


async def received_from(connection: socket.socket, whole: Callable[[bytes], T | None]) -> T:
    """What `whole` finds in what the peer sends. EOFError when it goes away before."""
    loop = asyncio.get_running_loop()
    received = b""
    while (found := whole(received)) is None:
        part = await loop.sock_recv(connection, CHUNK)
        if not part:
            raise EOFError("the peer went away")
        received += part
    return found


def answers(path: Path) -> bool:
    """Whether somebody listens at a path. A socket whose process has ended refuses. OSError when this
    process has no descriptor left to find out."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.5)
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def sweep(directory: Path, pattern: str) -> None:
    """Remove the sockets of agents that were killed, OSError. Each was listening before it had its name, so
    one that refuses has no process any more."""
    for path in directory.glob(pattern):
        if not answers(path):
            with contextlib.suppress(OSError):
                path.unlink()


def peer(connection: socket.socket) -> tuple[int, int]:
    """PID and user of the process that connects, or that listens, as this one sees them: the PID is 0 in
    another PID namespace."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(pid), int(uid)
