"""An agent that keeps its plugin in a node's chain (`run --install-cni`), and the runtime that calls it."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from agent.core.chain import TYPE
from tests.cni.confs import Node
from tests.cni.shim import Done, call, with_previous
from tests.lab.agent import Agent, agent
from tests.lab.cni import arguments
from tests.lab.netns import path_of

UID = "7d3b6f1e-0d5e-4c38-8a1f-3f6c2a9b1c11"
CONFLIST = "10-calico.conflist"


@contextlib.contextmanager
def keeping(node: Node, *flags: str, name: str = "agent", start: bool = True) -> Iterator[Agent]:
    """An agent that keeps the chain of this node; all of a node share manifests and run directory."""
    place = ("--conf-dir", node.conf_dir, "--bin-dir", node.bin_dir, "--shim", node.shim)
    given = (*map(str, place), *flags)
    with agent(node.conf_dir.parent, "--install-cni", *given, name=name, start=start) as one:
        yield one


def entry(node: Node) -> dict[str, Any]:
    plugins: list[dict[str, Any]] = json.loads((node.conf_dir / CONFLIST).read_text())["plugins"]
    return plugins[-1]


def add(node: Node, pod: str, name: str = "web", namespace: str = "default") -> Done:
    """ADD as the runtime calls it: the binary that was installed, by the entry that is in the chain."""
    stdin = json.dumps({**entry(node), "cniVersion": "1.0.0", "name": "net"}).encode()
    given = {"CNI_NETNS": str(path_of(pod)), "CNI_ARGS": arguments(name, namespace, UID)}
    return call(node.bin_dir / TYPE, "ADD", with_previous(stdin), **given)
