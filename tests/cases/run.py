"""Run one case: settings, verdicts, the kernel, and what the case says besides."""

import contextlib
import re
from collections.abc import Callable
from typing import Literal

import msgspec

from agent.core.redirect import Derivation, RedirectSpec, derive
from agent.core.verdict import decide
from tests.cases import then
from tests.cases.datapath import Counted, Datapath
from tests.cases.lifecycle import LATER, LIFECYCLE, Skip
from tests.cases.model import POD_IP, Case, Step
from tests.cases.settings import differences
from tests.cases.wire import connection, disagreements, observe, original
from tests.lab.addresses import Addresses, Family
from tests.lab.pod import pod_and_world
from tests.lab.probe import open_standin
from tests.lab.way import NotOnAWireError, Probe

_DOCUMENTATION = {4: "192.0.2.77", 6: "2001:db8::77"}
"""The pod's address where there is no pod."""

_VARIANT = re.compile(r"with node local_only: (?P<value>true|false)\b.* the same packet is (?P<place>in|out|direct)")


class Outcome(msgspec.Struct, frozen=True):
    """What came of a case. `connections` were checked, `off_wire` cannot be made as real traffic."""

    id: str
    title: str
    status: Literal["ok", "FAIL", "skip"]
    connections: int = 0
    off_wire: int = 0
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
