"""What a pod's redirection means for discovery: whether it may be announced as meshed. Pure."""

import re
from typing import Literal

from agent.core.lifecycle import Redirection
from agent.core.reasons import Phase, Reason

FLAP_GUARD = 2.0
"""Seconds for which a pod has to be known not to be redirected before its answers change."""

_UNREDIRECTED = frozenset({Reason.OBSERVED})
"""Reasons beside phase Failed that say so."""

_CLEARED = frozenset({Reason.DRAINING})
"""Reasons by which it is so on purpose, from now on: new connections to the pod go past its proxy."""

_OWNERSHIP = re.compile(r"table is .+, should be .+")
"""A difference that changes no packet's way: in who may change the table."""


def known(status: Redirection) -> Literal["redirected", "failed", "pending"]:
    """`failed` is to be believed after FLAP_GUARD, unless it is `deliberate`."""
    if _rules_stand(status):
        return "redirected"
    if status.reason in _CLEARED or status.reason in _UNREDIRECTED or status.phase is Phase.FAILED:
        return "failed"
    return "redirected" if status.phase is Phase.APPLIED else "pending"


def deliberate(status: Redirection) -> bool:
    return status.reason in _CLEARED


def _rules_stand(status: Redirection) -> bool:
    """Of a table that differs, to an agent that only looks: the rules in it do not."""
    differences = status.differences
    drifted = status.reason is Reason.DRIFTED and bool(differences)
    return drifted and all(map(_OWNERSHIP.fullmatch, differences))
