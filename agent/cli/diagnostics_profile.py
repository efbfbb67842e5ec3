"""`pointsman diagnostics profile`: the profile that a proxy would get, and how it changes."""

import asyncio
from collections.abc import Iterator
from typing import Any

import click

from agent.cli import options
from agent.cli.asking import ApiError, Asking, Explainer, ask, asking_of, asking_options, in_go_words
from agent.cli.output import printable
from agent.cli.told import changed_profile, completed_profile, facts, standing
from agent.cli.watching import refuse_output, watch
from agent.core.discovery.explanation import Explanation
from agent.destination.client import CallFailed, Messages
from agent.destination.gojson import go_json
from agent.destination.metrics import Method
from agent.destination.view import read_profile


@click.command("profile")
@click.argument("path", metavar="ADDR")
@asking_options
@options.output("json")
@click.pass_context
def profile(ctx: click.Context, /, *, path: str, watching: bool, **values: Any) -> None:
    """Print the profile of a Service or an endpoint.

    ADDR is NAME:PORT or IP:PORT, as a proxy asks. The JSON on stdout is that of `linkerd diagnostics
    profile`; on stderr stands which rule decided whether the port is opaque, and how the endpoint is
    redirected. Ends with 1 when there is no answer.
    """
    asking = asking_of(values)
    try:
        if watching:
            refuse_output(ctx)
            watch(asking, Method.PROFILE, {path: ProfileFollower()})
        else:
            _print(asking, path)
    except CallFailed as error:
        raise ApiError(in_go_words(error)) from error


class ProfileFollower:
    """Of one path. A profile is always a whole one, also the first after a loss."""

    def __init__(self) -> None:
        self._known: dict[str, str] | None = None

    def lost(self) -> None:
        pass

    def take(self, messages: Messages, explained: Explanation | None) -> Iterator[str]:
        found = completed_profile(read_profile(messages[-1]), explained)
        now = facts(found, explained.rule if explained is not None else "")
        yield from changed_profile(self._known, now)
        self._known = now


def _print(asking: Asking, path: str) -> None:
    messages = asyncio.run(ask(asking, Method.PROFILE, (path,)))[path]
    found = read_profile(messages[-1])
    click.echo(go_json(found.document))
    explained = Explainer(asking).explain(Method.PROFILE, path)
    if explained is None:
        return
    if explained.rule:
        click.echo(f"{'opaque' if found.opaque else 'not opaque'}, by {printable(explained.rule)}", err=True)
    endpoint = completed_profile(found, explained).endpoint
    if endpoint is not None:
        click.echo(printable(standing(endpoint)), err=True)
    for one in explained.complaints:
        remedy = f"; {one.remedy}" if one.remedy else ""
        click.echo(printable(f"! {one.reason}  {one.subject}: {one.message}{remedy}"), err=True)
