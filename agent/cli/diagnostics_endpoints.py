"""`pointsman diagnostics endpoints`: the endpoints that a proxy would get, and how they change."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from itertools import groupby
from typing import Any

import click
import msgspec

from agent.cli import options
from agent.cli.asking import ApiError, Asking, Explainer, ask, asking_of, asking_options
from agent.cli.output import print_table, printable
from agent.cli.told import changed_view, completed, hint, redirection, standing
from agent.cli.watching import refuse_output, watch
from agent.core.discovery.answers import WEIGHT, Address
from agent.core.discovery.explanation import Explanation
from agent.destination.client import CallFailed, Messages
from agent.destination.gojson import go_json
from agent.destination.metrics import Method
from agent.destination.view import View, applied

HEAD = ("NAMESPACE", "IP", "PORT", "POD", "SERVICE")
WIDE = ("REDIRECTION", "HINT", "WEIGHT", "IDENTITY")
NOTED = 10
"""Addresses that are named on stderr when they are not redirected, or get no identity."""


class Row(msgspec.Struct, frozen=True):
    """One endpoint, with the keys of Linkerd's own command line; `service` is SERVICE.NAMESPACE."""

    namespace: str
    ip: str
    port: int
    pod: str
    service: str
    weight: int
    http2: dict[str, Any] | msgspec.UnsetType
    labels: dict[str, str] | None


@click.command("endpoints")
@click.argument("paths", metavar="AUTHORITY...", nargs=-1, required=True)
@asking_options
@options.output("table", "wide", "json")
@click.pass_context
def endpoints(
    ctx: click.Context, /, *, paths: tuple[str, ...], watching: bool, form: str, **values: Any
) -> None:
    """List the endpoints of Services.

    AUTHORITY is NAME:PORT, as a proxy asks. Table and JSON are those of `linkerd diagnostics endpoints`;
    -o wide adds what a proxy makes of each endpoint, and how its pod is redirected. Ends with 1 when there
    is no answer; that there are no endpoints is one.
    """
    asking = asking_of(values)
    paths = tuple(dict.fromkeys(paths))
    try:
        if watching:
            refuse_output(ctx)
            watch(asking, Method.GET, {path: EndpointsFollower() for path in paths})
        else:
            _print(_views(asking, paths), form)
    except CallFailed as error:
        raise ApiError(str(error)) from error


class EndpointsFollower:
    """Of one path: the set as its messages add up, and as it was told last."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._known: View | None = None

    def lost(self) -> None:
        self._view = None

    def take(self, messages: Messages, explained: Explanation | None) -> Iterator[str]:
        self._view = applied(self._view, messages)
        now = completed(self._view, explained, self._known)
        yield from changed_view(self._known, now)
        self._known = now


def _views(asking: Asking, paths: tuple[str, ...]) -> dict[str, View]:
    answers = asyncio.run(ask(asking, Method.GET, paths))
    explainer = Explainer(asking)
    return {
        path: completed(applied(None, messages), explainer.explain(Method.GET, path))
        for path, messages in answers.items()
    }


def _print(views: Mapping[str, View], form: str) -> None:
    found = [
        (_row(view, told.address, told.http2), told.address)
        for view in views.values()
        for told in view.addresses.values()
    ]
    found.sort(key=lambda each: _order(each[0]))
    if form == "json":
        click.echo(go_json([row for row, _ in found]))
    else:
        _print_tables(found, wide=form == "wide")
    for path, view in views.items():
        for line in _notes(view, form):
            click.echo(printable(f"{path}: {line}"), err=True)
    if form != "json" and not found:
        click.echo("No endpoints found.", err=True)


def _row(view: View, address: Address, http2: dict[str, Any] | None) -> Row:
    namespace = view.labels.get("namespace", "")
    labels = dict(address.labels)
    return Row(
        namespace=namespace,
        ip=address.ip,
        port=address.port,
        pod=labels.get("pod", ""),
        service=f"{view.labels.get('service', '')}.{namespace}",
        weight=address.weight,
        http2=msgspec.UNSET if http2 is None else http2,
        labels=labels or None,
    )


def _order(row: Row) -> tuple[str, str, int, int, int]:
    ip = ip_address(row.ip)
    return row.namespace, row.service, ip.version, int(ip), row.port


def _print_tables(found: list[tuple[Row, Address]], *, wide: bool) -> None:
    """One table for each namespace. Their first and fourth columns are alike in width."""
    widths = [
        max(map(len, (head, *cells)), default=0)
        for head, cells in (
            ("NAMESPACE", [printable(row.namespace) for row, _ in found]),
            ("POD", [printable(row.pod) for row, _ in found]),
        )
    ]
    head = (HEAD[0].ljust(widths[0]), *HEAD[1:3], HEAD[3].ljust(widths[1]), HEAD[4])
    for number, (_, rows) in enumerate(groupby(found, key=lambda each: each[0].namespace)):
        click.echo("\n" if number else "", nl=False)
        print_table(
            head + (WIDE if wide else ()),
            (_cells(row) + (_more(address) if wide else ()) for row, address in rows),
        )


def _cells(row: Row) -> tuple[str, ...]:
    return row.namespace, row.ip, str(row.port), row.pod, row.service


def _more(address: Address) -> tuple[str, ...]:
    withheld = f"none ({address.withheld})" if address.withheld else "-"
    return (
        redirection(address) or "-",
        hint(address) or "-",
        f"{address.weight / WEIGHT:g}",
        address.identity or withheld,
    )


def _notes(view: View, form: str) -> Iterator[str]:
    """What neither table nor JSON shows of one answer."""
    addresses = [told.address for told in view.addresses.values()]
    if not addresses:
        yield f"no endpoints; {'the Service exists' if view.exists else 'there is no such Service'}"
    if form == "wide" or not any(each.redirection or each.withheld for each in addresses):
        return
    states = Counter(redirection(each) or "not known" for each in addresses)
    yield f"redirection of {len(addresses)}: {', '.join(f'{n} {state}' for state, n in states.items())}"
    odd = [each for each in addresses if each.withheld or each.redirection == "failed"]
    for each in odd[:NOTED]:
        yield standing(each)
    if len(odd) > NOTED:
        yield f"{len(odd) - NOTED} more like these: -o wide shows all"
