"""`pointsman redirect --simulate`: what the agent would do for a manifest, without a kernel."""

from typing import Any

import click
import msgspec

from agent.cli import defaults, options
from agent.cli.effective import Setting, print_settings, settings
from agent.cli.manifests import Entry, derivations
from agent.cli.output import print_complaints, print_json, printable
from agent.core.plan import MESSAGES
from agent.core.reasons import Complaint
from agent.core.ruleset import render


class Simulation(msgspec.Struct, frozen=True, rename="camel"):
    """What one pod would get: settings and nft text, or the reason why it is left alone."""

    namespace: str
    name: str
    excluded: str
    message: str
    settings: tuple[Setting, ...]
    close_wait_seconds: int | None
    complaints: tuple[Complaint, ...]
    nft: str


@click.command("redirect")
@click.option("--simulate", is_flag=True, allow_from_autoenv=False, help="Print, and change nothing.")
@options.files
@options.output("text", "json")
@defaults.options
@click.pass_context
def command(ctx: click.Context, /, simulate: bool, files: tuple[str, ...], form: str, **values: Any) -> None:
    """Print the settings and rules that a pod would get.

    Every setting with its origin and what it overrides, and the rules as nft text. Takes manifests, and
    the flags of `run` that make up the node's defaults; needs no agent and no privileges. Ends with 1
    when there is something to complain about in what was written.
    """
    if not simulate:
        raise click.UsageError("cannot write rules: only `pointsman run` does; add --simulate to print them")
    if not files:
        raise click.UsageError("cannot simulate without a pod; add -f POD.yaml, or -f - for stdin")
    results = tuple(map(_simulate, derivations(files, defaults.node_defaults(values))))
    if form == "json":
        print_json(results)
    else:
        for number, result in enumerate(results):
            click.echo("\n" if number else "", nl=False)
            _print(result)
    ctx.exit(1 if any(result.complaints for result in results) else 0)


def _simulate(entry: Entry) -> Simulation:
    derivation = entry.derivation
    spec, excluded = derivation.spec, derivation.excluded
    return Simulation(
        namespace=entry.pod.key.namespace,
        name=entry.pod.key.name,
        excluded=excluded or "",
        message=MESSAGES[excluded] if excluded else "",
        settings=settings(spec, derivation.origins, derivation.shadowed) if spec else (),
        close_wait_seconds=derivation.close_wait,
        complaints=derivation.complaints,
        nft=render(spec) if spec else "",
    )


def _print(result: Simulation) -> None:
    click.echo(printable(f"{result.namespace}/{result.name}"))
    if result.excluded:
        click.echo(f"  left alone ({result.excluded}): {result.message}")
    if result.settings:
        print_settings(result.settings)
    if result.close_wait_seconds is not None:
        click.echo(f"conntrack keeps half-closed connections for {result.close_wait_seconds} s")
    print_complaints(result.complaints)
    if result.nft:
        click.echo(f"\n{result.nft}", nl=False)
