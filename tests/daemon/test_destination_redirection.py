"""What the agent knows of a pod's redirection decides how the pod is announced."""

import contextlib
import fcntl
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.mesh import ANSWERING, IDENTITY, JSON, WEB, endpoint_slice, meshed, service
from tests.lab.agent import Agent, agent
from tests.lab.asker import Asker, asking
from tests.lab.netns import netns

BY_IP = "GetProfile=10.1.0.1:8080"
NODE_PORT = 4998
GUARD = 2.0
DISABLED = {"pointsman.io/redirect": "disabled"}
SKIPS = {"config.linkerd.io/skip-inbound-ports": "8080"}


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def node() -> Iterator[str]:
    """The namespace that the agent takes for the node's own."""
    with netns() as name:
        yield name


@contextlib.contextmanager
def announcing(directory: Path, node: str, pod: JSON, *flags: str, name: str = "agent") -> Iterator[Agent]:
    """An agent that is asked on its node, of a Service with this pod."""
    diagnostics = ("--diagnostics-address", f"127.0.0.1:{NODE_PORT}")
    prefix = ("nsenter", f"--net=/run/netns/{node}")
    with agent(directory, *ANSWERING, *diagnostics, *flags, name=name, prefix=prefix) as one:
        for each in (service(), endpoint_slice(pod), pod):
            one.put(each)
        yield one


@contextlib.contextmanager
def asked(node: str) -> Iterator[Asker]:
    with asking(node, WEB, BY_IP, target=f"127.0.0.1:{NODE_PORT}") as client:
        client.wait(lambda: len(client.current) == 2, "first answers")
        yield client
        assert client.ends == []
        assert client.faults() == []


def identities(client: Asker) -> set[str | None]:
    return {each["tls"] for question in (WEB, BY_IP) for each in client.addresses(question).values()}


def announced(client: Asker) -> bool:
    return identities(client) == {IDENTITY}


def withheld(client: Asker) -> bool:
    """In clear text: no identity, and no hint that would have the proxy speak otherwise."""
    found = [each for question in (WEB, BY_IP) for each in client.addresses(question).values()]
    return all(each["tls"] is None and not each["hint"] and not each["opaque_transport"] for each in found)


def counted(one: Agent, reason: str) -> float:
    """`pointsman_destination_withheld` by reason; one per kept answer that the pod is in."""
    page = one.ask("GET", "/metrics")
    found = re.search(rf'^pointsman_destination_withheld{{reason="{reason}"}} (\S+)$', page, re.M)
    return float(found[1]) if found else 0.0


@contextlib.contextmanager
def another_writer(directory: Path) -> Iterator[None]:
    """Somebody has the writer's lock, so that the agent compares only."""
    path = directory / "run" / "writer.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_pod_that_is_not_redirected_loses_its_identity_after_the_guard_and_gets_it_back(
    tmp_path: Path, node: str, pod: str
) -> None:
    with contextlib.ExitStack() as held:
        held.enter_context(another_writer(tmp_path))
        with announcing(tmp_path, node, meshed("web-0", pod)) as one, asked(node) as client:
            one.wait_reason("shop/web-0", "ObservedOnly")
            assert announced(client)
            client.wait(lambda: withheld(client), "the identity withheld", GUARD + 1)
            since = one.pod("shop/web-0")["status"]["since"]
            assert time.time() - since > GUARD - 0.1
            one.wait(lambda: counted(one, "ObservedOnly") == 2, "the count")
            (line,) = one.events("pod is not redirected: announced without identity, and so in clear text")
            assert (line["pod"], line["reason"]) == ("shop/web-0", "ObservedOnly")
            held.close()
            one.wait_reason("shop/web-0", "Redirected")
            client.wait(lambda: announced(client), "the identity", 1.0)
            assert counted(one, "ObservedOnly") == 0
            assert len(one.events("pod is announced as meshed again")) == 1


def test_what_is_wrong_for_a_moment_changes_no_answer(tmp_path: Path, node: str, pod: str) -> None:
    with contextlib.ExitStack() as held:
        held.enter_context(another_writer(tmp_path))
        with announcing(tmp_path, node, meshed("web-0", pod)) as one, asked(node) as client:
            one.wait_reason("shop/web-0", "ObservedOnly")
            held.close()
            one.wait_reason("shop/web-0", "Redirected", seconds=1)
            time.sleep(GUARD + 0.5)
            assert announced(client)
            assert [len(view.seen) for view in client.calls.values()] == [1, 1]


def test_an_observing_agent_knows_as_much(tmp_path: Path, node: str, pod: str) -> None:
    with announcing(tmp_path, node, meshed("web-0", pod), "--observe") as one, asked(node) as client:
        one.wait_reason("shop/web-0", "ObservedOnly")
        client.wait(lambda: withheld(client), "the identity withheld", GUARD + 1)


def test_rules_that_nobody_owns_redirect_all_the_same(tmp_path: Path, node: str, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(meshed("web-0", pod))
        one.wait_reason("shop/web-0", "Redirected")
        one.stop()
    with (
        announcing(tmp_path, node, meshed("web-0", pod), "--observe", name="eye") as eye,
        asked(node) as client,
    ):
        eye.wait_reason("shop/web-0", "Redirected", "Drifted")
        time.sleep(GUARD + 0.5)
        assert announced(client)


def test_rules_of_another_process_that_differ_say_nothing_for_the_pod(
    tmp_path: Path, node: str, pod: str, owned_tables: bool
) -> None:
    """Every retry finds the owner there still; that they follow each other must not put the guard off."""
    if not owned_tables:
        pytest.skip("the kernel has no owned tables")
    other = tmp_path / "other"
    other.mkdir()
    with agent(other) as owner:
        owner.put(meshed("web-0", pod))
        owner.wait_reason("shop/web-0", "Redirected")
        with announcing(tmp_path, node, meshed("web-0", pod)) as one, asked(node) as client:
            one.wait_reason("shop/web-0", "OwnedByAnother")
            client.wait(lambda: withheld(client), "the identity withheld", GUARD + 1)
            assert one.pod("shop/web-0")["status"]["attempts"] > 1
            owner.stop()
            one.wait_reason("shop/web-0", "Redirected")
            client.wait(lambda: announced(client), "the identity", 1.0)


def test_a_pod_that_is_unmeshed_on_purpose_is_so_at_once(tmp_path: Path, node: str, pod: str) -> None:
    with announcing(tmp_path, node, meshed("web-0", pod)) as one, asked(node) as client:
        one.wait_reason("shop/web-0", "Redirected")
        assert announced(client)
        for _ in range(2):
            one.put(meshed("web-0", pod, annotations=DISABLED))
            one.wait_reason("shop/web-0", "Draining")
            client.wait(lambda: withheld(client), "the identity withheld", GUARD / 2)
            one.put(meshed("web-0", pod))
            one.wait_reason("shop/web-0", "Redirected")
            client.wait(lambda: announced(client), "the identity", GUARD / 2)


def test_a_pod_that_never_was_meshed_on_purpose(tmp_path: Path, node: str, pod: str) -> None:
    with announcing(tmp_path, node, meshed("web-0", pod, annotations=DISABLED)) as one:
        one.wait_reason("shop/web-0", "RedirectDisabled")
        with asked(node) as client:
            assert withheld(client)
            one.wait(lambda: counted(one, "RedirectDisabled") == 2, "the count")


def test_a_skipped_port_is_announced_in_clear_text_and_the_others_are_not(
    tmp_path: Path, node: str, pod: str
) -> None:
    other = "GetProfile=10.1.0.1:9090"
    with announcing(tmp_path, node, meshed("web-0", pod, annotations=SKIPS)) as one, asked(node) as client:
        assert withheld(client)
        one.wait(lambda: counted(one, "PortSkipped") == 2, "the count")
        with asking(node, other, target=f"127.0.0.1:{NODE_PORT}") as second:
            second.wait(lambda: second.addresses(other), "answer")
            assert next(iter(second.addresses(other).values()))["tls"] == IDENTITY
        one.put(meshed("web-0", pod))
        client.wait(lambda: announced(client), "the identity")


@pytest.mark.parametrize("wish", ["deny", "allow"])
def test_other_wishes_keep_the_identity(tmp_path: Path, node: str, pod: str, wish: str) -> None:
    flags = ("--observe", "--require-redirection", wish)
    with announcing(tmp_path, node, meshed("web-0", pod), *flags) as one, asked(node) as client:
        one.wait_reason("shop/web-0", "ObservedOnly")
        time.sleep(GUARD + 0.5)
        assert announced(client)
        said = one.events("pod is not redirected: connections from the mesh to it fail")
        assert len(said) == (1 if wish == "deny" else 0)
