"""The pods of the demo as network namespaces, joined by one more, which is also a client outside the mesh."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.lab.netns import configure, inside, path_of, run

JOINT = "pm-demo-net"
GATEWAY = "10.244.1.1"
"""Address of the joining namespace, for the pods and as the client outside."""


class Pod:
    """A pod of the demo. `seen`: connections that its proxy has accepted, by listener."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.key = f"default/{name}"
        self.netns = f"pm-demo-{name}"
        self.address = f"10.244.1.{number}"
        self.seen: Counter[str] = Counter()


def lay(pods: Iterable[Pod]) -> None:
    """Make the namespaces, and a link with host routes from each to the joint."""
    run("ip", "netns", "add", JOINT)
    configure(JOINT, "link set lo up", f"addr add {GATEWAY}/32 dev lo")
    inside(JOINT, _forward)
    for pod in pods:
        run("ip", "netns", "add", pod.netns)
        configure(
            pod.netns,
            "link set lo up",
            f"link add eth0 type veth peer name {pod.name} netns {JOINT}",
            "link set eth0 up",
            f"addr add {pod.address}/32 dev eth0",
            f"route add {GATEWAY} dev eth0 scope link",
            f"route add default via {GATEWAY} dev eth0",
        )
        configure(
            JOINT,
            f"link set {pod.name} up",
            f"route add {pod.address} dev {pod.name} src {GATEWAY}",
        )


def _forward() -> None:
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def remove(pods: Iterable[Pod]) -> None:
    """Delete the namespaces that exist, and end whatever still runs in them."""
    for name in (*(pod.netns for pod in pods), JOINT):
        if path_of(name).exists():
            for pid in run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "delete", name)
