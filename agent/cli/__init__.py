"""The command line. Exit codes: 0 fine, 1 found a problem, 2 usage. Results on stdout, words on stderr.

Each command lives in a module of its own and is imported when it is called, so that `pointsman
version` does not wait for the daemon's libraries.
"""

import importlib

import click

COMMANDS = {
    name: f"agent.cli.{name.replace('-', '_')}"
    for name in (
        "run",
        "install-cni",
        "check",
        "redirections",
        "explain",
        "redirect",
        "diagnostics",
        "cleanup",
        "uninstall",
        "version",
        "completion",
    )
}

ALIASES = {"dg": "diagnostics"}
"""Short names that users of Linkerd's command line have in their fingers; not listed."""

ENVIRONMENT = "POINTSMAN"
"""`--run-dir` of every command is also $POINTSMAN_RUN_DIR."""


class Lazy(click.Group):
    """A group whose commands are imported on use: module `agent.cli.X` holds the command `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[name]).command
        assert isinstance(command, click.Command)
        _give_twins(command)
        return command


def _give_twins(command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.allow_from_autoenv:
            parameter.envvar = twin(parameter)
    if isinstance(command, click.Group):
        for verb in command.commands.values():
            _give_twins(verb)


def twin(option: click.Option) -> str:
    """The environment variable of an option, by its flag.

    Not by click's name of the parameter: Kubernetes sets POINTSMAN_PORT, and more like it, in every pod
    beside a Service called pointsman.
    """
    flag = max(option.opts, key=len).lstrip("-")
    return f"{ENVIRONMENT}_{flag.replace('-', '_').upper()}"


@click.command(
    cls=Lazy,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
def main() -> None:
    """Keeps every meshed pod's TCP on its way through the proxy, from the node.

    Exit codes: 0 fine, 1 a problem was found, 2 wrong usage.
    """
