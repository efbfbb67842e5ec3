"""`pointsman redirections`: every pod of the node and how its redirection stands."""

import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from agent.cli import options
from agent.cli.arrival import Way, arrival
from agent.cli.client import Agent
from agent.cli.output import age, print_json, print_table
from agent.core.lifecycle import Redirection
from agent.core.reasons import Complaint, Phase, Reason
from agent.core.tally import Counters
from agent.state import PodAsks, PodState

HEAD = ("NAMESPACE", "NAME", "PHASE", "REASON", "MODE", "SINCE", "DRIFTS")
WIDE = (
    "UID",
    "NETNS",
    "CAME",
    "CONTAINER",
    "HOW",
    "INSTALL_MS",
    "CULPRIT",
    "COMPLAINTS",
    "IN",
    "OUT",
    "ASKS",
)
INIT = ("LINKERD-INIT",)
SHORT = 13
"""Characters of a container's id, as crictl shows it."""


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """One pod. `came`: by the gate, let through, or found by other means (arrival.py); `container`: id of its
    sandbox, "" where CNI did not tell of it. `since`: unix seconds; `exposed_s`: seconds that it ran without
    rules before they were installed; `connections`: by counter of its table; `linkerd_init`: how far
    linkerd-init came with rules that are in the pod still, by family and flavour, () where there are none;
    `destination`: whom its proxy asks, None where it has none."""

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
    came: Way
    container: str
    let_through: bool
    how: str
    install_ms: float | None
    exposed_s: float | None
    culprit: str
    complaints: tuple[Complaint, ...]
    connections: Counters
    linkerd_init: tuple[str, ...]
    destination: PodAsks | None


@click.command("redirections")
@click.option("-n", "--namespace", help="Pods of this namespace only.")
@options.run_dir
@options.output("table", "wide", "json")
@click.pass_context
def command(ctx: click.Context, /, namespace: str | None, run_dir: Path, form: str) -> None:
    """List the pods of this node and their redirection.

    With -o wide, CAME tells pods that waited at the CNI gate (cni) from those that it let through
    (let-through), and from those found by other means, after their start perhaps (proc, manifest). IN and
    OUT count the connections that went to the proxy. ASKS tells whom its proxy asks for destinations: us, and
    at which port in the pod, the central controller, or nobody that its manifest names. Where there are rules
    of linkerd-init in a pod, a last column LINKERD-INIT says how far it came with them. Ends with 1 when a
    pod is in phase Failed.
    """
    pods = [pod for pod in Agent(run_dir).state().pods if namespace in (None, pod.namespace)]
    rows = sorted(map(_row, pods), key=lambda row: (row.namespace, row.name, row.uid))
    if form == "json":
        print_json(rows)
    elif rows:
        _print(rows, wide=form == "wide")
    else:
        click.echo("No pods found.", err=True)
    ctx.exit(1 if any(row.phase == Phase.FAILED for row in rows) else 0)


def _print(rows: list[Row], *, wide: bool) -> None:
    told = any(row.linkerd_init for row in rows)
    print_table(
        HEAD + (WIDE if wide else ()) + (INIT if told else ()),
        (_cells(row) + (_more(row) if wide else ()) + (_init(row) if told else ()) for row in rows),
    )


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
        came=arrival(pod).way,
        container=pod.container,
        let_through=pod.let_through,
        how=status.how,
        install_ms=status.install_ms,
        exposed_s=status.exposed_s,
        culprit=status.culprit,
        complaints=pod.complaints,
        connections=pod.counters,
        linkerd_init=tuple(_linkerd_init(status)),
        destination=pod.destination,
    )


def _linkerd_init(status: Redirection) -> Iterator[str]:
    """What decides comes first; a success that was none, last."""
    if status.reason is Reason.IPTABLES:
        yield "complete, in force"
    left = [one for one in status.complaints if one.reason is Reason.LEFTOVER]
    for one in left:
        yield f"{one.subject.removeprefix('linkerd-init ')}: {one.message}"
    if left and any(one.reason is Reason.INIT_MISMATCH for one in status.complaints):
        yield "reported success"


def _cells(row: Row) -> tuple[str, ...]:
    since = age(time.time() - row.since)
    return row.namespace, row.name, row.phase, row.reason, row.mode or "-", since, str(row.drifts)


def _more(row: Row) -> tuple[str, ...]:
    return (
        row.uid,
        row.netns or "-",
        row.came or "-",
        row.container[:SHORT] or "-",
        row.how or "-",
        "-" if row.install_ms is None else f"{row.install_ms:.2f}",
        row.culprit or "-",
        ",".join(dict.fromkeys(one.reason for one in row.complaints)) or "-",
        str(row.connections.get("in_redirect", 0)),
        str(row.connections.get("out_redirect", 0)),
        _asks(row.destination),
    )


def _asks(destination: PodAsks | None) -> str:
    """`us:-` asks in vain; where the answer is no, -o json and `check` say why."""
    if destination is None:
        return "-"
    return f"us:{destination.port or '-'}" if destination.asks == "us" else destination.asks


def _init(row: Row) -> tuple[str]:
    return ("; ".join(row.linkerd_init) or "-",)
