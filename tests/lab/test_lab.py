"""The lab itself: the stand-in as a process, real bytes end to end, and nothing left behind."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.addresses import Addresses, Family
from tests.lab.netns import inside, path_of, run
from tests.lab.pod import Pod, pod_and_world
from tests.lab.probe import opened_standin, send
from tests.lab.standin import bind
from tests.lab.way import NotOnAWireError, Probe, laid

ROOT = Path(__file__).parents[2]
RULES = """
table inet lab {
  chain out {
    type nat hook output priority -101;
    meta skuid 2102 return
    oifname lo return
    meta l4proto tcp redirect to :4140
  }
  chain in {
    type nat hook prerouting priority -101;
    meta l4proto tcp redirect to :4143
  }
}
"""


@pytest.fixture
def pod() -> Iterator[Pod]:
    with pod_and_world() as made:
        run("ip", "netns", "exec", made.name, "nft", "-f", "-", script=RULES)
        yield made


@contextlib.contextmanager
def standin_process(pod: Pod) -> Iterator[Iterator[dict[str, object]]]:
    """What the stand-in says, line by line, once it is ready."""
    command = [sys.executable, "-m", "tests.lab.standin", "--netns", pod.name, "--forward"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = map(json.loads, process.stdout)
        try:
            assert "ready" in next(said)
            yield said
        finally:
            process.terminate()


@contextlib.contextmanager
def echo(name: str, family: Family, address: str, port: int, uid: int = 0) -> Iterator[None]:
    """One connection's worth of an echo server in the namespace `name`."""
    listener = inside(name, lambda: bind(family, address, port), uid=uid)
    listener.setblocking(True)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data.upper())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield
        thread.join(5)
        assert not thread.is_alive()


def _call(name: str, address: str, port: int, uid: int) -> bytes:
    client = inside(name, lambda: socket.create_connection((address, port), timeout=5), uid=uid)
    with client:
        client.sendall(b"through " * 10_000)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while data := client.recv(65536):
            answer += data
    return answer


@pytest.mark.parametrize("family", [4, 6])
def test_bytes_travel_through_the_standin(pod: Pod, family: Family) -> None:
    far = pod.link("eth0").there[family]
    here = pod.address[family]
    with standin_process(pod) as said:
        with echo(pod.world, family, far, 9999):
            assert _call(pod.name, far, 9999, uid=1000) == b"THROUGH " * 10_000
        assert next(said) | {"peer": None} == {
            "listener": "outbound", "port": 4140, "peer": None, "original": [far, 9999]
        }  # fmt: skip
        with echo(pod.name, family, here, 8080, uid=1000):
            assert _call(pod.world, here, 8080, uid=0) == b"THROUGH " * 10_000
        answer = next(said)
        assert (answer["listener"], answer["original"]) == ("inbound", [here, 8080])
        assert isinstance(answer["peer"], list)
        assert answer["peer"][0] == far


def test_namespaces_are_gone_after_a_failure() -> None:
    names: list[str] = []

    def fail() -> None:
        with pod_and_world() as pod:
            names.extend((pod.name, pod.world, pod.inner().far))
            assert all(path_of(name).exists() for name in names)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(names) == 3
    assert not any(path_of(name).exists() for name in names)


def test_addresses_avoid_what_a_test_names() -> None:
    supply = Addresses(["198.18.0.0/15", "203.0.113.1", "203.0.113.3", "2001:db8::/32"])
    assert [supply.fresh(4) for _ in range(2)] == ["100.101.102.1", "100.101.102.2"]
    assert supply.fresh(6) == "fd5a:77::1"
    everything = Addresses(["0.0.0.0/0", "198.18.77.1"])
    assert everything.fresh(4) == "198.18.77.2"


def test_a_refused_and_a_lost_connection_are_told_apart(pod: Pod) -> None:
    probe = Probe(direction="out", port=80)
    with laid(pod, probe) as way:
        assert send(pod, (), probe, way).place == "refused"
        run("ip", "netns", "exec", pod.name, "nft", "add rule inet lab out meta l4proto udp drop")
        udp = Probe(direction="out", port=80, protocol="udp")
        assert send(pod, (), udp, way).place == "lost"


@pytest.mark.parametrize(
    "probe",
    [
        Probe(direction="in", port=80, source="127.0.0.1"),
        Probe(direction="in", port=80, interface="lo"),
        Probe(direction="in", port=80, destination="127.0.0.1"),
        Probe(direction="in", port=80, source="224.0.0.1"),
        Probe(direction="in", port=80, family=6, source="fe80::1"),
        Probe(direction="in", port=80, family=6, source="10.0.0.1"),
        Probe(direction="out", port=80, destination="127.0.0.1"),
        Probe(direction="out", port=80, destination="0.0.0.0"),
        Probe(direction="out", port=80, interface="a name that is too long"),
    ],
)
def test_what_no_wire_can_carry_is_said(pod: Pod, probe: Probe) -> None:
    with pytest.raises(NotOnAWireError), laid(pod, probe):
        pass


def test_ids_beyond_the_user_namespace_are_said() -> None:
    with pod_and_world(user_namespace=True) as pod:
        probe = Probe(direction="out", port=80, uid=70_000)
        with pytest.raises(NotOnAWireError, match="maps no id 70000"), laid(pod, probe) as way:
            send(pod, (), probe, way)


def test_standin_ports_that_are_the_target_are_marked(pod: Pod) -> None:
    with opened_standin(pod) as standin:
        for port, at_target in ((4143, True), (8080, False)):
            probe = Probe(direction="in", port=port)
            with laid(pod, probe) as way:
                arrival = send(pod, standin, probe, way)
            assert (arrival.place, arrival.original) == ("in", (pod.address[4], port))
            assert arrival.at_target is at_target
