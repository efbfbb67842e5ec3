"""The HTTP/2 engine: gRPC's server, one object per listener. With `listener`, the only user of gRPC.

Requests and answers pass as bytes. To have another engine, write another module like this one: it calls
Audience.serve with the bytes of each request and a Call.
"""

import asyncio
import time
from functools import partial
from typing import Any

import grpc

from agent.destination.audience import Audience
from agent.destination.metrics import SERVICE, Code, Method, Metrics

GRACE = 1.2
"""Seconds that calls may take to end, from the first word of it to their client."""

LINGER = 0.1
"""Seconds, of GRACE, in which calls are still answered that were on their way when the listener closed."""

PENDING = 20_000
MOST_PENDING = 24_000
"""Calls that may wait to be taken up by a listener: from the first number on some are refused, from the
second on all. gRPC's own limit of about 1,000 breaks the return of all streams after a restart."""

OPTIONS: tuple[tuple[str, Any], ...] = (
    # An agent's successor binds the same address before its predecessor has gone.
    ("grpc.so_reuseport", 1),
    ("grpc.server.max_pending_requests", PENDING),
    ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
    # The only request is a name and a token; the header list is what proxies themselves accept.
    ("grpc.max_receive_message_length", 64 << 10),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    # Frozen and half-open peers.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.settings_timeout", 10_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Proxies send no pings, other clients one in ten seconds; a flood of them is answered by GOAWAY.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 2),
    # A proxy has one connection.
    ("grpc.max_allowed_incoming_connections", 256),
)

STATUS = {
    Code.CANCELLED: grpc.StatusCode.CANCELLED,
    Code.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Code.FAILED_PRECONDITION: grpc.StatusCode.FAILED_PRECONDITION,
    Code.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
}

Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcCall:
    """A call of gRPC's server. `code`: how it ended, as far as it was ended here."""

    def __init__(self, context: Context) -> None:
        self.code = Code.CANCELLED
        self.write = context.write
        self._abort = context.abort

    async def end(self, code: Code, text: str) -> None:
        self.code = code
        await self._abort(STATUS[code], text)


class GrpcServer:
    """One server object. `bind` it, then `start`; a server that is not started keeps its port for ever."""

    def __init__(self, audience: Audience, metrics: Metrics) -> None:
        self._audience = audience
        self._metrics = metrics
        self._server = grpc.aio.server(options=OPTIONS)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method.value: grpc.unary_stream_rpc_method_handler(partial(self._handle, method))
            for method in Method
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def bind(self, address: str) -> int:
        """Listen on `host:port` in the network namespace of the calling thread; returns the port.

        RuntimeError when the address cannot be had.
        """
        return self._server.add_insecure_port(address)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, reason: str) -> None:
        """GOAWAY; calls end with UNAVAILABLE, and are cut off after GRACE when they do not."""
        stopping = asyncio.ensure_future(self._server.stop(GRACE))
        await asyncio.wait({stopping}, timeout=LINGER)
        self._audience.end(reason)
        await stopping

    async def _handle(self, method: Method, request: bytes, context: Context) -> None:
        call = GrpcCall(context)
        began = time.monotonic()
        self._metrics.started(method)
        try:
            await self._audience.serve(method, request, call)
        except grpc.aio.InternalError as error:
            # A message or status could not be sent: the client has gone, which would have been said next.
            raise asyncio.CancelledError from error
        finally:
            self._metrics.handled(method, call.code, time.monotonic() - began)
