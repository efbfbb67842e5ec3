"""docs/cni.md says what the code does: the entry, the deadlines, and every message that it quotes."""

import json
import re
from pathlib import Path

import pytest

from agent.cni.contest import BURST, LAST_PAUSE, WINDOW
from agent.cni.watch import PERIOD, SETTLING
from agent.core.chain import Entry
from agent.core.cni import VERSIONS
from agent.gate import PATIENCE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cni.md").read_text()
SHIM = (ROOT / "agent" / "cni" / "shim.c").read_text()
GAP = "…"
"""Stands in the page for what a message names."""


def rows(heading: str) -> list[list[str]]:
    """Cells of all tables in a section, without their heads."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line.split(" | ") for line in re.findall(r"^\| (.*) \|$(?!\n\|-)", section, re.M)]


def quoted() -> list[str]:
    """The messages that the page quotes of us."""
    return [cells[0].strip("`") for cells in rows("By message") if cells[0].startswith("`")]


def sources() -> str:
    """All of the code, with its literals joined as a compiler joins them."""
    python = (path.read_text() for path in sorted((ROOT / "agent").rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join([SHIM, *python])).replace('\\"', '"')


def test_the_entry_is_what_is_written() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    entry = Entry(exempt_namespaces=("kube-system",), agent_pod="linkerd-cni/linkerd-cni-")

    assert json.loads(shown) == entry.plugin()
    assert f"{', '.join(VERSIONS[:-1])} and {VERSIONS[-1]} are understood" in PAGE


def test_the_deadlines_are_those_of_the_shim() -> None:
    shown = {cells[0]: (cells[1], cells[2]) for cells in rows("Facts by verb")}
    verbs = re.findall(r'^    \{\w+, "(\w+)", (\d+), (\d+),', SHIM, re.M)

    assert shown == {
        verb: (f"{int(deadline) / 1000:g} s", f"{int(window) / 1000:g} s" if int(window) else "-")
        for verb, deadline, window in verbs
    }


def test_every_message_that_is_quoted_is_one_of_ours() -> None:
    code = sources()
    parts = {message: [part for part in message.split(GAP) if len(part) > 4] for message in quoted()}

    assert len(parts) > 20
    assert {message: part for message, found in parts.items() for part in found if part not in code} == {}
    assert [message for message, found in parts.items() if not any(len(part) > 12 for part in found)] == []


@pytest.mark.parametrize(
    "words",
    [
        f"not redirected within {PATIENCE:g} s",
        f"looks every {PERIOD:g} s besides",
        f"is given {SETTLING:g} s to be whole",
        f"at\nmost every {LAST_PAUSE:g} s",
        {5: "five"}[BURST] + " times in " + {10.0: "ten"}[WINDOW] + " seconds",
    ],
)
def test_the_figures_are_those_of_the_agent(words: str) -> None:
    assert words in PAGE


def test_its_links_lead_somewhere() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    anchors = {
        name: {
            re.sub(r"[^\w\- ]", "", head).lower().replace(" ", "-")
            for head in re.findall(r"^#+ (.*)$", text, re.M)
        }
        for name, text in pages.items()
    }
    links = re.findall(r"\]\(([\w.]*)(?:#([\w-]+))?\)", PAGE)

    assert links
    for page, anchor in links:
        name = page or "cni.md"
        assert name in pages
        assert not anchor or anchor in anchors[name], anchor
