"""Ctrl-C, SIGTERM and SIGHUP: an orderly end at any moment, but never in the middle of a step."""

import contextlib
import signal
from collections.abc import Iterator


class Interrupts:
    """Turns the first of these signals into KeyboardInterrupt; during `shielded` it waits for its end.

    After it there is only tidying up left, so further signals have no effect.
    """

    def __init__(self) -> None:
        self._shields = 0
        self._waiting = False
        self._told = False

    def listen(self) -> None:
        """From now on, also where the signals were ignored: a shell does that to what it starts with &."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._came)

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """For what must be done whole: a process is started and known, or it is not started."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._waiting and not self._shields:
            self._tell()

    def _came(self, *_: object) -> None:
        self._waiting = True
        if not self._shields:
            self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            raise KeyboardInterrupt
