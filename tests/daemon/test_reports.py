"""Public bug reports of this field, each as an input to the whole agent, by its id.

docs/reports.md lists all reports of these areas: where their tests are, or why there is none.
"""

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.cases.stories.node import content, nft, sandbox, table
from tests.lab.addresses import Family
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.netns import inside, netns, run, user_netns
from tests.lab.pod import Pod, pod_and_world
from tests.lab.probe import opened_standin, send
from tests.lab.way import Probe, laid
from tests.linkerd_init import COMMANDS

ROOT = Path(__file__).parents[2]

DESTINATION = ("tests/core/discovery/", "tests/destination/", "tests/cases/discovery/")
"""Tests whose names also have ids of cases of the destination service, with letters before I."""

WITHOUT_JSON = """
import importlib.util, sys
at = "/usr/lib/python3/dist-packages/nftables"
spec = importlib.util.spec_from_file_location("real", at + "/__init__.py", submodule_search_locations=[at])
real = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = real
spec.loader.exec_module(real)

class Nftables(real.Nftables):
    def set_json_output(self, on):
        if on:
            raise RuntimeError("JSON support not compiled-in")
        return super().set_json_output(on)

    def json_cmd(self, *_):
        raise RuntimeError("JSON support not compiled-in")
"""


def arrives(pod: Pod, probe: Probe) -> str:
    """Where one real connection ends: in, out, direct, refused or lost."""
    with opened_standin(pod, inbound=4143, outbound=4140, uid=2102) as standin, laid(pod, probe) as way:
        return send(pod, standin, probe, way).place


def redirected(one: Agent, name: str, netns_name: str, **manifest: object) -> None:
    one.put(pod_manifest(name, netns_name, **manifest))  # type: ignore[arg-type]
    one.wait_reason(f"default/{name}", "Redirected")


def complaints(one: Agent, name: str) -> dict[str, str]:
    one.ask("POST", f"/visit?pod=default/{name}")
    return {c["reason"]: c["message"] for c in one.pod(f"default/{name}")["status"]["complaints"]}


def test_a01_one_chain_is_no_proof_of_a_rule_set(tmp_path: Path) -> None:
    with pod_and_world() as pod, agent(tmp_path) as one:
        for command in COMMANDS()[1:4]:
            inside(pod.name, lambda command=command: run(*command))
        assert arrives(pod, Probe(direction="out", port=9999)) == "direct"
        init = [{"name": "linkerd-init"}]
        ended = [{"name": "linkerd-init", "state": {"terminated": {"exitCode": 0}}}]
        status = {"initContainerStatuses": ended}
        redirected(one, "web", pod.name, initContainers=init, status=status)
        assert arrives(pod, Probe(direction="out", port=9999)) == "out"
        assert "partial" in complaints(one, "web")["LeftoverRules"]


def test_a10_every_option_is_gone_with_the_one_table(tmp_path: Path) -> None:
    options = [
        {"config.linkerd.io/skip-inbound-ports": "22", "config.linkerd.io/proxy-gid": "2150"},
        {
            "config.linkerd.io/skip-outbound-ports": "1-100,200",
            "config.linkerd.io/skip-subnets": "10.0.0.0/8",
        },
        {"config.linkerd.io/proxy-uid": "3000"},
    ]
    with netns() as name, agent(tmp_path) as one:
        nft(name, "add table inet appfw")
        before = nft(name, "list ruleset")
        for annotations in options:
            redirected(one, "web", name, annotations=annotations)
            one.put(pod_manifest("web", name, annotations={"pointsman.io/redirect": "disabled"}))
            one.wait_reason("default/web", "Draining")
        one.ask("POST", "/remove")
        assert nft(name, "list ruleset") == before


def test_a13_a_chain_that_decides_before_ours_is_named(tmp_path: Path) -> None:
    with netns() as name, agent(tmp_path) as one:
        nft(name, "add table ip early")
        nft(name, "add chain ip early out { type nat hook output priority -110; }")
        nft(name, "add rule ip early out tcp dport 80 redirect to :9999")
        redirected(one, "web", name)
        assert "table ip early chain out" in complaints(one, "web")["Shadowed"]
        nft(name, "delete table ip early")
        one.wait(lambda: "Shadowed" not in complaints(one, "web"), "end of the complaint")


def test_b01_b04_neither_iptables_nor_nsenter_nor_modules_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    with netns() as name, monkeypatch.context() as bare:
        bare.setenv("PATH", str(empty))
        with agent(tmp_path) as one:
            redirected(one, "web", name)


def test_b05_no_temporary_file_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not-there"))
    with netns() as name, agent(tmp_path) as one:
        redirected(one, "web", name)


def test_b07_native_matches_only(tmp_path: Path) -> None:
    with netns() as name, agent(tmp_path) as one:
        redirected(one, "web", name, annotations={"config.linkerd.io/proxy-gid": "2150"})
        rules = table(name)
        assert "meta skuid 2102" in rules
        assert "meta skgid 2150" in rules
        assert "xt " not in rules


def test_b13_a_libnftables_without_json_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "nftables.py").write_text(WITHOUT_JSON)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shadow), str(ROOT)]))
    with netns() as name, agent(tmp_path) as one:
        redirected(one, "web", name)


def test_c08_what_a_nested_container_sends_is_not_inbound(tmp_path: Path) -> None:
    with pod_and_world() as pod, agent(tmp_path) as one:
        redirected(one, "web", pod.name)
        nested = Probe(direction="in", port=9999, source="172.17.0.2", destination="10.2.3.4")
        assert arrives(pod, nested) == "direct"


@pytest.mark.parametrize(("family", "address"), [(4, "127.0.0.1"), (4, "127.0.0.2"), (6, "::1")])
def test_d02_containers_of_a_pod_meet_on_loopback(tmp_path: Path, family: Family, address: str) -> None:
    listen = [{"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": "127.0.0.1:4140,[::1]:4140"}]
    with pod_and_world() as pod, agent(tmp_path) as one:
        redirected(one, "web", pod.name, initContainers=[{"name": "linkerd-proxy", "env": listen}])
        local = Probe(direction="out", port=9000, family=family, destination=address, interface="lo")
        assert arrives(pod, local) == "direct"
        assert arrives(pod, Probe(direction="out", port=9000, family=family)) == "out"


@pytest.mark.parametrize("ownership", ["auto", "off"])
def test_d03_an_application_that_calls_its_own_address_meets_itself(tmp_path: Path, ownership: str) -> None:
    with pod_and_world() as pod, agent(tmp_path, "--table-ownership", ownership) as one:
        redirected(one, "web", pod.name)
        for uid in (1000, 2102):
            own = Probe(direction="out", port=9000, uid=uid, destination=pod.address[4], interface="lo")
            assert arrives(pod, own) == "direct"


def test_d09_the_proxys_own_ports_are_reached_from_any_source(tmp_path: Path) -> None:
    """From the node's own address, and from one that the node has put in its place."""
    with pod_and_world() as pod, agent(tmp_path) as one:
        redirected(one, "web", pod.name)
        for source in (pod.link("eth0").there[4], "192.0.2.99"):
            for port in (4190, 4191):
                assert arrives(pod, Probe(direction="in", port=port, source=source)) == "direct"
            assert arrives(pod, Probe(direction="in", port=8080, source=source)) == "in"


def test_e02_a_pod_without_ipv6_is_fine_and_gets_it_later(tmp_path: Path) -> None:
    sysctl = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
    listen = [{"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": "127.0.0.1:4140,[::1]:4140"}]
    with netns() as name, agent(tmp_path) as one:
        inside(name, lambda: Path(sysctl).write_text("1"))
        manifest = pod_manifest("web", name)
        manifest["spec"]["containers"] = [{"name": "linkerd-proxy", "env": listen}]
        one.put(manifest)
        one.wait_reason("default/web", "Redirected")
        inside(name, lambda: Path(sysctl).write_text("0"))
        assert "pin-ip6" in table(name)
        assert "IPv6NotRedirected" not in complaints(one, "web")


def test_e05_a_pod_with_ipv6_only(tmp_path: Path) -> None:
    listen = [{"name": "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS", "value": "127.0.0.1:4140,[::1]:4140"}]
    with pod_and_world() as pod, agent(tmp_path) as one:
        run("ip", "-n", pod.name, "-4", "addr", "flush", "dev", "eth0")
        manifest = pod_manifest("web", pod.name)
        manifest["spec"]["containers"] = [{"name": "linkerd-proxy", "env": listen}]
        one.put(manifest)
        one.wait_reason("default/web", "Redirected")
        assert arrives(pod, Probe(direction="out", port=443, family=6)) == "out"
        assert arrives(pod, Probe(direction="in", port=8080, family=6)) == "in"
        assert arrives(pod, Probe(direction="out", port=8080, family=6, interface="lo")) == "direct"


def test_an_ipv6_address_without_an_ipv6_proxy_is_a_complaint(tmp_path: Path) -> None:
    with pod_and_world() as pod, agent(tmp_path) as one:
        redirected(one, "web", pod.name)
        assert "clear text" in complaints(one, "web")["IPv6NotRedirected"]


def test_f01_f19_f24_a_pod_that_started_first_is_found_and_redirected_in_place(tmp_path: Path) -> None:
    uid = str(uuid.uuid4())
    with pod_and_world() as pod, sandbox(uid, pod.name):
        time.sleep(1.0)
        with agent(tmp_path) as one:
            status = {"podIP": pod.address[4], "phase": "Running"}
            one.put(pod_manifest("web", uid=uid, status=status, restartPolicy="Never"))
            one.wait_reason("default/web", "Redirected", seconds=5)
            found = one.pod("default/web")["status"]
            assert found["exposedS"] >= 1.0
            (line,) = one.events("redirected")
            assert line["exposed_s"] >= 1.0
            assert arrives(pod, Probe(direction="out", port=443)) == "out"
            assert "pointsman_unprotected_seconds_count 1.0" in one.ask("GET", "/metrics")


def test_f21_a_native_sidecar_is_meshed(tmp_path: Path) -> None:
    with netns() as name, agent(tmp_path) as one:
        sidecar = [{"name": "linkerd-proxy", "restartPolicy": "Always"}]
        redirected(one, "web", name, meshed=False, initContainers=sidecar)


def test_g05_a_netns_without_any_interface(tmp_path: Path) -> None:
    with netns() as name, agent(tmp_path) as one:
        run("ip", "-n", name, "link", "set", "lo", "down")
        redirected(one, "web", name)
        assert "ProxyNotListening" in complaints(one, "web")


def test_g08_missing_information_removes_nothing(tmp_path: Path) -> None:
    uid = str(uuid.uuid4())
    with pod_and_world() as pod, sandbox(uid, pod.name), agent(tmp_path) as one:
        known = {"podIP": pod.address[4], "phase": "Running"}
        one.put(pod_manifest("web", uid=uid, status=known))
        one.wait_reason("default/web", "Redirected")
        before = table(pod.name)
        one.stop()
        one.put(pod_manifest("web", uid=uid, status={"phase": "Running"}))
        one.start()
        one.wait_reason("default/web", "NetnsMissing")
        assert table(pod.name) == before
        one.put(pod_manifest("web", uid=uid, status=known))
        one.wait_reason("default/web", "Redirected")
        assert table(pod.name) == before


def test_g11_an_end_is_an_end_whatever_is_gone_already(tmp_path: Path) -> None:
    with agent(tmp_path) as one:
        with netns() as name:
            manifest = pod_manifest("web", name, uid="one")
            redirected(one, "web", name, uid="one")
        one.wait_reason("default/web", "NetnsGone")
        one.drop(manifest)
        one.wait_reason("default/web", "NoSuchPod")
        assert one.state()["netnsHeld"] == 0


def test_g17_hostusers_false(tmp_path: Path) -> None:
    with user_netns() as name, agent(tmp_path) as one:
        redirected(one, "web", name, hostUsers=False)


def test_g18_linkerd_init_says_completed_and_the_kernel_has_nothing(tmp_path: Path) -> None:
    ended = [{"name": "linkerd-init", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]
    with netns() as name, agent(tmp_path) as one:
        init = [{"name": "linkerd-init"}]
        redirected(one, "web", name, initContainers=init, status={"initContainerStatuses": ended})
        assert "were not complete in the kernel" in complaints(one, "web")["InitResultMismatch"]


def test_i02_memory_stays_where_it_is(tmp_path: Path) -> None:
    def rss(pid: int) -> int:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        assert found
        return int(found[1])

    with netns() as name, agent(tmp_path) as one:
        for turn in range(60):
            one.put(
                pod_manifest("web", name, annotations={"config.linkerd.io/skip-outbound-ports": str(turn)})
            )
            one.wait(lambda turn=turn: f"{{ {turn} }}" in content(name), "the new port")
            if turn == 9:
                before = rss(one.pid)
        assert rss(one.pid) - before < 5 * 1024


def test_libnftables_missing_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "nftables.py").write_text(
        "raise ImportError('libnftables.so.1: cannot open shared object file')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shadow), str(ROOT)]))
    with netns() as name, agent(tmp_path, start=False) as one:
        one.start(wait=False)
        one.put(pod_manifest("web", name))
        one.wait_reason("default/web", "CompileFailed")
        message = one.pod("default/web")["status"]["message"]
        assert "python3-nftables" in message
        assert one.running


def test_the_page_accounts_for_every_report() -> None:
    page = (ROOT / "docs" / "reports.md").read_text()
    rows = re.findall(r"^\| ([A-GI-M]\d\d) \| \S.*? \| (.*) \|$", page, re.M)
    assert len({name for name, _ in rows}) == len(rows) == 101
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", str(ROOT / "tests")],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert listing.returncode == 0, listing.stdout[-2000:]
    tested: dict[str, set[str]] = {}
    for file, test in re.findall(r"^(\S+)::(test_\w+)", listing.stdout, re.M):
        letters = "i-m" if file.startswith(DESTINATION) else "a-gi-m"
        for name in re.findall(rf"_([{letters}]\d\d)(?=_)", test):
            tested.setdefault(name.upper(), set()).add(file)
    for name, how in rows:
        assert how.startswith("tested") == (name in tested), name
        if how.startswith("tested"):
            assert set(re.findall(r"`(tests/\S+)`", how)) <= tested[name], name
