"""What a pod's redirection means for discovery: whether it may be announced as meshed. Pure."""

from typing import Literal

from agent.core.lifecycle import Redirection
from agent.core.reasons import Phase, Reason

FLAP_GUARD = 2.0
"""Seconds for which a pod has to be known not to be redirected before its answers change."""

_UNREDIRECTED = frozenset({Reason.OBSERVED})
"""Reasons beside phase Failed that say so."""

_CLEARED = frozenset({Reason.DRAINING})
"""Reasons by which it is so on purpose, from now on: new connections to the pod go past its proxy."""


def known(status: Redirection) -> Literal["redirected", "failed", "pending"]:
    """`failed` is to be believed after FLAP_GUARD, unless it is `deliberate`."""
    if status.reason in _CLEARED or status.reason in _UNREDIRECTED or status.phase is Phase.FAILED:
        return "failed"
    return "redirected" if status.phase is Phase.APPLIED else "pending"


def deliberate(status: Redirection) -> bool:
    return status.reason in _CLEARED
