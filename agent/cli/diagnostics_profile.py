"""`pointsman diagnostics profile`: the first profile that a proxy would get, or all of them."""

import asyncio
from contextlib import aclosing
from typing import Any

import click

from agent.cli import options
from agent.cli.asking import (
    ApiError,
    Asking,
    Explainer,
    ask,
    asking_of,
    asking_options,
    in_go_words,
)
from agent.cli.output import printable
from agent.cli.told import changed_profile, completed, described, facts
from agent.cli.watching import Teller, refuse_form, watch
from agent.core.discovery.explanation import Explanation
from agent.destination.client import CallFailed, Messages
from agent.destination.gojson import go_json
from agent.destination.metrics import Method
from agent.destination.view import ToldProfile, read_profile


@click.command("profile")
@click.argument("path", metavar="ADDR")
@asking_options
@options.output("json")
@click.pass_context
def profile(ctx: click.Context, /, *, path: str, watch: bool, form: str, **values: Any) -> None:
    """Print the profile of a Service or an endpoint.

    ADDR is NAME:PORT or IP:PORT, as a proxy asks: the JSON on stdout is that of `linkerd diagnostics
    profile`. On stderr: the rule that decided whether the port is opaque, and how the redirection of the
    endpoint stands. With --watch, each change in words.
    """
```
