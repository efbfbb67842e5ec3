"""What a keeper tells of itself: values, so that it need not know who listens."""

import msgspec

from agent.core.lifecycle import Redirection
from agent.core.tally import Counters
from agent.node.hold import Hold
from agent.node.visit import Sight


class Opened(msgspec.Struct, frozen=True):
    """A netns is held, and has been visited: its socket tells of news from now on."""

    hold: Hold


class Closed(msgspec.Struct, frozen=True):
    """The netns is being given back. `counters`: its last words, {} when they could not be read."""

    hold: Hold
    counters: Counters = {}


class Visited(msgspec.Struct, frozen=True):
    """A visit came back, or raised (`sight` None), after `seconds` on its lane."""

    sight: Sight | None
    seconds: float


class Changed(msgspec.Struct, frozen=True):
    """The status is another than `before`."""

    before: Redirection


class Blocked(msgspec.Struct, frozen=True):
    """Its netns is held for the pod UID `owner`, whose object is gone: that keeper is to give it back."""

    owner: str


Note = Opened | Closed | Visited | Changed | Blocked
