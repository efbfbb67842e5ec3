"""Chapters 1 to 3: pods are redirected, and what that means for their connections."""

import time
from typing import Any

from tests.demo.journey import follow, travel
from tests.demo.manifests import pod_of
from tests.demo.network import Pod
from tests.demo.rules import handles, listing
from tests.demo.stage import PROXY_UID, Stage, seen_by
from tests.demo.tell import Teller
from tests.lab.agent import Agent

SKIP_IN = "config.linkerd.io/skip-inbound-ports"
SKIP_OUT = "config.linkerd.io/skip-outbound-ports"


def introduce(agent: Agent, pod: Pod, **details: Any) -> float:
    """Write the pod's manifest and wait until it is redirected. Returns how many milliseconds that took."""
    began = time.monotonic()
    agent.put(pod_of(pod, **details))
    agent.wait_reason(pod.key, "Redirected")
    return (time.monotonic() - began) * 1000


def pods_are_found(stage: Stage, tell: Teller) -> None:
    tell.heading("Pods are found and redirected")
    tell.say(
        "The agent runs outside of the pods, on the node. It reads a directory of manifests: a pod that has "
        "a container linkerd-proxy is meshed."
    )
    stage.start(stage.agent)
    annotations = {stage.web: {SKIP_OUT: "3306"}, stage.db: {SKIP_IN: "3306"}}
    for pod, skip in annotations.items():
        took = introduce(stage.agent, pod, annotations=skip)
        state = seen_by(stage.agent, pod)
        status = state.status
        tell.show(
            f"{pod.key:<12} found at {state.netns}, {status.how}: {took:.0f} ms after its manifest was "
            f"written\n{'':<12} commit {status.install_ms:.2f} ms, read back and compared in "
            f"{status.verify_ms:.2f} ms"
        )
        tell.fact(
            f"{pod.key} is redirected in both directions, by rules that were read back",
            got=(status.reason.value, status.how, [rule in listing(pod) for rule in ENDS]),
            want=("Redirected", "installed", [True, True]),
        )
    stage.owned = stage.agent.state()["ownedTables"]
    rules = [line for line in handles(stage.web) if "comment" in line]
    tell.say(
        f"That is one nftables table, `inet pointsman`, with {len(rules)} rules. "
        + (
            "The agent owns it: the kernel refuses changes by anybody else."
            if stage.owned
            else "This kernel has no tables with owner and persist (or they are switched off), so the table "
            "is a plain one: others can change it, and the agent repairs it."
        )
    )


ENDS = ('"pointsman in-redirect"', '"pointsman out-redirect"')


def connections_arrive(stage: Stage, tell: Teller) -> None:
    tell.heading("Real connections arrive at the proxies")
    tell.say("Each proxy asks the kernel where the connection wanted to go, and carries it there.")
    follow(
        tell,
        travel(stage, stage.web, stage.db),
        "from pod to pod: through both proxies, with original destination and source",
        "outbound proxy of web",
        "inbound proxy of db",
    )
    follow(
        tell,
        travel(stage, None, stage.db),
        "from outside the mesh: through the inbound proxy, with original destination and source",
        "inbound proxy of db",
    )


def skipped_ports_are_direct(stage: Stage, tell: Teller) -> None:
    tell.heading("What is to be skipped goes direct")
    tell.say(f"web has the annotation {SKIP_OUT}: 3306, and db {SKIP_IN}: 3306.")
    follow(
        tell,
        travel(stage, stage.web, stage.db, 3306),
        "port 3306 meets no proxy: the application sees the client itself",
    )
    tell.say("What the proxy itself sends must not come back to it.")
    follow(
        tell,
        travel(stage, stage.web, stage.db, uid=PROXY_UID),
        "uid 2102 leaves web directly, and meets the proxy of db alone",
        "inbound proxy of db",
    )
