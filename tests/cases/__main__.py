"""python -m tests.cases FILE [--only ID ...] [--pure]"""

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from agent import log
from tests.cases.datapath import Datapath
from tests.cases.findings import Outcome
from tests.cases.load import Entry, Loaded, Problem, load
from tests.cases.model import CaseError, case
from tests.cases.run import run


def main() -> int:
    """Run the cases of a file; one line each, and the totals. 1 when any has failed, 2 for wrong usage."""
    arguments = _arguments()
    if not arguments.pure and os.geteuid() != 0:
        print("cannot make network namespaces: run as root, or pass --pure", file=sys.stderr)
        return 2
    try:
        loaded = load(arguments.file)
    except (OSError, UnicodeError) as error:
        loaded = Loaded((), (Problem(arguments.file.name, f"cannot read {arguments.file}: {error}"),))
    for number in (signal.SIGTERM, signal.SIGHUP):  # a plain end would leave network namespaces behind
        signal.signal(number, _terminated)
    totals: Counter[str] = Counter()
    for outcome in outcomes(loaded, set(arguments.only), pure=arguments.pure):
        print(*outcome.lines(), sep="\n", flush=True)
        totals[outcome.status] += 1
    print(f"{totals['ok']} passed, {totals['FAIL']} failed, {totals['skip']} skipped")
    return 1 if totals["FAIL"] else 0


def outcomes(loaded: Loaded, only: set[str], *, pure: bool) -> Iterator[Outcome]:
    """The outcome of every case, or of those in `only`; what is malformed or missing has failed.

    A file whose cases make calls is about the destination service, any other about redirection.
    """
    for problem in loaded.problems:
        yield Outcome(problem.id, "", "FAIL", problem.message)
    for name in sorted(only - {entry.id for entry in loaded.entries}):
        yield Outcome(name, "", "FAIL", "cannot find a case of this id")
    if any("call" in entry.data for entry in loaded.entries):
        from tests.cases.discovery import batch  # gRPC, which redirection does without

        log.configure("plain", "error")
        yield from batch.outcomes(loaded.entries, only, in_pod=not pure)
        return
    with contextlib.ExitStack() as stack:
        datapath = None if pure else stack.enter_context(contextlib.closing(Datapath()))
        for entry in loaded.entries:
            if not only or entry.id in only:
                yield examine(entry, datapath)


def examine(entry: Entry, datapath: Datapath | None) -> Outcome:
    """The outcome of one entry. Whatever goes wrong in it is a failure of this case alone."""
    try:
        return run(case(entry), datapath)
    except CaseError as error:
        detail = str(error)
    except Exception as error:  # noqa: BLE001 - said in the outcome, with its place
        place = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} (at {Path(place.filename).name}:{place.lineno})"
    return Outcome(entry.id, str(entry.data.get("title", "")), "FAIL", detail)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cases", description="Run a file of cases, of redirection or of discovery."
    )
    parser.add_argument("file", type=Path, help="Markdown with fenced yaml blocks, or plain YAML")
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], metavar="ID", help="only these cases"
    )
    parser.add_argument(
        "--pure",
        action="store_true",
        help="without network namespaces, and not as root: ask the pure core, or the diagnostics listener",
    )
    return parser.parse_args()


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
