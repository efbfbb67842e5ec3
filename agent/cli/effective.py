"""A pod's effective settings: every value, where it came from, and what was said but lost."""

from collections.abc import Iterator

import click
import msgspec

from agent.cli.defaults import FLAGS
from agent.cli.output import print_table
from agent.core.spec import Origin, RedirectSpec


class Setting(msgspec.Struct, frozen=True, rename="camel"):
    """One field of a RedirectSpec as text; `origins` made the value, `shadowed` lost, most specific first."""

    name: str
    value: str
    origins: tuple[Origin, ...]
    shadowed: tuple[Origin, ...]


def settings(
    spec: RedirectSpec, origins: dict[str, tuple[Origin, ...]], shadowed: dict[str, tuple[Origin, ...]]
) -> tuple[Setting, ...]:
    """All settings that somebody can make, in the order of the spec."""
    return tuple(
        Setting(name, words(getattr(spec, name)), origins[name], shadowed.get(name, ()))
        for name in spec.__struct_fields__
        if name in origins
    )


def words(value: object) -> str:
    """A value for people: `none` for what is off or empty."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value) or "none"


def source(origin: Origin) -> str:
    """Where a value was written, in the words of whoever wrote it."""
    if origin.kind == "node default":
        return f"node default {FLAGS.get(origin.name, origin.name)}"
    return origin.kind if origin.kind == "built-in default" else f"{origin.kind} {origin.name}"


def print_settings(rows: tuple[Setting, ...]) -> None:
    """A table with a line for each origin, and for each value that was said and is not used."""
    print_table(("SETTING", "VALUE", "FROM"), (line for row in rows for line in _lines(row)))


def print_origins(row: Setting, indent: str) -> None:
    """One setting and its origins, for an answer about this setting."""
    click.echo(f"{indent}{row.name} = {row.value}")
    for _, _, text in _lines(row):
        click.echo(f"{indent}  {text}")


def _lines(row: Setting) -> Iterator[tuple[str, str, str]]:
    name, value = row.name, row.value
    for origin in row.origins:
        part = f" ({origin.value or 'none'})" if len(row.origins) > 1 else ""
        yield name, value, source(origin) + part
        name = value = ""
    for origin in row.shadowed:
        yield "", "", f"not used: {source(origin)} ({origin.value or 'none'})"
