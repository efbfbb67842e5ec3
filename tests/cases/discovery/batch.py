"""Play the cases of a file, several at a time; those that load the machine have it to themselves."""

import asyncio
import signal
import sys
from collections.abc import Iterator

from tests.cases.discovery.case import Case, cases
from tests.cases.discovery.play import play
from tests.cases.discovery.stories import ALONE
from tests.cases.findings import Outcome
from tests.cases.load import Entry
from tests.cases.model import CaseError

_AT_ONCE = 6
"""Most of a case is waiting for silence."""
_LATE = 0.5
_ENDED = 10.0
"""Seconds that cases which are stopped may take to put everything away."""


def outcomes(entries: tuple[Entry, ...], only: set[str], *, in_pod: bool) -> Iterator[Outcome]:
    """The outcome of every case, or of those in `only`, in order, each as soon as it is known."""
    known = cases(entries)
    playable = tuple(case for case in known.values() if isinstance(case, Case))
    chosen = {name: case for name, case in known.items() if not only or name in only}
    titles = {entry.id: str(entry.data.get("title", "")) for entry in entries}
    with asyncio.Runner() as runner:
        stopped = runner.run(_stopped())
        tasks = runner.run(_begin([each for each in playable if each.id in chosen], playable, in_pod=in_pod))
        for name, case in chosen.items():
            if isinstance(case, CaseError):
                yield Outcome(name, titles[name], "FAIL", str(case))
            else:
                yield runner.run(_result(name, tasks, stopped))
        # What is left of calls that were cancelled comes to their loop late; gRPC stumbles over a closed one,
        # and then no other loop of this process hears of anything.
        runner.run(asyncio.sleep(_LATE))


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
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _stop, stopped, number)
    return stopped


def _stop(stopped: asyncio.Future[int], number: int) -> None:
    if not stopped.done():
        stopped.set_result(number)


async def _result(
    name: str, tasks: dict[str, asyncio.Task[Outcome]], stopped: asyncio.Future[int]
) -> Outcome:
    await asyncio.wait({tasks[name], stopped}, return_when=asyncio.FIRST_COMPLETED)
    if stopped.done():
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values(), timeout=_ENDED)
        sys.exit(128 + stopped.result())
    return tasks[name].result()
