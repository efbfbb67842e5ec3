"""One listener: a server object at an address, in a pod's network namespace or in the node's.

The socket belongs for ever to the namespace of the thread that binds it, and keeps the namespace alive until
it is closed; nothing else of a server needs a namespace. gRPC's own threads are born by whichever thread
needs the first of them, and live on: so a process opens a listener in its own namespace before any other.
"""

from collections.abc import Callable

import structlog

from agent.core.discovery.targets import Client
from agent.destination.audience import Audience
from agent.destination.budget import Limits
from agent.destination.hub import Hub
from agent.destination.metrics import Metrics
from agent.destination.server import GrpcServer

RunInside = Callable[[Callable[[], int]], int]
"""Calls a function in a throw-away thread inside a network namespace, and returns its result."""

log = structlog.get_logger("destination")


class CannotListen(Exception):  # noqa: N818
    """The address cannot be bound; the message names it."""


def run_here(function: Callable[[], int]) -> int:
    """In the namespace of the process itself."""
    return function()


class Listener:
    """Takes calls until `close`. `port` is the one that was bound, also when any was asked for."""

    def __init__(self, server: GrpcServer, metrics: Metrics, port: int) -> None:
        self.port = port
        self._server = server
        self._metrics = metrics

    async def close(self, reason: str) -> None:
        """Take no more calls, and end those that are open with UNAVAILABLE, within two seconds. The
        `reason` is told to their clients."""
        await self._server.stop(reason)
        self._metrics.listeners -= 1


async def listen(
    hub: Hub,
    metrics: Metrics,
    address: str,
    *,
    client: Client | None = None,
    run_inside: RunInside = run_here,
    limits: Limits | None = None,
) -> Listener:
    """Open a listener at `host:port`, in the namespace that `run_inside` enters.

    All its calls are those of `client`, whatever their token says; without one the token counts. Raises
    CannotListen, and what `run_inside` raises. Another process of the same user may listen at the same
    address, and so may a second listener here: new connections go to either.
    """
    server = GrpcServer(Audience(hub, metrics, limits or Limits(), client), metrics)
    try:
        # Not awaited: a socket that is bound while its caller is being cancelled would stay.
        port = run_inside(lambda: server.bind(address))
    except BaseException as error:
        # A server that was never started keeps what it has bound until the process ends.
        await server.start()
        await server.stop("cannot listen")
        if isinstance(error, RuntimeError):
            remedy = "end the program that listens there, or choose another port"
            raise CannotListen(f"cannot listen at {address}: {error}; {remedy}") from error
        raise
    await server.start()
    metrics.listeners += 1
    log.debug("listening", address=address, port=port, pod=client.pod if client else "")
    return Listener(server, metrics, port)
