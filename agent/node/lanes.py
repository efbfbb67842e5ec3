"""The threads that do what the event loop must not: one lane per kind of waiting.

`kernel` does every ordinary read, commit and event, so that one writer orders them; `slow` takes what
would hold up the others: very large rule sets, legacy tables, the scan of /proc; `compile` waits for
the child that runs libnftables; `close` only closes, since releasing a netlink socket after a commit
waits for an RCU grace period.
"""

import _thread
import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar, cast

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


async def alone(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` on a thread of its own, which ends with it. Cancelled, the thread goes on."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(result: R | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("R", result))

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    _thread.start_new_thread(run, ())
    return await done
