"""python -m tests.cases FILE [--only ID ...] [--pure]"""

import contextlib
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

import click

from tests.cases.datapath import Datapath
from tests.cases.findings import Outcome
from tests.cases.load import Entry, load
from tests.cases.model import CaseError, case
from tests.cases.run import run


def examine(entry: Entry, datapath: Datapath | None) -> Outcome:
    """The outcome of one entry. Whatever goes wrong in it is a failure of this case alone."""
    try:
        return run(case(entry), datapath)
    except CaseError as error:
        return Outcome(entry.id, str(entry.data.get("title", "")), "FAIL", str(error))
    except Exception as error:  # noqa: BLE001 - said in the outcome, with its place
        place = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} (at {Path(place.filename).name}:{place.lineno})"
        return Outcome(entry.id, str(entry.data.get("title", "")), "FAIL", detail)


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--only", multiple=True, metavar="ID", help="Only this case; may be repeated, or IDs with commas."
)
@click.option("--pure", is_flag=True, help="Ask only the pure core: no root, no network namespaces.")
def main(file: Path, only: tuple[str, ...], pure: bool) -> None:
    """Run the redirection cases of FILE against the pure core and against the kernel."""
    signal.signal(signal.SIGTERM, _terminated)  # a plain end would leave network namespaces behind
    loaded = load(file)
    chosen = {name.strip() for each in only for name in each.split(",") if name.strip()}
    outcomes = [Outcome(problem.id, "", "FAIL", problem.message) for problem in loaded.problems]
    unknown = chosen - {entry.id for entry in loaded.entries}
    outcomes += [Outcome(name, "", "FAIL", f"cannot find it in {file.name}") for name in sorted(unknown)]
    _show(outcomes)
    with contextlib.ExitStack() as stack:
        datapath = None if pure else stack.enter_context(contextlib.closing(Datapath()))
        for entry in loaded.entries:
            if not chosen or entry.id in chosen:
                outcomes.append(examine(entry, datapath))
                _show(outcomes[-1:])
    totals = Counter(outcome.status for outcome in outcomes)
    click.echo(f"{totals['ok']} passed, {totals['FAIL']} failed, {totals['skip']} skipped")
    sys.exit(1 if totals["FAIL"] else 0)


def _show(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        for line in outcome.lines():
            click.echo(line)


if __name__ == "__main__":
    main()
