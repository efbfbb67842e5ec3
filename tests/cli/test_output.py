"""Tables, ages, and text that a terminal must not obey."""

import pytest

from agent.cli.output import age, print_table, printable, wrapped


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172799, "47h"),
        (172800, "2d"),
    ],
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_control_characters_are_shown_and_letters_of_all_scripts_are_kept() -> None:
    assert printable("nft\x1b[2J\n") == "nft\\x1b[2J\\n"
    assert printable("caffè ✓") == "caffè ✓"


def test_columns_are_aligned_and_lines_end_without_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "LONG"), [("x" * 5, ""), ("y", "z\x07")])

    assert capsys.readouterr().out.splitlines() == ["A       LONG", "xxxxx", "y       z\\x07"]


def test_long_words_stay_whole() -> None:
    path = "/run/" + "x" * 200

    assert path in wrapped(f"cannot open {path}", "  ").splitlines()[-1]
