"""How pods came, told apart by `redirections` and `explain`."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cases.stories.node import sandbox
from tests.cli.conftest import Cli, answer
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.cni import arguments, ask, conf, environment
from tests.lab.pod import pod_and_world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

UID = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c11"
CONTAINER = "3f9a51c07be2d48f90aa17c3d5b6e8f0"


def add(one: Agent, netns: str) -> None:
    call = environment("ADD", CONTAINER, f"/run/netns/{netns}", arguments("web", uid=UID))
    assert ask(one.run_dir / "cni.sock", call, conf()) is None


def told(cli: Cli, one: Agent) -> tuple[Any, str, list[str]]:
    """The only pod's row, the sentence of `explain`, and its wide line after the namespace's path."""
    (row,) = answer(cli("redirections", "--run-dir", one.run_dir, "-o", "json"))
    found = answer(cli("explain", "default/web", "--run-dir", one.run_dir, "-o", "json"))["arrival"]
    assert (found["way"], found["container"]) == (row["came"], row["container"])
    text = " ".join(cli("explain", "default/web", "--run-dir", one.run_dir).stdout.split())
    assert found["sentence"] in text
    head, line = cli("redirections", "--run-dir", one.run_dir, "-o", "wide").stdout.splitlines()
    assert head.split()[9:11] == ["CAME", "CONTAINER"]
    return row, found["sentence"], line.split()[9:11]


def test_a_pod_that_waited_at_the_gate(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMissing")
        before = told(cli, one)
        add(one, netns)
        row, sentence, cells = told(cli, one)
        table = cli("redirections", "--run-dir", one.run_dir).stdout
        one.kill()
        one.start()
        again, _, _ = told(cli, one)
        assert one.pod("default/web")["netnsFrom"] == "cni"

    assert (before[0]["came"], before[1]) == ("", "nobody has told where its network namespace is")
    assert before[2] == ["-", "-"]
    assert (row["came"], row["container"], row["letThrough"]) == ("cni", CONTAINER, False)
    assert sentence == (
        f"came by CNI, as container {CONTAINER}: nothing in it started before we had answered"
    )
    assert cells == ["cni", CONTAINER[:13]]
    assert table.splitlines()[0].split() == [
        "NAMESPACE", "NAME", "PHASE", "REASON", "MODE", "SINCE", "DRIFTS"
    ]  # fmt: skip
    assert again["came"] == "cni"


def test_a_pod_that_was_let_through(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.2") as one:
        add(one, netns)
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "Redirected")
        row, sentence, cells = told(cli, one)

    assert (row["came"], row["container"], row["letThrough"]) == ("let-through", CONTAINER, True)
    assert row["exposedS"] >= 0.2
    assert sentence == (
        f"let through by CNI, as container {CONTAINER}, since its source did not know it; it had run "
        f"{row['exposedS']:.1f} s without rules when it got them"
    )
    assert cells == ["let-through", CONTAINER[:13]]


def test_a_pod_that_was_let_through_and_waits_for_its_rules(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        call = environment("ADD", CONTAINER, f"/proc/{os.getpid()}/ns/net", arguments("web", uid=UID))
        assert ask(one.run_dir / "cni.sock", call, conf()) is None
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMismatch")
        row, sentence, _ = told(cli, one)

    assert row["letThrough"]
    assert sentence.endswith("since its source did not know it; it is not redirected yet")


def test_a_pod_that_its_manifest_names(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", netns))
        one.wait_reason("default/web", "Redirected")
        row, sentence, cells = told(cli, one)

    assert (row["came"], row["container"], row["letThrough"]) == ("manifest", "", False)
    assert sentence == "its manifest names its network namespace; CNI did not tell of it"
    assert cells == ["manifest", "-"]


def test_a_pod_that_was_found_in_proc(cli: Cli, tmp_path: Path) -> None:
    with pod_and_world() as pod, sandbox(UID, pod.name), agent(tmp_path) as one:
        one.put(pod_manifest("web", uid=UID, status={"podIP": pod.address[4], "phase": "Running"}))
        one.wait_reason("default/web", "Redirected")
        row, sentence, cells = told(cli, one)

    assert (row["came"], row["container"]) == ("proc", "")
    assert sentence.startswith("found in /proc, since CNI did not tell of it")
    assert sentence.endswith(f"it had run {row['exposedS']:.1f} s without rules when it got them")
    assert cells == ["proc", "-"]
