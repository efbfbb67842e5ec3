"""Questions to the destination service, as a proxy asks them, and to the agent's own socket beside it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any, TypeVar

import click
import msgspec

from agent.cli import options
from agent.cli.client import Agent, AgentError
from agent.cli.output import printable
from agent.cli.told import where
from agent.cli.types import Address, Seconds
from agent.core.discovery.answers import Lack
from agent.core.discovery.explanation import Explanation
from agent.destination.client import CallFailed, CannotReach, Messages, Service, connect
from agent.destination.metrics import Method

F = TypeVar("F", bound=Callable[..., Any])

UNEXPLAINED = "Redirection, and the rule that decided opacity, are not on the wire"

ALIVE = 2.0
"""Seconds in which an agent says that it is alive, that has just answered, or has not for some time."""

QUESTIONS = {Method.GET: "endpoints", Method.PROFILE: "profile"}


class ApiError(click.ClickException):
    """In the words that scripts know from Linkerd's own command line."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Destination API error: {printable(self.message)}", file=file, err=file is None)


class Asking(msgspec.Struct, frozen=True):
    """Where and as whom to ask. `seconds` for the first answer."""

    host: str
    port: int
    token: str
    seconds: float
    run_dir: Path

    @property
    def address(self) -> str:
        return where(self.host, self.port)

    def explanation(self, method: Method, path: str) -> Explanation:
        """What is not on the wire, from the agent's own socket. AgentError."""
        try:
            own = ip_address(self.host).is_loopback
        except ValueError:
            own = self.host == "localhost"
        if not own:
            raise AgentError(f"cannot ask the socket of an agent elsewhere, at {self.address}")
        return Agent(self.run_dir, ALIVE).explanation(QUESTIONS[method], path, self.token)


class Explainer:
    """Explanations, or the last that could be had; says once why there is none."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._last: dict[str, Explanation] = {}
        self._told = False

    def explain(self, method: Method, path: str) -> Explanation | None:
        try:
            self._last[path] = self._asking.explanation(method, path)
        except AgentError as error:
            if not self._told:
                click.echo(f"{UNEXPLAINED}: {printable(error.message)}", err=True)
            self._told = True
        return self._last.get(path)


def asking_options(command: F) -> F:
    """The command gets them as the fields of Asking, and `destination_pod`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--api-addr",
        type=Address(),
        default="127.0.0.1:4188",
        show_default=True,
        help="Where to ask: HOST:PORT of an agent's --diagnostics-address, or of any destination controller.",
    ),
    click.option(
        "--token",
        default="",
        help='Who asks, as the proxy of a pod says it: {"ns": NAMESPACE, "nodeName": NODE, "pod": POD}.',
    ),
    click.option(
        "--destination-pod",
        allow_from_autoenv=False,
        help="Taken, as Linkerd's own command line takes it, and of no effect: --api-addr is asked.",
    ),
    click.option(
        "--timeout",
        type=Seconds(),
        default="5",
        show_default=True,
        help="Seconds to wait for an answer.",
    ),
    click.option(
        "--watch",
        "watching",
        is_flag=True,
        allow_from_autoenv=False,
        help="Go on until interrupted, and tell each change in words.",
    ),
    options.run_dir,
)


def asking_of(values: dict[str, Any]) -> Asking:
    """Takes what `asking_options` put into the command's values."""
    if values.pop("destination_pod"):
        click.echo("--destination-pod has no effect: one agent is asked, that of --api-addr", err=True)
    address = values.pop("api_addr")
    if address is None:
        raise click.UsageError("cannot ask nobody; give --api-addr, such as 127.0.0.1:4188")
    host, port = address
    return Asking(
        host, port, token=values.pop("token"), seconds=values.pop("timeout"), run_dir=values.pop("run_dir")
    )


async def ask(asking: Asking, method: Method, paths: Sequence[str]) -> dict[str, Messages]:
    """The first full answer about each path. ApiError, CallFailed."""
    answers: dict[str, Messages] = {}

    async def one(service: Service, path: str) -> None:
        answers[path] = await service.first(method, path, asking.token)

    async def every(service: Service) -> None:
        await asyncio.gather(*(one(service, path) for path in paths))

    try:
        await with_service(asking, every)
    except TimeoutError as error:
        missing = next(path for path in paths if path not in answers)
        raise ApiError(
            f"cannot get an answer about {missing} from {asking.address} within {asking.seconds:g} s "
            f"(--timeout waits longer): {held(asking, method, missing)}"
        ) from error
    return {path: answers[path] for path in paths}


async def with_service(
    asking: Asking, work: Callable[[Service], Awaitable[None]], *, endless: bool = False
) -> None:
    """Do something with a connection, in time, or `endless` once there is one. ApiError, TimeoutError."""
    try:
        async with (
            asyncio.timeout(asking.seconds) as limit,
            connect(asking.host, asking.port) as service,
        ):
            if endless:
                limit.reschedule(None)
            await work(service)
    except CannotReach as error:
        raise ApiError(
            f"cannot reach {asking.address}: {error}; is `pointsman run` running there, does it know how "
            "Linkerd was installed, and is this its --diagnostics-address?"
        ) from error


def in_go_words(error: CallFailed) -> str:
    """As Go prints the error of a call."""
    return f"rpc error: code = {error.code} desc = {error}"


def held(asking: Asking, method: Method, path: str) -> str:
    """Why there is no answer, as far as anybody knows."""
    try:
        lacking = asking.explanation(method, path).lacking
    except AgentError as error:
        return error.message
    if not lacking:
        return "is the agent frozen? its log may tell more"
    return f"the agent waits for {', '.join(map(_lack, lacking))}"


def _lack(lack: Lack) -> str:
    match lack.what:
        case "kind":
            return f"the list of kind {lack.name}"
        case "pod":
            return f"pod {lack.namespace}/{lack.name}"
        case "address":
            return f"whoever is at {lack.name}"
