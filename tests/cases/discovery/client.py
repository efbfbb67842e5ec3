"""A client of the destination API on grpc.aio: streams whose messages are recorded as they come."""

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from tests.cases.discovery.case import Call
from tests.cases.discovery.view import View
from tests.cases.discovery.wire import GET, GET_PROFILE, WireError, request

_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""A connection of its own for every client. The limit of 4 MiB per message is gRPC's, and the proxy's."""


class Stream:
    """One call. `status` is None while it is open, then the name of its gRPC status.

    While `reading` is not set, nothing is read: gRPC buffers a window, and then the server has to wait.
    """

    def __init__(self, channel: grpc.aio.Channel, call: Call) -> None:
        self.call = call
        self.view = View(call.method)
        self.status: str | None = None
        self.details = ""
        self.opened = self.last = time.monotonic()
        self.reading = asyncio.Event()
        self.reading.set()
        path = GET if call.method == "Get" else GET_PROFILE
        stub: Any = channel.unary_stream(path)
        self._rpc = stub(request(call.path, call.token))
        self._task = asyncio.create_task(self._read())

    def __str__(self) -> str:
        return str(self.call)

    @property
    def answered(self) -> bool:
        """Whether there is a message or a status."""
        return bool(self.view.seen) or self.status is not None

    async def cancel(self) -> None:
        """End the call from this side; its status becomes CANCELLED."""
        self._rpc.cancel()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.status = self.status or "CANCELLED"

    async def ended(self, seconds: float) -> bool:
        """Whether the other side ends the call within that time."""
        done, _ = await asyncio.wait([self._task], timeout=seconds)
        return bool(done)

    async def _read(self) -> None:
        try:
            while (raw := await self._rpc.read()) is not grpc.aio.EOF:
                self.last = time.monotonic()
                self.view.take(raw, self.last - self.opened)
                await self.reading.wait()
            self.status = "OK"
        except grpc.aio.AioRpcError as error:
            self.status, self.details = error.code().name, error.details() or ""
        except WireError as error:
            self.view.faults.append(f"message {len(self.view.seen) + 1} is none: {error}")
            self._rpc.cancel()
            self.status = "CANCELLED"
        self.last = time.monotonic()


class Client:
    """One connection, to `target` in gRPC's notation."""

    def __init__(self, target: str, options: tuple[tuple[str, int], ...] = ()) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=[*_OPTIONS, *options])
        self.streams: list[Stream] = []

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in self.streams:
            await stream.cancel()
        await self._channel.close()

    def open(self, call: Call) -> Stream:
        stream = Stream(self._channel, call)
        self.streams.append(stream)
        return stream
