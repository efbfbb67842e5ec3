"""`pointsman version`."""

import platform

import click

from agent import __version__
from agent.cli import options
from agent.cli.output import print_json


@click.command("version")
@options.output("text", "json")
def command(form: str) -> None:
    """Print the version of this program."""
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    if form == "json":
        print_json(facts)
    else:
        click.echo(f"pointsman {__version__}")
