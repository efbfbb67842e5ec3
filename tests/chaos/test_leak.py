"""C19: pods come and go, and nothing of them stays: no descriptor, no thread, no namespace."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.agent import Agent, agent, descriptors, pod_manifest
from tests.lab.netns import configure, netns, path_of, run

PODS = int(os.environ.get("LEAK_PODS", "300"))
BATCH = 50
MOST_THREADS = 25
"""Lanes, closers, doors and the rest, far below the number of pods."""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
    pytest.mark.timeout(max(600, PODS)),
]


@contextlib.contextmanager
def pods(count: int, world: str, batch: int) -> Iterator[list[str]]:
    """Namespaces, each with one end of a veth pair whose other end is in `world`.

    The kernel removes a pair with the namespace of either end, and it ends a namespace that no name leads
    to when nobody holds it open any more. So what is left in `world` counts the namespaces that still live.
    """
    names = [f"pm-{os.getpid()}-leak-{batch}-{number}" for number in range(count)]
    try:
        for number, name in enumerate(names):
            run("ip", "netns", "add", name)
            configure(name, f"link add eth0 type veth peer name v{batch}-{number} netns {world}")
        yield names
    finally:
        for name in names:
            if path_of(name).exists():
                run("ip", "netns", "delete", name)


def come_and_go(one: Agent, world: str, batch: int) -> None:
    """A batch: a third lose their namespace first, a third their object, a third are opted out."""
    with pods(BATCH, world, batch) as names:
        manifests = [pod_manifest(f"pod-{batch}-{number}", name) for number, name in enumerate(names)]
        for manifest in manifests:
            one.put(manifest)
        one.wait(lambda: redirected(one) == BATCH, "redirection of a batch", 30)
        for number, (name, manifest) in enumerate(zip(names, manifests, strict=True)):
            if number % 3 == 0:
                run("ip", "netns", "delete", name)
            elif number % 3 == 1:
                one.drop(manifest)
            else:
                manifest["metadata"]["annotations"]["pointsman.io/redirect"] = "disabled"
                one.put(manifest)
    for number, manifest in enumerate(manifests):
        if number % 3 != 1:
            one.drop(manifest)
    one.wait(lambda: one.state()["pods"] == [], "the end of a batch", 10)


def redirected(one: Agent) -> int:
    return sum(pod["status"]["reason"] == "Redirected" for pod in one.state()["pods"])


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def links(name: str) -> int:
    return len(run("ip", "-n", name, "-o", "link").splitlines())


def test_c19_nothing_is_left_of_pods_that_have_gone(tmp_path: Path) -> None:
    with netns() as world, agent(tmp_path) as one:
        # The first batch starts what stays, and the compiler, which ends when it has nothing to do.
        come_and_go(one, world, 0)
        before = at_rest(one)
        for batch in range(1, max(2, PODS // BATCH)):
            come_and_go(one, world, batch)
        deadline = time.monotonic() + 10
        while (living := links(world) - 1) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert living == 0, "devices of namespaces that still live"
        after = at_rest(one)
        assert after <= before, "descriptors"
        assert threads(one.pid) < MOST_THREADS
        state = one.state()
        assert (state["netnsHeld"], state["netnsLive"]) == (0, 0)


def at_rest(one: Agent) -> int:
    """Descriptors of the agent once it has been quiet for a second."""
    one.wait(lambda: compiler_has_ended(one.pid), "the end of the compiler", 30)
    before, now = -1, descriptors(one.pid)
    while now != before:
        time.sleep(1)
        before, now = now, descriptors(one.pid)
    return now


def compiler_has_ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split() == []
