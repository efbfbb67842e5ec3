"""The table of opaque ports: it is made of the cases, and the page for users holds it."""

from pathlib import Path

import pytest

from tests.cases.discovery.opaque_table import CASES, FILE, HEAD, paged, table

PAGE = Path(__file__).parents[3] / "docs" / "destination.md"


def _rows(made: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in made.splitlines()[2:]]


def test_the_page_holds_what_the_cases_make() -> None:
    page = PAGE.read_text()
    assert paged(page, table()) == page, (
        "run `python -m tests.cases.discovery.opaque_table docs/destination.md`"
    )


def test_every_case_and_every_rule_is_in_it() -> None:
    rows = _rows(table())
    assert {len(row) for row in rows} == {len(HEAD)}
    assert {name for row in rows for name in row[-1].split(", ")} == set(CASES)
    rules = {row[-2].partition(" of the ")[0].partition(" shop/")[0] for row in rows}
    assert rules == {"annotation", "default opaque ports", "Server"}
    assert {row[3] for row in rows} == {"**yes**", "no"}


def test_it_follows_the_cases(tmp_path: Path) -> None:
    changed = tmp_path / "cases.md"
    changed.write_text(
        FILE.read_text().replace(
            'config.linkerd.io/opaque-ports: "9100"', 'config.linkerd.io/opaque-ports: "9000"'
        )
    )
    words = 'own annotation `"{}"`; its Namespace\'s annotation `"9000"`'
    assert ["Pod", "9000", words.format(9100), "no", "annotation of the Pod", "C18"] in _rows(table())
    assert ["Pod", "9000", words.format(9000), "**yes**", "annotation of the Pod", "C18"] in _rows(
        table(changed)
    )


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot find <!-- opaque-table -->"):
        paged("# A page", "| a |")
