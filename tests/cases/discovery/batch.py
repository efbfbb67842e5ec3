"""Play the cases of a file, several at a time; those that load the machine have it to themselves."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from typing import Any

from tests.cases.discovery.case import Case, cases
from tests.cases.discovery.play import play
from tests.cases.discovery.stories import ALONE
from tests.cases.findings import Outcome
from tests.cases.load import Entry
from tests.cases.model import CaseError

_AT_ONCE = 6
"""Most of a case is waiting for silence."""
_ENDED = 10.0
"""Seconds that cases which are stopped may take to put everything away."""
_LATE = 0.5
"""Seconds in which the last of gRPC's events have come."""


def outcomes(entries: tuple[Entry, ...], only: set[str], *, in_pod: bool) -> Iterator[Outcome]:
    """The outcome of every case, or of those in `only`, in order, each as soon as it is known."""
    known = cases(entries)
    playable = tuple(case for case in known.values() if isinstance(case, Case))
    chosen = {name: case for name, case in known.items() if not only or name in only}
    titles = {entry.id: str(entry.data.get("title", "")) for entry in entries}
    with asyncio.Runner() as runner:
        stopped = runner.run(_stopped())
        tasks = runner.run(_begin([each for each in playable if each.id in chosen], playable, in_pod=in_pod))
        try:
            for name, case in chosen.items():
                if isinstance(case, CaseError):
                    yield Outcome(name, titles[name], "FAIL", str(case))
                else:
                    yield runner.run(_result(tasks[name], stopped))
        finally:
            runner.run(_put_away(tasks))


async def _begin(
    chosen: list[Case], playable: tuple[Case, ...], *, in_pod: bool
) -> dict[str, asyncio.Task[Outcome]]:
    """Start to play them all; the tasks end in no order."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def beside_others(case: Case) -> Outcome:
        async with gate:
            return await play(case, playable, in_pod=in_pod)

    async def after(others: list[asyncio.Task[Outcome]], case: Case) -> Outcome:
        await asyncio.gather(*others, return_exceptions=True)
        return await play(case, playable, in_pod=in_pod)

    tasks = {each.id: asyncio.create_task(beside_others(each)) for each in chosen if each.id not in ALONE}
    for case in chosen:
        if case.id in ALONE:
            tasks[case.id] = asyncio.create_task(after(list(tasks.values()), case))
    return tasks


async def _stopped() -> asyncio.Future[int]:
    """Done with the number of the signal that ends this process.

    Python's own handlers run in the midst of whatever the loop does, and gRPC does not survive an exit there.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, stopped, number)
    return stopped


def _stop(stopped: asyncio.Future[int], number: int) -> None:
    if not stopped.done():
        stopped.set_result(number)


async def _result(task: asyncio.Task[Outcome], stopped: asyncio.Future[int]) -> Outcome:
    awaited: set[asyncio.Future[Any]] = {task, stopped}
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    if not stopped.done():
        return task.result()
    if stopped.result() == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + stopped.result())


async def _put_away(tasks: dict[str, asyncio.Task[Outcome]]) -> None:
    """End what still runs. gRPC crashes when the loop cancels a server's own tasks, as a Runner does at its
    end; and what is left of calls that were cancelled comes late: gRPC stumbles over a loop that is closed,
    and then no other loop of this process hears of anything."""
    running = [task for task in tasks.values() if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=_ENDED)
    await asyncio.sleep(_LATE)
