"""`pointsman cleanup`: takes out what linkerd-init left, where our own rules stand."""

from pathlib import Path

import click
import msgspec

from agent.cli import options
from agent.cli.client import Agent, PodUnknownError, RefusedError
from agent.cli.output import print_json, printable
from agent.cli.types import PodName
from agent.core.names import PodKey
from agent.core.reasons import Reason
from agent.node.leftovers import Leftover
from agent.state import PodState


class Cleaned(msgspec.Struct, frozen=True, rename="camel"):
    """One pod: what was there, what is gone, and why not if it is not. `takeover`: linkerd-init's rules
    redirect it now, so ours are installed and verified first."""

    pod: str
    takeover: bool = False
    leftovers: tuple[Leftover, ...] = ()
    removed: tuple[str, ...] = ()
    error: str = ""


@click.command("cleanup")
@click.argument("pods", nargs=-1, type=PodName(), metavar="[NAMESPACE/POD]...")
@click.option("--all", "every", is_flag=True, allow_from_autoenv=False, help="All pods of this node.")
@options.yes
@options.run_dir
@options.output("text", "json")
@click.pass_context
def command(
    ctx: click.Context, /, *, pods: tuple[PodKey, ...], every: bool, yes: bool, run_dir: Path, form: str
) -> None:
    """Remove what linkerd-init left in pods.

    Exactly that and nothing else, and only beside verified rules of ours. Without --yes, lists what is
    there. A pod that linkerd-init redirects by complete rules of its own is taken over: ours come first.
    Ends with 1 when a pod could not be cleaned up.
    """
    if bool(pods) == every:
        raise click.UsageError("cannot clean up without knowing where; name NAMESPACE/POD, or --all")
    agent = Agent(run_dir)
    results = [_clean(agent, pod, yes) for pod in _targets(agent, pods)]
    if every:
        results = [one for one in results if one.leftovers or one.error]
    if form == "json":
        print_json(results)
    else:
        for one in results:
            _print(one, yes)
        if not results:
            click.echo("No leftovers of linkerd-init found.", err=True)
    if not yes and any(one.leftovers for one in results):
        click.echo("Nothing was removed: add --yes to remove these.", err=True)
    ctx.exit(1 if any(one.error for one in results) else 0)


def _targets(agent: Agent, pods: tuple[PodKey, ...]) -> list[PodState]:
    there = {PodKey(pod.namespace, pod.name): pod for pod in agent.state().pods}
    for pod in pods:
        if pod not in there:
            raise PodUnknownError(
                f"cannot find pod {pod} on this node; `pointsman redirections` lists what the agent keeps"
            )
    return [there[pod] for pod in pods] if pods else [pod for pod in there.values() if pod.netns]


def _clean(agent: Agent, pod: PodState, yes: bool) -> Cleaned:
    name = f"{pod.namespace}/{pod.name}"
    reason = pod.status.reason
    done = Cleaned(name, takeover=reason is Reason.IPTABLES)
    try:
        leftovers = agent.leftovers(name)
        done = msgspec.structs.replace(done, leftovers=leftovers)
        if leftovers and reason not in (Reason.REDIRECTED, Reason.IPTABLES):
            message = f"cannot clean up {name}: no verified rules of ours are in it ({reason})"
            return msgspec.structs.replace(done, error=message)
        if leftovers and yes:
            return msgspec.structs.replace(done, removed=agent.cleanup(name))
    except (PodUnknownError, RefusedError) as error:
        return msgspec.structs.replace(done, error=error.message)
    return done


def _print(one: Cleaned, yes: bool) -> None:
    click.echo(f"{printable(one.pod)}{' (taken over from linkerd-init)' if one.takeover else ''}")
    for line in one.removed:
        click.echo(f"  removed {line}")
    if not yes or one.error:
        for entry in one.leftovers:
            chains = f": chains {', '.join(entry.chains)}" if entry.chains else ""
            flushed = f"; flushed by a later run: {', '.join(entry.flushed)}" if entry.flushed else ""
            what = f"IPv{entry.family} ({entry.flavour}), {entry.state}"
            click.echo(f"  there is linkerd-init {what}{chains}{flushed}")
    if not one.leftovers and not one.error:
        click.echo("  nothing of linkerd-init is there")
    if one.error:
        click.echo(f"Error: {printable(one.error)}", err=True)
