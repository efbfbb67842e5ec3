"""A client of the service, for people who look at what proxies are told."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc

from agent.destination.encode import LIMIT
from agent.destination.metrics import SERVICE, Method
from agent.destination.proto.destination_pb2 import GetDestination

QUIET = 0.5
"""Seconds without a message after which a large one was the last that belongs together."""

RETRY = 1.0
"""Seconds before a call that has ended is made again."""

OPTIONS: tuple[tuple[str, Any], ...] = (
    # A node's proxy settings are for the world outside, and other servers have other limits.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

Messages = tuple[bytes, ...]
Call = grpc.aio.UnaryStreamCall[bytes, bytes]
Ask = grpc.aio.UnaryStreamMultiCallable[bytes, bytes]


class CannotReach(Exception):  # noqa: N818
    """Nobody listens there; the message is the reason."""


class CallFailed(Exception):  # noqa: N818
    """The service has ended a call. `code` is as Go spells it: InvalidArgument, Unavailable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Service:
    """The service at an address, on one connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def first(self, method: Method, path: str, token: str) -> Messages:
        """The first full answer: all messages of it. CallFailed."""
        async with contextlib.aclosing(self._call(method, path, token)) as answers:
            async for messages in answers:
                return messages
        raise CallFailed("OK", "the call has ended without an answer")

    async def follow(
        self, method: Method, path: str, token: str
    ) -> AsyncGenerator[Messages | CallFailed, None]:
        """The first full answer, then each update. When the service goes away the failure comes, and once
        there is one again, another first answer. CallFailed when it ends the call for any other reason."""
        patient = False
        while True:
            try:
                async with contextlib.aclosing(self._call(method, path, token, patient=patient)) as answers:
                    async for messages in answers:
                        yield messages
                end = CallFailed("OK", "the service has ended the call")
            except CallFailed as error:
                if error.code != "Unavailable":
                    raise
                end = error
            yield end
            patient = True
            await asyncio.sleep(RETRY)

    async def _call(
        self, method: Method, path: str, token: str, *, patient: bool = False
    ) -> AsyncGenerator[Messages, None]:
        """Messages, those together that come at once. `patient`: wait until somebody listens."""
        ask: Ask = self._channel.unary_stream(f"/{SERVICE}/{method.value}")
        request = GetDestination(path=path, context_token=token).SerializeToString()
        call = ask(request, wait_for_ready=patient)
        reading = asyncio.ensure_future(_read(call))
        try:
            while (message := await reading) is not None:
                batch = [message]
                reading = asyncio.ensure_future(_read(call))
                while (another := await _next_of(batch, reading)) is not None:
                    batch.append(another)
                    reading = asyncio.ensure_future(_read(call))
                yield tuple(batch)
        finally:
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _read(call: Call) -> bytes | None:
    """None at the end of the call. CallFailed."""
    try:
        message = await call.read()
    except grpc.aio.AioRpcError as error:
        raise CallFailed(_go_word(error.code()), error.details() or "") from error
    return message if isinstance(message, bytes) else None


async def _next_of(batch: list[bytes], reading: "asyncio.Future[bytes | None]") -> bytes | None:
    """The message that belongs to those before it: what is too large for one is sent in parts, one right
    after the other."""
    await asyncio.wait({reading}, timeout=QUIET if len(batch[-1]) > LIMIT // 2 else 0)
    return reading.result() if reading.done() and reading.exception() is None else None


@contextlib.asynccontextmanager
async def connect(host: str, port: int) -> AsyncIterator[Service]:
    """The service at an address. CannotReach when nobody listens there, or somebody else."""
    await _probe(host, port)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(state)
            state = channel.get_state()
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise CannotReach("whoever listens there speaks no gRPC")
        yield Service(channel)


async def _probe(host: str, port: int) -> None:
    """gRPC's own words about a refused connection are for its developers."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        # asyncio puts words of its own in the place of the kernel's.
        number = error.errno or 0
        raise CannotReach(os.strerror(number) if number > 0 else error.strerror or str(error)) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _go_word(code: grpc.StatusCode) -> str:
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return "".join(part.capitalize() for part in code.name.split("_"))
