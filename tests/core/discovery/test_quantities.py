"""Durations and quantities, by the grammars of Go and Kubernetes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.discovery.quantities import parse_duration, parse_milli

SECOND = 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200ms", SECOND // 5),
        ("1.5s", 3 * SECOND // 2),
        ("1h2m", 3720 * SECOND),
        ("250us", 250_000),
        ("250µs", 250_000),
        ("250μs", 250_000),
        ("7ns", 7),
        ("0", 0),
        ("+0", 0),
        ("0s", 0),
        ("-1.5h", -5400 * SECOND),
        ("+1s", SECOND),
        (".5s", SECOND // 2),
        ("5.s", 5 * SECOND),
        ("1.0000000009ns", 1),
        ("2562047h47m16.854775807s", 2**63 - 1),
        ("2562047h47m16.854775808s", None),
        ("1d", None),
        ("10", None),
        ("", None),
        ("-", None),
        (".s", None),
        ("1 s", None),
        ("s", None),
        ("1s ", None),
        ("1.5", None),
        ("\u0661s", None),
        ("soon", None),
        ("9" * 5000 + "s", None),
    ],
)
def test_durations(text: str, expected: int | None) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1000),
        ("500m", 500),
        ("0.1", 100),
        ("0", 0),
        ("100u", 1),
        ("1n", 1),
        ("1001u", 2),
        ("1.5", 1500),
        ("2k", 2_000_000),
        ("1Ki", 1_024_000),
        ("0.5Ki", 512_000),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("1E", 10**21),
        ("1e-05", 1),
        ("+1", 1000),
        (".5", 500),
        ("5.", 5000),
        ("-1", None),
        ("", None),
        (".", None),
        ("1 ", None),
        ("1kk", None),
        ("0x10", None),
        ("NaN", None),
        ("9" * 5000, None),
    ],
)
def test_quantities_are_rounded_up_to_thousandths(text: str, expected: int | None) -> None:
    assert parse_milli(text) == expected


@given(st.text(alphabet="0123456789.-+hmsuµneEkKi ", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert parse_duration(text) is None or isinstance(parse_duration(text), int)
    assert (parse_milli(text) or 0) >= 0
