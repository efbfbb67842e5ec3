"""Where the agent listens in a pod, when, and whom it leaves the port to."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.mesh import ANSWERING, ASKS_US, JSON, WEB, meshed, service
from tests.lab.agent import Agent, agent
from tests.lab.asker import asking
from tests.lab.cni import arguments, ask, conf, environment
from tests.lab.netns import configure, inside, netns, path_of, run

SOON = ("--listeners", "0.2")
CENTRAL = "linkerd-dst-headless.linkerd.svc.cluster.local.:8086"


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


def state(one: Agent, name: str = "shop/client") -> JSON:
    found: JSON = one.pod(name)["destination"]
    return found


def complaint(one: Agent) -> str:
    """What is wrong about the listener in the pod `client`, "" for nothing."""
    found = state(one)["complaint"]
    return f"{found['reason']} {found['subject']}: {found['message']}" if found else ""


def listening(one: Agent, pod: JSON, port: int = 4186) -> None:
    """Have the agent redirect the pod, and listen in it."""
    one.put(pod)
    name = f"shop/{pod['metadata']['name']}"
    one.wait_reason(name, "Redirected")
    one.wait(lambda: state(one, name)["port"] == port, f"listener at {port}")


def reached(name: str, host: str = "127.0.0.1", port: int = 4186) -> bool:
    """Whether somebody takes connections there, inside the namespace."""
    try:
        inside(name, lambda: socket.create_connection((host, port), 2)).close()
    except OSError:
        return False
    return True


def bound(name: str, host: str, port: int = 4186, *, uid: int = 0, share: bool = False) -> socket.socket:
    """A listener of the application, as this user. OSError when it cannot have the port."""

    def bind() -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, share)
            made.bind((host, port))
            made.listen()
        except BaseException:
            made.close()
            raise
        return made

    return inside(name, bind, uid=uid, gid=uid)


@pytest.mark.parametrize(
    ("asks", "target"),
    [
        (ASKS_US, ASKS_US),
        ("127.0.0.1:5186", "127.0.0.1:5186"),
        ("127.0.0.5:4186", "127.0.0.5:4186"),
        ("[::1]:4186", "[::1]:4186"),
        ("localhost.:4186", ASKS_US),
        ("LOCALHOST.:4186", ASKS_US),
        (None, ASKS_US),
    ],
)
def test_it_listens_where_the_proxy_asks(tmp_path: Path, pod: str, asks: str | None, target: str) -> None:
    with agent(tmp_path, *ANSWERING) as one:
        one.put(service())
        listening(one, meshed("client", pod, asks=asks), int(target.rpartition(":")[2]))
        assert state(one)["asks"] == ("nobody" if asks is None else "us")
        with asking(pod, WEB, target=target) as client:
            client.wait(lambda: WEB in client.current, "answer")


@pytest.mark.parametrize(
    "asks",
    [CENTRAL, "localhost:4186", "10.1.0.1:4186", "[::ffff:127.0.0.1]:4186", "127.0.0.1:0", "127.0.0.1"],
)
def test_it_does_not_listen_for_a_proxy_that_asks_elsewhere(tmp_path: Path, pod: str, asks: str) -> None:
    with agent(tmp_path, *ANSWERING) as one, netns() as other:
        listening(one, meshed("other", other))
        one.put(meshed("client", pod, asks=asks))
        one.wait_reason("shop/client", "Redirected")
        time.sleep(0.3)
        assert state(one) == {"asks": "central", "port": 0, "complaint": None}
        assert not reached(pod)


def test_the_port_of_silent_proxies_is_a_flag(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING, "--destination-port", "4999") as one:
        listening(one, meshed("client", pod, asks=None), 4999)
        assert reached(pod, port=4999)
        assert not reached(pod)


def test_a_listener_moves_with_its_proxy(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one:
        listening(one, meshed("client", pod))
        listening(one, meshed("client", pod, asks="127.0.0.1:5186"), 5186)
        assert not reached(pod)
        one.put(meshed("client", pod, asks=CENTRAL))
        one.wait(lambda: state(one)["asks"] == "central" and not reached(pod, port=5186), "the end of it")


def test_a_declared_port_is_left_to_the_application(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one:
        one.put(meshed("client", pod, ports=(8080, 4186)))
        one.wait(lambda: complaint(one), "complaint")
        assert (state(one)["asks"], state(one)["port"]) == ("us", 0)
        assert complaint(one) == "PortClash 127.0.0.1:4186: container app declares port 4186"
        assert not reached(pod)
        (line,) = one.events("pod cannot ask as it should")
        assert (line["pod"], line["reason"]) == ("shop/client", "PortClash")
        listening(one, meshed("client", pod, ports=(8080,)))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(("uid", "share"), [(1000, False), (0, True)])
def test_a_port_in_use_is_left_to_the_application_until_it_is_free(
    tmp_path: Path, pod: str, host: str, uid: int, share: bool
) -> None:
    """As root and shared, the kernel would have us beside it, and give us half of its connections."""
    with agent(tmp_path, *ANSWERING, *SOON) as one:
        with contextlib.closing(bound(pod, host, uid=uid, share=share)) as application:
            one.put(meshed("client", pod))
            one.wait(lambda: complaint(one), "complaint")
            words = f"a process of user {uid} listens at 127.0.0.1:4186 in the pod already"
            assert state(one)["port"] == 0
            assert complaint(one) == f"PortClash 127.0.0.1:4186: {words}"
            time.sleep(0.5)
            application.setblocking(False)
            with pytest.raises(BlockingIOError):
                application.accept()
            assert len(one.events("pod cannot ask as it should")) == 1
        one.wait(lambda: state(one)["port"] == 4186, "listener, now that the port is free")
        assert complaint(one) == ""
        assert reached(pod)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.2", 4186), ("::1", 4186), ("0.0.0.0", 4187)])
def test_a_listener_elsewhere_is_no_clash(tmp_path: Path, pod: str, host: str, port: int) -> None:
    with contextlib.closing(bound(pod, host, port)), agent(tmp_path, *ANSWERING) as one:
        listening(one, meshed("client", pod))
        assert complaint(one) == ""


def test_an_address_that_cannot_be_had_is_told_with_the_kernels_word(tmp_path: Path, pod: str) -> None:
    run("ip", "netns", "exec", pod, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
    with agent(tmp_path, *ANSWERING, *SOON) as one:
        one.put(meshed("client", pod, asks="[::1]:4186"))
        one.wait(lambda: complaint(one), "complaint")
        words = "cannot listen at [::1]:4186 in the pod: Cannot assign requested address"
        assert complaint(one) == f"PortClash [::1]:4186: {words}"
        run("ip", "netns", "exec", pod, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0")
        run("ip", "-n", pod, "addr", "replace", "::1/128", "dev", "lo")
        one.wait(lambda: state(one)["port"] == 4186, "listener")


def test_who_comes_to_share_the_port_is_named(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING, *SOON) as one:
        listening(one, meshed("client", pod))
        with pytest.raises(OSError, match="in use"):
            bound(pod, "127.0.0.1")
        with pytest.raises(OSError, match="in use"):
            bound(pod, "127.0.0.1", uid=1000, share=True)
        with contextlib.closing(bound(pod, "127.0.0.1", share=True)):
            one.wait(lambda: complaint(one), "complaint")
            assert "a process of user 0 has come to share 127.0.0.1:4186" in complaint(one)
            assert state(one)["port"] == 4186
        one.wait(lambda: not complaint(one), "its end noticed")
        assert [line["pod"] for line in one.events("pod can ask now")] == ["shop/client"]


def test_it_takes_calls_before_cni_add_is_answered(tmp_path: Path) -> None:
    with agent(tmp_path, *ANSWERING, "--no-discovery") as one:
        one.put(service())
        for number in range(10):
            name = f"pod-{number}"
            one.put(meshed(name))
            one.wait_reason(f"shop/{name}", "NetnsMissing")
            with netns() as pod:
                assert add(one, name, pod) is None
                assert reached(pod)


def test_a_listener_that_cannot_be_opened_holds_up_no_pod(tmp_path: Path, pod: str) -> None:
    with contextlib.closing(bound(pod, "0.0.0.0", uid=1000)), agent(tmp_path, *ANSWERING) as one:
        one.put(meshed("client"))
        one.wait_reason("shop/client", "NetnsMissing")
        assert add(one, "client", pod) is None
        assert "listens at 127.0.0.1:4186" in complaint(one)


def deleted(one: Agent, pod: JSON, name: str) -> None:
    """Its object first, as when a pod is deleted by force; its namespace after."""
    one.drop(pod)
    one.wait_reason(f"shop/{pod['metadata']['name']}", "Orphaned")
    run("ip", "netns", "delete", name)


def removed(one: Agent, pod: JSON, name: str) -> None:
    run("ip", "netns", "delete", name)


def told_by_cni(one: Agent, pod: JSON, name: str) -> None:
    """The runtime removes the namespace only once DEL is answered."""
    assert ask(one.run_dir / "cni.sock", environment("DEL", "c1", path_of(name))) is None
    run("ip", "netns", "delete", name)


def finished(one: Agent, pod: JSON, name: str) -> None:
    one.put({**pod, "status": {**pod["status"], "phase": "Succeeded"}})
    one.wait_reason("shop/client", "Finished")
    run("ip", "netns", "delete", name)


@pytest.mark.parametrize("end", [removed, deleted, told_by_cni, finished])
def test_a_listener_ends_with_its_pod(tmp_path: Path, end: Callable[[Agent, JSON, str], None]) -> None:
    """The kernel removes the namespace, and with it its end of a link, when nobody has a socket in it."""
    with agent(tmp_path, *ANSWERING, "--no-discovery") as one, netns() as far, netns() as name:
        configure(name, f"link add near type veth peer name far netns {far}")
        cni = end is told_by_cni
        manifest = meshed("client", None if cni else name)
        one.put(manifest)
        if cni:
            one.wait_reason("shop/client", "NetnsMissing")
            assert add(one, "client", name) is None
        one.wait(lambda: state(one)["port"] == 4186, "listener")
        with asking(name, WEB) as client:
            client.wait(lambda: WEB in client.current, "answer")
        began = time.monotonic()
        end(one, manifest, name)
        one.wait(lambda: "far" not in run("ip", "-n", far, "link"), "the end of the namespace", 3.0)
        assert time.monotonic() - began < 3.0
        one.wait(lambda: one.state()["netnsHeld"] == 0, "its release")


def test_what_happens_to_the_rules_or_the_object_ends_no_listener(tmp_path: Path, pod: str) -> None:
    """Proxies ask as long as they run."""
    manifest = meshed("client", pod)
    with agent(tmp_path, *ANSWERING, "--table-ownership", "off") as one:
        listening(one, manifest)
        with asking(pod, WEB) as client:
            client.wait(lambda: WEB in client.current, "answer")
            run("ip", "netns", "exec", pod, "nft", "flush", "ruleset")
            one.wait(lambda: one.pod("shop/client")["status"]["drifts"] == 1, "a repair")
            one.put(meshed("client", pod, annotations={"pointsman.io/redirect": "disabled"}))
            one.wait_reason("shop/client", "Draining")
            one.drop(manifest)
            one.wait_reason("shop/client", "Orphaned")
            one.put(service())
            client.wait(lambda: client.view(WEB) and client.view(WEB).exists, "an update")
            one.put(manifest)
            one.wait_reason("shop/client", "Redirected")
            assert client.ends == []


def test_an_observing_agent_listens_in_no_pod(tmp_path: Path, pod: str) -> None:
    with (
        agent(tmp_path, *ANSWERING, name="one") as one,
        agent(tmp_path, *ANSWERING, "--observe", name="eye", start=False) as eye,
    ):
        listening(one, meshed("client", pod))
        one.stop()
        eye.start()
        eye.wait_reason("shop/client", "Redirected", "Drifted")
        time.sleep(0.5)
        assert not reached(pod)


def test_a_pod_without_a_proxy_is_left_alone(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path, *ANSWERING) as one:
        plain = meshed("client", pod)
        del plain["spec"]["containers"][1]
        one.put(plain)
        one.wait_reason("shop/client", "NotMeshed")
        time.sleep(0.3)
        assert one.pod("shop/client")["destination"] is None
        assert not reached(pod)


def add(one: Agent, name: str, pod: str) -> JSON | None:
    call = environment("ADD", "c1", path_of(pod), arguments(name, "shop", f"uid-{name}"))
    return ask(one.run_dir / "cni.sock", call, conf())
