"""The verb STATUS, asked as the shim asks it: who listens on the shim's socket, and does it redirect pods?"""

import asyncio
import socket
from pathlib import Path

import msgspec

from agent.cni.server import peer, received_from
from agent.cni.wire import body_in, call
from agent.core.chain import TYPE
from agent.core.cni import LATEST, Verb

PATIENCE = 2.0
"""Seconds for an answer: the shim's own deadline for STATUS."""


class Listener(msgspec.Struct, frozen=True):
    """The process that listens, by PID (0 in another PID namespace) and user. `error`: what it says, in the
    form of the CNI specification; None when it can redirect pods, and where it was not asked, since the shim
    speaks to root alone."""

    pid: int
    uid: int
    error: "Error | None" = None


class Error(msgspec.Struct, frozen=True):
    """The error object of the CNI specification."""

    code: int
    msg: str
    details: str = ""


async def ask(path: Path) -> Listener:
    """Raises OSError when nobody listens; TimeoutError, wire.Garbled, EOFError or msgspec.DecodeError when
    what listens does not answer as an agent does."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(connection, str(path))
            pid, uid = peer(connection)
            if uid != 0:
                return Listener(pid, uid)
            conf = {"cniVersion": LATEST, "name": "status", "type": TYPE}
            await loop.sock_sendall(connection, call({"CNI_COMMAND": Verb.STATUS}, msgspec.json.encode(conf)))
            body = await received_from(connection, body_in)
    return Listener(pid, uid, msgspec.json.decode(body, type=Error) if body else None)
