"""`pointsman uninstall`: takes the gate off the node, and our rules out of running pods."""

import time
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource

from agent.cli import options
from agent.cli.chain import BareChain, Chain, KeptChain
from agent.cli.client import Agent, AgentAwayError
from agent.cli.install_cni import bin_dir, conf_dir
from agent.cli.output import print_json, printable
from agent.cli.rules import BareRules, Found, KeptRules, Rules, named_in, writing
from agent.cli.types import Seconds
from agent.core.chain import TYPE
from agent.node.sweep import namespaces
from agent.state import NodeState

NOTHING = "Nothing of ours is in this node's network, and nothing is to be done.\n"

STAY = """\
The rules stay in running pods, so what is meshed stays meshed, and each pod's rules end with the pod. Once
the agent is gone, new pods get no rules.

To take the rules out of running pods now, so that their new connections go in clear text:
  pointsman uninstall --remove-rules"""


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """`chained`: paths of our CNI entry and the shim that are there still, `unchained`: that were changed or
    removed. The others are names of pods, or of namespaces where no pod is known. `left` still redirect,
    `draining` hold a drain table, `failed` say why nothing could be done."""

    chained: tuple[str, ...] = ()
    unchained: tuple[str, ...] = ()
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
@conf_dir
@bin_dir
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
    conf_dir: Path,
    bin_dir: Path,
    netns_dir: Path,
    run_dir: Path,
    form: str,
) -> None:
    """Take pointsman off this node.

    First our entry in the CNI configuration, then the shim that it names; new pods do not come by us then.
    Rules stay in running pods, which lose nothing by it. With --remove-rules, pods leave the mesh by
    draining: connections through their proxy live on, new ones go in clear text.

    Goes through the running agent; where none runs, in its place: in --conf-dir and --bin-dir, and in every
    namespace of --netns-dir or of the manifests of --source. Without --yes, says what would be changed, and
    changes nothing. Ends with 1 when something of ours could not be taken out, drained or removed, and with
    2 when --yes is missing.
    """
    if wait is not None and not remove_rules:
        raise click.UsageError("cannot use --wait without --remove-rules")
    agent = Agent(run_dir)
    state = _state(agent)
    chain = _chain(ctx, agent, state, conf_dir, bin_dir)
    rules = _rules(ctx, agent, state, netns_dir, source) if remove_rules else None
    there, found = chain.there(), rules.found() if rules is not None else Found()
    effects = _effects(there, found, wait)
    if effects and not yes:
        unchanged = Outcome(
            chained=there, left=found.redirecting, draining=found.draining, failed=found.unknown
        )
        _show(unchanged, form)
        click.echo(f"Nothing was changed. With --yes, {', and '.join(effects)}.", err=True)
        ctx.exit(2)
    unchained = chain.remove() if there else ()
    outcome = _give_up(rules, found, wait) if rules is not None else Outcome()
    outcome = msgspec.structs.replace(outcome, unchained=unchained)
    _show(outcome, form)
    if rules is None:
        click.echo(STAY if unchained else f"{NOTHING}{STAY}", err=form == "json")
    elif outcome == Outcome():
        click.echo("No rules of ours found.", err=True)
    if isinstance(rules, KeptRules) or (isinstance(chain, KeptChain) and unchained):
        again = "installs" if rules is None else "redirects"
        click.echo(f"Stop the agent now: when it starts anew, it {again} again.", err=True)
    ctx.exit(1 if outcome.left or outcome.failed or (wait is not None and outcome.draining) else 0)


def _effects(there: tuple[str, ...], found: Found, wait: float | None) -> list[str]:
    """What --yes would do to people."""
    effects = []
    if found.redirecting or found.unknown or (found.draining and wait is not None):
        effects.append("new connections of these go in clear text")
    if there:
        effects.append("pods that start from then on do not come by us")
    return effects


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
    return Outcome(
        drained=drained,
        removed=removed,
        left=left.redirecting,
        draining=left.draining,
        failed=left.unknown,
    )


def _is_over(name: str, still: tuple[str, ...], left: Found) -> bool:
    return name not in still and name not in left.unknown


def _show(outcome: Outcome, form: str) -> None:
    if form == "json":
        print_json(outcome)
        return
    for paths, entry, shim in (
        (outcome.chained, "has our entry, by which new pods come", "is the shim, which our entry names"),
        (outcome.unchained, "our entry is out", "removed"),
    ):
        for path in paths:
            click.echo(f"{printable(path)}: {shim if Path(path).name == TYPE else entry}")
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


def _state(agent: Agent) -> NodeState | None:
    """None where no agent runs. One that runs and does not answer is a failure: nothing is done beside it."""
    try:
        return agent.state()
    except AgentAwayError:
        return None


def _chain(ctx: click.Context, agent: Agent, state: NodeState | None, conf_dir: Path, bin_dir: Path) -> Chain:
    kept = state.cni.chain if state is not None else None
    if kept is None:
        return BareChain(conf_dir, bin_dir)
    for name, given, its in (("conf_dir", conf_dir, kept.conf_dir), ("bin_dir", bin_dir, kept.bin_dir)):
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT and given != Path(its):
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"cannot use {flag} {given}: the running agent keeps {its}; leave it out")
    return KeptChain(agent, kept)


def _rules(
    ctx: click.Context, agent: Agent, state: NodeState | None, netns_dir: Path, source: Path | None
) -> Rules:
    if state is not None:
        return KeptRules(agent)
    click.echo(f"No agent answers at {agent.path}. Doing it in its place.", err=True)
    try:
        names = named_in(source) if source is not None else {path: path for path in namespaces(netns_dir)}
    except OSError as error:
        raise click.ClickException(f"cannot list {error.filename}: {error.strerror}; run as root") from error
    ctx.with_resource(writing(agent.path.parent))
    return BareRules(names)
