"""Results on stdout: JSON documents, tables, and text that may come from anywhere."""

import textwrap
from collections.abc import Iterable, Sequence

import click
import msgspec

from agent.core.reasons import Complaint

WIDTH = 100


def print_json(value: object) -> None:
    """One JSON document, indented by two."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as their widest cell, three blanks between them; no blanks at the end of a line."""
    lines = [tuple(map(printable, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("   ".join(cells).rstrip())


def print_complaints(complaints: Iterable[Complaint], indent: str = "  ") -> None:
    """Each with what it is about, what is wrong, and what to do."""
    for complaint in complaints:
        click.echo(f"{indent}! {complaint.reason}  {printable(complaint.subject)}")
        click.echo(wrapped(complaint.message, f"{indent}  "))
        if complaint.remedy:
            click.echo(wrapped(complaint.remedy, f"{indent}  "))


def wrapped(text: str, indent: str) -> str:
    """Text in lines of at most WIDTH characters; long words stay whole, so that they can be copied."""
    return textwrap.fill(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def printable(text: str) -> str:
    """Names of processes, chains and pods may hold control characters; a terminal must not obey them."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )


def age(seconds: float) -> str:
    """A time span as kubectl writes it: 45s, 12m, 7h, 3d."""
    for size, unit, least in ((86400, "d", 2), (3600, "h", 2), (60, "m", 2)):
        if seconds >= size * least:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
