"""Pods whose agent is killed again and again: what each was, what it shall be, and what it may be now."""

import contextlib
import functools
import random
from collections.abc import Iterator

import msgspec

from agent.core.names import TABLE
from agent.core.objects import Pod
from tests.chaos.tables import ABSENT, OFF, SKIP_OUT, Listing, listing, loaded, nft, text_of, words
from tests.lab.agent import JSON, Agent, pod_manifest
from tests.lab.netns import netns

LISTS = ("25", "25,3306", "3306,9000-9010", "1-1024", "")
"""Lists of skipped outbound ports, none of which the connector uses."""

HARM = (
    "flush ruleset",
    f"delete table inet {TABLE}",
    f"flush chain inet {TABLE} output",
    f"insert rule inet {TABLE} output tcp dport 1-65535 return",
    f"add element inet {TABLE} out_skip_ports {{ 60000-60010 }}",
    f"flush set inet {TABLE} in_skip_ports",
    f"add chain inet {TABLE} extra {{ type filter hook input priority 0; }}",
)
"""What somebody else may do to a table that nobody owns."""


known = functools.cache(loaded)
"""Tables by their text, and by what was then done to them."""


class Subject:
    """One pod. `before` is its table when the present agent was started, `goal` what it is to become,
    `allowed` every table that it may be found with: complete ones, and those that we have harmed."""

    def __init__(self, name: str, netns_name: str) -> None:
        self.name = name
        self.netns = netns_name
        self.annotations = {SKIP_OUT: LISTS[0]}
        self.before = self.goal = ABSENT
        self.allowed: set[Listing] = set()

    @property
    def disabled(self) -> bool:
        return OFF.items() <= self.annotations.items()

    @property
    def manifest(self) -> JSON:
        return pod_manifest(self.name, self.netns, annotations=self.annotations)

    @property
    def text(self) -> str:
        return text_of(msgspec.convert(self.manifest, Pod))

    def now(self) -> Listing:
        return listing(self.netns)

    def begin(self) -> None:
        """A new agent is about to start: until its end the table is the present one or the goal."""
        self.before = self.now()
        self.goal = self._goal(self.before)
        self.allowed = {self.before, self.goal}

    def want(self, agent: Agent, annotations: dict[str, str]) -> None:
        """Change the pod's object, whether or not an agent runs."""
        self.annotations = annotations
        self.goal = self._goal(self.goal)
        self.allowed.add(self.goal)
        agent.put(self.manifest)

    def harm(self, command: str) -> None:
        """Change the table from outside. It is the goal, or no agent runs."""
        # Refused where the table is owned, or where it lacks what the command names.
        with contextlib.suppress(RuntimeError):
            nft(self.netns, command)
        if not self.disabled:
            self.allowed.add(known(self.text, command))

    def check(self) -> Listing:
        """The table now. AssertionError when it is none of those that are allowed."""
        found = self.now()
        assert found in self.allowed, (
            f"{self.name} holds a table that is neither old nor new:\n{words(found)}"
        )
        return found

    def _goal(self, found: Listing) -> Listing:
        """An opted-out pod that has no table gets none."""
        return ABSENT if self.disabled and found == ABSENT else known(self.text)


@contextlib.contextmanager
def subjects(count: int) -> Iterator[list[Subject]]:
    """Pods in namespaces of their own, without a table."""
    with contextlib.ExitStack() as stack:
        yield [Subject(f"pod-{number}", stack.enter_context(netns())) for number in range(count)]


def lists(dice: random.Random) -> dict[str, str]:
    """Annotations of a redirected pod, with any list of skipped ports."""
    return {SKIP_OUT: dice.choice(LISTS)}
