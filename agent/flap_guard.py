"""What is wrong with a pod only for a moment changes no answer.

Each change of the redirection of pods passes here on its way to discovery. A failure is passed on once it has
lasted, counted from its beginning, however often its words change meanwhile; all else at once.
"""

import asyncio
from collections.abc import Callable, Collection

import msgspec

from agent.core.discovery.redirected import FLAP_GUARD, deliberate, known
from agent.core.lifecycle import Redirection


class _Doubt(msgspec.Struct):
    """A failure that is not passed on yet: what it is by now, and when it is to be."""

    status: Redirection
    due: asyncio.TimerHandle


class FlapGuard:
    """`tell(uid, status, turned)` is called on the loop, with what discovery is to go by from then on;
    `turned`: into a failure, or out of one."""

    def __init__(self, tell: Callable[[str, Redirection, bool], None]) -> None:
        self._tell = tell
        self._doubts: dict[str, _Doubt] = {}
        self._failed: set[str] = set()

    def seen(self, uid: str, status: Redirection) -> None:
        """A pod was looked at."""
        fresh = known(status) == "failed" and not deliberate(status) and uid not in self._failed
        doubt = self._doubts.get(uid)
        if not fresh:
            self._drop(uid)
            self._pass(uid, status)
        elif doubt is not None:
            doubt.status = status
        else:
            due = asyncio.get_running_loop().call_later(FLAP_GUARD, self._lasting, uid)
            self._doubts[uid] = _Doubt(status, due)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all pods but these: they are no more, and nobody else may say so."""
        for uid in {*self._doubts, *self._failed}.difference(uids):
            self.seen(uid, Redirection())

    def close(self) -> None:
        """Pass on nothing more."""
        for uid in list(self._doubts):
            self._drop(uid)

    def _lasting(self, uid: str) -> None:
        self._pass(uid, self._doubts.pop(uid).status)

    def _pass(self, uid: str, status: Redirection) -> None:
        failed = known(status) == "failed"
        turned = failed != (uid in self._failed)
        if turned:
            self._failed ^= {uid}
        self._tell(uid, status, turned)

    def _drop(self, uid: str) -> None:
        doubt = self._doubts.pop(uid, None)
        if doubt is not None:
            doubt.due.cancel()
