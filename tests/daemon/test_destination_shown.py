"""What people and machines see of it: whom each pod asks, why one asks in vain, and the metrics."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.mesh import ANSWERING, JSON, meshed
from tests.lab.agent import Agent, agent
from tests.lab.netns import netns

CENTRAL = "linkerd-dst-headless.linkerd.svc.cluster.local.:8086"
REMEDY = "give the proxy another one in LINKERD2_PROXY_DESTINATION_SVC_ADDR, or move the application's"
FOUND = "every proxy that asks this agent for destinations finds it"
ANSWERS = "the agent can answer for destinations"


@pytest.fixture
def asking(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """An agent of a pod that asks it, one that does in vain, one that asks elsewhere, one that does not say,
    and one without a proxy."""
    flags: tuple[str, ...] = getattr(request, "param", ANSWERING)
    with contextlib.ExitStack() as opened:
        one = opened.enter_context(agent(tmp_path, *flags))
        pods = {
            "good": meshed("good", opened.enter_context(netns()), "10.1.0.1"),
            "clash": meshed("clash", opened.enter_context(netns()), "10.1.0.2", ports=(4186,)),
            "central": meshed("central", opened.enter_context(netns()), "10.1.0.3", asks=CENTRAL),
            "silent": meshed("silent", opened.enter_context(netns()), "10.1.0.4", asks=None),
        }
        plain = meshed("plain", opened.enter_context(netns()), "10.1.0.5")
        del plain["spec"]["containers"][1]
        for each in (*pods.values(), plain):
            one.put(each)
        for name in pods:
            one.wait_reason(f"shop/{name}", "Redirected")
        if flags:
            one.wait(lambda: one.pod("shop/good")["destination"]["port"], "listener")
            one.wait(lambda: one.pod("shop/silent")["destination"]["port"], "listener")
            one.wait(lambda: one.pod("shop/clash")["destination"]["complaint"], "complaint")
        yield one


def told(one: Agent, *command: str) -> tuple[int, str]:
    """Exit code and output of `pointsman`."""
    done = subprocess.run(
        [sys.executable, "-m", "agent", *command, "--run-dir", str(one.run_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def checks(one: Agent, directory: Path) -> list[JSON]:
    conf_dir = directory / "net.d"
    _, text = told(one, "check", "-o", "json", "--conf-dir", str(conf_dir), "--netns-dir", str(directory))
    return [check for each in json.loads(text)["categories"] for check in each["checks"]]


def test_redirections_tell_whom_each_pod_asks(asking: Agent) -> None:
    _, wide = told(asking, "redirections", "-o", "wide")
    column = {line.split()[1]: line.split()[-1] for line in wide.splitlines()}
    assert column == {
        "NAME": "ASKS",
        "good": "us:4186",
        "clash": "us:-",
        "central": "central",
        "silent": "nobody",
        "plain": "-",
    }
    _, text = told(asking, "redirections", "-o", "json")
    rows: dict[str, Any] = {row["name"]: row for row in json.loads(text)}
    assert rows["good"]["destination"] == {"asks": "us", "port": 4186, "complaint": None}
    assert rows["silent"]["destination"] == {"asks": "nobody", "port": 4186, "complaint": None}
    assert rows["central"]["destination"] == {"asks": "central", "port": 0, "complaint": None}
    assert rows["plain"]["destination"] is None
    complaint = rows["clash"]["destination"]["complaint"]
    assert (complaint["reason"], complaint["subject"]) == ("PortClash", "127.0.0.1:4186")
    assert complaint in rows["clash"]["complaints"]


def test_check_fails_for_a_pod_that_asks_in_vain_and_says_what_to_do(asking: Agent, tmp_path: Path) -> None:
    found = checks(asking, tmp_path)
    (failed,) = [check for check in found if check["description"] == FOUND]
    assert failed["result"] == "error"
    message = "PortClash 127.0.0.1:4186: container app declares port 4186"
    assert (failed["error"], failed["hint"]) == (f"shop/clash: {message}", REMEDY)
    counts = "2 this agent, 1 the central controller, 1 nobody that their manifests name"
    assert f"proxies ask for destinations: {counts}" in [check["description"] for check in found]
    assert [check["result"] for check in found if check["description"] == ANSWERS] == ["success"]
    asking.put(meshed("clash", ports=()))
    asking.wait_reason("shop/clash", "Redirected", "NetnsMissing")
    (passed,) = [check for check in checks(asking, tmp_path) if check["description"] == FOUND]
    assert passed["result"] == "success"


@pytest.mark.parametrize("asking", [()], indirect=True)
def test_check_fails_where_pods_ask_an_agent_that_cannot_answer(asking: Agent, tmp_path: Path) -> None:
    failed = [check for check in checks(asking, tmp_path) if check["description"] == ANSWERS]
    assert {check["result"] for check in failed} == {"error"}
    words = "how Linkerd was installed is not known: cannot find, or read, ConfigMap linkerd/linkerd-config"
    expected = [f"shop/{name}: NotAnswering 127.0.0.1:4186: {words}" for name in ("clash", "good")]
    assert sorted(check["error"] for check in failed) == expected
    assert "--identity-trust-domain" in failed[0]["hint"]


def test_explain_names_the_complaint(asking: Agent) -> None:
    _, text = told(asking, "explain", "shop/clash")
    assert "PortClash" in text
    assert REMEDY in " ".join(text.split())


def test_metrics_count_pods_by_whom_they_ask(asking: Agent) -> None:
    page = asking.ask("GET", "/metrics")
    for labels, count in (
        ('asks="us",listening="true"', 1.0),
        ('asks="us",listening="false"', 1.0),
        ('asks="central",listening="false"', 1.0),
        ('asks="nobody",listening="true"', 1.0),
    ):
        assert f"pointsman_destination_pods{{{labels}}} {count}" in page
    assert 'pointsman_pod_complaints{reason="PortClash"} 1.0' in page
    assert "pointsman_destination_listeners 2.0" in page
