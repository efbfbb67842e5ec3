"""Where the clients of a case connect: the diagnostics listener, or listeners in network namespaces of pods.

On the diagnostics listener the token says who asks. A listener in a pod's namespace knows it; there the
token of the case becomes the pod's own namespace and node, and the token that is sent is a lie.
"""

import asyncio
import contextlib
import json
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType

from agent.core.discovery.targets import Client, parse_token
from tests.cases.discovery.case import Call
from tests.cases.discovery.client import Client as Connection
from tests.cases.discovery.client import Stream
from tests.cases.discovery.service import PORT, Service
from tests.lab.netns import inside, netns

_CHUNK = 1 << 16


class Doors:
    """Connections to one service, one for each client that asks."""

    def __init__(self, service: Service, *, in_pod: bool) -> None:
        self._service = service
        self._in_pod = in_pod
        self._connections: dict[Client | None, Connection] = {}
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "Doors":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def open(self, call: Call) -> Stream:
        """Open a call as the client that its token names."""
        if not self._in_pod:
            return (await self._connection(None)).open(call)
        asked = parse_token(call.token)
        client = Client(asked.namespace or "elsewhere", asked.node or "nowhere", asked.pod or "asker")
        return (await self._connection(client)).open(Call(call.method, call.path, lie(client)))

    async def _connection(self, client: Client | None) -> Connection:
        if client not in self._connections:
            target = self._service.target if client is None else await self._listener(client)
            self._connections[client] = await self._stack.enter_async_context(Connection(target))
        return self._connections[client]

    async def _listener(self, client: Client) -> str:
        """A namespace of a pod with a listener for it, and the target of a relay that leads into it."""
        name = self._stack.enter_context(netns())
        await self._stack.enter_async_context(self._service.listener(name, client))
        return await self._stack.enter_async_context(relay(name, PORT))


def lie(client: Client) -> str:
    """A token that would change the answer, were it believed."""
    namespace = "team" if client.namespace != "team" else "other"
    node = "n1" if client.node != "n1" else "n2"
    return json.dumps({"ns": namespace, "nodeName": node, "pod": "liar"})


@contextlib.asynccontextmanager
async def relay(name: str, port: int) -> AsyncIterator[str]:
    """A unix socket whose connections lead to loopback inside the namespace; yields it as a gRPC target.

    A gRPC client makes its sockets in threads of its own, which live in the host's namespace.
    """

    def connected() -> socket.socket:
        return inside(name, lambda: socket.create_connection(("127.0.0.1", port), timeout=5))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far = await asyncio.to_thread(connected)
        except OSError:
            writer.close()
            return
        far_reader, far_writer = await asyncio.open_connection(sock=far)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    with tempfile.TemporaryDirectory(prefix="pm-") as directory:
        path = str(Path(directory) / "door")
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield f"unix:{path}"
        finally:
            server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes of one direction, until that side has no more."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
