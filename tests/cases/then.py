"""The `then` of a case: sentences of a few fixed shapes are checked, any other is prose for people."""

import re
from collections.abc import Callable

import msgspec

from agent.core.reasons import Complaint, Reason
from agent.core.ruleset import COUNTERS
from agent.core.spec import Derivation

_REASONS = {reason.value.lower(): reason for reason in Reason}
_WORD = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^\s,]+)")


class Evidence(msgspec.Struct, frozen=True):
    """What a sentence can be checked against. `counted`: connections per counter, None without a kernel."""

    derivation: Derivation
    counted: dict[str, int] | None = None


Check = Callable[[re.Match[str], Evidence], list[str] | None]
"""Failures, or None when the sentence cannot be checked with this evidence."""


def check(sentence: str, evidence: Evidence) -> list[str] | None:
    """What contradicts the sentence; None when it is prose, or needs more evidence than there is."""
    for pattern, function in _SHAPES:
        if match := pattern.fullmatch(sentence.strip()):
            return function(match, evidence)
    return None


def _names(match: re.Match[str], evidence: Evidence) -> list[str]:
    """A complaint with this reason (or any) must be there, and together they must name every word."""
    wanted = match["reason"]
    if wanted and wanted.lower() not in _REASONS:
        return [f"no reason is called {wanted}"]
    found = [each for each in evidence.derivation.complaints if not wanted or each.reason.value == wanted]
    if not found:
        return [f"no complaint {wanted or ''}".strip()]
    words = match.groupdict().get("words") or ""
    return [
        f"no complaint {wanted or ''} names {word!r}" for word in _words(words) if not _named(word, found)
    ]


def _words(text: str) -> list[str]:
    found = [(quoted or double or bare, bool(bare)) for quoted, double, bare in _WORD.findall(text)]
    return [word for word, bare in found if not (bare and word == "and")]


def _named(word: str, complaints: list[Complaint]) -> bool:
    """Whether `word` stands in one of them, and not as a part of a longer number, address or name."""
    whole = re.compile(rf"(?<![\w.:/-]){re.escape(word)}(?![\w/:-]|\.\w)")
    return any(whole.search(f"{each.subject} {each.message} {each.remedy}") for each in complaints)


def _absent(match: re.Match[str], evidence: Evidence) -> list[str]:
    wanted = match["reason"]
    found = [each for each in evidence.derivation.complaints if not wanted or each.reason.value == wanted]
    return [f"complaint {each.reason}: {each.message}" for each in found]


def _counter(match: re.Match[str], evidence: Evidence) -> list[str] | None:
    name = match["name"]
    if name not in {counter.name for counter in COUNTERS}:
        return [f"no counter is called {name}"]
    if evidence.counted is None:
        return None
    wanted = int(match["more"] or 0)
    counted = evidence.counted.get(name, 0)
    return [] if counted == wanted else [f"counter {name} + {counted}, expected + {wanted}"]


def _state(match: re.Match[str], evidence: Evidence) -> list[str] | None:
    wanted = _REASONS.get(match["state"].lower())
    if wanted is None:
        return None
    have = evidence.derivation.excluded or Reason.REDIRECTED
    return [] if have is wanted else [f"state is {have}, expected {wanted}"]


def _redirected(_: re.Match[str], evidence: Evidence) -> list[str]:
    excluded = evidence.derivation.excluded
    return [f"the pod is not redirected: {excluded}"] if excluded else []


def _no_table(_: re.Match[str], evidence: Evidence) -> list[str]:
    return [] if evidence.derivation.excluded else ["the pod is redirected, so there is a table"]


def _inbound_only(match: re.Match[str], evidence: Evidence) -> list[str]:
    found = {each.reason for each in evidence.derivation.complaints}
    silent = Reason.OUTBOUND_OFF not in found
    return _redirected(match, evidence) + ([f"no complaint {Reason.OUTBOUND_OFF}"] if silent else [])


_SHAPES: tuple[tuple[re.Pattern[str], Check], ...] = (
    (re.compile(r"(?:an? )?(?:event|complaint)(?: (?P<reason>[A-Z]\w+))?(?: names (?P<words>.+))?"), _names),
    (re.compile(r"no (?:event|complaint)(?: (?P<reason>[A-Z]\w+))?"), _absent),
    (re.compile(r"counter (?P<name>\w+) (?:unchanged|\+ ?(?P<more>\d+))"), _counter),
    (re.compile(r"(?:agent )?state (?:is )?redirected ?\(inbound only\)"), _inbound_only),
    (re.compile(r"(?:agent )?state (?:is )?(?P<state>\w+)"), _state),
    (re.compile(r"no table in (?:the|its) netns"), _no_table),
    (re.compile(r"pod is still redirected|treated as meshed"), _redirected),
)
