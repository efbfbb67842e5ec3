"""python -m tests.cases.discovery.opaque_table [PAGE]: when a port is opaque, as a table made of the cases.

With PAGE, a Markdown file, the table is put into it, between BEGIN and END.

Each line is a question of a case at one moment, and what the asked-for object has at that moment. The answer
is that of the core; test_destination.py holds the same against what the case expects, through a real server.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent.core import objects
from agent.core.discovery.answers import Endpoints, Profile
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.endpoints import get
from agent.core.discovery.profiles import profile
from agent.core.discovery.targets import AddressTarget, Client, parse_authority
from agent.core.ports import PortSet
from tests.cases.discovery.acts import OPAQUE_PORTS
from tests.cases.discovery.case import Call, Case, cases
from tests.cases.discovery.opaque_words import at_address, has, kind_of
from tests.cases.discovery.schema import PodText, Text
from tests.cases.discovery.service import TYPES, decoded
from tests.cases.discovery.settings import discovery
from tests.cases.discovery.steps import act_of, clauses
from tests.cases.discovery.world import Change, Dropped, Listed, Put, World
from tests.cases.load import load

FILE = Path(__file__).parents[1] / "destination.md"
CASES = ("C06", "F15", "C05", "C17", "C18", "E15", "E18", "E19", "F13", "C12", "F11", "F14", "F21", "C15")
"""Those about opacity, in the order of the table."""

BEGIN, END = "<!-- opaque-table -->", "<!-- /opaque-table -->"

HEAD = ("asked for", "port", "it has", "opaque", "decided by", "case")


class Line(msgspec.Struct, frozen=True):
    """One question and its answer. `has`: what may decide, in words; `rule`: what did."""

    kind: str
    port: int
    has: str
    opaque: bool
    rule: str
    case: str


def table(path: Path = FILE) -> str:
    """The whole table in Markdown. Questions that differ in nothing but the port share a line."""
    known = cases(load(path).entries)
    merged: dict[tuple[str, str, bool, str], list[Line]] = {}
    for name in CASES:
        case = known[name]
        assert isinstance(case, Case), case
        for line in _syntax(case) if isinstance(case.data, dict) else _story(case):
            merged.setdefault((line.kind, line.has, line.opaque, line.rule), []).append(line)
    rows = [HEAD, ("---",) * len(HEAD)]
    for (kind, words, opaque, rule), lines in merged.items():
        ports = ", ".join(PortSet.of(*(line.port for line in lines)).elements())
        ids = ", ".join(dict.fromkeys(line.case for line in lines))
        rows.append((kind, ports, words or "-", "**yes**" if opaque else "no", rule, ids))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def paged(page: str, made: str) -> str:
    """The text of a page, with this table between its marks. Raises ValueError when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"cannot find {BEGIN} and {END} in the page")
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def _story(case: Case) -> Iterator[Line]:
    """The first answers of a case, and those after each act of its steps."""
    moment = _Moment(case, case.objects)
    yield from moment.lines()
    for clause in (each for step in case.steps for each in clauses(step.do)):
        act = act_of(clause)
        assert act is not None, f"{case.id}: cannot play {clause!r}"
        act(moment.world)
        yield from moment.lines()


def _syntax(case: Case) -> Iterator[Line]:
    """One annotation after the other, on one pod: the ports that it makes opaque, or that none is."""
    pod = next(each for each in case.objects if isinstance(each, PodText))
    declared = {int(each.split()[1]) for each in (*pod.ports, *pod.init_ports)}
    for key, wanted in case.data.items():
        text = re.sub(r" \(.*\)$", "", key).removeprefix("''")
        moment = _Moment(case, (msgspec.structs.replace(pod, ann={OPAQUE_PORTS: text}),))
        tried = {3306, *declared, *(wanted if isinstance(wanted, list) else ())}
        tried |= {int(number) for number in re.findall(r"\b\d{1,4}\b", text)}
        lines = [moment.line(f"{pod.ip[0]}:{port}") for port in sorted(tried)]
        yield from [line for line in lines if line.opaque] or [line for line in lines if line.port == 3306]


class _Moment:
    """The objects of a case, as they are now, and the answers that they make."""

    def __init__(self, case: Case, texts: tuple[Text, ...]) -> None:
        self.world = World(case.config, texts)
        self._case = case
        self._config = discovery(case.config)
        self._catalog = Catalog()
        self.world.watched(self._take)

    def lines(self) -> Iterator[Line]:
        """Of each address that is asked for directly or found by a name. Whose object is gone has none: what
        its open streams keep is no answer to a question."""
        paths = [path for call in self._case.calls for path in self._paths(call)]
        gone = list(self.world.gone.values())
        for path in paths:
            ip = self._target(path).ip
            if at_address(iter(self.world.items.values()), ip) or not at_address(iter(gone), ip):
                yield self.line(path)

    def line(self, path: str) -> Line:
        """The answer to a question by address."""
        target = self._target(path)
        answer, _ = profile(self._catalog, self._config, target, Client())
        assert isinstance(answer, Profile), f"{self._case.id}: {path} has {answer}"
        found = at_address(iter(self.world.items.values()), target.ip)
        words = has(self.world, found, target.port)
        return Line(kind_of(found), target.port, words, answer.opaque, answer.rule, self._case.id)

    def _take(self, change: Change) -> None:
        match change:
            case Listed(kind, items):
                self._catalog.apply(objects.Replace(TYPES[kind], tuple(map(decoded, items))))
            case Put(item):
                self._catalog.apply(objects.Put(decoded(item)))
            case Dropped(item):
                self._catalog.apply(objects.Drop(decoded(item)))

    def _paths(self, call: Call) -> Iterator[str]:
        if call.method == "Profile":
            yield call.path
            return
        target = parse_authority(call.path, self._config.cluster_domain)
        answer, _ = get(self._catalog, self._config, target, Client())
        assert isinstance(answer, Endpoints)
        yield from (f"{each.ip}:{each.port}" for each in answer.addresses)

    def _target(self, path: str) -> AddressTarget:
        target = parse_authority(path, self._config.cluster_domain)
        assert isinstance(target, AddressTarget)
        return target


if __name__ == "__main__":
    if sys.argv[1:]:
        file = Path(sys.argv[1])
        file.write_text(paged(file.read_text(), table()))
    else:
        print(table())
