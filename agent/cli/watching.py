"""`--watch`: what proxies are told from now on, a line for each change."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Protocol

import click
from click.core import ParameterSource

from agent.cli.asking import Asking, Explainer, held, with_service
from agent.cli.output import printable
from agent.core.discovery.explanation import Explanation
from agent.destination.client import CallFailed, Messages, Service
from agent.destination.metrics import Method


class Follower(Protocol):
    """Puts the answers about one path into words."""

    def take(self, messages: Messages, explained: Explanation | None) -> Iterator[str]:
        """A line for each change."""

    def lost(self) -> None:
        """The next answer is a first one again, and tells what has changed meanwhile."""


def watch(asking: Asking, method: Method, followers: Mapping[str, Follower]) -> None:
    """Tell changes until interrupted, and through restarts of the agent. ApiError, CallFailed."""
    explainer = Explainer(asking)

    async def every(service: Service) -> None:
        told = (_follow(service, asking, method, each, explainer) for each in followers.items())
        await asyncio.gather(*told)

    try:
        asyncio.run(with_service(asking, every, endless=True))
    except KeyboardInterrupt:
        return


def refuse_output(ctx: click.Context) -> None:
    if ctx.get_parameter_source("form") is ParameterSource.COMMANDLINE:
        raise click.UsageError("cannot use --output with --watch: changes are told in words")


async def _follow(
    service: Service, asking: Asking, method: Method, asked: tuple[str, Follower], explainer: Explainer
) -> None:
    path, follower = asked
    waiting = asyncio.create_task(_impatience(asking, method, path))
    lost = False
    try:
        async with aclosing(service.follow(method, path, asking.token)) as answers:
            async for news in answers:
                waiting.cancel()
                if isinstance(news, CallFailed):
                    if not lost:
                        _say(path, f"lost: {news}; asking again")
                    lost = True
                    follower.lost()
                    continue
                lost = False
                explained = await asyncio.to_thread(explainer.explain, method, path)
                for line in follower.take(news, explained):
                    _say(path, line)
    finally:
        waiting.cancel()


async def _impatience(asking: Asking, method: Method, path: str) -> None:
    await asyncio.sleep(asking.seconds)
    why = await asyncio.to_thread(held, asking, method, path)
    click.echo(f"No answer about {printable(path)} yet: {printable(why)}", err=True)


def _say(path: str, line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {printable(path)}: {printable(line)}")
