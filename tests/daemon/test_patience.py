"""What one pod, one file or one tool may cost the others, and how often the log says it."""

import time
from collections.abc import Iterator
from pathlib import Path

import inotify_simple
import pytest

from tests.lab.agent import agent, pod_manifest
from tests.lab.netns import netns, run
from tests.node.test_leftovers import needs_legacy

SKIP_OUT = "config.linkerd.io/skip-outbound-ports"


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


def test_looks_for_a_netns_that_stays_away_become_rare(tmp_path: Path) -> None:
    place = tmp_path / "not-a-netns"
    place.touch()
    manifest = pod_manifest("web", uid="fixed")
    manifest["metadata"]["annotations"]["pointsman.io/netns"] = str(place)
    with inotify_simple.INotify() as opened, agent(tmp_path) as one:
        opened.add_watch(place, inotify_simple.flags.OPEN)
        one.put(manifest)
        one.wait_reason("default/web", "NetnsMissing")
        looks, end = 0, time.monotonic() + 4
        while time.monotonic() < end:
            # At once, since equal events that wait to be read are made one.
            looks += len(opened.read(timeout=10))
        # 50 ms, doubling up to a second: 8 in 4 s; always 50 ms would be 80.
        assert 3 <= looks <= 12


@needs_legacy
@pytest.mark.parametrize("program", ["exit 4", "exec sleep 60"])
def test_b11_a_legacy_tool_that_fails_or_hangs_is_a_complaint_and_delays_no_other_pod(
    tmp_path: Path, pod: str, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    run("ip", "netns", "exec", pod, "iptables-legacy", "-t", "nat", "-N", "PROXY_INIT_OUTPUT")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "iptables-legacy-save").write_text(f"#!/bin/sh\n{program}\n")
    (tools / "iptables-legacy-save").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    with netns() as other, agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        time.sleep(0.5)
        one.put(pod_manifest("other", other))
        one.wait_reason("default/other", "Redirected", seconds=3)
        one.wait_reason("default/web", "Redirected", seconds=15)
        complaints = {c["reason"]: c["message"] for c in one.pod("default/web")["status"]["complaints"]}
        assert "iptables-legacy-save" in complaints["LeftoverRules"]
        assert not one.events("unexpected failure of a visit")


def test_a_complaint_is_said_once_and_its_end_too(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--listeners", "600") as one:
        one.put(pod_manifest("web", pod, annotations={SKIP_OUT: "25,x"}))
        one.wait(lambda: one.events("complaint"), "the complaint")
        one.put(pod_manifest("web", pod, annotations={SKIP_OUT: "25"}))
        one.wait(lambda: one.events("complaint settled"), "its end")
        (line,) = one.events("complaint settled")
        assert (line["complaint"], line["about"]) == ("InvalidAnnotation", SKIP_OUT)


def test_a_busy_firewall_behind_ours_is_said_once(tmp_path: Path, pod: str) -> None:
    chain = "{ type nat hook output priority 0; }"
    with agent(tmp_path, "--listeners", "600") as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        run("ip", "netns", "exec", pod, "nft", f"table ip busy {{ chain out {chain}; }}")
        for port in range(1, 6):
            before = one.pod("default/web")["status"]["foreignChanges"]
            run("ip", "netns", "exec", pod, "nft", "add rule ip busy out tcp dport", str(port), "accept")
            one.wait(
                lambda before=before: one.pod("default/web")["status"]["foreignChanges"] > before,  # type: ignore[misc]
                "the visit",
            )
        assert [line["about"] for line in one.events("complaint") if line["complaint"] == "ForeignRules"] == [
            "table ip busy chain out"
        ]


def test_a_pod_that_is_only_looked_at_has_no_mode(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, "--observe") as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "ObservedOnly")
        assert one.pod("default/web")["status"]["mode"] == ""
