"""`pointsman uninstall`, about the node's CNI configuration."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cni.directory import Directory
from agent.core.chain import TYPE
from tests.cli.conftest import Cli, answer
from tests.cni.confs import CALICO, CILIUM, Node
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.netns import inside, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs an agent: run as root")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.put("10-calico.conflist", CALICO)
    return made


@pytest.fixture
def keeper(tmp_path: Path, node: Node) -> Iterator[Agent]:
    """An agent that keeps shim and entry."""
    shim = ("--shim", str(node.shim))
    with agent(tmp_path, "--install-cni", *map(str, place(node)), *shim) as one:
        yield one


def place(node: Node) -> tuple[object, ...]:
    return "--conf-dir", node.conf_dir, "--bin-dir", node.bin_dir


def chained(node: Node) -> bool:
    return node.used()[1][-1] == TYPE and (node.bin_dir / TYPE).exists()


def test_in_the_place_of_an_agent(cli: Cli, node: Node, tmp_path: Path) -> None:
    node.installer().install()
    conf, shim = node.conf_dir / "10-calico.conflist", node.bin_dir / TYPE
    where = ("--run-dir", tmp_path, *place(node))

    asked = cli("uninstall", *where)
    there = chained(node)
    done = cli("uninstall", "--yes", *where)
    again = cli("uninstall", "--yes", *where)

    assert asked.exit_code == 2
    assert asked.stdout.splitlines() == [
        f"{conf}: has our entry, by which new pods come",
        f"{shim}: is the shim, which our entry names",
    ]
    assert "Nothing was changed. With --yes, pods that start from then on do not come by us." in asked.stderr
    assert there
    assert done.exit_code == 0
    assert done.stdout.splitlines()[:2] == [f"{conf}: our entry is out", f"{shim}: removed"]
    assert "The rules stay in running pods" in done.stdout
    assert "Stop the agent" not in done.stderr
    assert (conf.read_text(), shim.exists()) == (CALICO, False)
    assert again.exit_code == 0
    assert "nothing is to be done" in again.stdout


def test_json(cli: Cli, node: Node, tmp_path: Path) -> None:
    node.put("05-cilium.conf", CILIUM)
    node.installer().install()
    where = ("--run-dir", tmp_path, *place(node), "-o", "json")

    asked, done = cli("uninstall", *where), cli("uninstall", "--yes", *where)

    files = [str(node.conf_dir / "05-cilium-pointsman.conflist"), str(node.bin_dir / TYPE)]
    assert (answer(asked)["chained"], answer(asked)["unchained"], asked.exit_code) == (files, [], 2)
    assert (answer(done)["chained"], answer(done)["unchained"], done.exit_code) == ([], files, 0)
    assert "The rules stay" in done.stderr
    assert node.files() == {"05-cilium.conf": CILIUM, "10-calico.conflist": CALICO}


def test_an_environment_variable_is_no_consent(
    cli: Cli, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_YES", "1")
    node.installer().install()

    assert cli("uninstall", "--run-dir", tmp_path, *place(node)).exit_code == 2
    assert chained(node)


def test_through_the_agent_that_keeps_it(cli: Cli, keeper: Agent, node: Node) -> None:
    where = ("--run-dir", keeper.run_dir, *place(node))

    asked = cli("uninstall", *where)
    there = chained(node)
    done = cli("uninstall", "--yes", *where)
    (node.conf_dir / "10-calico.conflist").write_text(CALICO + "\n")  # wakes the watch
    keeper.wait(lambda: keeper.state()["cni"]["left"], "the agent's own word")
    ready = keeper.state()["notReady"]

    assert (asked.exit_code, there) == (2, True)
    assert done.exit_code == 0
    assert f"{node.conf_dir / '10-calico.conflist'}: our entry is out" in done.stdout
    assert "Stop the agent now: when it starts anew, it installs again." in done.stderr
    assert ready == []
    assert (node.used()[1], (node.bin_dir / TYPE).exists()) == (["calico", "portmap"], False)
    keeper.stop()
    keeper.start()
    assert chained(node)


def test_with_the_rules(cli: Cli, keeper: Agent, node: Node, netns: str) -> None:
    keeper.put(pod_manifest("web", netns, namespace="shop"))
    keeper.wait_reason("shop/web", "Redirected")
    where = ("--run-dir", keeper.run_dir, *place(node))

    asked = cli("uninstall", "--remove-rules", *where)
    there = chained(node), keeper.reason("shop/web")
    done = cli("uninstall", "--remove-rules", "--yes", *where)

    assert asked.exit_code == 2
    assert "shop/web: redirects to the proxy" in asked.stdout
    assert (
        "With --yes, new connections of these go in clear text, and pods that start from then on do not come "
        "by us."
    ) in asked.stderr
    assert there == (True, "Redirected")
    assert done.exit_code == 0
    assert [line.partition(": ")[2].partition(":")[0] for line in done.stdout.splitlines()] == [
        "our entry is out",
        "removed",
        "drained",
        "holds a drain table, which ends with the pod, or by --wait",
    ]
    assert "it redirects again" in done.stderr
    assert keeper.reason("shop/web") == "Draining"
    assert node.used()[1] == ["calico", "portmap"]
    assert "redirect to" not in inside(netns, lambda: run("nft", "list", "ruleset"))


def test_other_directories_than_the_agents_are_refused(
    cli: Cli, keeper: Agent, node: Node, tmp_path: Path
) -> None:
    result = cli("uninstall", "--yes", "--run-dir", keeper.run_dir, "--conf-dir", tmp_path / "other")

    assert result.exit_code == 2
    assert f"the running agent keeps {node.conf_dir}; leave it out" in result.stderr
    assert chained(node)


def test_without_flags_the_agents_directories_count(
    cli: Cli, keeper: Agent, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POINTSMAN_CONF_DIR")
    monkeypatch.delenv("POINTSMAN_BIN_DIR")

    result = cli("uninstall", "--run-dir", keeper.run_dir)

    assert result.exit_code == 2
    assert f"{node.conf_dir / '10-calico.conflist'}: has our entry" in result.stdout
    assert chained(node)


def test_another_process_that_would_put_it_back(cli: Cli, node: Node, tmp_path: Path) -> None:
    """`install-cni --watch`, or an agent that does not answer here."""
    node.installer().install()
    with Directory(node.bin_dir) as watching:
        assert watching.try_lock()
        result = cli("uninstall", "--yes", "--run-dir", tmp_path, *place(node))

    assert result.exit_code == 1
    assert (
        f"cannot take our entry out of {node.conf_dir}: a running process would put it back" in result.stderr
    )
    assert "end it first" in result.stderr
    assert chained(node)


def test_an_agent_that_looks_on_does_not_take_it_from_the_one_that_keeps_it(
    cli: Cli, keeper: Agent, node: Node, tmp_path: Path, netns: str
) -> None:
    keeper.put(pod_manifest("web", netns, namespace="shop"))
    keeper.wait_reason("shop/web", "Redirected")
    flags = ("--install-cni", *map(str, place(node)), "--shim", str(node.shim))
    with agent(tmp_path, *flags, name="successor"):
        result = cli("uninstall", "--remove-rules", "--yes", "--run-dir", keeper.run_dir, *place(node))
        assert keeper.running

    assert result.exit_code == 1
    assert "another process keeps it; end that one, and try again" in result.stderr
    assert chained(node)
    assert "redirect to" in inside(netns, lambda: run("nft", "list", "ruleset"))


def test_what_cannot_be_taken_out_is_named_and_the_shim_stays(cli: Cli, node: Node, tmp_path: Path) -> None:
    node.installer().install()
    conf = node.conf_dir / "10-calico.conflist"
    conf.write_text(conf.read_text()[:-5])

    result = cli("uninstall", "--yes", "--run-dir", tmp_path, *place(node))

    assert result.exit_code == 1
    assert "cannot take our entry out of 10-calico.conflist" in result.stderr
    assert "take it out by hand" in result.stderr
    assert (node.bin_dir / TYPE).exists()
