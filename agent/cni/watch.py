"""Keeps shim and entry in place: looks when inotify says so, and every few seconds as the net under it.

The watch begins before the look, so that nothing comes between the two. Events carry no data: each look
reads everything afresh and compares it as JSON, so our own writes lead to nothing but one more look. Rules:

* a file that is half written is looked at again until it has been broken for SETTLING, and only then named;
* what was ours and is gone is put back at once, but more than BURST times in WINDOW is a contest, said once:
  then at growing intervals;
* one process of a node does this (the lock on `bin_dir`), so that during an upgrade two versions with two
  settings do not undo each other's work.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import inotify_simple
import msgspec
import structlog

from agent.cni.contest import Contest
from agent.cni.directory import Directory
from agent.cni.install import CannotInstallError, Inspection, Installer, Outcome
from agent.core.chain import TYPE
from agent.core.lifecycle import retry_in
from agent.core.reasons import MEANINGS, Reason

SETTLING = 0.4
"""Seconds that a file may be broken, or absent, while its owner writes it."""
REST = 0.02
"""Seconds between two looks, however many events there are."""
TENANCY_RETRY = 0.1

_FLAGS = inotify_simple.flags
_EVENTS = (
    _FLAGS.CREATE | _FLAGS.MODIFY | _FLAGS.CLOSE_WRITE | _FLAGS.MOVED_TO | _FLAGS.MOVED_FROM | _FLAGS.DELETE
    | _FLAGS.ATTRIB | _FLAGS.DELETE_SELF | _FLAGS.MOVE_SELF
)  # fmt: skip

log = structlog.get_logger("cni")

T = TypeVar("T")
