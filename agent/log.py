"""Structured logs: short constant phrases, data in keys, one line per change of state."""

import io
import logging
import os
from typing import TextIO, cast

import structlog

LEVELS = {"error": logging.ERROR, "warn": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}

STDERR = 2


class _Stderr(io.TextIOBase):
    """Standard error that never fails: neither a full disk nor a reader who has gone is a reason to leave
    pods alone. A line that cannot be written is counted, and told of by the next one that can."""

    def __init__(self) -> None:
        self._lost = 0

    def write(self, text: str) -> int:
        told = f'{{"event": "log lines lost", "count": {self._lost}}}\n' if self._lost else ""
        try:
            os.write(STDERR, (told + text).encode(errors="backslashreplace"))
            self._lost = 0
        except OSError:
            self._lost += 1
        return len(text)


_stderr = _Stderr()


def configure(form: str, level: str) -> None:
    """Send every log line, ours and the libraries', to stderr as `plain` text or `json`."""
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        stamp,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=False, pad_event_to=22)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_factory,
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=LEVELS[level], stream=_stderr, format="%(message)s", force=True)


def _factory(*_names: object) -> structlog.WriteLogger:
    return structlog.WriteLogger(cast(TextIO, _stderr))
