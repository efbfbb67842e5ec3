"""Crash rather than hang: a thread that ends the process when the event loop no longer turns.

Rules stay in the kernel and a supervisor starts the agent again; a process that hangs would
keep its tables' ownership and repair nothing.
"""

import faulthandler
import os
import sys
import threading
import time

EXIT_HUNG = 70


class Watchdog:
    """`beat` is called by the loop; `age` is the seconds since the last beat, from any thread."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._last = time.monotonic()
        self._stopped = threading.Event()

    def beat(self) -> None:
        self._last = time.monotonic()

    @property
    def age(self) -> float:
        return time.monotonic() - self._last

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stopped.wait(self._limit / 4):
            slept, last = time.monotonic() - last, time.monotonic()
            if slept > self._limit / 2:
                self.beat()  # this thread stood still too: the process was stopped or frozen, and goes on now
            if self.age > self._limit:
                sys.stderr.write(f"the event loop has not turned for {self.age:.1f} s: ending the process\n")
                faulthandler.dump_traceback(all_threads=True)
                os._exit(EXIT_HUNG)
