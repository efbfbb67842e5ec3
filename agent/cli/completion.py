"""`pointsman completion`."""

import click
from click.shell_completion import get_completion_class

from agent.cli import main

NAME = "pointsman"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of a shell.

    bash: `source <(pointsman completion bash)`; zsh likewise; fish: `pointsman completion fish | source`.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, NAME, f"_{NAME.upper()}_COMPLETE").source())
