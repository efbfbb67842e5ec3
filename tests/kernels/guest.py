"""The guest's part: runs the parts that are asked for, one after the other, and says how they ended."""

import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cases.load import load

ENDED = "the guest has ended with status"
"""How the last line starts; a guest that has not said it has failed."""
PART_SECONDS = 600
"""What a part may take, whatever happens in it."""

_CASES = Path("tests/cases/redirection.md")
_NODE = Path("tests/node")


def _cases() -> list[str]:
    """The cases that are data: settings, verdicts, and real IPv4 and IPv6 traffic."""
    data = [entry.id for entry in load(_CASES).entries if {"effective", "connections"} & entry.data.keys()]
    return [sys.executable, "-m", "tests.cases", str(_CASES), "--only", *data]


def _pytest(*arguments: str) -> Callable[[], list[str]]:
    options = ("-q", "--color=no", "--tb=short", "-p", "no:cacheprovider", "-o", f"timeout={PART_SECONDS}")
    return lambda: [sys.executable, "-m", "pytest", *options, *arguments]


PARTS: dict[str, Callable[[], list[str]]] = {
    "cases": _cases,
    "datapath": _pytest("tests/node/test_datapath.py"),
    "drift": _pytest("tests/node/test_drift.py"),
    "socket": _pytest("tests/node/test_socket.py"),
    "daemon": _pytest("tests/daemon"),
}
"""What runs in a guest, by name."""


def main() -> int:
    """Run the parts that the command line names. Returns 0 when all have passed, else 1."""
    failed = [name for name in sys.argv[1:] if not _passed(name)]
    passed = len(sys.argv[1:]) - len(failed)
    names = f" ({', '.join(failed)})" if failed else ""
    print(f"== kernel {platform.release()}: {passed} parts passed, {len(failed)} failed{names}", flush=True)
    return 1 if failed else 0


def _passed(name: str) -> bool:
    print(f"== {name}", flush=True)
    began = time.monotonic()
    try:
        status = subprocess.run(PARTS[name](), timeout=PART_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"not ended after {PART_SECONDS} s", flush=True)
        status = 1
    print(f"== {name}: {'FAIL' if status else 'ok'}, {time.monotonic() - began:.0f} s", flush=True)
    return status == 0


if __name__ == "__main__":
    print(ENDED, main(), flush=True)
