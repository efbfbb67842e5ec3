"""Structured logs: short constant phrases, data in keys, one line per change of state."""

import logging
import sys

import structlog

LEVELS = {"error": logging.ERROR, "warn": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


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
    logging.basicConfig(level=LEVELS[level], stream=sys.stderr, format="%(message)s", force=True)


def _factory(*_names: object) -> structlog.PrintLogger:
    return structlog.PrintLogger(sys.stderr)
