"""The guest's part: runs the parts that are asked for, one after the other, and says how they ended."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cases.load import load

ENDED = "the guest has ended with status"
"""How the last line starts; a guest that has not said it has failed."""
PART_SECONDS = 900
"""What a part may take, whatever happens in it."""
SETTINGS = {"SLOWNESS": "6", "KILLS": "12", "CHAOS_EXAMPLES": "3"}
"""For a slow machine: the tests wait six times longer for an agent, and repeat less."""

_CASES = Path("tests/cases/redirection.md")

Command = Callable[[], list[str]]


def _cases() -> list[str]:
    """The cases that are data: settings, verdicts, and real IPv4 and IPv6 traffic."""
    data = [entry.id for entry in load(_CASES).entries if {"effective", "connections"} & entry.data.keys()]
    return [sys.executable, "-m", "tests.cases", str(_CASES), "--only", *data]


def _pytest(*arguments: str) -> Command:
    options = ("-q", "--color=no", "--tb=short", "-p", "no:cacheprovider", "-o", f"timeout={PART_SECONDS}")
    return lambda: [sys.executable, "-m", "pytest", *options, *arguments]


PARTS: dict[str, Command] = {
    "cases": _cases,
    "datapath": _pytest("tests/node/test_datapath.py"),
    "drift": _pytest("tests/node/test_drift.py"),
    "socket": _pytest("tests/node/test_socket.py"),
    "daemon": _pytest("tests/daemon/test_run.py"),
}
"""What runs in a guest that is told nothing else, by name."""


def main() -> int:
    """Run what the command line names, of PARTS or paths for pytest. Returns 0 when all have passed."""
    parts = sys.argv[1:]
    failed = [name for name in parts if not _passed(name, PARTS.get(name) or _pytest(name))]
    names = f" ({', '.join(failed)})" if failed else ""
    passed = len(parts) - len(failed)
    print(f"== kernel {platform.release()}: {passed} parts passed, {len(failed)} failed{names}", flush=True)
    return 1 if failed else 0


def _passed(name: str, command: Command) -> bool:
    print(f"== {name}", flush=True)
    began = time.monotonic()
    try:
        status = subprocess.run(
            command(), env=os.environ | SETTINGS, timeout=PART_SECONDS, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"not ended after {PART_SECONDS} s", flush=True)
        status = 1
    print(f"== {name}: {'FAIL' if status else 'ok'}, {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


if __name__ == "__main__":
    print(ENDED, main(), flush=True)
