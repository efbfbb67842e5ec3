"""The threads that do what the event loop must not: one lane per kind of waiting.

`kernel` does every ordinary read, commit and event, so that one writer orders them; `slow` takes what
would hold up the others: very large rule sets, legacy tables, the scan of /proc; `compile` waits for
the child that runs libnftables; `close` only closes, since releasing a netlink socket after a commit
waits for an RCU grace period.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

CLOSERS = 8
"""Threads that close: one at a time in daily life, more when an agent stops and hands over."""


class Lanes:
    """Single-threaded executors by purpose."""

    def __init__(self) -> None:
        self.kernel = ThreadPoolExecutor(1, "kernel")
        self.slow = ThreadPoolExecutor(1, "slow")
        self.compile = ThreadPoolExecutor(1, "compile")
        self.close = ThreadPoolExecutor(CLOSERS, "close")

    def stop(self) -> None:
        """End all threads after the work that is under way."""
        for lane in (self.compile, self.slow, self.kernel, self.close):
            lane.shutdown(wait=True, cancel_futures=lane is not self.close)


async def on(lane: ThreadPoolExecutor, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` on a lane and wait for it without blocking the loop."""
    return await asyncio.get_running_loop().run_in_executor(lane, lambda: function(*args, **kwargs))
