"""`pointsman redirect --simulate`: settings with their origins, complaints, and the rules."""

import json
from typing import Any

import pytest

from agent.core.redirect import derive
from agent.core.ruleset import render
from agent.core.spec import NodeDefaults
from tests import build
from tests.cli.conftest import Cli, answer

SKIP_OUTBOUND = "config.linkerd.io/skip-outbound-ports"


def manifest(name: str = "web", namespace: str = "shop", **metadata: Any) -> dict[str, Any]:
    containers = [{"name": "app"}, {"name": "linkerd-proxy"}]
    fields = {"name": name, "namespace": namespace, **metadata}
    return {"kind": "Pod", "metadata": fields, "spec": {"containers": containers}}


def objects(*items: dict[str, Any]) -> str:
    return json.dumps({"kind": "List", "items": items})


def simulate(cli: Cli, *items: dict[str, Any], flags: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    result = cli("redirect", "--simulate", "-f", "-", "-o", "json", *flags, stdin=objects(*items))
    assert result.exit_code in (0, 1), result.stderr
    found: list[dict[str, Any]] = answer(result)
    assert result.exit_code == any(one["complaints"] for one in found)
    return found


def setting(simulation: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in simulation["settings"] if row["name"] == name)


def test_all_four_origins_of_a_list_are_named(cli: Cli) -> None:
    namespace = {"kind": "Namespace", "metadata": {"name": "shop", "annotations": {SKIP_OUTBOUND: "25"}}}
    pod = manifest(annotations={SKIP_OUTBOUND: "8125"})
    flags = ("--outbound-ports-to-ignore", "4567,4568,443")

    (found,) = simulate(cli, pod, namespace, flags=flags)

    row = setting(found, "skip_outbound")
    assert row["value"] == "8125"
    said = [(one["kind"], one["value"]) for one in (*row["origins"], *row["shadowed"])]
    assert said == [
        ("pod annotation", "8125"),
        ("namespace annotation", "25"),
        ("node default", "443,4567-4568"),
        ("built-in default", "4567-4568"),
    ]
    text = cli("redirect", "--simulate", "-f", "-", *flags, stdin=objects(pod, namespace)).stdout
    assert f"skip_outbound   8125        pod annotation {SKIP_OUTBOUND}" in text
    assert f"not used: namespace annotation {SKIP_OUTBOUND} (25)" in text
    assert "not used: node default --outbound-ports-to-ignore (443,4567-4568)" in text
    assert "not used: built-in default (4567-4568)" in text


@pytest.mark.parametrize(
    ("value", "ports", "complains"),
    [
        (None, "4567-4568", False),
        ("", "none", False),
        (" ", "none", True),
        (",", "none", True),
        ("abc", "none", True),
    ],
)
def test_unset_empty_blank_and_invalid_lists_are_told_apart(
    cli: Cli, value: str | None, ports: str, complains: bool
) -> None:
    (found,) = simulate(cli, manifest(annotations={} if value is None else {SKIP_OUTBOUND: value}))

    assert setting(found, "skip_outbound")["value"] == ports
    reasons = [one["reason"] for one in found["complaints"]]
    assert reasons == (["InvalidAnnotation"] if complains else [])
    assert "elements = { }" not in found["nft"]


@pytest.mark.parametrize(
    "value",
    [
        "80; add rule inet x y accept",
        "80 } accept #",
        "9" * 100_000,
        "80\n81",
        "８０",  # noqa: RUF001 - digits of another script, on purpose
        "80\x1b[31m",
    ],
)
def test_hostile_annotations_are_rejected_and_leave_the_rules_alone(cli: Cli, value: str) -> None:
    (empty,) = simulate(cli, manifest(annotations={SKIP_OUTBOUND: ""}))

    (found,) = simulate(cli, manifest(annotations={SKIP_OUTBOUND: value}))

    assert found["nft"] == empty["nft"]
    (complaint,) = found["complaints"]
    assert (complaint["reason"], complaint["subject"]) == ("InvalidAnnotation", SKIP_OUTBOUND)
    pod = objects(manifest(annotations={SKIP_OUTBOUND: value}))
    text = cli("redirect", "--simulate", "-f", "-", stdin=pod).stdout
    assert "\x1b" not in text
    assert len(text) < 6_000


def test_the_nft_text_is_the_one_that_the_agent_installs(cli: Cli) -> None:
    annotations = {SKIP_OUTBOUND: "25,9000-9010"}
    spec = derive(build.pod(annotations=annotations), None, NodeDefaults(proxy_uid=77)).spec
    assert spec is not None

    (found,) = simulate(cli, manifest(annotations=annotations), flags=("--proxy-uid", "77"))
    text = cli(
        "redirect",
        "--simulate",
        "-f",
        "-",
        "--proxy-uid",
        77,
        stdin=objects(manifest(annotations=annotations)),
    )

    assert found["nft"] == render(spec)
    assert text.stdout.endswith(render(spec))
    assert text.exit_code == 0


def test_services_of_the_files_are_taken_into_account(cli: Cli) -> None:
    pod = manifest(labels={"linkerd.io/control-plane-component": "destination"})
    service = {
        "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"ports": [{"port": 444, "targetPort": 7443}]},
    }

    (without,) = simulate(cli, pod)
    (found,) = simulate(cli, pod, service)

    assert setting(without, "skip_outbound")["value"] == "443,4567-4568,6443"
    row = setting(found, "skip_outbound")
    assert row["value"] == "444,4567-4568,7443"
    assert row["origins"][-1] == {
        "kind": "kubernetes service",
        "name": "default/kubernetes",
        "value": "444,7443",
    }


def test_a_namespace_may_stand_in_another_file(cli: Cli, tmp_path: Any) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(manifest()))
    (tmp_path / "ns.yaml").write_text(
        f'kind: Namespace\nmetadata: {{name: shop, annotations: {{{SKIP_OUTBOUND}: "25"}}}}\n'
    )

    result = cli(
        "redirect", "--simulate", "-f", tmp_path / "pod.json", "-f", tmp_path / "ns.yaml", "-o", "json"
    )

    assert setting(answer(result)[0], "skip_outbound")["value"] == "25"


def test_every_pod_is_answered_and_what_is_left_alone_says_why(cli: Cli) -> None:
    plain = manifest("plain")
    plain["spec"]["containers"] = [{"name": "app"}]

    first, second = simulate(cli, plain, manifest("web"))

    assert (first["name"], first["excluded"], first["nft"]) == ("plain", "NotMeshed", "")
    assert (second["name"], second["excluded"]) == ("web", "")
    text = cli("redirect", "--simulate", "-f", "-", stdin=objects(plain)).stdout
    assert text == "shop/plain\n  left alone (NotMeshed): it has no container linkerd-proxy\n"


def test_a_close_wait_timeout_is_shown(cli: Cli) -> None:
    pod = manifest(annotations={"config.linkerd.io/close-wait-timeout": "90s"})

    (found,) = simulate(cli, pod)

    assert found["closeWaitSeconds"] == 90


def test_names_cannot_send_control_characters_to_a_terminal(cli: Cli) -> None:
    result = cli("redirect", "--simulate", "-f", "-", stdin=objects(manifest("a\x1b[31mb")))

    assert result.exit_code == 2
    assert "metadata.name is no name: 'a\\x1b[31mb'" in result.stderr
    assert "\x1b" not in result.stderr


def test_without_simulate_it_says_who_writes_rules(cli: Cli) -> None:
    result = cli("redirect", "-f", "-", stdin=objects(manifest()))

    assert result.exit_code == 2
    assert "only `pointsman run` does; add --simulate" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "cannot use stdin: cannot read YAML"),
        (b"- 1\n", "cannot use stdin: cannot read document 1"),
        (b"kind: Pod\nmetadata: {}\n", "metadata.name is missing"),
        (b"kind: Pod\nmetadata: {name: a}\nspec: {containers: 3}\n", "Pod a"),
        (b"\xff\xfe\x00", "cannot use stdin: byte 0 is no UTF-8 text"),
        (b"", "cannot find a pod in -"),
        (b"kind: Namespace\nmetadata: {name: a}\n", "cannot find a pod in -"),
        (b"x" * (8 << 20) + b"x", "larger than 8 MiB"),
    ],
)
def test_bad_manifests_are_usage_errors(cli: Cli, content: bytes, words: str) -> None:
    result = cli("redirect", "--simulate", "-f", "-", stdin=content)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_not_there_or_no_file_is_a_usage_error(cli: Cli, tmp_path: Any) -> None:
    missing = cli("redirect", "--simulate", "-f", tmp_path / "none.yaml")
    directory = cli("redirect", "--simulate", "-f", tmp_path)
    nothing = cli("redirect", "--simulate")

    assert (missing.exit_code, directory.exit_code, nothing.exit_code) == (2, 2, 2)
    assert f"cannot read {tmp_path / 'none.yaml'}: No such file or directory" in missing.stderr
    assert f"cannot use {tmp_path}: it is no file" in directory.stderr
    assert "-f POD.yaml" in nothing.stderr
