"""Many pods, new sandboxes, user namespaces, clients that hang: nothing stays behind, and nobody waits."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.mesh import ANSWERING, WEB, meshed
from tests.daemon.test_destination_listeners import add, listening, reached, state
from tests.lab.agent import Agent, agent, descriptors
from tests.lab.asker import Asker, asking
from tests.lab.netns import netns, user_netns

PODS = 40
_OWN = Path("/proc/self/ns/net").readlink()


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@contextlib.contextmanager
def frozen(client: Asker) -> Iterator[None]:
    """A client that reads nothing, and answers nothing."""
    client.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        client.signal(signal.SIGCONT)


def test_pods_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    with agent(tmp_path, *ANSWERING, "--listeners", "0.2") as one:
        for turn in range(3):
            with contextlib.ExitStack() as opened:
                names = [opened.enter_context(netns()) for _ in range(PODS)]
                manifests = [meshed(f"pod-{n}", name, f"10.1.0.{n}") for n, name in enumerate(names)]
                for each in manifests:
                    one.put(each)
                one.wait(
                    lambda: [pod["destination"]["port"] for pod in one.state()["pods"]] == [4186] * PODS,
                    "all",
                )
                assert all(map(reached, names))
                one.wait(lambda: _namespaces_of_threads(one) == {_OWN}, "no thread in a pod's namespace")
                for each in manifests:
                    one.drop(each)
            one.wait(lambda: one.state()["pods"] == [], "the end of all")
            one.wait(
                lambda: "pointsman_destination_listeners 0.0" in one.ask("GET", "/metrics"), "no listener"
            )
            if turn == 0:
                before = descriptors(one.pid)
        one.wait(lambda: descriptors(one.pid) <= before, "no more descriptors than after the first turn")


def test_a_new_sandbox_has_its_listener_before_add_is_answered(tmp_path: Path) -> None:
    with agent(tmp_path, *ANSWERING, "--no-discovery") as one, netns() as first, netns() as second:
        one.put(meshed("web"))
        one.wait_reason("shop/web", "NetnsMissing")
        assert add(one, "web", first) is None
        with asking(first, WEB) as client:
            client.wait(lambda: WEB in client.current, "answer")
            assert add(one, "web", second) is None
            assert reached(second)
            one.wait(lambda: not reached(first), "the end of the old one")
            assert state(one, "shop/web")["port"] == 4186


def test_a_pod_with_a_user_namespace_of_its_own(tmp_path: Path) -> None:
    with user_netns() as name, agent(tmp_path, *ANSWERING) as one:
        listening(one, meshed("client", name))
        assert reached(name)


def test_a_client_that_hangs_keeps_no_agent_from_its_end(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one, asking(pod, WEB, "GetProfile=10.1.0.1:80") as client:
        listening(one, meshed("client", pod))
        client.wait(lambda: len(client.current) == 2, "answers")
        with frozen(client):
            began = time.monotonic()
            assert one.stop() == 0
            assert time.monotonic() - began < 4
        one.start()
        listening(one, meshed("client", pod))
        client.wait(lambda: all(client.answered[n] > began for n in client.current.values()), "answers anew")


def test_a_client_that_hangs_keeps_no_listener_from_moving(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one, asking(pod, WEB) as client:
        listening(one, meshed("client", pod))
        client.wait(lambda: WEB in client.current, "answer")
        with frozen(client):
            listening(one, meshed("client", pod, asks="127.0.0.1:5186"), 5186)
            assert not reached(pod)


def _namespaces_of_threads(one: Agent) -> set[Path]:
    """Those that only look are there for a moment; gRPC's own would be there for ever, and keep it alive."""
    found = set()
    for task in Path(f"/proc/{one.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add((task / "ns/net").readlink())
    return found
