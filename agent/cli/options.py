"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli.types import FilesDirectory

F = TypeVar("F", bound=Callable[..., Any])

DIRECTORY = click.Path(path_type=Path, readable=False)
"""Not looked at here: whoever uses it can tell better what is wrong with it."""

run_dir = click.option(
    "--run-dir",
    type=DIRECTORY,
    default=Path("/run/pointsman"),
    show_default=True,
    help="Directory of the agent's socket and the writer's lock.",
)

netns_dir = click.option(
    "--netns-dir",
    type=DIRECTORY,
    default=Path("/run/netns"),
    show_default=True,
    help="Directory in which the container runtime names network namespaces.",
)

files = click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE",
    help="Manifest (YAML or JSON) of pods, with their Namespaces and Services; - for stdin. Repeatable.",
)

yes = click.option("--yes", is_flag=True, allow_from_autoenv=False, help="Do it; without, only say what.")


def source(*, required: bool, text: str) -> Callable[[F], F]:
    """`--source files:DIR`; the command gets the directory as `source`."""
    return click.option("--source", type=FilesDirectory(), required=required, help=text)


def output(*forms: str) -> Callable[[F], F]:
    """`-o FORM`, the first of `forms` by default; the command gets it as `form`."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help="Form of the result on stdout.",
    )
