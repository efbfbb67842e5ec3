"""`pointsman check`: can an agent work on this node, does it, and how do its pods fare?"""

from pathlib import Path
from typing import Any

import click

from agent.cli import options
from agent.cli.check_agent import check_agent
from agent.cli.check_node import check_node
from agent.cli.install_cni import cni_options, settings_of_run
from agent.cli.report import print_report, report


@click.command("check")
@click.option(
    "--proc",
    type=options.DIRECTORY,
    default=Path("/proc"),
    show_default=True,
    help="The node's /proc.",
)
@options.netns_dir
@options.run_dir
@cni_options
@options.output("text", "json")
@click.pass_context
def command(ctx: click.Context, /, *, proc: Path, netns_dir: Path, form: str, **values: Any) -> None:
    """Check this node, the agent, the CNI gate, and the pods.

    Says of each failure what to do. Run it where the agent runs, with the same privileges. An agent that
    keeps the node's CNI configuration tells how that stands; else --conf-dir and the flags beside it are
    those of `pointsman install-cni`, and the files are looked at. Nothing is changed. Ends with 1 when a
    check fails; a warning is about something that works, and could be better.
    """
    cni, run_dir = settings_of_run(ctx, values), values["run_dir"]
    found = report((check_node(proc), *check_agent(run_dir, netns_dir, cni)))
    print_report(found, form)
    ctx.exit(0 if found.success else 1)
