"""Texts to templates: nft syntax in, the records that every pod with this text gets out.

libnftables runs in a child process (see `scratch`), started when a text is new and ended when there
has been nothing to compile for a while.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict

import msgspec

from agent.node.nft.records import Record
from agent.node.nft.scratch import Compiled, Ended, Ready, receive, send

CHILD = "agent.node.nft.scratch"
GRACE = 2.0
"""Seconds that the child has to end by itself."""
SHOWN = 4_000
"""Characters of the script, and of what libnftables says, in the text of an error."""


class CompileError(Exception):
    """A text cannot be made into a template, or the compiler cannot run; `text` is the script."""

    def __init__(self, message: str, text: str = "") -> None:
        self.text = text
        # libnftables repeats the line that it refuses, however long.
        script = f"\nscript:\n{_shortened(text)}" if text else ""
        super().__init__(_shortened(message) + script)


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n... ({len(text)} characters)"


class Template(msgspec.Struct, frozen=True, eq=False):
    """One text as this kernel holds it: plain table, without state. Only for the kernel that made it.
    Equal to itself alone, so that what is made of it can be kept by it."""

    records: tuple[Record, ...]
    text: str


class Compiler:
    """Compiles, and remembers the `most` texts used last. Safe to call from several threads.

    `idle`: seconds without work after which `rest` ends the child. `patience`: seconds that the child
    may take for one text.
    """

    def __init__(self, *, most: int = 256, idle: float = 10.0, patience: float = 30.0) -> None:
        self._most = most
        self._idle = idle
        self._patience = patience
        self._known: OrderedDict[str, Template] = OrderedDict()
        self._ready: Ready | None = None
        self._child: _Child | None = None
        self._used = 0.0
        self._lock = threading.Lock()

    def compile(self, text: str) -> Template:
        """The template of a text; new texts take some 40 ms, known ones nothing. Raises CompileError."""
        with self._lock:
            if text in self._known:
                self._known.move_to_end(text)
                return self._known[text]
            compiled = self._ask(text)
            if compiled.error:
                raise CompileError(f"cannot compile the rules: {compiled.error}", text)
            template = self._known[text] = Template(compiled.records, text)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
            return template

    def known(self, text: str) -> Template | None:
        """The template if it has been made; never waits, not even for a compilation under way."""
        return self._known.get(text)

    def flags(self) -> int:
        """OWNER | PERSIST if this kernel has both table flags, else 0 (see `reason`). Raises CompileError."""
        with self._lock:
            if self._ready is None:
                self._start()
            assert self._ready is not None
            return self._ready.flags

    @property
    def reason(self) -> str:
        """Why `flags()` is 0, "" when it is not."""
        return self._ready.reason if self._ready else ""

    def rest(self) -> None:
        """End the child if it has been idle; called from a timer."""
        with self._lock:
            if time.monotonic() - self._used >= self._idle:
                self._stop()

    def close(self) -> None:
        """End the child. The compiler can still be used: it starts another."""
        with self._lock:
            self._stop()

    def _ask(self, text: str) -> Compiled:
        for last in (False, True):
            child = self._child or self._start()
            try:
                return child.ask(text)
            except (Ended, OSError) as error:
                ending = self._stop()
                if last:
                    message = (
                        f"cannot compile the rules: the compiler process failed twice: {error!r} {ending}"
                    )
                    raise CompileError(message, text) from error
            finally:
                self._used = time.monotonic()
        raise AssertionError

    def _start(self) -> "_Child":
        child = self._child = _Child(self._patience)
        self._used = time.monotonic()
        try:
            self._ready = child.ready()
        except (Ended, OSError) as error:
            raise CompileError(f"cannot start the compiler process: {error!r} {self._stop()}") from error
        if self._ready.error:
            error_, self._ready = self._ready.error, None
            self._stop()
            raise CompileError(f"cannot start the compiler process: {error_}")
        return child

    def _stop(self) -> str:
        child, self._child = self._child, None
        return child.end() if child else ""


class _Child:
    """The process, and our end of the socket to it."""

    def __init__(self, patience: float) -> None:
        # The import path is handed on, so that the child runs the same code, from wherever it came.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - joined as text
        try:
            self._peer, far = socket.socketpair()
        except OSError as error:
            raise CompileError(f"cannot start the compiler process: {error}") from error
        self._peer.settimeout(patience)
        with far:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", CHILD],
                    stdin=far.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=os.environ | {"PYTHONPATH": path},
                    start_new_session=True,
                )
            except OSError as error:
                self._peer.close()
                raise CompileError(f"cannot start the compiler process {sys.executable}: {error}") from error

    def ready(self) -> Ready:
        return receive(self._peer, Ready)

    def ask(self, text: str) -> Compiled:
        send(self._peer, text)
        return receive(self._peer, Compiled)

    def end(self) -> str:
        """Close, wait, and say how it ended: exit status and its last words."""
        self._peer.close()
        try:
            _, words = self._process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, words = self._process.communicate()
        return f"(exit status {self._process.returncode}) {words.decode(errors='replace').strip()[-500:]}"
