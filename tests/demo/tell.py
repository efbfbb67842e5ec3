"""The storyteller: plain text for people, and every claim checked before it is printed."""

import os
import sys
import textwrap
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WIDTH = 100
MARGIN = "   "
PATIENCE = 10.0
"""Seconds that a claim may take to become true."""

_BOLD, _DIM, _GREEN, _RED = "1", "2", "32", "31"


class Broken(Exception):  # noqa: N818 - a broken promise, told to people
    """A claim does not hold. The message says what was expected and what was found."""

    def __init__(self, claim: str, want: object, got: object) -> None:
        super().__init__(f"{claim}\n{MARGIN}expected: {want}\n{MARGIN}found:    {got}")


class Teller:
    """Prints to stdout, in colours only on a terminal. `facts` counts the claims that held."""

    def __init__(self) -> None:
        self.facts = 0
        self._headings = 0
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def heading(self, text: str) -> None:
        self._headings += 1
        self.line()
        self.line(self._paint(f"{self._headings}. {text}", _BOLD))

    def say(self, text: str) -> None:
        """A paragraph."""
        self.line(_filled(text, MARGIN, MARGIN))

    def show(self, text: str) -> None:
        """Output or measured values, as they are."""
        self.line(self._paint(textwrap.indent(text.rstrip(), MARGIN + "  "), _DIM))

    def quote(self, text: str) -> None:
        """A long line of output, filled."""
        self.line(self._paint(_filled(text, MARGIN + "  ", MARGIN + "    "), _DIM))

    def command(self, text: str, where: str = "") -> None:
        """A command that is run now; `where`: the pod in whose network namespace."""
        self.line(f"{MARGIN}{f'[{where}] ' if where else ''}$ {text}")

    def fact(self, text: str, *, got: T, want: T) -> None:
        """A claim in words, which holds when `got` equals `want`. Raises Broken."""
        if got != want:
            raise Broken(text, want, got)
        self.facts += 1
        words = _filled(text, f"{MARGIN}ok  ", f"{MARGIN}    ")
        self.line(words.replace("ok", self._paint("ok", _GREEN), 1))

    def failed(self, text: str) -> None:
        self.line(f"\n{self._paint('FAILED', _RED)}  {text}")

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def _paint(self, text: str, colour: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._coloured else text


def _filled(text: str, first: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def eventually(look: Callable[[], T], want: T, patience: float = PATIENCE) -> T:
    """What `look` returns as soon as that is `want`, or else what it returns after `patience` seconds."""
    deadline = time.monotonic() + patience
    while (got := look()) != want and time.monotonic() < deadline:
        time.sleep(0.005)
    return got
