"""A destination service with answers made by hand, in a thread beside the command line; and the agent's
own socket, which explains them."""

import asyncio
import socketserver
import threading
from collections.abc import Callable, Coroutine
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from agent.core.discovery.answers import Answer, Twofold
from agent.core.discovery.explanation import Explanation, explanation
from agent.core.discovery.targets import Client
from agent.destination.listener import Listener
from agent.destination.metrics import Method
from tests.destination.stage import Stage


class Service:
    """Listens from when it is entered until it is left, on `port`. Unless `opened`, it holds all calls."""

    def __init__(self, *, opened: bool = True) -> None:
        self.port = 0
        self._opened = opened
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._stage: Stage | None = None
        self._listener: Listener | None = None

    def __enter__(self) -> "Service":
        self._thread.start()
        self._do(self._begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def get(self, service: str, answer: Answer | Callable[[Client], Answer]) -> None:
        """From now on this is the answer to Get about a Service of that name."""
        self._do(self._tell(Method.GET, service, answer))

    def profile(self, name: str, answer: Answer | Callable[[Client], Answer]) -> None:
        """The same of GetProfile; the name may be an IP."""
        self._do(self._tell(Method.PROFILE, name, answer))

    def leave(self, reason: str) -> None:
        """Listen no more, as an agent that is stopped."""
        self._do(self._leave(reason))

    def come_back(self) -> None:
        """Listen again, at the same address."""
        self._do(self._listen(self.address))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _begin(self) -> None:
        self._stage = Stage()
        if self._opened:
            self._stage.hub.open()
        await self._listen("127.0.0.1:0")

    async def _listen(self, address: str) -> None:
        assert self._stage is not None
        self._listener = await self._stage.listen(address)
        self.port = self._listener.port

    async def _tell(self, method: Method, name: str, answer: Any) -> None:
        assert self._stage is not None
        self._stage.answers.tell(method, name, answer)

    async def _leave(self, reason: str) -> None:
        assert self._stage is not None
        assert self._listener is not None
        self._stage.listeners.remove(self._listener)
        await self._listener.close(reason)

    async def _close(self) -> None:
        assert self._stage is not None
        await self._stage.close()


class Socket:
    """The agent's socket in `run_dir`, which knows explanations by question and path, and 404 else."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.asked: list[tuple[str, str, str]] = []
        self._told: dict[tuple[str, str], Explanation] = {}
        self._server = _Server(str(run_dir / "agent.sock"), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> "Socket":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def tell(self, question: str, path: str, answer: Answer) -> None:
        self._told[question, path] = explanation(answer)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = outer._answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "local"

            def log_message(self, *arguments: object) -> None:
                """Nothing is told."""

        return Handler

    def _answer(self, target: str) -> tuple[int, bytes]:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path == "/live":
            return 200, b"ok\n"
        found = self._told.get((query.get("question", ""), query.get("path", "")))
        if url.path != "/explain-destination" or found is None:
            return 404, b"there is /live, /ready and /metrics\n"
        self.asked.append((query["question"], query["path"], query["token"]))
        return 200, msgspec.json.encode(found)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def on(service: str, port: int = 80) -> str:
    """An authority in the domain of these services."""
    return f"{service}.shop.svc.cluster.test:{port}"


def held(*lacking: Any) -> Twofold:
    """An answer that waits."""
    return Twofold(lacking=frozenset(lacking))
