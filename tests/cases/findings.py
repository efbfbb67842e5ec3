"""What is found while a case runs, and the line that tells it."""

from typing import Literal

import msgspec

_LONGEST = 2000


class Findings(msgspec.Struct):
    """Collected while a case runs. `connections` were checked; `off_wire` of them no real packet can be."""

    failures: list[str] = []
    notes: list[str] = []
    connections: int = 0
    off_wire: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """What came of one case."""

    id: str
    title: str
    status: Literal["ok", "FAIL", "skip"]
    detail: str = ""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The line of the case, and one more for each note."""
        named = f"{self.id} {self.title}".strip()
        if self.status == "ok":
            head = f"ok {named}" + (f" ({self.detail})" if self.detail else "")
        elif self.status == "skip":
            head = f"skip {self.id}: {self.detail}"
        else:
            head = f"FAIL {named}: {self.detail}"
        return [_one_line(head), *(_one_line(f"note: {note}", "    ") for note in self.notes)]


def _one_line(text: str, indent: str = "") -> str:
    words = " ".join(text.split())
    line = indent + "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."


def outcome(case_id: str, title: str, findings: Findings) -> Outcome:
    """Any failure makes the case fail; a connection that cannot be made is never counted as passed."""
    notes = tuple(dict.fromkeys(findings.notes))
    if findings.failures:
        return Outcome(case_id, title, "FAIL", "; ".join(dict.fromkeys(findings.failures)), notes)
    parts = [f"{findings.connections} connections"] if findings.connections else []
    parts += [f"{findings.off_wire} of them not on a wire"] if findings.off_wire else []
    return Outcome(case_id, title, "ok", ", ".join(parts), notes)
