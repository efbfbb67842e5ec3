"""`pointsman uninstall`: takes our rules out of running pods."""

import time
from pathlib import Path

import click
import msgspec

from agent.cli import options
from agent.cli.client import Agent, AgentAwayError
from agent.cli.output import print_json, printable
from agent.cli.rules import BareRules, Found, KeptRules, Rules, named_in, writing
from agent.cli.types import Seconds
from agent.node.sweep import namespaces

STAY = """\
Nothing is to be done on this node. The rules stay in running pods, so what is meshed stays meshed, and
each pod's rules end with the pod. Once the agent is gone, new pods get no rules.

To take the rules out of running pods now, so that their new connections go in clear text:
  pointsman uninstall --remove-rules"""


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """Names of pods, or of namespaces where no pod is known. `left` still redirect, `draining` hold a
    drain table, `failed` say why nothing could be done."""

    drained: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    failed: dict[str, str] = {}


@click.command("uninstall")
@click.option("--remove-rules", is_flag=True, allow_from_autoenv=False, help="Take the rules out of pods.")
@options.yes
@click.option(
    "--wait",
    type=Seconds(),
    allow_from_autoenv=False,
    help="Remove what is left after this time; connections through a proxy that still live are reset then.",
)
@options.source(required=False, text="Without an agent: the namespaces that these manifests name.")
@options.netns_dir
@options.run_dir
@options.output("text", "json")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    remove_rules: bool,
    yes: bool,
    wait: float | None,
    source: Path | None,
    netns_dir: Path,
    run_dir: Path,
    form: str,
) -> None:
    """Take our rules out of running pods.

    Without --remove-rules, says why that is not needed. Pods leave the mesh by draining: connections
    through their proxy live on, new ones go in clear text. Goes through the running agent; where none
    runs, in its place, in every namespace of --netns-dir or of the manifests of --source. Ends with 1
    when something of ours could not be drained or removed, and with 2 when --yes is missing.
    """
    if not remove_rules:
        if yes or wait is not None:
            raise click.UsageError("cannot use --yes or --wait without --remove-rules")
        _explain(form)
        return
    rules = _rules(ctx, run_dir, netns_dir, source)
    found = rules.found()
    if not yes and (found.redirecting or found.unknown or (found.draining and wait is not None)):
        _show(Outcome(left=found.redirecting, draining=found.draining, failed=found.unknown), form)
        click.echo("Nothing was changed. With --yes, new connections of these go in clear text.", err=True)
        ctx.exit(2)
    outcome = _give_up(rules, found, wait)
    _show(outcome, form)
    if isinstance(rules, KeptRules):
        click.echo("Stop the agent now: when it starts anew, it redirects again.", err=True)
    ctx.exit(1 if outcome.left or outcome.failed or (wait is not None and outcome.draining) else 0)


def _explain(form: str) -> None:
    click.echo(STAY, err=form == "json")
    if form == "json":
        print_json(Outcome())


def _give_up(rules: Rules, found: Found, wait: float | None) -> Outcome:
    left = rules.drain() if found.redirecting or found.unknown else found
    drained = tuple(
        name for name in (*found.redirecting, *found.unknown) if _is_over(name, left.redirecting, left)
    )
    removed: tuple[str, ...] = ()
    if wait is not None and left.draining:
        click.echo(
            f"Drained. In {wait:g} s the drain tables are removed; connections through a proxy that still "
            "live then are reset.",
            err=True,
        )
        time.sleep(wait)
        draining, left = left.draining, rules.remove()
        removed = tuple(name for name in draining if _is_over(name, left.draining, left))
    return Outcome(drained, removed, left.redirecting, left.draining, left.unknown)


def _is_over(name: str, still: tuple[str, ...], left: Found) -> bool:
    return name not in still and name not in left.unknown


def _show(outcome: Outcome, form: str) -> None:
    if form == "json":
        print_json(outcome)
        return
    for names, what in (
        (outcome.drained, "drained: new connections are direct, those through the proxy live on"),
        (outcome.removed, "removed: connections through the proxy that still lived were reset"),
        (outcome.left, "redirects to the proxy"),
        (outcome.draining, "holds a drain table, which ends with the pod, or by --wait"),
    ):
        for name in names:
            click.echo(f"{printable(name)}: {what}")
    for name, why in outcome.failed.items():
        click.echo(printable(f"Error: {name}: {why}"), err=True)
    if outcome == Outcome():
        click.echo("No rules of ours found.", err=True)


def _rules(ctx: click.Context, run_dir: Path, netns_dir: Path, source: Path | None) -> Rules:
    agent = Agent(run_dir)
    try:
        agent.state()
    except AgentAwayError as error:
        click.echo(f"{error.message} Doing it in its place.", err=True)
    else:
        return KeptRules(agent)
    try:
        names = named_in(source) if source is not None else {path: path for path in namespaces(netns_dir)}
    except OSError as error:
        raise click.ClickException(f"cannot list {error.filename}: {error.strerror}; run as root") from error
    ctx.with_resource(writing(run_dir))
    return BareRules(names)
