"""`pointsman check`, about the CNI gate: sockets, files and pods as an operator may find them."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from agent.cli.client import Agent as Client
from agent.core.chain import TYPE
from agent.core.reasons import MEANINGS, Reason
from tests.cli.conftest import Cli, answer
from tests.cni import scripted
from tests.cni.confs import CALICO, CILIUM, Node
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.cni import arguments, ask, conf, environment

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

UID = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c11"
LINKERD_CNI = '{"name": "a", "plugins": [{"type": "calico"}, {"type": "linkerd-cni"}]}'
REFUSAL = (
    b'{"cniVersion": "1.1.0", "code": 50, "msg": "cannot redirect pods: no nft", "details": "install it"}'
)

Found = dict[str, tuple[str, str, str]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Where no agent runs."""
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


def flags(node: Node) -> tuple[str, ...]:
    place = {"--conf-dir": node.conf_dir, "--bin-dir": node.bin_dir, "--shim": node.shim}
    return tuple(str(word) for pair in place.items() for word in pair)


def install(cli: Cli, node: Node, run_dir: Path, *more: str) -> None:
    result = cli("install-cni", *flags(node), "--socket", run_dir / "cni.sock", *more)
    assert result.exit_code == 0, result.stderr


def gate(cli: Cli, run_dir: Path, *more: str) -> Found:
    """Result, error and hint of each check of the gate, by its description; of several, of the last."""
    report = answer(cli("check", "--run-dir", run_dir, *more, "-o", "json"))
    return {
        check["description"]: (check["result"], check.get("error", ""), check.get("hint", ""))
        for category in report["categories"]
        if category["categoryName"] == "pointsman-cni"
        for check in category["checks"]
    }


def of(found: Found, words: str) -> tuple[str, str, str]:
    """The one check whose description begins with these words."""
    (check,) = (check for description, check in found.items() if description.startswith(words))
    return check


# ---- with an agent that keeps the configuration ---------------------------------------------------------


@pytest.fixture
def keeper(tmp_path: Path, node: Node) -> Iterator[Agent]:
    """An agent that keeps shim and entry."""
    node.put("10-calico.conflist", CALICO)
    with agent(tmp_path, "--install-cni", *flags(node), "--unknown-wait", "0.1") as one:
        yield one


def test_all_is_right(cli: Cli, keeper: Agent, node: Node) -> None:
    found = gate(cli, keeper.run_dir)

    assert [result for result, _, _ in found.values()] == ["success"] * len(found)
    assert list(found) == [
        f"the CNI shim is answered at {keeper.run_dir}/cni.sock, by this agent",
        "the answer to STATUS is that pods can be redirected",
        f"the container runtime has a CNI configuration in {node.conf_dir} (10-calico.conflist)",
        f"new pods come by our entry in {node.conf_dir}/10-calico.conflist (calico, portmap, {TYPE})",
        f"the shim in {node.bin_dir} is that of this version",
        "no other plugin of the chain redirects pods",
        f"every file in {node.conf_dir} can be used",
        "every pod that the gate let through has been put right",
    ]
    assert (
        "pointsman-cni\n-------------\n√ the CNI shim is answered"
        in cli("check", "--run-dir", keeper.run_dir).stdout
    )


def test_the_agents_own_directories_count_whatever_the_flags_say(
    cli: Cli, keeper: Agent, tmp_path: Path, node: Node
) -> None:
    found = gate(cli, keeper.run_dir, "--conf-dir", str(tmp_path / "other"))

    assert of(found, f"new pods come by our entry in {node.conf_dir}")[0] == "success"


def test_an_agent_that_was_told_to_leave(cli: Cli, keeper: Agent) -> None:
    Client(keeper.run_dir).unchain()

    found = gate(cli, keeper.run_dir)

    assert of(found, "new pods come by our entry") == (
        "error", "the agent was told to take it out", "restart the agent to have it back"
    )  # fmt: skip


# ---- without one: the files themselves ------------------------------------------------------------------


def test_a_node_without_a_container_runtime_has_nothing_to_check(cli: Cli, run_dir: Path) -> None:
    assert gate(cli, run_dir) == {}


def test_installed_by_hand_and_no_agent(cli: Cli, node: Node, run_dir: Path) -> None:
    node.put("10-calico.conflist", CALICO)
    install(cli, node, run_dir)
    before = {path: path.read_bytes() for path in (*node.conf_dir.iterdir(), *node.bin_dir.iterdir())}

    result, error, hint = of(found := gate(cli, run_dir, *flags(node)), "the CNI shim is answered at")

    assert (result, error) == ("error", "cannot connect: No such file or directory")
    assert hint == "start `pointsman run`; until then the entry's whenAgentAway decides about new pods"
    assert of(found, "new pods come by our entry")[0] == "success"
    assert {path: path.read_bytes() for path in (*node.conf_dir.iterdir(), *node.bin_dir.iterdir())} == before


def test_not_installed(cli: Cli, node: Node, run_dir: Path) -> None:
    node.put("10-calico.conflist", CALICO)

    found = gate(cli, run_dir, *flags(node))

    result, error, hint = of(found, "new pods come by our entry")
    assert result == "warning"
    assert "it is not there (calico, portmap)" in error
    assert "`pointsman run --install-cni`" in hint
    assert not any(
        description.startswith(("the CNI shim is answered", "the shim in")) for description in found
    )
    assert not node.bin_dir.exists()


def test_an_agent_that_does_not_keep_it(cli: Cli, node: Node, tmp_path: Path) -> None:
    node.put("10-calico.conflist", CALICO)
    with agent(tmp_path) as one:
        install(cli, node, one.run_dir, "--when-agent-away", "deny")
        same = gate(cli, one.run_dir, *flags(node), "--when-agent-away", "deny")
        other = gate(cli, one.run_dir, *flags(node))

    assert {result for result, _, _ in same.values()} == {"success"}
    result, error, hint = of(other, "new pods come by our entry")
    assert (result, error) == (
        "warning", f"it differs from what the settings say (calico, portmap, {TYPE})"
    )  # fmt: skip
    assert "give this command the flags" in hint


@pytest.mark.parametrize(("change", "result"), [("missing", "error"), ("differs", "warning")])
def test_the_shim(cli: Cli, node: Node, run_dir: Path, change: str, result: str) -> None:
    node.put("10-calico.conflist", CALICO)
    install(cli, node, run_dir)
    (node.bin_dir / TYPE).unlink() if change == "missing" else (node.bin_dir / TYPE).write_bytes(b"x")

    found = of(gate(cli, run_dir, *flags(node)), f"the shim in {node.bin_dir} is that of this version")

    assert found[0] == result
    assert found[2].startswith("`pointsman install-cni`")


@pytest.mark.parametrize(
    ("files", "description", "result", "words"),
    [
        ({}, "the container runtime has a CNI configuration", "error", "no pod can start"),
        ({"05-half.conflist": CALICO[:50]}, "every file in", "error", "containerd has no network"),
        (
            {"05-half.conf": "{", "10-calico.conflist": CALICO},
            "every file in", "error", "cannot use 05-half.conf",
        ),
        (
            {"10-calico.conflist": CALICO, "99-half.conf": "{"},
            "every file in", "warning", "10-calico.conflist comes before it",
        ),
        ({"10-a.conflist": LINKERD_CNI}, "no other plugin", "warning", "linkerd-cni is in"),
    ],
)  # fmt: skip
def test_what_else_is_in_the_directory(
    cli: Cli, node: Node, run_dir: Path, files: dict[str, str], description: str, result: str, words: str
) -> None:
    for name, text in files.items():
        node.put(name, text)

    found = of(gate(cli, run_dir, *flags(node)), description)

    assert found[0] == result
    assert words in found[1]
    assert found[2]


def test_a_file_that_ours_stands_in_for_does_no_harm(cli: Cli, node: Node, run_dir: Path) -> None:
    """`.conf`, continued by a list of ours, and now broken: the runtime reads the list."""
    conf = node.put("05-cilium.conf", CILIUM)
    install(cli, node, run_dir)
    conf.write_text("{")

    found = gate(cli, run_dir, *flags(node))

    assert of(found, "every file in")[0] == "warning"
    assert of(found, f"new pods come by our entry in {node.conf_dir}/05-cilium-pointsman.conflist")[0] == (
        "success"
    )


def test_what_cannot_be_looked_at_is_a_failure_with_a_remedy(cli: Cli, node: Node, run_dir: Path) -> None:
    node.put("10-calico.conflist", CALICO)
    install(cli, node, run_dir)
    node.shim.unlink()

    found = of(gate(cli, run_dir, *flags(node)), f"the CNI configuration in {node.conf_dir} can be looked at")

    assert found == ("error", f"cannot find the shim {node.shim}", "run `make shim`, or name one with --shim")


# ---- the socket -----------------------------------------------------------------------------------------


def stale(path: Path) -> AbstractContextManager[Any]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.close()
    return closing(listener)


def file(path: Path) -> AbstractContextManager[Any]:
    path.write_text("no socket")
    return closing(socket.socket())


def silent(path: Path) -> AbstractContextManager[Any]:
    return scripted.agent(path, scripted.silent)


def junk(path: Path) -> AbstractContextManager[Any]:
    return scripted.agent(path, scripted.says(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def closed(path: Path) -> AbstractContextManager[Any]:
    return scripted.agent(path, scripted.says())


def garbage(path: Path) -> AbstractContextManager[Any]:
    return scripted.agent(path, scripted.says(scripted.frame(1, b"not JSON")))


def foreign(path: Path) -> AbstractContextManager[Any]:
    return scripted.foreign_agent(path, 65534)


@pytest.mark.parametrize(
    ("listener", "error", "hint"),
    [
        (stale, "cannot connect: Connection refused", "start `pointsman run`"),
        (file, "cannot connect: Connection refused", "start `pointsman run`"),
        (silent, "gives no answer within 2 s", "is the agent stopped, or frozen?"),
        (junk, "does not answer as an agent does", "end the process"),
        (closed, "does not answer as an agent does", "end the process"),
        (garbage, "does not answer as an agent does", "end the process"),
        (foreign, "of user 65534 listens: the shim counts that as away", "must run as root"),
    ],
)
def test_nobody_that_the_shim_would_take_for_an_agent(
    cli: Cli,
    node: Node,
    run_dir: Path,
    listener: Callable[[Path], AbstractContextManager[Any]],
    error: str,
    hint: str,
) -> None:
    node.put("10-calico.conflist", CALICO)
    install(cli, node, run_dir)
    with listener(run_dir / "cni.sock"):
        found = of(gate(cli, run_dir, *flags(node)), "the CNI shim is answered")

    assert found[0] == "error"
    assert error in found[1]
    assert hint in found[2]


def test_an_agent_that_refuses_status_is_quoted(cli: Cli, node: Node, run_dir: Path) -> None:
    node.put("10-calico.conflist", CALICO)
    install(cli, node, run_dir)
    with scripted.agent(run_dir / "cni.sock", scripted.says(scripted.frame(1, REFUSAL))) as asked:
        found = gate(cli, run_dir, *flags(node))

    assert of(found, "the CNI shim is answered")[0] == "success"
    assert of(found, "the answer to STATUS") == ("error", "cannot redirect pods: no nft", "install it")
    assert [request.environment for request in asked] == [{"CNI_COMMAND": "STATUS"}]


def test_another_agent_answers(cli: Cli, tmp_path: Path) -> None:
    """The one that only looks has agent.sock now; it takes cni.sock from nobody who lives."""
    with agent(tmp_path, name="one") as one, agent(tmp_path, "--observe", name="eye", start=False) as eye:
        eye.start(wait=False)
        eye.wait(lambda: eye.state()["pid"] == eye.pid, "its own socket")
        found = of(gate(cli, eye.run_dir), "the CNI shim is answered")

    assert found[0] == "warning"
    assert found[1] == f"process {one.pid} answers, and not this agent"
    assert "nothing during an upgrade" in found[2]


def test_a_socket_that_was_taken_away_from_an_agent(cli: Cli, tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        found = of(gate(cli, one.run_dir, "--socket", str(tmp_path / "none")), "the CNI shim is answered")

    assert found[0] == "error"
    assert "its log says why" in found[2]


# ---- who was let through --------------------------------------------------------------------------------


def add(one: Agent, name: str, netns: Path | str, container: str = "c1") -> None:
    call = environment("ADD", container, netns, arguments(name, uid=UID))
    assert ask(one.run_dir / "cni.sock", call, conf()) is None


def test_a_pod_that_nobody_knows_and_then_somebody_does(cli: Cli, tmp_path: Path, netns: str) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        add(one, "web", f"/run/netns/{netns}")
        unknown = of(gate(cli, one.run_dir), "every pod that the gate let through")
        code = cli("check", "--run-dir", one.run_dir).exit_code
        assert "pointsman_cni_unknown_pods 1.0" in one.ask("GET", "/metrics")
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "Redirected")
        known = gate(cli, one.run_dir)
        assert "pointsman_cni_unknown_pods 0.0" in one.ask("GET", "/metrics")

    assert unknown[0] == "warning"
    assert re.fullmatch(
        r"default/web: let through \d+s ago, and its source does not know it still", unknown[1]
    )
    assert "with the UID that the runtime tells" in unknown[2]
    assert code == 0
    assert known["every pod that the gate let through has been put right (1 of 1)"][0] == "success"


def test_a_pod_that_was_let_through_and_cannot_be_put_right(cli: Cli, tmp_path: Path) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        add(one, "web", f"/proc/{os.getpid()}/ns/net")
        one.put(pod_manifest("web", uid=UID))
        one.wait_reason("default/web", "NetnsMismatch")
        found = of(gate(cli, one.run_dir), "every pod that the gate let through has been put right (0 of 1)")

    assert found[0] == "error"
    assert found[1].startswith("default/web: Failed (NetnsMismatch): ")
    assert found[2] == MEANINGS[Reason.NETNS_MISMATCH].remedy


def test_an_unmeshed_pod_that_was_let_through_is_as_it_should_be(
    cli: Cli, tmp_path: Path, netns: str
) -> None:
    with agent(tmp_path, "--unknown-wait", "0.1") as one:
        add(one, "plain", f"/run/netns/{netns}")
        one.put(pod_manifest("plain", uid=UID, meshed=False))
        one.wait_reason("default/plain", "NotMeshed")
        found = gate(cli, one.run_dir)

    assert found["every pod that the gate let through has been put right (1 of 1)"][0] == "success"
