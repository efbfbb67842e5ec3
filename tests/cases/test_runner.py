"""The runner itself: what is malformed is named, and what is wrong fails."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agent.core.ports import PortSet, Subnets
from agent.core.spec import RedirectSpec
from tests.cases.__main__ import outcomes
from tests.cases.datapath import Datapath
from tests.cases.load import load
from tests.cases.model import case
from tests.cases.wire import disagreements, observe
from tests.lab.pod import pod_and_world
from tests.lab.probe import opened_standin
from tests.lab.way import Probe

ROOT = Path(__file__).parents[2]
SPEC = RedirectSpec(
    inbound_port=4143,
    outbound_port=4140,
    proxy_uid=2102,
    proxy_gid=2150,
    skip_inbound=PortSet.of(22),
    proxy_ports=PortSet.of(4190, 4191),
    skip_outbound=PortSet.of(3306),
    skip_subnets=Subnets(("10.0.0.0/8",), ("fd99::/64",)),
    only_inbound=None,
    ipv6=True,
    local_only=True,
)


def _run(tmp_path: Path, text: str, *, name: str = "cases.md") -> dict[str, str]:
    """Line by case id of a file that is asked only of the pure core."""
    file = tmp_path / name
    file.write_text(text)
    return {outcome.id: outcome.lines()[0] for outcome in outcomes(load(file), set(), pure=True)}


def _block(text: str) -> str:
    return f"# Title\n\n```yaml\n{text}\n```\n"


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("{id: X1, pod: {anotations: {}}, effective: {}}", "unknown field `anotations` - at `$.pod`"),
        ("{id: X1, node: {inbound: 1}, effective: {}}", "unknown field `inbound` - at `$.node`"),
        ("{id: X1, effective: {colour: blue}}", "unknown field `colour` - at `$.effective`"),
        ("{id: X1, effective: {}, connections: [{dir: up, port: 1, expect: in}]}", "'up'"),
        ("{id: X1, effective: {}, connections: [{dir: in, port: 70000, expect: in}]}", "65535"),
        ("{id: X1, effective: {}, connections: [{dir: in, expect: in}]}", "tcp needs a port"),
        ("{id: X1, effective: {}, connections: [{dir: in, port: 1, from: 1.2.3, expect: in}]}", "'1.2.3'"),
        ("{id: X1, effective: {}, effective: {}}", "key 'effective' is written twice"),
        ("{id: X1, effective: {out_skip: 9-1}}", "'9-1' is no range of ports"),
    ],
)
def test_malformed_case_fails_by_name(tmp_path: Path, written: str, named: str) -> None:
    line = _run(tmp_path, _block(f"- {written}\n- {{id: X2, effective: {{}}}}"))
    assert line["X1"].startswith("FAIL X1")
    assert named in line["X1"]
    assert "cases.md block 1 (line 3)" in line["X1"]
    assert line["X2"] == "ok X2"


def test_malformed_block_does_not_hide_the_others(tmp_path: Path) -> None:
    lines = _run(tmp_path, _block("- [") + _block("- {id: X1, effective: {}}") + _block("a: b"))
    assert lines["X1"] == "ok X1"
    assert lines["cases.md block 1 (line 3)"].startswith("FAIL")
    assert "is no list of cases" in lines["cases.md block 3 (line 13)"]


def test_duplicate_id_fails(tmp_path: Path) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text("- {id: X1, effective: {}}\n- {id: X1, effective: {}}\n")
    loaded = load(file)
    assert [entry.id for entry in loaded.entries] == ["X1"]
    assert "X1 is taken by cases.yaml, case at line 1" in loaded.problems[0].message


def test_file_without_a_case_fails(tmp_path: Path) -> None:
    assert "cannot find a case" in _run(tmp_path, "# nothing\n")["cases.md"]


def test_annotations_are_text_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text("- {id: X1, pod: {annotations: {a: 010, b: 22:30, c: true, d: null, e: 1.50}}}\n")
    (entry,) = load(file).entries
    assert case(entry).pod.annotations == {"a": "010", "b": "22:30", "c": "true", "e": "1.50"}


def test_note_may_have_commas(tmp_path: Path) -> None:
    connection = "{dir: in, port: 1, expect: in, note: to itself, and back}"
    assert _run(tmp_path, _block(f"- {{id: X1, effective: {{}}, connections: [{connection}]}}"))[
        "X1"
    ].startswith("ok")


@pytest.mark.parametrize(
    ("case_text", "reason"),
    [
        ("effective: {inbound: 5143}", "inbound is 4143, expected 5143"),
        ("effective: {out_skip: 25}", "out_skip lacks 25"),
        ("effective: {in_skip: ''}", "in_skip has 4567, 4568 too many"),
        ("effective: {subnets: 10.0.0.0/8}", "subnets lacks 10.0.0.0/8"),
        ("effective: {}, pod: {hostNetwork: true}", "the pod is not redirected: HostNetwork"),
        ("effective: {}, then: [complaint ProxyUidShared]", "no complaint ProxyUidShared"),
        ("effective: {}, then: [event Foo names x]", "no reason is called Foo"),
        ("effective: {}, then: [state NotMeshed]", "state is Redirected, expected NotMeshed"),
        ("effective: {}, connections: [{dir: in, port: 80, expect: direct}]", "expected direct"),
        ("effective: {}, connections: [{dir: in, port: 80, expect: in, to_port: 1}]", "expected 1"),
        ("effective: {}, connections: [{dir: in, port: 80, expect: in, orig_dst: 'podIP:81'}]", "81"),
    ],
)
def test_wrong_expectation_fails(tmp_path: Path, case_text: str, reason: str) -> None:
    line = _run(tmp_path, _block(f"- {{id: X1, title: t, {case_text}}}"))["X1"]
    assert line.startswith("FAIL X1 t: ")
    assert reason in line


def test_named_word_must_stand_alone(tmp_path: Path) -> None:
    annotation = '{config.linkerd.io/skip-subnets: "10.0.0.0"}'
    text = f"- {{id: X1, pod: {{annotations: {annotation}}}, effective: {{}}, then: [event names 0.0.0.0]}}"
    assert "names '0.0.0.0'" in _run(tmp_path, _block(text))["X1"]


@pytest.mark.parametrize(
    ("installed", "probe"),
    [
        ({"inbound_port": 5143}, Probe(direction="in", port=80)),
        ({"outbound_port": 5140}, Probe(direction="out", port=80)),
        ({"proxy_uid": 1000}, Probe(direction="out", port=80)),
        ({"proxy_uid": 1000}, Probe(direction="out", port=80, uid=2102)),
        ({"proxy_gid": None}, Probe(direction="out", port=80, gid=2150)),
        ({"skip_inbound": PortSet()}, Probe(direction="in", port=22)),
        ({"skip_outbound": PortSet.of(80)}, Probe(direction="out", port=80)),
        ({"skip_subnets": Subnets()}, Probe(direction="in", port=80, source="10.9.9.9")),
        ({"skip_subnets": Subnets()}, Probe(direction="in", port=80, family=6, source="fd99::9")),
        ({"only_inbound": PortSet.of(81)}, Probe(direction="in", port=80)),
        ({"ipv6": False}, Probe(direction="out", port=80, family=6)),
        ({"local_only": False}, Probe(direction="in", port=80, destination="172.17.0.9")),
    ],
)
def test_kernel_that_does_otherwise_is_noticed(installed: dict[str, object], probe: Probe) -> None:
    with (
        contextlib.closing(Datapath()) as datapath,
        pod_and_world() as pod,
        datapath.opened(pod.path) as nft,
        opened_standin(pod) as standin,
    ):
        datapath.install(nft, SPEC)
        assert not disagreements(observe(pod, standin, nft, SPEC, probe), SPEC, probe)
        datapath.install(nft, msgspec.structs.replace(SPEC, **installed))
        assert disagreements(observe(pod, standin, nft, SPEC, probe), SPEC, probe)


def test_command_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.md"
    file.write_text(
        _block("- {id: X1, title: good, effective: {}}\n- {id: X2, steps: [x]}\n- {id: X3, x: y}")
    )
    lines, status = _command(str(file), "--pure")
    assert (status, lines[0], lines[1]) == (1, "ok X1 good", "skip X2: no procedure for this id")
    assert lines[2].startswith("FAIL X3: ")
    assert lines[-1] == "1 passed, 1 failed, 1 skipped"
    lines, status = _command(str(file), "--pure", "--only", "X1", "X2")
    assert (status, lines[-1]) == (0, "1 passed, 0 failed, 1 skipped")
    lines, status = _command(str(file), "--pure", "--only", "X4")
    assert (status, lines[0]) == (1, "FAIL X4: cannot find a case of this id")


def _command(*arguments: str) -> tuple[list[str], int]:
    command = [sys.executable, "-m", "tests.cases", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines(), done.returncode


@pytest.mark.parametrize(
    "case_text",
    [
        "node: {inbound-ports-to-ignore: [4190, '4191', 4567-4568]}, effective: {}",
        "effective: {in_skip: '4190,4191,4567,4568'}",
        "pod: {containers: [{name: linkerd-proxy, securityContext: {runAsUser: 9}}]}, effective: {uid: 9}",
        "pod: {securityContext: {runAsUser: 3000}}, effective: {uid: 3000}",
        "pod: {initContainers: [{name: linkerd-proxy}], containers: [{name: app}]}, effective: {}",
        "effective: {}, pod: {podIPs: [1.0.0.5]}, connections: [{dir: in, port: 1, to: 1.0.0.5, expect: in}]",
        "effective: {}, connections: [{dir: out, port: 53, proto: TCP, expect: out}]",
        "effective: {}, connections: [{dir: out, port: 80, to: 0.0.0.0, expect: direct}]",
        "title: 2026-01-01, note: yes, effective: {}",
    ],
)
def test_words_of_kubernetes_and_of_linkerd_cni_are_understood(tmp_path: Path, case_text: str) -> None:
    assert _run(tmp_path, _block(f"- {{id: X1, {case_text}}}"))["X1"].startswith("ok X1")


def test_two_addresses_of_one_family_are_refused(tmp_path: Path) -> None:
    line = _run(tmp_path, _block("- {id: X1, pod: {podIP: [10.0.0.1, 10.0.0.2]}, effective: {}}"))["X1"]
    assert "one address of each family" in line


def test_pod_that_is_not_redirected_keeps_its_connections_direct(tmp_path: Path) -> None:
    excluded = "pod: {containers: [{name: app}]}, connections: [{dir: out, port: 80, expect: %s}]"
    text = f"- {{id: X1, {excluded % 'direct'}}}\n- {{id: X2, {excluded % 'out'}}}"
    lines = _run(tmp_path, _block(text))
    assert lines["X1"] == "ok X1 (1 connections)"
    assert "it is direct, since the pod is not redirected: NotMeshed" in lines["X2"]


@pytest.mark.parametrize(
    ("pod", "sentence", "status"),
    [
        ("{containers: [{name: app}]}", "state notMeshed", "ok"),
        ("{containers: [{name: app}]}", "no table in the netns", "ok"),
        ("{hostNetwork: true}", "no table in the netns", "ok"),
        ("{}", "no table in the netns", "FAIL"),
        ("{containers: [{name: app}]}", "state redirected", "FAIL"),
        ("{}", "all is well", "skip"),
    ],
)
def test_unknown_id_is_judged_by_what_its_sentences_say(
    tmp_path: Path, pod: str, sentence: str, status: str
) -> None:
    file = tmp_path / "cases.md"
    file.write_text(_block(f"- {{id: X1, pod: {pod}, then: [{sentence}]}}"))
    for pure in (True, False):
        assert [each.status for each in outcomes(load(file), set(), pure=pure)] == [status]


def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    levels = (f"- &l{n + 1} {{title: [{', '.join([f'*l{n}'] * 9)}]}}" for n in range(9))
    text = "\n".join(("- &l0 {title: x}", *levels, "- {id: X1, then: [*l9]}", "- {id: X2, effective: {}}"))
    lines = _run(tmp_path, _block(text))
    assert "with its aliases written out" in lines["X1"]
    assert lines["X2"] == "ok X2"


def test_byte_order_mark_hides_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, "\ufeff```yaml\n- {id: X1, effective: {}}\n```\n")["X1"] == "ok X1"


def test_what_is_printed_has_no_control_characters(tmp_path: Path) -> None:
    assert _run(tmp_path, _block('- {id: X1, title: "\\e[31m", effective: {}}'))["X1"] == "ok X1 \\x1b[31m"


def test_unreadable_file_fails_with_totals(tmp_path: Path) -> None:
    (tmp_path / "binary.md").write_bytes(bytes(range(256)))
    for name in ("binary.md", "missing.md", "."):
        lines, status = _command(str(tmp_path / name), "--pure")
        assert (status, lines[-1]) == (1, "0 passed, 1 failed, 0 skipped")
        assert "cannot read" in lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_nothing_is_left_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.cases", str(Path(__file__).with_name("redirection.md"))]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith("ok P05"):  # P06 is next: an agent process and two namespaces
            break
    time.sleep(0.7)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert not list(Path("/run/netns").glob(f"pm-{process.pid}-*"))
