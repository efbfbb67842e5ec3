"""`pointsman diagnostics profile`: the JSON of Linkerd's own command line, and what is beside it."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from agent.cli.asking import Asking
from agent.cli.client import AgentError
from agent.core.discovery.answers import Address, Ended, Hint, Lack, Profile, RetryBudget, Twofold
from agent.core.reasons import Complaint, Reason
from agent.settings import Answering
from tests.cli.answered import MESHED, PROFILES
from tests.cli.conftest import Cli
from tests.cli.service import Service, Socket, held, on

UNREDIRECTED = "The target's pod is known not to be redirected: TLS would reach the application."

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as made:
        yield made


@pytest.fixture
def ask(cli: Cli, service: Service, tmp_path: Path) -> Any:
    """`ask(ADDR, ...)`: `diagnostics profile` of the service."""

    def invoke(*arguments: object) -> Result:
        return cli("diagnostics", "profile", "--api-addr", service.address, "--run-dir", tmp_path, *arguments)

    return invoke


@pytest.mark.parametrize("name", PROFILES)
def test_the_json_is_that_of_go(ask: Any, service: Service, name: str) -> None:
    service.profile(name, PROFILES[name])

    result = ask(on(name))

    assert result.exit_code == 0
    assert result.stdout == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


def test_a_name_that_does_not_exist_has_the_empty_profile(ask: Any) -> None:
    result = ask(on("nobody"), "-o", "json")

    assert (result.exit_code, result.stdout) == (0, "{}\n")


def test_an_ipv6_address(ask: Any, service: Service) -> None:
    service.profile("fd00::5", Profile(endpoint=Address("fd00::5", 80)))

    found = json.loads(ask("[fd00::5]:80").stdout)

    ip = found["endpoint"]["addr"]["ip"]["Ip"]["Ipv6"]
    assert (ip["first"] << 64 | ip["last"]) == 0xFD00 << 112 | 5


def test_the_token_says_who_asks(ask: Any, service: Service) -> None:
    service.profile("mine", lambda client: Profile(name=f"seen-from-{client.namespace}"))

    found = [json.loads(ask(on("mine"), "--token", token).stdout) for token in ('{"ns": "blog"}', "ns:shop")]

    assert [each["fully_qualified_name"] for each in found] == ["seen-from-blog", "seen-from-shop"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("web", "rpc error: code = InvalidArgument desc = cannot resolve 'web'"),
        ("10.0.0.1:0", "rpc error: code = InvalidArgument desc = cannot read '10.0.0.1:0'"),
        ("", "rpc error: code = InvalidArgument desc = cannot resolve ''"),
        (on("twice"), "rpc error: code = FailedPrecondition desc = cannot tell whose it is"),
    ],
)
def test_what_can_never_be_answered(ask: Any, service: Service, path: str, words: str) -> None:
    service.profile("twice", Ended("cannot tell whose it is", "FAILED_PRECONDITION"))

    result = ask(path)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Destination API error: {words}")


def test_the_rule_and_the_redirection_are_told_beside(ask: Any, service: Service, tmp_path: Path) -> None:
    told = msgspec.structs.replace(MESHED, identity="", server_name="", hint=None)
    known = msgspec.structs.replace(told, withheld=Reason.NOT_REDIRECTED, redirection="failed")
    complaint = Complaint(Reason.ADDRESS_CLAIMED, "10.1.2.3", "cannot tell whose 10.1.2.3 is", "look")
    answer = Profile(
        opaque=True,
        retry_budget=RetryBudget(),
        endpoint=known,
        rule="annotation of the Pod",
        complaints=(complaint,),
    )
    service.profile("db", answer)
    with Socket(tmp_path) as agent:
        agent.tell("profile", on("db"), answer)
        result = ask(on("db"), "--token", "ns:shop")
        assert agent.asked == [("profile", on("db"), "ns:shop")]

    assert result.exit_code == 0
    assert "withheld" not in result.stdout
    assert result.stderr.splitlines() == [
        "opaque, by annotation of the Pod",
        f"10.1.2.3:3306 (web-0): not redirected; no identity is sent (NotRedirected): {UNREDIRECTED}",
        "! AddressClaimedTwice  10.1.2.3: cannot tell whose 10.1.2.3 is; look",
    ]


def test_without_the_agents_socket_the_wire_alone_is_told(ask: Any, service: Service, tmp_path: Path) -> None:
    service.profile("pod", PROFILES["pod"])

    alone = ask(on("pod"))
    with Socket(tmp_path):
        older = ask(on("pod"))

    assert alone.exit_code == older.exit_code == 0
    assert alone.stdout == older.stdout == (GOLDEN / "pod.json").read_text(encoding="utf-8")
    prefix = "Redirection, and the rule that decided opacity, are not on the wire: cannot "
    assert alone.stderr.startswith(f"{prefix}reach the agent at {tmp_path / 'agent.sock'}: ")
    assert older.stderr.startswith(f"{prefix}get an explanation of the agent at {tmp_path / 'agent.sock'}")


def test_an_agent_elsewhere_is_not_explained_by_the_one_here() -> None:
    for host in ("10.1.2.3", "node-1.example", "fd00::1"):
        with pytest.raises(AgentError, match="of an agent elsewhere"):
            Asking(host, 4188, "", 1.0, Path("/nowhere")).explanation("GET", "x")  # type: ignore[arg-type]


def test_nobody_listens(cli: Cli, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = cli("diagnostics", "profile", on("web"), "--api-addr", address, "--run-dir", tmp_path)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Destination API error: cannot reach {address}: Connection refused; is `pointsman run` running "
        "there, does it know how Linkerd was installed, and is this its --diagnostics-address?\n"
    )


def test_a_name_that_nobody_has(cli: Cli) -> None:
    result = cli("diagnostics", "profile", on("web"), "--api-addr", "nowhere.invalid:4188")

    assert result.exit_code == 1
    assert "Destination API error: cannot reach nowhere.invalid:4188: " in result.stderr


@contextlib.contextmanager
def peer(answer: bytes | None) -> Iterator[str]:
    """Address of a listener that answers with these bytes and closes; with None it says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    kept.append(connection)
                    if answer is not None:
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for each in kept:
                each.close()


def test_somebody_else_listens(cli: Cli) -> None:
    with peer(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        result = cli("diagnostics", "profile", on("web"), "--api-addr", address)

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot reach {address}: whoever listens there speaks no gRPC; is `pointsman" in result.stderr


def test_a_listener_that_says_nothing(cli: Cli, tmp_path: Path) -> None:
    began = time.monotonic()
    with peer(None) as address:
        result = cli(
            *("diagnostics", "profile", on("web"), "--api-addr", address),
            *("--timeout", "1", "--run-dir", tmp_path),
        )

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"cannot get an answer about {on('web')} from {address} within 1 s (--timeout" in result.stderr
    assert 1 <= time.monotonic() - began < 10


def test_an_agent_that_is_frozen(cli: Cli, tmp_path: Path) -> None:
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX) as frozen, peer(None) as address:
        frozen.bind(str(tmp_path / "agent.sock"))
        frozen.listen()
        result = cli(
            *("diagnostics", "profile", on("web"), "--api-addr", address),
            *("--timeout", "0.5", "--run-dir", tmp_path),
        )

    assert result.exit_code == 1
    assert "within 0.5 s (--timeout waits longer): cannot get an answer of the agent at" in result.stderr
    assert "is it stopped, or frozen?" in result.stderr
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (Lack("kind", "EndpointSlice"), "the agent waits for the list of kind EndpointSlice"),
        (Lack("pod", "web-0", "shop"), "the agent waits for pod shop/web-0"),
        (Lack("address", "10.9.9.9"), "the agent waits for whoever is at 10.9.9.9"),
    ],
)
def test_an_answer_that_is_held(cli: Cli, tmp_path: Path, lack: Lack, words: str) -> None:
    with Service(opened=False) as service, Socket(tmp_path) as agent:
        agent.tell("profile", on("web"), held(lack))
        result = cli(
            *("diagnostics", "profile", on("web"), "--api-addr", service.address),
            *("--timeout", "0.5", "--run-dir", tmp_path),
        )

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(f"within 0.5 s (--timeout waits longer): {words}\n")


def test_a_first_answer_of_two_is_the_first(ask: Any, service: Service) -> None:
    service.profile("deleted", Twofold(Profile(), PROFILES["service"]))

    assert ask(on("deleted")).stdout == "{}\n"


def test_flags_of_linkerd_are_taken(cli: Cli, service: Service, tmp_path: Path) -> None:
    service.profile("bare", PROFILES["bare"])
    flags = ("--api-addr", service.address, "--run-dir", tmp_path, "--destination-pod", "linkerd-0")

    result = cli("dg", "profile", on("bare"), *flags, "-o", "json")

    assert result.stdout == (GOLDEN / "bare.json").read_text(encoding="utf-8")
    assert "--destination-pod has no effect" in result.stderr


def test_wrong_usage(cli: Cli) -> None:
    for arguments, words in (
        (("profile",), "ADDR"),
        (("profile", "a", "b"), "unexpected extra argument"),
        (("profile", "a", "-o", "json", "--watch"), "cannot use --output with --watch"),
        (("profile", "a", "--api-addr", ""), "cannot ask nobody"),
        (("profile", "a", "--api-addr", "here"), "127.0.0.1:4187"),
        (("endpoints",), "AUTHORITY"),
        (("endpoints", "a", "-o", "yaml"), "'table', 'wide', 'json'"),
        (("policy",), "No such command"),
    ):
        result = cli("diagnostics", *arguments)
        assert result.exit_code == 2
        assert words in result.stderr


def test_the_environment_stands_for_flags_of_verbs(
    cli: Cli, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_API_ADDR", service.address)
    monkeypatch.setenv("POINTSMAN_RUN_DIR", str(tmp_path))

    result = cli("diagnostics", "profile", on("nobody"))

    assert result.stdout == "{}\n"
    assert str(tmp_path) in result.stderr


def test_the_agent_is_asked_where_it_listens(cli: Cli) -> None:
    host, port = Answering().diagnostics or ("", 0)

    assert f"{host}:{port}]" in cli("diagnostics", "profile", "--help").stdout


def test_a_hint_of_no_protocol_is_null(ask: Any, service: Service) -> None:
    service.profile("plain", Profile(endpoint=Address("10.0.0.1", 80, hint=Hint())))

    assert json.loads(ask(on("plain")).stdout)["endpoint"]["protocol_hint"] == {"Protocol": None}
