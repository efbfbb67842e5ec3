"""One table of reasons: complete, and the same in docs/troubleshooting.md."""

import re
from pathlib import Path

from agent.core.reasons import MEANINGS, Reason

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


def test_every_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Reason)


def test_the_docs_hold_the_same_table() -> None:
    page = PAGE.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M))
    expected = {reason.value: f"{entry.meaning} | {entry.remedy}" for reason, entry in MEANINGS.items()}
    assert rows == expected
