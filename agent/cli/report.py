"""What `check` found, in the form of `linkerd check`: categories of checks with a mark each."""

from collections.abc import Iterable
from typing import Literal

import click
import msgspec

from agent.cli.output import print_json, wrapped

MARKS = {"success": "√", "warning": "‼", "error": "\N{MULTIPLICATION SIGN}"}


class Check(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One check. `error` names what is wrong and with which object, `hint` says what to do."""

    description: str
    result: Literal["success", "warning", "error"]
    error: str = ""
    hint: str = ""


class Category(msgspec.Struct, frozen=True, rename="camel"):
    category_name: str
    checks: tuple[Check, ...]


class Report(msgspec.Struct, frozen=True):
    """`success`: no check has ended with an error; warnings do no harm."""

    success: bool
    categories: tuple[Category, ...]


def report(categories: Iterable[Category]) -> Report:
    found = tuple(categories)
    failed = any(check.result == "error" for category in found for check in category.checks)
    return Report(not failed, found)


def passed(description: str) -> Check:
    return Check(description, "success")


def warning(description: str, error: str, hint: str) -> Check:
    return Check(description, "warning", error, hint)


def failed(description: str, error: str, hint: str) -> Check:
    return Check(description, "error", error, hint)


def print_report(found: Report, form: str) -> None:
    """As JSON of the same shape as that of `linkerd check -o json`, or as text with marks."""
    if form == "json":
        print_json(found)
        return
    for category in found.categories:
        click.echo(f"{category.category_name}\n{'-' * len(category.category_name)}")
        for check in category.checks:
            _print(check)
        click.echo()
    click.echo(f"Status check results are {MARKS['success' if found.success else 'error']}")


def _print(check: Check) -> None:
    click.echo(f"{MARKS[check.result]} {check.description}")
    for line in check.error.splitlines():
        click.echo(wrapped(line, "    "))
    if check.hint:
        click.echo(wrapped(f"remedy: {check.hint}", "    "))
