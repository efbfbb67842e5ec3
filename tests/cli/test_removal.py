"""`cleanup` and `uninstall`, with a running agent and without."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli import client
from agent.cli.client import RefusedError
from tests.cli.conftest import Cli, answer
from tests.lab.agent import Agent, agent, pod_manifest
from tests.linkerd_init import COMMANDS, COMPLETE, INBOUND_ONLY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

INIT: dict[str, Any] = {
    "initContainers": [{"name": "linkerd-init"}],
    "status": {"initContainerStatuses": [{"name": "linkerd-init", "state": {"terminated": {"exitCode": 0}}}]},
}
"""A pod whose linkerd-init has ended well."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Agent]:
    with agent(tmp_path) as one:
        yield one


def run(netns: str, *command: str) -> str:
    argv = ["ip", "netns", "exec", netns, *command]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def init(netns: str, binary: str = "iptables-nft", count: int = COMPLETE) -> None:
    for command in COMMANDS(binary)[:count]:
        run(netns, *command)


def ruleset(netns: str) -> str:
    return run(netns, "nft", "list", "ruleset")


def redirected(node: Agent, netns: str, **fields: Any) -> None:
    node.put(pod_manifest("web", netns, namespace="shop", **fields))
    node.wait_reason("shop/web", "Redirected")


def test_leftovers_are_listed_and_go_only_on_yes(cli: Cli, node: Agent, netns: str) -> None:
    init(netns, count=INBOUND_ONLY)
    run(netns, "iptables-nft", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "--dport", "7", "-j", "RETURN")
    redirected(node, netns, **INIT)

    listed = cli("cleanup", "shop/web", "--run-dir", node.run_dir)
    there = ruleset(netns)
    cleaned = cli("cleanup", "shop/web", "--yes", "--run-dir", node.run_dir, "-o", "json")
    again = cli("cleanup", "--all", "--yes", "--run-dir", node.run_dir)

    assert listed.exit_code == 0
    assert "there is linkerd-init IPv4 (nft), inboundOnly: chains PROXY_INIT_REDIRECT" in listed.stdout
    assert "add --yes" in listed.stderr
    assert "PROXY_INIT_REDIRECT" in there
    (found,) = answer(cleaned)
    assert (cleaned.exit_code, found["takeover"], found["error"]) == (0, False, "")
    assert found["removed"] == ["nft table ip nat chain PROXY_INIT_REDIRECT"]
    left = ruleset(netns)
    assert "PROXY_INIT" not in left
    assert "tcp dport 7" in left
    assert "redirect to :4143" in left
    assert (again.exit_code, again.stderr) == (0, "No leftovers of linkerd-init found.\n")
    assert "LeftoverRules" not in [one["reason"] for one in node.pod("shop/web")["status"]["complaints"]]


@pytest.mark.parametrize("binary", ["iptables-nft", "iptables-legacy"])
def test_complete_rules_are_taken_over(cli: Cli, node: Agent, netns: str, binary: str) -> None:
    init(netns, binary)
    node.put(pod_manifest("web", netns, namespace="shop", **INIT))
    node.wait_reason("shop/web", "RedirectedByIptables")

    explained = cli("explain", "shop/web", "--out", "10.0.0.7:80", "--run-dir", node.run_dir)
    listed = cli("cleanup", "--all", "--run-dir", node.run_dir)
    untouched = node.reason("shop/web")
    cleaned = answer(cli("cleanup", "--all", "--yes", "--run-dir", node.run_dir, "-o", "json"))

    assert "shop/web (taken over from linkerd-init)" in listed.stdout
    assert explained.exit_code == 0
    assert "kernel: linkerd-init's rules decide" in explained.stdout
    assert untouched == "RedirectedByIptables"
    (found,) = cleaned
    assert (found["takeover"], found["error"], len(found["removed"])) == (True, "", 2)
    status = node.pod("shop/web")["status"]
    assert (status["reason"], status["mode"]) == ("Redirected", "nftables")
    assert "LeftoverRules" not in [one["reason"] for one in status["complaints"]]
    assert "InitResultMismatch" not in [line["complaint"] for line in node.events("complaint")]
    assert "redirect to :4140" in ruleset(netns)
    assert "PROXY_INIT" not in run(netns, f"{binary}-save", "-t", "nat")


def test_nothing_is_cleaned_up_where_ours_is_not_verified(cli: Cli, tmp_path: Path, netns: str) -> None:
    init(netns, count=INBOUND_ONLY)
    with agent(tmp_path, "--observe") as observer:
        observer.put(pod_manifest("web", netns, namespace="shop", **INIT))
        observer.wait_reason("shop/web", "ObservedOnly")
        named = cli("cleanup", "shop/web", "--yes", "--run-dir", observer.run_dir)
        missing = cli("cleanup", "shop/none", "--yes", "--run-dir", observer.run_dir)

    assert named.exit_code == 1
    assert "cannot clean up shop/web: no verified rules of ours are in it (ObservedOnly)" in named.stderr
    assert missing.exit_code == 1
    assert "cannot find pod shop/none" in missing.stderr
    assert "PROXY_INIT_REDIRECT" in ruleset(netns)


def test_an_observer_takes_nothing_over(cli: Cli, tmp_path: Path, netns: str) -> None:
    init(netns)
    with agent(tmp_path, "--observe") as observer:
        observer.put(pod_manifest("web", netns, namespace="shop", **INIT))
        observer.wait_reason("shop/web", "RedirectedByIptables")
        result = cli("cleanup", "shop/web", "--yes", "--run-dir", observer.run_dir)

    assert result.exit_code == 1
    assert "cannot clean up shop/web: this agent does not write" in result.stderr
    assert "PROXY_INIT_OUTPUT" in ruleset(netns)


def test_the_agent_itself_refuses_where_ours_do_not_redirect(node: Agent, netns: str) -> None:
    """Whatever a client has looked at before: a drained pod has only linkerd-init's rules to redirect it."""
    init(netns)
    redirected(node, netns)
    node.put(pod_manifest("web", netns, namespace="shop", annotations={"pointsman.io/redirect": "disabled"}))
    node.wait_reason("shop/web", "Draining")

    with pytest.raises(RefusedError, match=r"not redirected by verified rules of ours \(Draining"):
        client.Agent(node.run_dir).cleanup("shop/web")

    assert "PROXY_INIT_OUTPUT" in ruleset(netns)


@pytest.mark.parametrize("arguments", [(), ("a/b", "--all")])
def test_cleanup_needs_to_know_where(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli("cleanup", *arguments)

    assert result.exit_code == 2
    assert "name NAMESPACE/POD, or --all" in result.stderr


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_uninstall_says_that_rules_stay(cli: Cli, tmp_path: Path, yes: tuple[str, ...]) -> None:
    result = cli("uninstall", *yes, "--run-dir", tmp_path)
    document = cli("uninstall", *yes, "--run-dir", tmp_path, "-o", "json")
    early = cli("uninstall", *yes, "--wait", "3", "--run-dir", tmp_path)

    assert result.exit_code == 0
    assert "nothing is to be done" in result.stdout
    assert "The rules stay in running pods" in result.stdout
    assert set(map(len, answer(document).values())) == {0}
    assert early.exit_code == 2
    assert "cannot use --wait without --remove-rules" in early.stderr


def test_uninstall_through_the_agent(cli: Cli, node: Agent, netns: str) -> None:
    redirected(node, netns)

    asked = cli("uninstall", "--remove-rules", "--run-dir", node.run_dir)
    still = node.reason("shop/web")
    drained = cli("uninstall", "--remove-rules", "--yes", "--run-dir", node.run_dir)
    table = ruleset(netns)
    removed = cli(
        "uninstall", "--remove-rules", "--yes", "--wait", "0.1", "--run-dir", node.run_dir, "-o", "json"
    )

    assert asked.exit_code == 2
    assert "shop/web: redirects to the proxy" in asked.stdout
    assert "With --yes, new connections of these go in clear text" in asked.stderr
    assert still == "Redirected"
    assert drained.exit_code == 0
    assert "shop/web: drained" in drained.stdout
    assert "Stop the agent now" in drained.stderr
    assert "redirect to" not in table
    assert "ct state new return" in table
    assert removed.exit_code == 0
    assert "still live then are reset" in removed.stderr
    assert {what: names for what, names in answer(removed).items() if names} == {"removed": ["shop/web"]}
    assert "pointsman" not in ruleset(netns)


def test_uninstall_in_the_place_of_an_agent(cli: Cli, tmp_path: Path, netns: str, netns_dir: Path) -> None:
    with agent(tmp_path) as gone:
        redirected(gone, netns)
        gone.stop()
    place = ("--run-dir", gone.run_dir, "--netns-dir", netns_dir)

    asked = cli("uninstall", "--remove-rules", *place)
    drained = cli("uninstall", "--remove-rules", "--yes", *place, "-o", "json")
    table = ruleset(netns)
    removed = cli("uninstall", "--remove-rules", "--yes", "--wait", "0.1", *place)
    again = cli("uninstall", "--remove-rules", "--yes", *place)

    path = str(netns_dir / netns)
    assert asked.exit_code == 2
    assert f"{path}: redirects to the proxy" in asked.stdout
    assert (drained.exit_code, answer(drained)["drained"], answer(drained)["draining"]) == (0, [path], [path])
    assert "redirect to" not in table
    assert "ct state new return" in table
    assert removed.exit_code == 0
    assert f"{path}: removed" in removed.stdout
    assert "pointsman" not in ruleset(netns)
    assert (again.exit_code, "No rules of ours found." in again.stderr) == (0, True)


def test_uninstall_knows_pods_by_their_manifests(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path) as gone:
        redirected(gone, netns)
        gone.kill()
    (gone.manifests / "broken.yaml").write_text("a: [")

    result = cli(
        "uninstall",
        "--remove-rules",
        "--yes",
        "--run-dir",
        gone.run_dir,
        "--source",
        f"files:{gone.manifests}",
    )

    assert result.exit_code == 0
    assert "shop/web: drained" in result.stdout
    assert f"cannot use {gone.manifests / 'broken.yaml'}" in result.stderr
    assert "redirect to" not in ruleset(netns)


def test_nothing_is_uninstalled_beside_a_writer_that_does_not_answer(
    cli: Cli, node: Agent, netns: str, netns_dir: Path
) -> None:
    redirected(node, netns)
    (node.run_dir / "agent.sock").unlink()

    result = cli("uninstall", "--remove-rules", "--yes", "--run-dir", node.run_dir, "--netns-dir", netns_dir)

    assert result.exit_code == 1
    assert f"process {node.pid} holds it, and does not answer" in result.stderr
    assert "redirect to :4140" in ruleset(netns)


def test_a_table_that_a_live_process_owns_is_reported(
    cli: Cli, node: Agent, tmp_path: Path, netns: str, netns_dir: Path
) -> None:
    """The agent of another run directory: the kernel refuses, whoever holds our own lock."""
    redirected(node, netns)
    if not node.state()["ownedTables"]:
        pytest.skip("this kernel has no owned tables")
    other = tmp_path / "other"

    result = cli(
        "uninstall", "--remove-rules", "--yes", "--run-dir", other, "--netns-dir", netns_dir, "-o", "json"
    )

    assert result.exit_code == 1
    found = answer(result)
    path = str(netns_dir / netns)
    assert (found["left"], found["drained"]) == ([path], [])
    assert "owns it" in found["failed"][path]
    assert "redirect to :4140" in ruleset(netns)
