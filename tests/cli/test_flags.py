"""Bad values of flags are rejected with the flag's name and a valid example."""

import pytest

from agent.cli.types import Endpoint, Seconds
from tests.cli.conftest import Cli, answer

POD = '{"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "linkerd-proxy"}]}}'


@pytest.mark.parametrize(
    ("flag", "value", "example"),
    [
        ("--incoming-proxy-port", "0", "4143"),
        ("--outgoing-proxy-port", "65536", "4143"),
        ("--proxy-admin-port", "４１９１", "4143"),  # noqa: RUF001
        ("--proxy-control-port", "-1", "4143"),
        ("--incoming-proxy-port", "9" * 5000, "4143"),
        ("--proxy-uid", "9" * 5000, "2102"),
        ("--proxy-uid", "root", "2102"),
        ("--proxy-uid", "4294967295", "2102"),
        ("--proxy-gid", "-2", "2102"),
        ("--ports-to-redirect", "80-70", "25,4567-4568"),
        ("--inbound-ports-to-ignore", "a", "25,4567-4568"),
        ("--outbound-ports-to-ignore", "1;2", "25,4567-4568"),
        ("--subnets-to-ignore", "10.0.0.1", "172.17.0.0/16,fd00::/8"),
        ("--exclude-namespaces", "kube system", "kube-system,ci"),
        ("--ipv6", "yes", "'auto', 'true', 'false'"),
    ],
)
def test_node_defaults(cli: Cli, flag: str, value: str, example: str) -> None:
    result = cli("redirect", "--simulate", "-f", "-", f"{flag}={value}", stdin=POD)

    assert result.exit_code == 2
    assert f"'{flag}'" in result.stderr
    assert example in result.stderr


@pytest.mark.parametrize(
    ("arguments", "flag", "example"),
    [
        (("explain", "web"), "POD", "default/web"),
        (("explain", "a/b/c"), "POD", "default/web"),
        (("explain", "a/b", "--out", "10.0.0.1"), "--out", "10.1.2.3:80 or [fd00::1]:443"),
        (("explain", "a/b", "--out", "fd00::1:443"), "--out", "[fd00::1]:443"),
        (("explain", "a/b", "--out", "[10.0.0.1]:443"), "--out", "[fd00::1]:443"),
        (("explain", "a/b", "--out", "web:80"), "--out", "10.1.2.3:80"),
        (("explain", "a/b", "--out", "10.0.0.1:0"), "--out", "10.1.2.3:80"),
        (("explain", "a/b", "--out", "10.0.0.1:" + "9" * 5000), "--out", "10.1.2.3:80"),
        (("explain", "a/b", "--in", "http"), "--in", "4143"),
        (("explain", "a/b", "--in", "80", "--from", "10.0.0.0/8"), "--from", "10.1.2.3"),
        (("cleanup", "web"), "NAMESPACE/POD", "default/web"),
        (("uninstall", "--remove-rules", "--wait", "soon"), "--wait", "10m"),
        (("uninstall", "--remove-rules", "--source", "kube"), "--source", "files:/etc/pointsman/manifests"),
        (("run", "--source", "files:/nowhere"), "--source", "name another"),
        (("run", "--source", "files:/", "--admin-address", "here"), "--admin-address", "127.0.0.1:4187"),
        (("run", "--source", "files:/", "--admin-address", "[::1]:" + "9" * 5000), "--admin-address", "4187"),
        (("run", "--source", "files:/", "--hang-timeout", "0.5"), "--hang-timeout", "30"),
        (("run", "--source", "files:/", "--round", "1e-9"), "--round", "0.5"),
        (("redirections", "-o", "yaml"), "--output", "'table', 'wide', 'json'"),
        (("completion", "tcsh"), "bash|zsh|fish", "'bash', 'zsh', 'fish'"),
    ],
)
def test_commands(cli: Cli, arguments: tuple[str, ...], flag: str, example: str) -> None:
    result = cli(*arguments)

    assert result.exit_code == 2
    assert flag in result.stderr
    assert example in result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("3s", 3.0), ("10m", 600.0), ("2h", 7200.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [("10.0.0.1:80", "10.0.0.1"), ("[fd00::1]:80", "fd00::1"), ("[::ffff:10.0.0.1]:80", "10.0.0.1")],
)
def test_destinations(text: str, address: str) -> None:
    found, port = Endpoint().convert(text, None, None)

    assert (str(found), port) == (address, 80)


def test_an_environment_variable_stands_for_a_flag(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_PROXY_UID", "77")
    monkeypatch.setenv("POINTSMAN_SIMULATE", "1")

    found = answer(cli("redirect", "--simulate", "-f", "-", "-o", "json", stdin=POD))
    without = cli("redirect", "-f", "-", stdin=POD)

    assert next(row for row in found[0]["settings"] if row["name"] == "proxy_uid")["value"] == "77"
    assert without.exit_code == 2


def test_an_environment_variable_is_named_after_its_flag(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kubernetes sets this in every pod beside a Service called pointsman.
    monkeypatch.setenv("POINTSMAN_PORT", "tcp://10.96.0.1:80")
    assert cli("explain", "-f", "-", stdin=POD).exit_code == 0

    monkeypatch.setenv("POINTSMAN_ROUND", "often")
    refused = cli("run", "--source", "files:/")
    assert (refused.exit_code, "--round" in refused.stderr) == (2, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)

    assert result.exit_code == 0
    assert f"_POINTSMAN_COMPLETE={shell}_complete" in result.stdout


def test_version(cli: Cli) -> None:
    found = answer(cli("version", "-o", "json"))

    assert cli("version").stdout == f"pointsman {found['version']}\n"
    assert found.keys() == {"version", "python", "kernel", "machine"}


def test_help_lists_every_command(cli: Cli) -> None:
    text = cli("--help").stdout

    for name in ("run", "check", "redirections", "explain", "redirect", "cleanup", "uninstall", "version"):
        assert f"\n  {name} " in text
    assert cli("nonsense").exit_code == 2
