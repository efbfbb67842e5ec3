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

import structlog

from agent.cni.wire import Call, Garbled, read_call, read_reply, reply

BACKLOG = 4096
READ_TIMEOUT = 10.0
"""Seconds that a shim may take to say what it wants; its own deadline for ADD is as long."""
GRACE = 2.0
"""Seconds that calls under way may take when the agent stops. Those that are cut off are made again by
the shim, to whoever listens then."""

_CREDENTIALS = struct.Struct("3i")

log = structlog.get_logger("cni")


class Server:
    """Answers calls with `answer`, which gets each and gives the error object, b"" for success."""

    def __init__(self, answer: Callable[[Call], Awaitable[bytes]], public: Path, private: Path) -> None:
        self._answer = answer
        self._public = public
        self._private = private
        self._servers: dict[Path, asyncio.Server] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def open_private(self) -> None:
        """Listen for agents that relay. OSError."""
        await self._listen(self._private)

    async def open_public(self) -> None:
        """Listen for the shim from now on, in place of whoever did so before. OSError."""
        await self._listen(self._public)

    def reachable(self) -> bool:
        """Whether the shim finds somebody: us, or an agent that has taken over. False when the socket was
        removed, when something else lies in its place, and when it is of an agent that has ended."""
        try:
            return stat.S_ISSOCK(self._public.stat().st_mode) and answers(self._public)
        except OSError:
            return False

    async def close(self) -> None:
        """Take no more calls, and let those under way end, within GRACE."""
        for server in self._servers.values():
            server.close()
        with contextlib.suppress(FileNotFoundError):
            self._private.unlink()
        if self._calls:
            _, late = await asyncio.wait(self._calls, timeout=GRACE)
            for task in late:
                task.cancel()

    async def _listen(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
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
        before = self._servers.get(path)
        self._servers[path] = await asyncio.start_unix_server(self._serve, sock=listener)
        if before is not None:
            before.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            log.debug("a call came to nothing", error=str(error) or type(error).__name__)
        except Garbled as error:
            log.warning("call refused", error=str(error))
        finally:
            self._calls.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = _peer(writer.get_extra_info("socket"))
        if uid != os.geteuid():
            log.warning("call refused", error=f"cannot serve user {uid}: only root may call")
            return
        async with asyncio.timeout(READ_TIMEOUT):
            call = await read_call(reader)
        writer.write(reply(await self._answer(call)))
        await writer.drain()


async def relay(path: Path, call: Call) -> bytes:
    """Have another agent answer. Raises OSError, Garbled or asyncio.IncompleteReadError when it cannot."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(call.frame)
        return await read_reply(reader)
    finally:
        writer.close()


def answers(path: Path) -> bool:
    """Whether somebody listens at a path. A socket whose process has ended refuses."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(0.5)
        try:
            peer.connect(str(path))
        except OSError:
            return False
    return True


def sweep(directory: Path, pattern: str) -> None:
    """Remove the sockets of agents that were killed. Each was listening before it had its name, so one that
    refuses has no process any more."""
    for path in directory.glob(pattern):
        if not answers(path):
            with contextlib.suppress(OSError):
                path.unlink()


def _peer(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(uid)
