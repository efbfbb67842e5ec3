"""A pod's proxy as far as it asks for destinations: over one connection, and again whenever a call ends.

As a process in the pod's namespace:  python -m tests.lab.asker --target 127.0.0.1:4186 Get=web.shop.svc...:80
It writes one JSON object per line: {"call", "question", "at", "raw"} for each message, in hexadecimal, and
{"call", "question", "at", "ended", "details"} for each call's end; `at` is the machine's monotonic clock.
In a test, `asking` starts it and records what it says.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import click
import grpc.aio
import msgspec

from tests.cases.discovery.view import View
from tests.cases.discovery.wire import GET, GET_PROFILE, request
from tests.lab.agent import PATIENCE, SLOWNESS
from tests.lab.netns import path_of

ROOT = Path(__file__).parents[2]
TARGET = "127.0.0.1:4186"
REDIAL = 0.1
"""Seconds until a call that has ended is made again, as a proxy does at first."""

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 400),
)
_PATHS = {"Get": GET, "GetProfile": GET_PROFILE}


class End(msgspec.Struct, frozen=True):
    """How a call ended, and when (monotonic)."""

    question: str
    at: float
    status: str
    details: str


class Asker:
    """What a client in a pod was told. Questions are `Get=PATH` or `GetProfile=PATH`.

    `calls` are the views of all calls by number, of which each question has one at a time; `current` has the
    number of a question's last call that had a message, and `answered` when it came first (monotonic).
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.calls: dict[int, View] = {}
        self.current: dict[str, int] = {}
        self.answered: dict[int, float] = {}
        self.ends: list[End] = []
        self._process = process
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="asker")
        self._reader.start()

    def view(self, question: str) -> View | None:
        """What the client holds of a question by its last call; None before the first message."""
        number = self.current.get(question)
        return None if number is None else self.calls[number]

    def addresses(self, question: str) -> dict[str, dict[str, Any]]:
        """By `ip:port`: the endpoints of a Get, or the one of a profile; {} before the first message."""
        view = self.view(question)
        return {} if view is None else {each["at"]: each for each in view.endpoints}

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        """Until `condition` is true. AssertionError with what was heard when it is not in time."""
        with self._news:
            if not self._news.wait_for(condition, seconds * SLOWNESS):
                raise AssertionError(f"no {what} in {seconds} s; heard: {self.heard()}")

    def heard(self) -> list[str]:
        calls = [f"call {number}: {[each.kind for each in view.seen]}" for number, view in self.calls.items()]
        return [*calls, *(f"{end.question} ended: {end.status} {end.details}" for end in self.ends)]

    def faults(self) -> list[str]:
        """What no stream may ever do, and one did."""
        return [fault for view in self.calls.values() for fault in view.faults]

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()
        self._reader.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard = json.loads(line)
            with self._news:
                self._take(heard)
                self._news.notify_all()

    def _take(self, heard: dict[str, Any]) -> None:
        number, question, at = heard["call"], heard["question"], heard["at"]
        if "ended" in heard:
            self.ends.append(End(question, at, heard["ended"], heard["details"]))
            return
        if number not in self.calls:
            self.calls[number] = View("Get" if question.startswith("Get=") else "Profile")
            self.answered[number] = at
            self.current[question] = number
        self.calls[number].take(bytes.fromhex(heard["raw"]), at)


@contextlib.contextmanager
def asking(name: str, *questions: str, target: str = TARGET, token: str = "") -> Iterator[Asker]:
    """A client in the namespace `name`, until the end of the context."""
    process = subprocess.Popen(
        [
            "nsenter", f"--net={path_of(name)}",
            sys.executable, "-m", "tests.lab.asker", "--target", target, "--token", token, *questions,
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )  # fmt: skip
    asker = Asker(process)
    try:
        yield asker
    finally:
        asker.close()


async def _ask(channel: grpc.aio.Channel, numbers: Iterator[int], question: str, token: str) -> None:
    method, _, path = question.partition("=")
    stub: Any = channel.unary_stream(_PATHS[method])
    while True:
        number = next(numbers)
        rpc = stub(request(path, token))
        try:
            while (raw := await rpc.read()) is not grpc.aio.EOF:
                _say(call=number, question=question, raw=raw.hex())
            status, details = "OK", ""
        except grpc.aio.AioRpcError as error:
            status, details = error.code().name, error.details() or ""
        _say(call=number, question=question, ended=status, details=details)
        await asyncio.sleep(REDIAL)


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps({"at": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


async def _run(target: str, token: str, questions: tuple[str, ...]) -> None:
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        numbers = count(1)
        await asyncio.gather(*(_ask(channel, numbers, question, token) for question in questions))


@click.command()
@click.option("--target", default=TARGET, show_default=True)
@click.option("--token", default="", help="Context token of all calls.")
@click.argument("questions", nargs=-1, required=True)
def main(target: str, token: str, questions: tuple[str, ...]) -> None:
    """Ask until the end."""
    asyncio.run(_run(target, token, questions))


if __name__ == "__main__":
    main()
