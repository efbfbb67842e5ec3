"""Cases in prose: one procedure per id, because no data says how to bring a life cycle about."""

from collections.abc import Callable

from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories import STORIES

Procedure = Callable[[Case], Findings]

LIFECYCLE: dict[str, Procedure] = {**STORIES}
"""Procedures by case id; each brings the case about and says what is not as its `then` demands."""

LATER: dict[str, str] = {
    "C12": "needs the API-server source",
    "C21": "needs the destination service",
}
"""Why a case without procedure cannot have one yet."""
