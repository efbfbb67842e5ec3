"""The agent as a whole, against real network namespaces: redirect, follow, repair, release."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.agent import agent, descriptors, pod_manifest
from tests.lab.netns import netns, run
from tests.lab.pod import pod_and_world
from tests.lab.probe import opened_standin

SKIP_OUT = "config.linkerd.io/skip-outbound-ports"


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


def nft(name: str, *command: str) -> str:
    return run("ip", "netns", "exec", name, "nft", *command)


def table(name: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", name, "nft", "-a", "list", "table", "inet", "pointsman"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout


def handles(name: str) -> list[str]:
    """Lines of all objects with a handle, without the owner's name."""
    return [line.split(" progname")[0].strip() for line in table(name).splitlines() if "# handle" in line]


def test_a_pod_is_redirected_and_its_annotation_followed_in_place(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod, annotations={SKIP_OUT: "25"}))
        one.wait_reason("default/web", "Redirected")
        before = handles(pod)
        one.put(pod_manifest("web", pod, annotations={SKIP_OUT: "25,3306"}))
        one.wait(lambda: "25, 3306" in table(pod), "the new list")
        kept = [line for line in handles(pod) if line.startswith(("chain", "set", "counter"))]
        assert kept == [line for line in before if line.startswith(("chain", "set", "counter"))]
        status = one.pod("default/web")["status"]
        assert (status["how"], status["drifts"]) == ("updated", 0)


def test_a14_flush_is_repaired_and_the_culprit_named(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--table-ownership", "off") as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        nft(pod, "flush", "ruleset")
        one.wait(lambda: one.pod("default/web")["status"]["drifts"] == 1, "a repair", 2.0)
        assert "out-redirect" in table(pod)
        assert one.pod("default/web")["status"]["culprit"].startswith("nft[")
        (line,) = one.events("drift repaired")
        assert line["differences"] == ["table missing"]


def test_g14_termination_and_restart_leave_the_data_path_as_it_is(
    tmp_path: Path, pod: str, owned_tables: bool
) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        before = handles(pod)
        assert one.stop() == 0
        assert handles(pod) == before
        one.start()
        one.wait_reason("default/web", "Redirected")
        assert one.pod("default/web")["status"]["how"] == ("claimed" if owned_tables else "")
        one.kill()
        assert handles(pod) == before
        one.start()
        one.wait_reason("default/web", "Redirected")
        assert handles(pod) == before


def test_a_successor_compares_then_claims(tmp_path: Path, pod: str, owned_tables: bool) -> None:
    with agent(tmp_path) as one, agent(tmp_path, name="successor", start=False) as two:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        two.start()
        assert two.state()["pid"] == two.pid, "the successor's socket is the one that answers"
        assert not two.state()["writer"]
        assert two.reason("default/web") == "Redirected"
        before = handles(pod)
        assert one.stop() == 0
        two.wait(lambda: two.state()["writer"], "the lock")
        if owned_tables:
            two.wait(lambda: two.pod("default/web")["status"]["how"] == "claimed", "the claim")
        assert handles(pod) == before
        assert two.state()["ownedTables"] is owned_tables


def test_unmesh_drains_and_meshing_again_redirects(tmp_path: Path, pod: str) -> None:
    off = {"pointsman.io/redirect": "disabled"}
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        one.put(pod_manifest("web", pod, annotations=off))
        one.wait_reason("default/web", "Draining")
        assert "redirect to" not in table(pod)
        assert "ct state new" in table(pod)
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        assert "redirect to" in table(pod)


def test_a08_the_last_wish_stands_after_toggling(tmp_path: Path, pod: str) -> None:
    off = {"pointsman.io/redirect": "disabled"}
    with agent(tmp_path) as one:
        for last in ({}, off):
            for turn in range(25):
                one.put(pod_manifest("web", pod, annotations=off if turn % 2 else {}))
                time.sleep(0.01)
            one.put(pod_manifest("web", pod, annotations=last))
            one.wait_reason("default/web", "Draining" if last else "Redirected")
            time.sleep(0.3)
            assert ("redirect to" in table(pod)) is not bool(last)


def test_a_deleted_manifest_touches_nothing_and_the_netns_is_an_orphan(tmp_path: Path, pod: str) -> None:
    manifest = pod_manifest("web", pod)
    with agent(tmp_path) as one:
        one.put(manifest)
        one.wait_reason("default/web", "Redirected")
        before = handles(pod)
        one.drop(manifest)
        one.wait_reason("default/web", "Orphaned")
        assert handles(pod) == before
        one.put(manifest)
        one.wait_reason("default/web", "Redirected")


def test_descriptors_go_within_a_second_of_the_netns(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        time.sleep(0.5)
        before = descriptors(one.pid)
        with netns() as name:
            one.put(pod_manifest("web", name, uid="fixed"))
            one.wait_reason("default/web", "Redirected")
            assert descriptors(one.pid) > before
        one.wait_reason("default/web", "NetnsGone", seconds=1.5)
        one.wait(lambda: descriptors(one.pid) <= before, "the descriptors' release", 1.0)
        with netns() as name:
            one.put(pod_manifest("web", name, uid="fixed"))
            one.wait_reason("default/web", "Redirected")


def test_a_broken_pod_delays_nobody(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        for number in range(20):
            one.put(pod_manifest(f"broken-{number}", f"pm-not-there-{number}"))
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected", seconds=2)
        assert one.reason("default/broken-7") == "NetnsMissing"


def test_the_hosts_netns_is_refused(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        manifest = pod_manifest("web")
        manifest["metadata"]["annotations"]["pointsman.io/netns"] = f"/proc/{os.getpid()}/ns/net"
        one.put(manifest)
        one.wait_reason("default/web", "NetnsMismatch")
        assert "the node's own network namespace" in one.pod("default/web")["status"]["message"]


def test_two_pods_never_share_a_netns(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("first", pod, uid="a"))
        one.wait_reason("default/first", "Redirected")
        one.put(pod_manifest("second", pod, uid="b"))
        one.wait_reason("default/second", "NetnsMismatch")
        assert one.reason("default/first") == "Redirected"


def test_observe_compares_and_never_writes(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--observe") as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "ObservedOnly")
        assert table(pod) == ""


def test_metrics_count_what_happened(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--table-ownership", "off") as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        nft(pod, "delete", "table", "inet", "pointsman")
        one.wait(lambda: one.pod("default/web")["status"]["drifts"] == 1, "a repair")
        text = one.ask("GET", "/metrics")
        assert 'pointsman_drift_total{kind="table"} 1.0' in text
        assert 'pointsman_pods{mode="nftables",phase="Applied",reason="Redirected"} 1.0' in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_is_orderly(tmp_path: Path, number: signal.Signals) -> None:
    with agent(tmp_path) as one:
        process = one._process
        assert process is not None
        process.send_signal(number)
        assert process.wait(5) == 0
        assert not (one.run_dir / "agent.sock").exists()
        assert [line["event"] for line in one.lines()][-1].startswith("stopped")


def test_log_lines_are_json_and_one_per_change(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        time.sleep(1)
        lines = [json.loads(line) for line in one.log.read_text().splitlines()]
        assert len([line for line in lines if line.get("pod") == "default/web"]) == 1


def test_p07_a_restart_never_holds_back_what_was_redirected(tmp_path: Path) -> None:
    with pod_and_world() as world, agent(tmp_path, "--before-proxy", "hold") as one:
        one.put(pod_manifest("web", world.name, initContainers=[{"name": "migrate"}]))
        one.wait_reason("default/web", "Redirected")
        assert "out-held" in table(world.name)
        with opened_standin(world, inbound=4143, outbound=4140, uid=2102):
            one.wait(lambda: "out-redirect" in table(world.name), "the outbound redirect")
            before = handles(world.name)
            for _ in range(3):
                one.kill()
                one.start()
                assert handles(world.name) == before
