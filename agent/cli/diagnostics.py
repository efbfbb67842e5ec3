"""`pointsman diagnostics`: what proxies are told, with the verbs and forms of Linkerd's command line."""

import click

from agent.cli.diagnostics_endpoints import endpoints
from agent.cli.diagnostics_profile import profile

ALIASES = {"ep": "endpoints"}
"""Linkerd's own short names; not listed."""


class Verbs(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))


@click.group("diagnostics", cls=Verbs)
def command() -> None:
    """Ask the destination service as proxies do."""


command.add_command(endpoints)
command.add_command(profile)
