"""Text to documents: what is read, and what is refused before it is built."""

import json

import pytest

from agent.files.documents import DEEPEST, documents


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("{a: 1}", [{"a": 1}]),
        ("{a: 1}\n---\n[2]", [{"a": 1}, [2]]),
        (json.dumps({"a": "\U0001f600"}), [{"a": "\U0001f600"}]),
        ("&x {a: &y [1, 2], b: *y}", [{"a": [1, 2], "b": [1, 2]}]),
        ("[" * DEEPEST + "]" * DEEPEST, 1),
    ],
)
def test_yaml_and_json_are_read(text: str, found: object) -> None:
    assert documents(text) == found if isinstance(found, list) else len(documents(text)) == found


def _doubling(line: str, last: str) -> str:
    """Thirty levels, each of which holds the one before it twice."""
    levels = (line.format(own=n + 1, inner=n) for n in range(30))
    return "\n".join(("l0: &l0 {a: 1}", *levels, last))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested more than"),
        ('{"a":' * 100_000, "nested more than"),
        ("- " * 10_000 + "x", "nested more than"),
        (_doubling("l{own}: &l{own} [*l{inner}, *l{inner}]", ""), "aliases"),
        (_doubling("l{own}: &l{own} {{<<: [*l{inner}, *l{inner}]}}", ""), "aliases"),
        ("[1", "cannot read YAML"),
        ('a: !!int ""', "cannot read YAML"),
        ('{"a": "\\ud800"}', "cannot read YAML"),
        ("a: \x00", "cannot read YAML"),
    ],
)
def test_what_would_end_the_process_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        documents(text)
