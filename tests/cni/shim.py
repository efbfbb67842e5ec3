"""The shim under test: built by the Makefile's own rule, and called as a runtime calls it."""

import contextlib
import itertools
import json
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from agent.core.cni import VERSIONS
from tests.lab import cni

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "agent" / "cni" / "shim.c"

UNSTRIPPED = "musl-gcc -static -no-pie"
SANITIZED = "gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all"

VERBS = ("ADD", "DEL", "CHECK", "STATUS", "GC")
PREVIOUS = '{ "cniVersion":"1.0.0",\n\t"ips" : [ {"address":"10.9.0.2/32"} ], "dns":{} }'
TABLE = tuple(itertools.product(VERBS, VERSIONS, ("allow", "deny")))
"""Verb, version and policy of the calls that `calls` gives."""

AWAY_AFTER = 1.5
"""Seconds for which ADD tries an agent that cannot be reached."""

_SANITIZER_OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def build(program: Path, compiler: str = "") -> Path:
    """`program`, compiled as it is shipped, or by another compiler command. RuntimeError when it fails."""
    command = ["make", "-s", "-C", str(ROOT), f"SHIM={program}", str(program)]
    done = subprocess.run([*command, *([f"SHIM_CC={compiler}"] if compiler else [])], check=False)
    if done.returncode:
        raise RuntimeError(f"cannot compile {SOURCE}: install gcc, make and musl-tools")
    return program


class Done(msgspec.Struct, frozen=True):
    """What one call came to. `seconds` are wall time."""

    code: int
    out: bytes
    err: str
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        """The error object, which is all there is on stdout. AssertionError when there is none."""
        assert self.code == 1, self
        found: dict[str, Any] = json.loads(self.out)
        return found


class Call(msgspec.Struct, frozen=True):
    """A verb, its configuration, and what differs from an ordinary environment; None unsets a variable."""

    verb: str
    stdin: bytes
    environment: dict[str, str | None] = {}


def conf(path: Path | None, version: str | None = "1.0.0", **more: Any) -> bytes:
    """A configuration; `path` is that of the agent's socket."""
    found = {
        "name": "net",
        "type": "pointsman-cni",
        "cniVersion": version,
        "socket": path and str(path),
        **more,
    }
    return json.dumps({key: value for key, value in found.items() if value is not None}).encode()


def with_previous(stdin: bytes, previous: str = PREVIOUS) -> bytes:
    """The configuration with a prevResult, byte for byte."""
    return b'{"prevResult": ' + previous.encode() + b" ," + stdin[1:]


def calls(path: Path) -> list[Call]:
    """Those of TABLE."""
    return [
        Call(verb, with_previous(conf(path, version, whenAgentAway=policy)))
        for verb, version, policy in TABLE
    ]


def start(program: Path, call: Call, **streams: Any) -> subprocess.Popen[bytes]:
    """The process of a call. Without `stdin` among `streams`, it is a pipe to be written."""
    usual = cni.environment(call.verb, "c1", "/run/netns/x", cni.arguments("web", uid="u-1"))
    environment = {**usual, **call.environment}
    given = {key: value for key, value in environment.items() if value is not None}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(program)], env={**_SANITIZER_OPTIONS, **given}, **{**pipes, **streams})


def feed(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    """All of stdin, which must fit into a pipe, and its end. A shim need not read it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(stdin)
    process.stdin = None


def finish(process: subprocess.Popen[bytes], stdin: bytes, begun: float) -> Done:
    """What a started call came to. It is killed after 20 s, which none may take."""
    with process:
        try:
            out, err = process.communicate(stdin, timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Done(process.returncode, out or b"", (err or b"").decode(), time.monotonic() - begun)


def call(program: Path, verb: str, stdin: bytes, **environment: str | None) -> Done:
    """One call from beginning to end."""
    begun = time.monotonic()
    return finish(start(program, Call(verb, stdin, environment)), stdin, begun)


def call_all(program: Path, calls: Iterable[Call]) -> list[Done]:
    """All of them at once. Their configurations must fit into a pipe, which they need not empty."""
    started = []
    for each in calls:
        begun = time.monotonic()
        process = start(program, each)
        feed(process, each.stdin)
        started.append((process, begun))
    return [finish(process, b"", begun) for process, begun in started]
