"""Every case of destination.md through a real gRPC server and client, twice; and the runner itself."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cases.discovery import batch
from tests.cases.discovery.case import Case, cases
from tests.cases.findings import Outcome
from tests.cases.load import load

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("destination.md")
_LOADED = load(FILE)

# All cases are played together by whichever test comes first.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {each.id: each for each in batch.outcomes(_LOADED.entries, set(), in_pod=True)}


def test_every_case_of_the_file_is_read() -> None:
    assert not _LOADED.problems
    read = cases(_LOADED.entries)
    assert len(read) == 122
    assert [str(case) for case in read.values() if not isinstance(case, Case)] == []


@pytest.mark.parametrize("case_id", [entry.id for entry in _LOADED.entries])
def test_case(outcomes: dict[str, Outcome], case_id: str) -> None:
    outcome = outcomes[case_id]
    if outcome.status == "skip":
        assert outcome.detail == "multicluster is out of scope"
        assert case_id.startswith("H")
        pytest.skip(outcome.detail)
    assert outcome.status == "ok", "\n".join(outcome.lines())
    assert outcome.notes == (), "every item of the file is checked"


WEB = "{svc: web, ip: [10.96.0.1], ports: ['- 80']}"
SLICE = "{slice: w, of: web, ports: ['- 80'], eps: [10.1.0.11 pod=a]}"
POD = "{pod: a, ip: [10.1.0.11], mesh: true}"
GET = f"objects: [{WEB}, {SLICE}, {POD}], call: Get web.shop.svc.cluster.test:80"
PROFILE = f"objects: [{WEB}, {POD}], call: Profile 10.1.0.11:80"


def _run(tmp_path: Path, *written: str) -> dict[str, Outcome]:
    file = tmp_path / "cases.md"
    file.write_text("```yaml\n" + "\n".join(f"- {{{each}}}" for each in written) + "\n```\n")
    loaded = load(file)
    assert not loaded.problems
    return {each.id: each for each in batch.outcomes(loaded.entries, set(), in_pod=False)}


WRONG = (
    (GET, "expect: [view: ['10.1.0.12:80']]", "expected ['10.1.0.12:80'], got ['10.1.0.11:80']"),
    (GET, "expect: [first: none]", "expected none, got add"),
    (GET, "expect: [status: NOT_FOUND]", "expected NOT_FOUND, got None"),
    (GET, "expect: [stream: ended]", "it is open"),
    (GET, "expect: [msgs: 2]", "expected 2 messages, got 1: add 10.1.0.11:80"),
    (GET, "expect: [addr: {weight: 1}]", "10.1.0.11:80.weight: expected 1, got 10000"),
    (GET, "expect: [addr: {labels: {pod: b}}]", "labels.pod: expected 'b', got 'a'"),
    (GET, "expect: [addr: {labels: {}}]", "expected {}, got {"),
    (GET, "expect: [addr: {tls: null}]", "tls: expected None, got 'default.shop."),
    (GET, "expect: [set_labels: {service: web}]", "'namespace': 'shop'"),
    (GET, "expect: [no_endpoints: {exists: false}]", "exists: expected False, got True"),
    (PROFILE, "expect: [profile: {opaque_protocol: true}]", "expected True, got False"),
    (PROFILE, "expect: [bare endpoint]", "expected {}, got {"),
    (PROFILE, "expect: [opaque]", "opaque is False"),
    (PROFILE, "expect: [first: empty-profile]", "expected empty-profile, got profile"),
    (PROFILE, "expect: [h2 + 4143]", "opaque_transport: expected 4143, got None"),
    (PROFILE, "expect: [labels.pod = b]", "expected 'b', got 'a'"),
    (PROFILE, "steps: [{do: delete object, expect: [msgs: 0]}]", "(after 'delete object')"),
    (GET, "steps: [{do: set .11 ready=false, expect: [only adds]}]", "remove 10.1.0.11:80"),
    (PROFILE, "expect: [endpoint 10.1.0.11:81]", "expected '10.1.0.11:81', got '10.1.0.11:80'"),
)
"""What a case holds, what it expects wrongly, and what its failure says."""


def test_what_is_wrong_fails_and_is_named(tmp_path: Path) -> None:
    written = [f"id: W{number}, {case}, {wrong}" for number, (case, wrong, _) in enumerate(WRONG)]
    found = _run(tmp_path, *written)
    for number, (_, wrong, said) in enumerate(WRONG):
        outcome = found[f"W{number}"]
        assert outcome.status == "FAIL", wrong
        assert said in outcome.detail


def test_case_that_waits_in_vain_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    outcome = _run(tmp_path, f"id: X1, {GET}, steps: [{{expect: [msgs: 9]}}]")["X1"]
    assert outcome.status == "FAIL"
    assert time.monotonic() - began < 15


MALFORMED = {
    "id: M1, objects: [{svc: web, colour: blue}], call: Get a.b.svc.cluster.test:1": "object svc web: ",
    "id: M2, objects: [{svcc: web}], call: Get a.b.svc.cluster.test:1": "an object names none of",
    "id: M3, cfg: {cd: x}, call: Get a.b.svc.cluster.test:1": "unknown field `cd` - at `$.cfg`",
    "id: M4, objects: [{slice: w, eps: [1.0.0.1 rdy=true]}], call: Get a.b.svc.cluster.test:1": "'rdy=true'",
    "id: M5, objects: [{pod: p, ports: [x]}], call: Profile 1.0.0.1:1": "port 'x' is no",
}


def test_malformed_case_fails_by_name(tmp_path: Path) -> None:
    found = _run(tmp_path, *MALFORMED, f"id: M9, {GET}, expect: [first: add]")
    for written, said in MALFORMED.items():
        outcome = found[written[4:6]]
        assert outcome.status == "FAIL", written
        assert said in outcome.detail
    assert found["M9"].status == "ok"


def test_what_is_not_understood_is_skipped_and_said(tmp_path: Path) -> None:
    found = _run(
        tmp_path,
        f"id: Y1, {GET}, steps: [{{do: paint it blue, expect: [msgs: 1]}}]",
        f"id: Y2, {GET}, expect: [all is well]",
        "id: Y3, call: whatever comes, expect: [first: add]",
        f"id: Y4, {GET}, expect: [first: add, all is well]",
        f"id: Y5, {GET}, steps: [{{do: delete slice nosuch, expect: [msgs: 1]}}]",
        f"id: Y6, {GET}, data: {{one: two}}, expect: [as listed]",
    )
    assert {name: outcome.status for name, outcome in found.items()} == {
        "Y1": "skip",
        "Y2": "skip",
        "Y3": "skip",
        "Y4": "ok",
        "Y5": "skip",
        "Y6": "skip",
    }
    assert found["Y1"].detail == "cannot play 'paint it blue'"
    assert found["Y4"].notes == ("not checked: all is well",)
    assert "EndpointSlice nosuch" in found["Y5"].detail


def test_other_names_are_played_as_well(tmp_path: Path) -> None:
    objects = (
        "{svc: till, ns: mall, ip: [10.96.7.7], ports: ['cash 7070->9090']}, "
        "{slice: t1, ns: mall, of: till, ports: ['cash 9090'], "
        "eps: ['10.7.0.1 pod=t-a', '10.7.0.2 pod=t-b']}, "
        "{pod: t-a, ns: mall, ip: [10.7.0.1], mesh: true}, {pod: t-b, ns: mall, ip: [10.7.0.2], mesh: true}"
    )
    steps = (
        "{expect: [view: ['10.7.0.1:9090', '10.7.0.2:9090'], msgs: 1]}, "
        "{do: set .2 ready=false, expect: [view: ['10.7.0.1:9090'], 'only a remove of .2']}, "
        "{do: delete t1, expect: [view: [], stream: open]}, "
        "{do: create t1 again, expect: [view: ['10.7.0.1:9090']]}"
    )
    call = "call: Get till.mall.svc.cluster.test:7070"
    outcome = _run(tmp_path, f"id: Z1, objects: [{objects}], {call}, steps: [{steps}]")["Z1"]
    assert outcome.status == "ok", outcome.detail
    assert outcome.notes == ()


RENAMED = {
    r"\bteam\b": "crew",
    r"10\.1\.0\.": "10.44.7.",
    r"10\.96\.0\.": "10.98.3.",
    r"192\.0\.2\.": "198.18.4.",
    r"2001:db8::": "2001:db8:5::",
    r"\bweb(?=\b|2\b|-)": "till",
    r"\bdb(?=\b|-)": "pg",
    r"\bn1\b": "node-a",
    r"\bza\b": "zone-one",
    r"\bghost\b": "spook",
}
PROSE = {
    *("A08", "B07", "B12", "B13", "B18", "B20", "B21", "C12", "C17", "D04", "D05", "D06", "E05", "E07"),
    *("E13", "E15", "F05", "F07", "F09", "F11", "F14", "X01", "X25", "X33", "X34", "X36"),
}
"""Cases whose steps are words about their objects."""


def test_the_file_with_other_names(tmp_path: Path) -> None:
    text = FILE.read_text()
    for pattern, name in RENAMED.items():
        text = re.sub(pattern, name, text)
    file = tmp_path / "renamed.md"
    file.write_text(text)
    found = {each.id: each for each in batch.outcomes(load(file).entries, PROSE, in_pod=False)}
    assert [each.lines() for each in found.values() if each.status != "ok" or each.notes] == []
    assert set(found) == PROSE


def _command(*arguments: str) -> tuple[list[str], int]:
    command = [sys.executable, "-m", "tests.cases", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines(), done.returncode


def test_command_knows_the_kind_of_file() -> None:
    lines, status = _command(str(FILE), "--pure", "--only", "A01", "B29", "H01", "nosuch")
    assert status == 1
    assert lines[0] == "FAIL nosuch: cannot find a case of this id"
    assert lines[1].startswith("ok A01 name outside the cluster domain (")
    assert lines[-2] == "skip H01: multicluster is out of scope"
    assert lines[-1] == "2 passed, 1 failed, 1 skipped"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_nothing_is_left_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.cases", str(FILE), "--only", "B01", "B12", "B19", "C17", "E15"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 20
    while not list(Path("/run/netns").glob(f"pm-{process.pid}-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert not list(Path("/run/netns").glob(f"pm-{process.pid}-*"))
