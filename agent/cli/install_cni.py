"""`pointsman install-cni`: the shim and its entry in this node's CNI configuration."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from agent import log
from agent.cli import options
from agent.cli.output import print_json, printable
from agent.cli.types import NamespaceList, PodName
from agent.cni.install import SHIM, CannotInstallError, CniSettings, Inspection, Installer, Outcome
from agent.cni.watch import Watch
from agent.core.chain import TYPE
from agent.core.names import PodKey
from agent.core.reasons import MEANINGS, Reason

LONGEST_SOCKET = 107
"""Bytes of a unix socket's path, as the kernel has it."""

F = TypeVar("F", bound=Callable[..., Any])


def _socket(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    if not value.is_absolute() or len(str(value).encode(errors="surrogateescape")) > LONGEST_SOCKET:
        shown = printable(str(value)[:120])
        raise click.BadParameter(
            f"cannot take {shown!r} as a socket; write an absolute path of at most {LONGEST_SOCKET} bytes, "
            "such as /run/pointsman/cni.sock",
            ctx,
            param,
        )
    return value


conf_dir = click.option(
    "--conf-dir",
    type=options.DIRECTORY,
    default=CniSettings().conf_dir,
    show_default=True,
    help="Directory from which the container runtime reads its CNI configuration.",
)

bin_dir = click.option(
    "--bin-dir",
    type=options.DIRECTORY,
    default=CniSettings().bin_dir,
    show_default=True,
    help="Directory of the node's CNI binaries.",
)


def cni_options(command: F) -> F:
    """The flags that make a CniSettings; `settings` takes them out of the command's values."""
    for option in (
        click.option(
            "--shim",
            type=options.DIRECTORY,
            default=SHIM,
            help="Binary that is installed; the one that comes with this program by default.",
        ),
        click.option(
            "--socket",
            type=options.DIRECTORY,
            default=CniSettings().socket,
            show_default=True,
            callback=_socket,
            help="The agent's socket, as the node knows it.",
        ),
        click.option(
            "--agent-pod",
            type=PodName(),
            help="NAMESPACE/NAME-PREFIX of the agent's own pods, which are never held back.",
        ),
        click.option(
            "--exempt-namespaces",
            type=NamespaceList(),
            default=",".join(sorted(CniSettings().exempt_namespaces)),
            show_default=True,
            help="Namespaces whose pods are never held back.",
        ),
        click.option(
            "--when-agent-away",
            type=click.Choice(["allow", "deny"]),
            default="allow",
            show_default=True,
            help="What becomes of new pods while no agent answers: started, and redirected late; or retried.",
        ),
        bin_dir,
        conf_dir,
    ):
        command = option(command)
    return command


def settings(values: dict[str, Any]) -> CniSettings:
    """Takes what `cni_options` put there."""
    taken = {name: values.pop(name) for name in CniSettings.__struct_fields__}
    pod: PodKey | None = taken["agent_pod"]
    return CniSettings(**taken | {"agent_pod": str(pod) if pod else ""})


def settings_of_run(ctx: click.Context, values: dict[str, Any]) -> CniSettings:
    """As `settings`, with the socket in --run-dir unless another one is named."""
    if ctx.get_parameter_source("socket") is ParameterSource.DEFAULT:
        values["socket"] = values["run_dir"].absolute() / "cni.sock"
    return settings(values)


@click.command("install-cni")
@cni_options
@click.option("--watch", is_flag=True, allow_from_autoenv=False, help="Stay, and keep it in place.")
@click.option("--remove", is_flag=True, allow_from_autoenv=False, help="Take it out again.")
@options.output("text", "json")
@click.pass_context
def command(ctx: click.Context, /, *, watch: bool, remove: bool, form: str, **values: Any) -> None:
    """Chain the shim into this node's network.

    Copies the shim, and adds an entry to the configuration that the container runtime uses. Safe to run
    again. `pointsman run` does the same and keeps it so; this is for a node that is prepared by hand. With
    --watch, the end of this command changes nothing. Ends with 1 when new pods do not come by the shim.
    """
    if watch and remove:
        raise click.UsageError("cannot use --watch with --remove")
    installer = Installer(settings(values))
    if watch:
        log.configure("plain", "info")
        asyncio.run(_watch(installer))
        return
    try:
        outcome = _once(installer, remove)
    except CannotInstallError as error:
        raise click.ClickException(printable(str(error))) from error
    if form == "json":
        print_json(outcome)
    else:
        _print(outcome, remove)
    ctx.exit(0 if remove or (outcome.inspection.right and outcome.inspection.installed) else 1)


def _once(installer: Installer, remove: bool) -> Outcome:
    with installer.tenancy() as mine:
        if mine:
            return installer.remove() if remove else installer.install()
    found = installer.inspect()
    if not remove and found.right:
        return Outcome(found)
    raise CannotInstallError(
        f"cannot change the CNI configuration in {installer.settings.conf_dir}: a running agent keeps it; "
        "end the agent first, or give it these settings"
    )


async def _watch(installer: Installer) -> None:
    watching = asyncio.create_task(Watch(installer, lambda _reason, _message: None).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, watching.cancel)
    await asyncio.wait([watching])
    if not watching.cancelled():
        watching.result()


def _print(outcome: Outcome, remove: bool) -> None:
    for name in outcome.written:
        click.echo(printable(f"changed {name}"))
    found = outcome.inspection
    if remove:
        if not outcome.written:
            click.echo("Nothing of ours is in the CNI configuration.", err=True)
        return
    if found.file:
        click.echo(printable(_sentence(found)))
    else:
        meaning = MEANINGS[Reason.CNI_MISSING]
        click.echo(f"Error: {found.conf_dir}: {meaning.meaning} {meaning.remedy}", err=True)
    for fault in found.broken:
        click.echo(printable(f"Warning: cannot use {found.conf_dir}/{fault.file}: {fault.why}"), err=True)
    for name in found.neighbours:
        click.echo(
            f"Warning: {name} is in the chain as well; {MEANINGS[Reason.CNI_NEIGHBOUR].remedy}", err=True
        )


def _sentence(found: Inspection) -> str:
    """`/etc/cni/net.d/10-calico.conflist: calico, portmap, pointsman-cni`"""
    state = "" if found.current else f"; {TYPE} is not as it should be"
    return f"{found.conf_dir}/{found.holder}: {', '.join(found.chain)}{state}"
