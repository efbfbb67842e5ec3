"""`pointsman diagnostics endpoints`: table and JSON of Linkerd's own command line, and more."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from agent.core.discovery.answers import Address, Endpoints, Hint
from agent.core.reasons import MEANINGS, Reason
from tests.cli.answered import IDENTITY, MESHED
from tests.cli.conftest import Cli, answer
from tests.cli.service import Service, Socket, on


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as made:
        yield made


@pytest.fixture
def ask(cli: Cli, service: Service, tmp_path: Path) -> Any:
    """`ask(AUTHORITY, ...)`: `diagnostics endpoints` of the service."""

    def invoke(*arguments: object) -> Result:
        return cli(
            "diagnostics", "endpoints", "--api-addr", service.address, "--run-dir", tmp_path, *arguments
        )

    return invoke


def pods(service: str, namespace: str, *addresses: Address) -> Endpoints:
    return Endpoints(True, addresses, (("service", service), ("namespace", namespace)))


def pod(ip: str, port: int, name: str, **fields: Any) -> Address:
    return Address(ip, port, labels=(("pod", name), ("zone", "a")), **fields)


EMOJI = pods("emoji-svc", "emojivoto", pod("1.2.3.4", 8080, "emoji-6bf9f47bd5-jjcrl"))
VOTING = pods("voting-svc", "emojivoto2", pod("5.6.7.8", 8080, "voting-7bf9f47bd5-jjdrl"))


def test_a_table_for_each_namespace(ask: Any, service: Service) -> None:
    service.get("emoji", EMOJI)
    service.get("voting", VOTING)

    result = ask(on("voting"), on("emoji"), on("voting"))

    assert result.exit_code == 0
    assert result.stdout == (
        "NAMESPACE    IP        PORT   POD                       SERVICE\n"
        "emojivoto    1.2.3.4   8080   emoji-6bf9f47bd5-jjcrl    emoji-svc.emojivoto\n"
        "\n"
        "NAMESPACE    IP        PORT   POD                       SERVICE\n"
        "emojivoto2   5.6.7.8   8080   voting-7bf9f47bd5-jjdrl   voting-svc.emojivoto2\n"
    )


def test_columns_of_numbers_are_as_wide_as_their_own_table_asks(ask: Any, service: Service) -> None:
    service.get("a", pods("a", "one", pod("1.2.3.4", 80, "p")))
    service.get("b", pods("b", "two", pod("101.102.103.104", 65535, "p")))

    assert ask(on("b"), on("a")).stdout == (
        "NAMESPACE   IP        PORT   POD   SERVICE\n"
        "one         1.2.3.4   80     p     a.one\n"
        "\n"
        "NAMESPACE   IP                PORT    POD   SERVICE\n"
        "two         101.102.103.104   65535   p     b.two\n"
    )


def test_rows_in_json(ask: Any, service: Service) -> None:
    bare = Address("10.0.0.9", 80, weight=0)
    service.get("db", pods("db", "shop", MESHED, bare))

    result = ask(on("db"), "-o", "json")

    assert result.exit_code == 0
    assert (
        result.stdout
        == """[
  {
    "namespace": "shop",
    "ip": "10.0.0.9",
    "port": 80,
    "pod": "",
    "service": "db.shop",
    "weight": 0,
    "labels": null
  },
  {
    "namespace": "shop",
    "ip": "10.1.2.3",
    "port": 3306,
    "pod": "web-0",
    "service": "db.shop",
    "weight": 10000,
    "http2": {
      "keep_alive": {
        "interval": {
          "seconds": 10
        },
        "timeout": {
          "seconds": 3
        },
        "while_idle": true
      }
    },
    "labels": {
      "namespace": "shop",
      "pod": "web-0",
      "serviceaccount": "default",
      "zone": ""
    }
  }
]
"""
    )


def test_rows_are_sorted_by_namespace_service_and_address(ask: Any, service: Service) -> None:
    mixed = [pod(ip, port, "p") for ip, port in (("fd00::1", 1), ("10.0.0.10", 2), ("10.0.0.9", 3))]
    service.get("z", pods("z", "a", *mixed, pod("10.0.0.9", 1, "p")))
    service.get("y", pods("y", "b", pod("10.0.0.1", 1, "p")))
    service.get("x", pods("x", "b", pod("10.0.0.2", 1, "p")))

    rows = answer(ask(on("y"), on("x"), on("z"), "-o", "json"))

    assert [(row["service"], row["ip"], row["port"]) for row in rows] == [
        ("z.a", "10.0.0.9", 1),
        ("z.a", "10.0.0.9", 3),
        ("z.a", "10.0.0.10", 2),
        ("z.a", "fd00::1", 1),
        ("x.b", "10.0.0.2", 1),
        ("y.b", "10.0.0.1", 1),
    ]


def test_labels_may_hold_anything(ask: Any, service: Service) -> None:
    service.get("odd", pods("odd", "shop", Address("10.0.0.1", 80, labels=(("pod", "<a>\x1b[2J"),))))

    assert "<a>\\x1b[2J" in ask(on("odd")).stdout
    assert '"pod": "\\u003ca\\u003e\\u001b[2J"' in ask(on("odd"), "-o", "json").stdout


def test_a_set_without_labels(ask: Any, service: Service) -> None:
    service.get("blank", Endpoints(True, (Address("10.0.0.1", 80),)))

    assert ask(on("blank")).stdout.splitlines()[1] == "            10.0.0.1   80           ."


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (Endpoints(exists=False), "there is no such Service"),
        (Endpoints(exists=True), "the Service exists"),
    ],
)
def test_no_endpoints(ask: Any, service: Service, answers: Endpoints, words: str) -> None:
    service.get("none", answers)
    began = time.monotonic()

    table, rows = ask(on("none")), ask(on("none"), "-o", "json")

    assert (table.exit_code, table.stdout) == (0, "")
    assert table.stderr.splitlines()[-2:] == [f"{on('none')}: no endpoints; {words}", "No endpoints found."]
    assert (rows.exit_code, rows.stdout) == (0, "[]\n")
    assert time.monotonic() - began < 4


def test_some_of_several_have_endpoints(ask: Any, service: Service) -> None:
    service.get("emoji", EMOJI)

    result = ask(on("emoji"), on("nobody"))

    assert result.exit_code == 0
    assert "emoji-svc.emojivoto" in result.stdout
    assert f"{on('nobody')}: no endpoints; there is no such Service" in result.stderr
    assert "No endpoints found." not in result.stderr


def test_one_that_can_never_be_answered_ends_all(ask: Any, service: Service) -> None:
    service.get("emoji", EMOJI)

    result = ask(on("emoji"), "emoji")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Destination API error: cannot resolve 'emoji'")


def test_the_token_says_who_asks(ask: Any, service: Service) -> None:
    service.get("near", lambda client: pods("near", client.node, pod("10.0.0.1", 80, "p")))

    rows = answer(ask(on("near"), "-o", "json", "--token", '{"nodeName": "n7"}'))

    assert rows[0]["namespace"] == "n7"


def test_all_of_many_endpoints_arrive_and_no_time_is_lost(ask: Any, service: Service) -> None:
    count = 30_000
    many = (
        pod(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 8080, f"web-{n:05}", identity=IDENTITY, http2=True)
        for n in range(count)
    )
    service.get("many", pods("many", "shop", *many))
    began = time.monotonic()

    rows = json.loads(ask(on("many"), "-o", "json").stdout)

    assert [row["pod"] for row in rows] == [f"web-{n:05}" for n in range(count)]
    assert time.monotonic() - began < 30


def test_two_names_of_the_verb(cli: Cli, service: Service) -> None:
    service.get("emoji", EMOJI)

    result = cli("dg", "ep", on("emoji"), "--api-addr", service.address)

    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)


def meshed(number: int, **fields: Any) -> Address:
    return pod(f"10.0.0.{number}", 80, f"web-{number}", **fields)


KNOWN = pods(
    "web",
    "shop",
    meshed(1, identity=IDENTITY, server_name=IDENTITY, hint=Hint("h2", 4143), redirection="redirected"),
    meshed(2, withheld=Reason.NOT_REDIRECTED, redirection="failed"),
    meshed(3, withheld=Reason.PORT_SKIPPED, weight=100_000),
    meshed(4, identity=IDENTITY, hint=Hint("opaque")),
)


def test_redirection_stands_beside_the_table(ask: Any, service: Service, tmp_path: Path) -> None:
    service.get("web", KNOWN)
    with Socket(tmp_path) as agent:
        agent.tell("endpoints", on("web"), KNOWN)
        results = [ask(on("web")), ask(on("web"), "-o", "json")]

    for result in results:
        assert result.exit_code == 0
        assert "redirected" not in result.stdout
        assert result.stderr.splitlines() == [
            f"{on('web')}: redirection of 4: 1 redirected, 1 not redirected, 2 not known",
            f"{on('web')}: 10.0.0.2:80 (web-2): not redirected; no identity is sent (NotRedirected): "
            + MEANINGS[Reason.NOT_REDIRECTED].meaning,
            f"{on('web')}: 10.0.0.3:80 (web-3): redirection not known; no identity is sent (PortSkipped): "
            + MEANINGS[Reason.PORT_SKIPPED].meaning,
        ]


def test_the_wide_table(ask: Any, service: Service, tmp_path: Path) -> None:
    service.get("web", KNOWN)
    with Socket(tmp_path) as agent:
        agent.tell("endpoints", on("web"), KNOWN)
        result = ask(on("web"), "-o", "wide")

    assert result.stderr == ""
    assert [re.split(" {3,}", line)[4:] for line in result.stdout.splitlines()] == [
        ["SERVICE", "REDIRECTION", "HINT", "WEIGHT", "IDENTITY"],
        ["web.shop", "redirected", "HTTP/2", "1", IDENTITY],
        ["web.shop", "not redirected", "-", "1", "none (NotRedirected)"],
        ["web.shop", "-", "-", "10", "none (PortSkipped)"],
        ["web.shop", "-", "opaque", "1", IDENTITY],
    ]


def test_of_many_that_are_not_redirected_some_are_named(ask: Any, service: Service, tmp_path: Path) -> None:
    bad = pods("bad", "shop", *(meshed(n, redirection="failed") for n in range(30)))
    service.get("bad", bad)
    with Socket(tmp_path) as agent:
        agent.tell("endpoints", on("bad"), bad)
        lines = ask(on("bad")).stderr.splitlines()

    assert lines[0] == f"{on('bad')}: redirection of 30: 30 not redirected"
    assert lines[-1] == f"{on('bad')}: 20 more like these: -o wide shows all"
    assert len(lines) == 12


def test_without_the_agents_socket_it_is_said_once(ask: Any, service: Service) -> None:
    service.get("web", KNOWN)
    service.get("emoji", EMOJI)

    result = ask(on("web"), on("emoji"))

    assert result.exit_code == 0
    assert len(result.stderr.splitlines()) == 1
    assert "are not on the wire: cannot reach the agent at" in result.stderr
