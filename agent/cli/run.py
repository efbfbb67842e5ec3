"""`pointsman run`: the daemon."""

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from agent import log
from agent.cli import defaults, options
from agent.cli.answering import answering
from agent.cli.answering import options as destination_options
from agent.cli.install_cni import cni_options, settings_of_run
from agent.cli.types import Address, Seconds
from agent.daemon import Daemon
from agent.settings import Settings


@click.command("run")
@options.source(required=True, text="Where cluster objects come from: files:DIR, a directory of manifests.")
@options.run_dir
@click.option(
    "--admin-address",
    type=Address(),
    default="127.0.0.1:4187",
    show_default=True,
    help='Address of /live, /ready and /metrics; "" for none.',
)
@click.option(
    "--table-ownership",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Own the pods' tables where the kernel can, so that others cannot flush them.",
)
@click.option(
    "--observe/--no-observe", default=False, show_default=True, help="Compare and report, and never write."
)
@click.option(
    "--discovery/--no-discovery",
    default=True,
    show_default=True,
    help="Find the netns of running pods through /proc.",
)
@click.option(
    "--proc",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("/proc"),
    show_default=True,
    help="The node's /proc.",
)
@click.option(
    "--round",
    "round_period",
    type=Seconds(least=0.01),
    default="2",
    show_default=True,
    help="Seconds between two polls of all pods' generations.",
)
@click.option(
    "--compare",
    "compare_period",
    type=Seconds(least=0.01),
    default="300",
    show_default=True,
    help="Seconds between two full comparisons of all pods.",
)
@click.option(
    "--listeners",
    "listener_period",
    type=Seconds(least=0.01),
    default="10",
    show_default=True,
    help="Seconds between two looks at a pod's listeners and addresses.",
)
@click.option(
    "--unknown-wait",
    type=Seconds(least=0),
    default="2",
    show_default=True,
    help="Seconds that CNI ADD waits for a pod that the source does not know yet; then it is let through.",
)
@click.option(
    "--hang-timeout",
    type=Seconds(least=2),
    default="10",
    show_default=True,
    help="Seconds after which a stuck event loop ends the process.",
)
@click.option(
    "--log-format",
    type=click.Choice(["plain", "json"]),
    default="plain",
    show_default=True,
    help="Form of log lines.",
)
@click.option(
    "--log-level",
    type=click.Choice(list(log.LEVELS)),
    default="info",
    show_default=True,
    help="Least level that is logged.",
)
@click.option(
    "--install-cni/--no-install-cni",
    default=False,
    show_default=True,
    help="Chain the shim into this node's network, and keep it there; as `pointsman install-cni`, which "
    "has the flags from --conf-dir to --shim.",
)
@cni_options
@destination_options
@defaults.options
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> None:
    """Run the agent: find pods, redirect them, and keep them so."""
    if values["install_cni"] and values["observe"]:
        raise click.UsageError("cannot use --install-cni with --observe, which never writes")
    log.configure(values.pop("log_format"), values.pop("log_level"))
    node_defaults = defaults.node_defaults(values)
    chained = settings_of_run(ctx, values)
    settings = Settings(
        defaults=node_defaults,
        answering=answering(values, node_defaults),
        cni=chained if values.pop("install_cni") else None,
        owned_tables=values.pop("table_ownership") == "auto",
        discover=values.pop("discovery"),
        **values,
    )
    # A pod takes four descriptors, and the usual soft limit of 1024 would do for 250 of them.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    problems: list[str] = []
    try:
        asyncio.run(Daemon(settings).run())
    except* OSError as group:
        problems += map(_words, _leaves(group))
    if problems:
        raise click.ClickException("\n".join(problems))


def _leaves(group: BaseExceptionGroup[OSError]) -> Iterator[OSError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _words(error: OSError) -> str:
    if error.filename is None:
        return str(error)
    return f"cannot use {error.filename}: {error.strerror}; run as root, or choose another path"
