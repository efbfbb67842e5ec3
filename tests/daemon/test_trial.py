"""Verification from the node (C22): a trial connection from inside the pod, counted by the kernel."""

from pathlib import Path

from tests.lab.agent import agent, pod_manifest
from tests.lab.netns import configure, netns
from tests.lab.pod import pod_and_world


def test_c22_a_trial_is_counted_whether_or_not_a_proxy_listens(tmp_path: Path) -> None:
    with pod_and_world() as pod, agent(tmp_path) as one:
        one.put(pod_manifest("web", pod.name))
        one.wait_reason("default/web", "Redirected")
        before = one.pod("default/web")["counters"]["out_redirect"]
        assert one.ask("POST", "/trial?pod=default/web")["result"] == "redirected"
        assert one.pod("default/web")["counters"]["out_redirect"] == before + 1


def test_e05_a_pod_with_ipv6_alone_is_tried_by_ipv6(tmp_path: Path) -> None:
    with netns() as name, agent(tmp_path, "--ipv6", "true") as one:
        configure(
            name,
            "link add eth0 type veth peer name far",
            "link set far up",
            "link set eth0 up",
            "addr add fd99::2/64 dev eth0 nodad",
            "route add ::/0 dev eth0",
        )
        one.put(pod_manifest("web", name))
        one.wait_reason("default/web", "Redirected")
        tried = one.ask("POST", "/trial?pod=default/web")
        assert (tried["result"], "[2001:db8::2]" in tried["why"]) == ("redirected", True)


def test_c22_no_route_is_unverifiable_and_no_failure(tmp_path: Path) -> None:
    with netns() as name, agent(tmp_path) as one:
        one.put(pod_manifest("web", name))
        one.wait_reason("default/web", "Redirected")
        tried = one.ask("POST", "/trial?pod=default/web")
        assert tried["result"] == "unverifiable"
        assert "no route" in tried["why"]


def test_a_skip_of_every_port_is_unverifiable(tmp_path: Path) -> None:
    every = {"config.linkerd.io/skip-outbound-ports": "0-65535"}
    with pod_and_world() as pod, agent(tmp_path) as one:
        one.put(pod_manifest("web", pod.name, annotations=every))
        one.wait_reason("default/web", "Redirected")
        assert one.ask("POST", "/trial?pod=default/web")["result"] == "unverifiable"
        one.put(pod_manifest("off", annotations={"pointsman.io/redirect": "disabled"}))
        one.wait_reason("default/off", "RedirectDisabled")
        assert one.ask("POST", "/trial?pod=default/off")["result"] == "unverifiable"
