"""A process of the stage that writes lines: JSON objects, of which one says that it is ready, or words."""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

JSON = dict[str, Any]

START_DEADLINE = 15.0

_PR_SET_CHILD_SUBREAPER = 36


class Program:
    """`python -m` a module, with its output in a file; `netns`: inside this network namespace.

    It has a session of its own: Ctrl-C reaches the demo alone, which then ends it.
    """

    def __init__(self, log: Path, module: str, *arguments: str, netns: str = "") -> None:
        self._log = log
        self._read = 0
        inside = ("ip", "netns", "exec", netns) if netns else ()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """RuntimeError with its output when it has not said that it is ready in time."""
        deadline = time.monotonic() + START_DEADLINE
        while not (self._log.stat().st_size and any("ready" in line for line in self.news())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"cannot start {self._process.args!r}: {self._log.read_text()}")
            time.sleep(0.01)

    def news(self) -> list[JSON]:
        """The JSON objects among the `lines`."""
        return [json.loads(line) for line in self.lines() if line.startswith("{")]

    def lines(self) -> list[str]:
        """Lines written since the last call; a line of which the end is missing comes next time."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            whole, _, _ = log.read().rpartition(b"\n")
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode().splitlines()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def adopt_orphans() -> None:
    """Become the parent of what our children leave behind when they are killed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[str]:
    """Processes that this one has started, or adopted, and that have not ended: pid and command line."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return []
    statuses = ((path.parent, path.read_text()) for path in Path("/proc").glob("[0-9]*/status"))
    ours = [process for process, status in statuses if f"\nPPid:\t{os.getpid()}\n" in status]
    return [f"{one.name} {(one / 'cmdline').read_text().replace(chr(0), ' ')}" for one in ours]
