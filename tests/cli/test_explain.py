"""`pointsman explain -f`: one connection, its verdict, the rule, and who said so."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, answer

SKIP_INBOUND = "config.linkerd.io/skip-inbound-ports"
SKIP_OUTBOUND = "config.linkerd.io/skip-outbound-ports"
SKIP_SUBNETS = "config.linkerd.io/skip-subnets"


@pytest.fixture
def pod(tmp_path: Path) -> str:
    """A pod with an IPv4-only proxy of user 2102 and group 2102, and the addresses 10.1.0.5, fd00::5."""
    proxy = {"name": "linkerd-proxy", "securityContext": {"runAsUser": 2102}}
    manifest = {
        "kind": "Pod",
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "annotations": {
                SKIP_INBOUND: "25",
                SKIP_OUTBOUND: "5432, x",
                SKIP_SUBNETS: "10.9.0.0/16",
                "config.linkerd.io/proxy-gid": "2102",
            },
        },
        "spec": {"containers": [{"name": "app"}, proxy]},
        "status": {"podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}]},
    }
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(manifest))
    return str(path)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("--out 10.2.0.1:80", ("redirected", 4140, "out-redirect", "outbound_port")),
        ("--out 10.2.0.1:5432", ("direct", None, "out-skip-port", "skip_outbound")),
        ("--out 10.2.0.1:80 --uid 2102", ("direct", None, "out-proxy-uid", "proxy_uid")),
        ("--out 10.2.0.1:80 --gid 2102", ("direct", None, "out-proxy-gid", "proxy_gid")),
        ("--out 10.2.0.1:80 --uid 0", ("redirected", 4140, "out-redirect", "outbound_port")),
        ("--out 127.0.0.9:80", ("direct", None, "out-lo", None)),
        ("--out 0.0.0.0:80", ("direct", None, "out-lo", None)),
        ("--out [::]:80 --ipv6 true", ("direct", None, "out-lo", None)),
        ("--out 10.1.0.5:80", ("direct", None, "out-lo", None)),
        ("--out [::ffff:10.2.0.1]:80", ("redirected", 4140, "out-redirect", "outbound_port")),
        ("--out [fd00::9]:80", ("direct", None, "out-not-ipv4", "ipv6")),
        ("--out 10.2.0.1:53 --protocol udp", ("direct", None, "out-not-tcp", None)),
        ("--in 8080 --from 10.3.0.1", ("redirected", 4143, "in-redirect", "inbound_port")),
        ("--in 25 --from 10.3.0.1", ("direct", None, "in-skip-port", "skip_inbound")),
        ("--in 4191 --from 10.3.0.1", ("direct", None, "in-skip-port", "proxy_ports")),
        ("--in 8080 --from 10.9.3.1", ("direct", None, "in-skip-src4", "skip_subnets")),
        ("--in 8080 --from fd00::1", ("direct", None, "in-not-ipv4", "ipv6")),
    ],
)
def test_verdicts(cli: Cli, pod: str, question: str, expected: tuple[Any, ...]) -> None:
    result = cli("explain", "-f", pod, *question.split(), "-o", "json")

    assert result.exit_code == 0
    found = answer(result)[0]["answer"]
    setting = (found["setting"] or {}).get("name")
    assert (found["verdict"], found["port"], found["rule"], setting) == expected


def test_an_answer_names_its_origin_and_the_complaints_that_bear_on_it(cli: Cli, pod: str) -> None:
    text = cli("explain", "-f", pod, "--out", "10.2.0.1:5432").stdout
    other = cli("explain", "-f", pod, "--in", "80", "--from", "10.3.0.1").stdout

    assert text.splitlines()[:7] == [
        "shop/web",
        "  out to 10.2.0.1:5432 (tcp) of user 1000",
        "  direct",
        "  because port 5432 is on the list of outbound ports to skip",
        "  rule out-skip-port",
        "  skip_outbound = 5432",
        f"    pod annotation {SKIP_OUTBOUND}",
    ]
    assert f"! InvalidAnnotation  {SKIP_OUTBOUND}" in text
    assert "InvalidAnnotation" not in other
    assert "  redirected to the proxy's inbound port 4143\n" in other


def test_calls_over_loopback_say_so(cli: Cli, pod: str) -> None:
    found = answer(cli("explain", "-f", pod, "--out", "[fd00::5]:80", "--uid", 5, "-o", "json"))

    assert found[0]["answer"]["connection"] == "out to [fd00::5]:80 (tcp) of user 5, over lo"


def test_the_asking_user_is_never_the_proxy_unless_named(cli: Cli, pod: str) -> None:
    manifest = json.loads(Path(pod).read_text())
    manifest["spec"]["containers"][1]["securityContext"]["runAsUser"] = 1000
    Path(pod).write_text(json.dumps(manifest))

    found = answer(cli("explain", "-f", pod, "--out", "10.2.0.1:80", "-o", "json"))[0]["answer"]

    assert (found["verdict"], found["connection"]) == ("redirected", "out to 10.2.0.1:80 (tcp) of user 1001")


def test_without_a_question_all_settings_are_explained(cli: Cli, pod: str) -> None:
    result = cli("explain", "-f", pod)

    assert result.exit_code == 0
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["skip_inbound", "25", "pod", "annotation", SKIP_INBOUND] in words
    assert "table inet" not in result.stdout


def test_flags_of_run_stand_for_the_node(cli: Cli, pod: str) -> None:
    found = answer(
        cli("explain", "-f", pod, "--out", "10.2.0.1:80", "--outgoing-proxy-port", 5140, "-o", "json")
    )

    assert found[0]["answer"]["port"] == 5140


def test_a_pod_that_is_left_alone_is_direct(cli: Cli, pod: str) -> None:
    manifest = json.loads(Path(pod).read_text())
    manifest["metadata"]["annotations"]["pointsman.io/redirect"] = "disabled"
    Path(pod).write_text(json.dumps(manifest))

    found = answer(cli("explain", "-f", pod, "--out", "10.2.0.1:80", "-o", "json"))[0]

    assert found["answer"]["verdict"] == "direct"
    assert "annotation pointsman.io/redirect is `disabled` (RedirectDisabled)" in found["answer"]["why"]


def test_one_of_several_pods_is_picked_by_name(cli: Cli, pod: str) -> None:
    manifest: dict[str, Any] = json.loads(Path(pod).read_text())
    other = {**manifest, "metadata": {"name": "db", "namespace": "shop"}}
    text = json.dumps({"kind": "List", "items": [manifest, other]})

    both = answer(cli("explain", "-f", "-", "-o", "json", stdin=text))
    one = answer(cli("explain", "-f", "-", "shop/db", "-o", "json", stdin=text))
    none = cli("explain", "-f", "-", "shop/x", stdin=text)

    assert [found["name"] for found in both] == ["web", "db"]
    assert [found["name"] for found in one] == ["db"]
    assert none.exit_code == 2
    assert "they hold shop/web, shop/db" in none.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--out 10.0.0.1:1 --in 4", "give --out or --in"),
        ("--in 4 --uid 3", "cannot use --uid or --gid without --out"),
        ("--from 10.0.0.1", "cannot use --from without --in PORT"),
        ("--in 80", "cannot answer without --from IP: connections from 10.9.0.0/16 are skipped"),
        ("--in 80 --from 127.0.0.1", "it is the pod itself; ask with --out"),
        ("--in 80 --from 10.1.0.5", "it is the pod itself; ask with --out"),
    ],
)
def test_questions_that_have_no_answer(cli: Cli, pod: str, arguments: str, words: str) -> None:
    result = cli("explain", "-f", pod, *arguments.split())

    assert result.exit_code == 2
    assert words in result.stderr


def test_a_pod_is_needed(cli: Cli) -> None:
    result = cli("explain")

    assert result.exit_code == 2
    assert "name NAMESPACE/POD, or add -f POD.yaml" in result.stderr


def test_the_running_agents_settings_cannot_be_replaced(cli: Cli) -> None:
    result = cli("explain", "shop/web", "--proxy-uid", 3)

    assert result.exit_code == 2
    assert "cannot use --proxy-uid on a live pod" in result.stderr
