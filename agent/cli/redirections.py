"""`pointsman redirections`: every pod of the node and how its redirection stands."""

import time
from pathlib import Path

import click
import msgspec

from agent.cli import options
from agent.cli.client import Agent
from agent.cli.output import age, print_json, print_table
from agent.core.reasons import Complaint, Phase
from agent.core.tally import Counters
from agent.state import PodState

HEAD = ("NAMESPACE", "NAME", "PHASE", "REASON", "MODE", "SINCE", "DRIFTS")
WIDE = ("UID", "NETNS", "HOW", "INSTALL_MS", "CULPRIT", "COMPLAINTS", "IN", "OUT")


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """One pod. `since`: unix seconds; `exposed_s`: seconds that it ran without rules before they were
    installed; `connections`: by counter of its table."""

    namespace: str
    name: str
    uid: str
    phase: str
    reason: str
    message: str
    mode: str
    since: float
    drifts: int
    attempts: int
    netns: str
    how: str
    install_ms: float | None
    exposed_s: float | None
    culprit: str
    complaints: tuple[Complaint, ...]
    connections: Counters


@click.command("redirections")
@click.option("-n", "--namespace", help="Pods of this namespace only.")
@options.run_dir
@options.output("table", "wide", "json")
@click.pass_context
def command(ctx: click.Context, /, namespace: str | None, run_dir: Path, form: str) -> None:
    """List the pods of this node and their redirection.

    IN and OUT, with -o wide, count the connections that went to the proxy. Ends with 1 when a pod is in
    phase Failed.
    """
    pods = [pod for pod in Agent(run_dir).state().pods if namespace in (None, pod.namespace)]
    rows = sorted(map(_row, pods), key=lambda row: (row.namespace, row.name, row.uid))
    if form == "json":
        print_json(rows)
    elif rows:
        wide = form == "wide"
        print_table(
            HEAD + WIDE if wide else HEAD, (_cells(row) + (_more(row) if wide else ()) for row in rows)
        )
    else:
        click.echo("No pods found.", err=True)
    ctx.exit(1 if any(row.phase == Phase.FAILED for row in rows) else 0)


def _row(pod: PodState) -> Row:
    status = pod.status
    return Row(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        mode=status.mode,
        since=status.since,
        drifts=status.drifts,
        attempts=status.attempts,
        netns=pod.netns,
        how=status.how,
        install_ms=status.install_ms,
        exposed_s=status.exposed_s,
        culprit=status.culprit,
        complaints=status.complaints,
        connections=pod.counters,
    )


def _cells(row: Row) -> tuple[str, ...]:
    since = age(time.time() - row.since)
    return row.namespace, row.name, row.phase, row.reason, row.mode or "-", since, str(row.drifts)


def _more(row: Row) -> tuple[str, ...]:
    return (
        row.uid,
        row.netns or "-",
        row.how or "-",
        "-" if row.install_ms is None else f"{row.install_ms:.2f}",
        row.culprit or "-",
        ",".join(dict.fromkeys(one.reason for one in row.complaints)) or "-",
        str(row.connections.get("in_redirect", 0)),
        str(row.connections.get("out_redirect", 0)),
    )
