"""Play one case: its steps as data, or the story that its id has."""

import asyncio
import traceback
from pathlib import Path

from agent.core.discovery.targets import parse_token
from tests.cases.discovery.case import Case
from tests.cases.discovery.run import Run, running
from tests.cases.discovery.steps import act_of, clauses
from tests.cases.discovery.stories import MULTICLUSTER, PLAIN_ONLY, STORIES
from tests.cases.discovery.stories.stage import Bench
from tests.cases.discovery.world import Unplayable
from tests.cases.findings import Outcome

LONGEST = 60.0
"""Seconds after which a case has failed, whatever it waits for."""


async def play(case: Case, cases: tuple[Case, ...], *, in_pod: bool) -> Outcome:
    """The outcome of a case; with `in_pod` it is played twice, the second time through a listener in a
    network namespace, where the token lies. Whatever goes wrong in it is a failure of this case alone."""
    if case.multicluster or case.id in MULTICLUSTER:
        return Outcome(case.id, case.title, "skip", "multicluster is out of scope")
    outcome = await _bounded(case, cases, in_pod=False)
    if outcome.status != "ok" or not in_pod or case.id in PLAIN_ONLY:
        return outcome
    second = await _bounded(case, cases, in_pod=True)
    if second.status != "ok":
        detail = f"through the in-pod listener: {second.detail}"
        return Outcome(case.id, case.title, "FAIL", detail, second.notes)
    return Outcome(case.id, case.title, "ok", f"{outcome.detail}, twice", outcome.notes)


async def _bounded(case: Case, cases: tuple[Case, ...], *, in_pod: bool) -> Outcome:
    try:
        async with asyncio.timeout(LONGEST):
            return await _played(case, cases, in_pod=in_pod)
    except Unplayable as reason:
        return Outcome(case.id, case.title, "skip", str(reason))
    except TimeoutError:
        detail = f"it has not ended after {LONGEST:.0f} s"
    except Exception as error:  # noqa: BLE001 - said in the outcome, with its place
        place = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} (at {Path(place.filename).name}:{place.lineno})"
    return Outcome(case.id, case.title, "FAIL", detail)


async def _played(case: Case, cases: tuple[Case, ...], *, in_pod: bool) -> Outcome:
    if not case.calls or case.prose or case.data is not None:
        if case.id not in STORIES:
            return Outcome(case.id, case.title, "skip", "no procedure for this id")
        bench = Bench(case, cases, in_pod=in_pod)
        await STORIES[case.id](bench)
        return _outcome(case, *bench.runs)
    async with running(case, case.objects, in_pod=in_pod) as run:
        run.world.noted["client namespace"] = parse_token(case.calls[0].token).namespace
        run.world.namespace = case.namespace or run.world.namespace
        await run.open(*case.calls)
        unplayed = await _steps(case, run)
    if unplayed and not run.failures:
        return Outcome(case.id, case.title, "skip", f"cannot play {unplayed}", tuple(run.notes))
    return _outcome(case, run)


async def _steps(case: Case, run: Run) -> str:
    """Play all steps, up to one that fails; what could not be played is returned."""
    for step in case.steps:
        if step.do:
            run.begin()
        for clause in clauses(step.do):
            if clause == "new call":
                await run.open(case.calls[0])
                continue
            act = act_of(clause)
            if act is None:
                return repr(clause)
            try:
                await run.act(act)
            except Unplayable as error:
                return f"{clause!r}: {error}"
        if not await run.expect(step.expect):
            if step.do:
                run.failures[-1] += f" (after {step.do!r})"
            break
    return ""


def _outcome(case: Case, *runs: Run) -> Outcome:
    failures = dict.fromkeys(failure for run in runs for failure in run.failures)
    notes = tuple(dict.fromkeys(note for run in runs for note in run.notes))
    checks = sum(run.checks for run in runs)
    if failures:
        return Outcome(case.id, case.title, "FAIL", "; ".join(failures), notes)
    if not checks:
        return Outcome(case.id, case.title, "skip", "nothing in it can be checked", notes)
    return Outcome(case.id, case.title, "ok", f"{checks} checks", notes)
