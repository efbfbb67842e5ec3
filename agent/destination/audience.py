"""The calls of one listener: who asks, and what is asked.

Nothing here knows HTTP/2: an engine hands in the bytes of a request, and a call to write to.
"""

from google.protobuf.message import DecodeError

from agent.core.discovery.targets import Client, parse_token
from agent.destination.budget import Budget, Limits
from agent.destination.hub import Hub
from agent.destination.metrics import Code, Method, Metrics
from agent.destination.proto.destination_pb2 import GetDestination
from agent.destination.stream import Call, Stream
from agent.destination.topic import CallEnded


class Audience:
    """`client` is who asks, whatever a token says; None: the token says it."""

    def __init__(self, hub: Hub, metrics: Metrics, limits: Limits, client: Client | None) -> None:
        self._hub = hub
        self._client = client
        self._budget = Budget(limits, metrics)
        self._ending = ""

    async def serve(self, method: Method, request: bytes, call: Call) -> None:
        """Answer one call for as long as it is open, and tell it how it ends."""
        try:
            stream = self._admit(method, request, call)
        except CallEnded as end:
            await call.end(end.code, str(end))
            return
        self._budget.streams.add(stream)
        try:
            await stream.run()
        except CallEnded as end:
            await call.end(end.code, str(end))
        finally:
            self._budget.leave(stream)

    def _admit(self, method: Method, request: bytes, call: Call) -> Stream:
        if self._ending:
            raise CallEnded(Code.UNAVAILABLE, self._ending)
        self._budget.check()
        path, client = self._read(request)
        return self._hub.subscribe(method, path, client, call, self._budget)

    def end(self, reason: str) -> None:
        """End all calls, held ones too, with UNAVAILABLE, and all that still come."""
        self._ending = reason
        for stream in self._budget.streams:
            stream.end(reason)

    def _read(self, request: bytes) -> tuple[str, Client]:
        try:
            message = GetDestination.FromString(request)
        except DecodeError as error:
            raise CallEnded(
                Code.INVALID_ARGUMENT, "cannot read the request: it is no GetDestination message"
            ) from error
        return message.path, self._client or parse_token(message.context_token)
