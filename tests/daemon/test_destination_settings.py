"""How Linkerd was installed, by its ConfigMap and by flags; nothing is answered before it is known."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.mesh import ASKS_US, JSON, WEB, endpoint_slice, linkerd_config, meshed, service
from tests.lab.agent import Agent, agent
from tests.lab.asker import Asker, asking
from tests.lab.netns import inside, netns

VALUES = {"clusterDomain": "cluster.local", "identityTrustDomain": "mesh.test"}
HINT = "how Linkerd was installed is not known: cannot find, or read, ConfigMap linkerd/linkerd-config"
UNREADABLE = "cannot read how Linkerd was installed"
BY_IP = "GetProfile=10.1.0.1:8080"


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


@contextlib.contextmanager
def serving(directory: Path, pod: str, *flags: str) -> Iterator[Agent]:
    """An agent of a Service with one pod, and of the pod `client`, which asks."""
    web = meshed("web-0", ip="10.1.0.1", node="n2")
    with agent(directory, "--node-name", "n1", *flags) as one:
        for each in (service(), endpoint_slice(web), web, meshed("client", pod, "10.1.0.99")):
            one.put(each)
        one.wait_reason("shop/client", "Redirected")
        yield one


def complaint(one: Agent) -> tuple[str, str]:
    """Reason and message."""
    found = one.pod("shop/client")["destination"]["complaint"]
    return (found["reason"], found["message"]) if found else ("", "")


def listening(one: Agent) -> bool:
    return bool(one.pod("shop/client")["destination"]["port"])


def loaded(one: Agent) -> bool:
    """Whether gRPC is in the agent's memory."""
    return "cygrpc" in Path(f"/proc/{one.pid}/maps").read_text()


def resident(one: Agent) -> int:
    """KiB."""
    lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))


def identity(client: Asker, question: str = WEB) -> str:
    client.wait(lambda: client.addresses(question), f"answer to {question}")
    found: str = next(iter(client.addresses(question).values()))["tls"]
    return found.rpartition(".linkerd.")[2] if found else ""


def reads(client: Asker, domain: str) -> None:
    client.wait(lambda: client.addresses(WEB) and identity(client) == domain, domain)


def test_nothing_is_opened_nor_loaded_before_it_is_known(tmp_path: Path, pod: str) -> None:
    with serving(tmp_path, pod) as one:
        time.sleep(0.5)
        assert one.pod("shop/client")["destination"]["asks"] == "us"
        assert complaint(one) == ("NotAnswering", HINT)
        assert not loaded(one)
        assert "pointsman_destination_streams" not in one.ask("GET", "/metrics")
        with pytest.raises(ConnectionRefusedError):
            inside(pod, lambda: socket.create_connection(("127.0.0.1", 4186), 2))
        before = resident(one)
        one.put(linkerd_config(VALUES))
        one.wait(lambda: listening(one), "listener")
        assert complaint(one) == ("", "")
        assert loaded(one)
        assert resident(one) - before > 5_000
        with asking(pod, WEB) as client:
            assert identity(client) == "mesh.test"


def test_an_agent_that_is_not_to_answer_loads_nothing(tmp_path: Path, pod: str) -> None:
    flags = ("--no-destination", "--identity-trust-domain", "mesh.test")
    with serving(tmp_path, pod, *flags) as one:
        one.put(linkerd_config(VALUES))
        time.sleep(1)
        assert not loaded(one)
        words = "destinations are not answered by this agent (--no-destination)"
        assert complaint(one) == ("NotAnswering", words)


def test_a_change_reaches_open_streams(tmp_path: Path, pod: str) -> None:
    with serving(tmp_path, pod) as one:
        one.put(linkerd_config(VALUES))
        one.wait(lambda: listening(one), "listener")
        with asking(pod, WEB, BY_IP) as client:
            reads(client, "mesh.test")
            one.put(linkerd_config(VALUES, identityTrustDomain="other.test", proxy={"opaquePorts": "8080"}))
            reads(client, "other.test")
            client.wait(lambda: opaque(client), "the opaque port")
            assert client.ends == []


def test_flags_stand_over_the_configmap(tmp_path: Path, pod: str) -> None:
    flags = ("--identity-trust-domain", "flag.test", "--default-opaque-ports", "8080")
    with serving(tmp_path, pod, *flags) as one:
        one.put(linkerd_config(VALUES, proxy={"opaquePorts": "25"}))
        one.wait(lambda: listening(one), "listener")
        with asking(pod, WEB, BY_IP) as client:
            reads(client, "flag.test")
            client.wait(lambda: opaque(client), "the opaque port")
            one.put(linkerd_config(VALUES, clusterDomain="cluster.local", disableIPv6=False))
            one.wait(lambda: one.events("Linkerd's settings have changed"), "the change")
            assert identity(client) == "flag.test"


def test_flags_are_not_enough_while_it_may_say_more(tmp_path: Path, pod: str) -> None:
    """Its cluster domain is another; a first answer by the flags alone would refuse the name for good."""
    web = "Get=web.shop.svc.example.org:80"
    (tmp_path / "manifests").mkdir()
    with agent(tmp_path, start=False) as nobody:
        nobody.put(linkerd_config(VALUES, clusterDomain="example.org"))
    with serving(tmp_path, pod, "--identity-trust-domain", "flag.test") as one, asking(pod, web) as client:
        one.wait(lambda: listening(one), "listener")
        assert identity(client, web) == "flag.test"
        assert {end.status for end in client.ends} <= {"UNAVAILABLE"}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (linkerd_config("clusterDomain: [unclosed"), "cannot read YAML"),
        (linkerd_config("- a list"), "names neither clusterDomain nor identityTrustDomain"),
        (linkerd_config("proxy: {}"), "names neither clusterDomain nor identityTrustDomain"),
        (linkerd_config(""), "it has no key `values`"),
        (linkerd_config({**VALUES, "identityTrustDomain": ["x"]}), "cannot use identityTrustDomain"),
        (linkerd_config({**VALUES, "clusterDomain": 7}), "cannot use clusterDomain"),
    ],
)
def test_what_cannot_be_read_is_held_until_it_can(tmp_path: Path, pod: str, broken: JSON, words: str) -> None:
    with serving(tmp_path, pod) as one:
        one.put(broken)
        one.wait(lambda: one.events(UNREADABLE), "complaint")
        (line,) = one.events(UNREADABLE)
        assert line["object"] == "linkerd/linkerd-config"
        assert words in line["error"]
        time.sleep(0.3)
        assert not listening(one)
        one.put(linkerd_config(VALUES))
        one.wait(lambda: listening(one), "listener")
        with asking(pod, WEB) as client:
            reads(client, "mesh.test")
            one.put(broken)
            one.wait(lambda: len(one.events(UNREADABLE)) == 2, "complaint")
            one.drop(broken)
            one.put(service("web", "10.96.0.10", internalTrafficPolicy="Local"))
            client.wait(lambda: not client.addresses(WEB), "an update")
            one.put(service())
            reads(client, "mesh.test")
            assert client.ends == []


@pytest.mark.parametrize(
    ("values", "trust"),
    [
        ({"clusterDomain": "cluster.local"}, "cluster.local"),
        ({"clusterDomain": "cluster.local", "identityTrustDomain": ""}, "cluster.local"),
        (
            {
                "identityTrustDomain": "mesh.test",
                "clusterDomain": "cluster.local",
                "proxy": {"opaquePorts": "mysql"},
            },
            "mesh.test",
        ),
    ],
)
def test_values_that_can_be_done_with(tmp_path: Path, pod: str, values: dict[str, Any], trust: str) -> None:
    with serving(tmp_path, pod) as one:
        one.put(linkerd_config(values))
        one.wait(lambda: listening(one), "listener")
        with asking(pod, WEB) as client:
            reads(client, trust)
        said = [line for line in one.events("complaint") if "linkerd-config" in line["message"]]
        assert len(said) == (1 if "proxy" in values else 0)


def test_the_control_plane_may_be_elsewhere(tmp_path: Path, pod: str) -> None:
    with serving(tmp_path, pod, "--linkerd-namespace", "mesh-system") as one:
        one.put(linkerd_config(VALUES))
        time.sleep(0.5)
        assert "mesh-system/linkerd-config" in complaint(one)[1]
        there = linkerd_config(VALUES)
        there["metadata"]["namespace"] = "mesh-system"
        one.put(there)
        one.wait(lambda: listening(one), "listener")


def test_an_agent_without_its_diagnostics_port_answers_pods(tmp_path: Path, pod: str) -> None:
    with netns() as node:
        taken = inside(node, lambda: socket.create_server(("127.0.0.1", 4998)))
        flags = ("--identity-trust-domain", "mesh.test", "--diagnostics-address", "127.0.0.1:4998")
        prefix = ("nsenter", f"--net=/run/netns/{node}")
        with contextlib.closing(taken), agent(tmp_path, *flags, prefix=prefix) as one:
            one.put(meshed("client", pod, asks=ASKS_US))
            one.wait(lambda: listening(one), "listener")
            (line,) = one.events("cannot be asked by `pointsman diagnostics`")
            assert line["error"].startswith("cannot listen at 127.0.0.1:4998")
            assert one.running


def opaque(client: Asker) -> bool:
    view = client.view(BY_IP)
    return view is not None and bool(view.opaque)
