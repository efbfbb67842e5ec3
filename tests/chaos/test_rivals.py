"""Others who change the pods' nf_tables too: floods, a flusher in a loop, a second agent."""

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.names import TABLE
from agent.node.nft.batch import batch
from agent.node.nft.records import record
from agent.node.nft.socket import Nft
from agent.node.nft.wire import attr, string
from tests.chaos.tables import SKIP_OUT, listing, nft
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.netns import inside, netns
from tests.node.pods import socket_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

NO_ROUNDS = ("--round", "600", "--compare", "600")
PLAIN = ("--table-ownership", "off")


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def other_pod() -> Iterator[str]:
    with netns() as name:
        yield name


def redirected(one: Agent, name: str, netns_name: str, **annotations: str) -> None:
    one.put(pod_manifest(name, netns_name, annotations=annotations))
    one.wait_reason(f"default/{name}", "Redirected")


def skips(name: str, ports: str) -> bool:
    """Whether the pod's table skips these outbound ports."""
    return f"elements = {{ {ports} }}" in str(listing(name))


def flood(name: str, commits: int) -> None:
    """That many foreign changes, as fast as one program can make them."""
    noise = (record("table", attr(1, string("noise"))),)
    with socket_in(name, Nft) as other:
        for _ in range(commits // 2):
            other.commit(batch(noise))
            other.commit(batch((), noise))


def drops(name: str) -> int:
    """Netlink messages that sockets in the namespace have lost for want of room."""
    table = inside(name, lambda: Path("/proc/thread-self/net/netlink").read_text())
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[rows[0].index("Drops")]) for row in rows[1:])


@pytest.mark.parametrize("stopped", [False, True], ids=("running", "stopped"))
def test_c18_no_drift_is_missed_in_a_flood(tmp_path: Path, pod: str, stopped: bool) -> None:
    """Without rounds, so that nothing but the events, or the news of their loss, can tell."""
    with agent(tmp_path, *PLAIN, *NO_ROUNDS) as one:
        redirected(one, "web", pod)
        whole = listing(pod)
        if stopped:
            os.kill(one.pid, signal.SIGSTOP)
        flood(pod, 10_000 if stopped else 3000)
        nft(pod, f"add element inet {TABLE} out_skip_ports {{ 60000 }}")
        if stopped:
            assert drops(pod) > 0
            os.kill(one.pid, signal.SIGCONT)
        one.wait(lambda: listing(pod) == whole, "the repair", 5)
        one.wait(lambda: one.pod("default/web")["status"]["drifts"] == 1, "the count of drifts", 5)
        # And the next one is seen too.
        nft(pod, f"flush chain inet {TABLE} output")
        one.wait(lambda: listing(pod) == whole, "the next repair", 5)
        one.wait_reason("default/web", "Redirected")


@contextlib.contextmanager
def flushing(name: str) -> Iterator[None]:
    """A program that starts nft again and again, as scripts do."""
    process = inside(name, lambda: subprocess.Popen(["sh", "-c", "while :; do nft flush ruleset; done"]))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_flusher_in_a_loop_is_contested_once_and_nobody_else_suffers(
    tmp_path: Path, pod: str, other_pod: str
) -> None:
    with agent(tmp_path, *PLAIN) as one:
        redirected(one, "web", pod)
        redirected(one, "other", other_pod)
        whole = listing(pod)
        with flushing(pod):
            one.wait_reason("default/web", "Contested", seconds=20)
            assert "nft[" in one.pod("default/web")["status"]["message"]
            began, drifts = time.monotonic(), one.pod("default/web")["status"]["drifts"]
            for ports in ("1", "2", "3"):
                one.put(pod_manifest("other", other_pod, annotations={SKIP_OUT: ports}))
                one.wait(functools.partial(skips, other_pod, ports), f"port {ports}", 2)
            nft(other_pod, "flush", "ruleset")
            one.wait(lambda: one.pod("default/other")["status"]["drifts"] == 1, "the other's repair", 2)
            time.sleep(3)
            repairs = one.pod("default/web")["status"]["drifts"] - drifts
            # Five a second, and a reserve that refills.
            assert 5 <= repairs <= 5 * (time.monotonic() - began) + 5
            assert one.reason("default/web") == "Contested"
            assert one.reason("default/other") == "Redirected"
        one.wait_reason("default/web", "Redirected", seconds=30)
        assert listing(pod) == whole
        assert [line["reason"] for line in one.events("failed")] == ["Contested"]
        assert one.events("still failing") == []


def test_two_agents_on_one_run_dir_are_one_writer(tmp_path: Path, pod: str, other_pod: str) -> None:
    with agent(tmp_path) as one, agent(tmp_path, name="second", start=False) as two:
        redirected(one, "web", pod)
        two.start()
        (line,) = two.events("another agent writes; comparing only, until it ends")
        assert line["holder"] == str(one.pid)
        with socket_in(other_pod) as ears:
            two.put(pod_manifest("other", other_pod))
            two.wait_reason("default/other", "Redirected")
            time.sleep(1)
            assert len(ears.events()) == 1, "one commit, by one of the two"
        assert (two.state()["writer"], two.state()["pid"]) == (False, two.pid)


def test_two_agents_on_two_run_dirs_do_not_fight(tmp_path: Path, pod: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with agent(tmp_path / "one") as one, agent(tmp_path / "two", start=False) as two:
        redirected(one, "web", pod)
        if not one.state()["ownedTables"]:
            pytest.skip("this kernel has no owned tables")
        # It even wants something else.
        two.put(pod_manifest("web", pod, annotations={SKIP_OUT: "9"}))
        with socket_in(pod) as ears:
            two.start(wait=False)
            two.wait_reason("default/web", "OwnedByAnother")
            time.sleep(8)
            assert ears.events() == []
        assert one.pod("default/web")["status"]["drifts"] == 0
        assert one.reason("default/web") == "Redirected"
        status = two.pod("default/web")["status"]
        assert status["phase"] == "Failed"
        assert status["attempts"] < 100
        assert len([line for line in two.events("failed") if line["reason"] == "OwnedByAnother"]) == 1
        # No event tells of the end of an owner.
        assert one.stop() == 0
        two.wait_reason("default/web", "Redirected", seconds=2.5)
        assert skips(pod, "9")


def test_two_agents_that_disagree_over_plain_tables_are_bounded(tmp_path: Path, pod: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with agent(tmp_path / "one", *PLAIN) as one, agent(tmp_path / "two", *PLAIN) as two:
        redirected(one, "web", pod)
        two.put(pod_manifest("web", pod, annotations={SKIP_OUT: "9"}))
        # Whichever runs out of repairs first is as slow from then on as it may be, and so is the other.
        one.wait(lambda: "Contested" in (one.reason("default/web"), two.reason("default/web")), "a word", 30)
        with socket_in(pod) as ears:
            time.sleep(3)
            assert len(ears.events()) < 2 * 3 * 5 + 20
        two.close()
        one.wait_reason("default/web", "Redirected", seconds=30)
        one.wait(functools.partial(skips, pod, "4567-4568"), "its own ports", 5)
