"""The commands that ask a running agent, against real namespaces."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.report import MARKS
from agent.core.reasons import MEANINGS, Reason
from tests.cli.conftest import Cli, answer
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.netns import inside

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Agent]:
    with agent(tmp_path) as one:
        yield one


@pytest.fixture
def web(node: Agent, netns: str) -> str:
    """Pod shop/web in the namespace, redirected."""
    node.put(pod_manifest("web", netns, namespace="shop"))
    node.wait_reason("shop/web", "Redirected")
    return "shop/web"


def nft(netns: str, command: str) -> str:
    argv = ["ip", "netns", "exec", netns, "nft", command]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def listen(netns: str, *ports: int) -> list[socket.socket]:
    """Listeners in the namespace, as a proxy has them."""

    def opened() -> list[socket.socket]:
        return [socket.create_server(("0.0.0.0", port)) for port in ports]

    return inside(netns, opened)


def checks(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The last check of each description, by the description's first words."""
    return {check["description"]: check for one in report["categories"] for check in one["checks"]}


def test_redirections_in_three_forms(cli: Cli, node: Agent, web: str, netns: str) -> None:
    node.put(pod_manifest("plain", namespace="other", meshed=False))
    node.wait_reason("other/plain", "NotMeshed")

    table = cli("redirections", "--run-dir", node.run_dir)
    wide = cli("redirections", "--run-dir", node.run_dir, "-o", "wide")
    rows = answer(cli("redirections", "--run-dir", node.run_dir, "-o", "json"))
    shop = cli("redirections", "--run-dir", node.run_dir, "-n", "shop")
    nobody = cli("redirections", "--run-dir", node.run_dir, "-n", "nobody")

    assert table.exit_code == 0
    head, plain, ours = (line.split() for line in table.stdout.splitlines())
    assert head == ["NAMESPACE", "NAME", "PHASE", "REASON", "MODE", "SINCE", "DRIFTS"]
    assert plain[:5] == ["other", "plain", "Excluded", "NotMeshed", "-"]
    assert ours[:5] == ["shop", "web", "Applied", "Redirected", "nftables"]
    assert wide.stdout.splitlines()[0].split()[7:] == [
        "UID", "NETNS", "CAME", "CONTAINER", "HOW", "INSTALL_MS", "CULPRIT", "COMPLAINTS", "IN", "OUT",
        "ASKS",
    ]  # fmt: skip
    assert f"/run/netns/{netns}" in wide.stdout
    assert [row["name"] for row in rows] == ["plain", "web"]
    assert rows[1]["installMs"] > 0
    assert rows[1]["connections"]["out_redirect"] == 0
    assert len(shop.stdout.splitlines()) == 2
    assert (nobody.stdout, nobody.stderr, nobody.exit_code) == ("", "No pods found.\n", 0)


def test_a_failed_pod_makes_redirections_and_check_fail(cli: Cli, node: Agent, web: str, netns: str) -> None:
    node.put(pod_manifest("twin", netns, namespace="shop"))
    node.wait_reason("shop/twin", "NetnsMismatch")

    listed = cli("redirections", "--run-dir", node.run_dir)
    explained = cli("explain", "shop/twin", "--run-dir", node.run_dir, "-o", "json")
    report = answer(cli("check", "--run-dir", node.run_dir, "-o", "json"))

    assert listed.exit_code == 1
    assert explained.exit_code == 1
    assert answer(explained)["kernel"]["equal"] is False
    assert "correct the annotation" in answer(explained)["kernel"]["remedy"]
    failure = checks(report)["all meshed pods are redirected (1 of 2)"]
    assert failure["result"] == "error"
    assert failure["error"].startswith("shop/twin: Failed (NetnsMismatch): ")
    explained = cli("explain", "shop/twin", "--run-dir", node.run_dir)
    assert (explained.exit_code, "times in a row; it is tried again" in explained.stdout) == (1, True)
    assert failure["hint"] == MEANINGS[Reason.NETNS_MISMATCH].remedy


def test_explain_reads_the_kernel_and_the_listeners(cli: Cli, node: Agent, web: str, netns: str) -> None:
    deaf = answer(cli("explain", web, "--out", "10.0.0.7:80", "--run-dir", node.run_dir, "-o", "json"))
    opened = listen(netns, 4140, 4143)
    try:
        heard = answer(cli("explain", web, "--out", "10.0.0.7:80", "--run-dir", node.run_dir, "-o", "json"))
        text = cli("explain", web, "--run-dir", node.run_dir).stdout
    finally:
        for one in opened:
            one.close()

    assert deaf["kernel"]["proxyListens"] is False
    assert [one["subject"] for one in deaf["answer"]["complaints"]] == ["outbound port 4140"]
    assert heard["kernel"]["proxyListens"] is True
    assert heard["answer"]["complaints"] == []
    assert (heard["answer"]["verdict"], heard["answer"]["port"]) == ("redirected", 4140)
    assert heard["kernel"]["equal"] is True
    assert "kernel: the table is as these settings say, read back just now" in text
    assert "proxy: listens on 4143 and 4140" in text
    assert "outbound_port   4140" in text


def test_explain_knows_the_addresses_of_the_namespace(cli: Cli, node: Agent, web: str, netns: str) -> None:
    subprocess.run(["ip", "-n", netns, "addr", "add", "10.7.7.7/32", "dev", "lo"], check=True)

    found = answer(cli("explain", web, "--out", "10.7.7.7:80", "--run-dir", node.run_dir, "-o", "json"))

    assert found["answer"]["rule"] == "out-lo"


def test_explain_names_a_chain_that_decides_before_ours(cli: Cli, node: Agent, web: str, netns: str) -> None:
    nft(netns, "add table inet early")
    nft(netns, "add chain inet early output { type nat hook output priority -110; }")
    nft(netns, "add rule inet early output tcp dport 80 redirect to :9")
    node.wait(lambda: "early" in json.dumps(node.pod(web)["status"]["complaints"]), "complaint")

    result = cli("explain", web, "--out", "10.0.0.7:80", "--run-dir", node.run_dir, "-o", "json")
    report = answer(cli("check", "--run-dir", node.run_dir, "-o", "json"))

    assert answer(result)["kernel"]["shadowedBy"] == ["table inet early chain output"]
    assert "Shadowed" in [one["reason"] for one in answer(result)["answer"]["complaints"]]
    assert checks(report)["no chain of others decides before our rules"]["result"] == "error"


def test_explain_without_a_writer_says_what_differs(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path, "--observe") as observer:
        observer.put(pod_manifest("web", netns, namespace="shop"))
        observer.wait_reason("shop/web", "ObservedOnly")

        said = cli("explain", "shop/web", "--out", "10.0.0.1:80", "--run-dir", observer.run_dir).stdout
        result = cli("explain", "shop/web", "--run-dir", observer.run_dir, "-o", "json")
        report = answer(cli("check", "--run-dir", observer.run_dir, "-o", "json"))
        nothing = cli("uninstall", "--remove-rules", "--yes", "--run-dir", observer.run_dir)

    assert result.exit_code == 1
    assert "redirected to the proxy's outbound port 4140, once its rules are in force" in said
    assert answer(result)["kernel"]["equal"] is False
    assert checks(report)["the agent writes pods' rules"]["result"] == "warning"
    assert nothing.exit_code == 0
    assert "No rules of ours found." in nothing.stderr


def test_uninstall_is_refused_by_an_agent_that_only_compares(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path) as writer:
        writer.put(pod_manifest("web", netns, namespace="shop"))
        writer.wait_reason("shop/web", "Redirected")
        writer.stop()
    with agent(tmp_path, "--observe") as observer:
        refused = cli("uninstall", "--remove-rules", "--yes", "--run-dir", observer.run_dir)

    assert refused.exit_code == 1
    assert "this agent only compares" in refused.stderr


def test_explain_of_a_pod_that_is_not_there(cli: Cli, node: Agent) -> None:
    result = cli("explain", "shop/none", "--run-dir", node.run_dir)

    assert result.exit_code == 1
    assert "cannot find pod shop/none on this node" in result.stderr


def test_a_drained_pod_is_direct(cli: Cli, node: Agent, web: str, netns: str) -> None:
    node.put(pod_manifest("web", netns, namespace="shop", annotations={"pointsman.io/redirect": "disabled"}))
    node.wait_reason(web, "Draining")

    result = cli("explain", web, "--out", "10.0.0.7:80", "--run-dir", node.run_dir, "-o", "json")

    assert result.exit_code == 0
    assert answer(result)["answer"]["verdict"] == "direct"
    assert "(Draining)" in answer(result)["answer"]["why"]


def test_check_finds_everything_right(cli: Cli, node: Agent, web: str, netns: str, netns_dir: Path) -> None:
    opened = listen(netns, 4140, 4143)
    try:
        cli("explain", web, "--run-dir", node.run_dir)
        result = cli("check", "--run-dir", node.run_dir, "--netns-dir", netns_dir, "-o", "json")
        text = cli("check", "--run-dir", node.run_dir, "--netns-dir", netns_dir)
    finally:
        for one in opened:
            one.close()

    report = answer(result)
    assert [check for check in checks(report).values() if check["result"] != "success"] == []
    assert [one["categoryName"] for one in report["categories"]] == [
        "pointsman-node", "pointsman-agent", "pointsman-cni", "pointsman-pods"
    ]  # fmt: skip
    assert (report["success"], result.exit_code, text.exit_code) == (True, 0, 0)
    assert "√ all meshed pods are redirected (1 of 1)" in text.stdout
    assert text.stdout.endswith("Status check results are √\n")


def test_check_names_proxies_that_do_not_listen_and_settings_without_effect(
    cli: Cli, node: Agent, web: str, netns: str
) -> None:
    annotations = {"config.linkerd.io/skip-outbound-ports": "x"}
    node.put(pod_manifest("web", netns, namespace="shop", annotations=annotations))
    node.wait(lambda: node.pod(web)["status"]["complaints"], "complaint")
    cli("explain", web, "--run-dir", node.run_dir)

    result = cli("check", "--run-dir", node.run_dir)

    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert (
        f"{MARKS['error']} every proxy listens where its pod's connections go shop/web: ProxyNotListening"
        in text
    )
    assert f"{MARKS['warning']} all settings of pods have effect shop/web: InvalidAnnotation" in text
    assert "remedy: write ports and ranges" in text


def test_check_finds_a_table_without_a_pod(
    cli: Cli, node: Agent, web: str, netns: str, netns_dir: Path
) -> None:
    node.drop(pod_manifest("web", netns, namespace="shop"))
    node.wait_reason(web, "Orphaned")
    orphan = answer(cli("check", "--run-dir", node.run_dir, "--netns-dir", netns_dir, "-o", "json"))

    description = f"every namespace in {netns_dir} that holds our table has a pod"
    assert checks(orphan)[description]["result"] == "warning"
    assert netns in checks(orphan)[description]["error"]


def test_check_without_an_agent(cli: Cli, tmp_path: Path) -> None:
    result = cli("check", "--run-dir", tmp_path, "-o", "json")

    report = answer(result)
    assert result.exit_code == 1
    assert [one["categoryName"] for one in report["categories"]] == ["pointsman-node", "pointsman-agent"]
    (away,) = report["categories"][1]["checks"]
    assert away["result"] == "error"
    assert away["hint"] == "start `pointsman run`, or give its --run-dir"
    assert all(check["result"] == "success" for check in report["categories"][0]["checks"])


def test_check_without_a_proc(cli: Cli, tmp_path: Path) -> None:
    report = answer(cli("check", "--run-dir", tmp_path, "--proc", tmp_path / "none", "-o", "json"))

    found = checks(report)[f"network namespaces of pods can be found in {tmp_path / 'none'}"]
    assert (found["result"], "--proc" in found["hint"]) == ("error", True)


def test_check_of_a_successor_says_who_writes(cli: Cli, node: Agent, tmp_path: Path) -> None:
    with agent(tmp_path, name="successor"):
        report = answer(cli("check", "--run-dir", node.run_dir, "-o", "json"))

    writes = checks(report)["the agent writes pods' rules"]
    assert writes["result"] == "warning"
    assert writes["error"].startswith(f"process {node.pid} holds the writer's lock")


def test_ages_count_from_the_last_change(cli: Cli, node: Agent, web: str) -> None:
    (row,) = answer(cli("redirections", "--run-dir", node.run_dir, "-o", "json"))

    assert 0 <= time.time() - row["since"] < 60
