"""Requests and errors of CNI as values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cni import VERSIONS, CniError, Code, Verb, arguments, error_object, parse, version_of
from agent.core.names import PodKey

ENVIRONMENT = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/var/run/netns/cni-1",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=u-1",
}


@pytest.mark.parametrize(
    ("text", "name", "namespace", "uid"),
    [
        ("K8S_POD_NAME=a;K8S_POD_NAMESPACE=n;K8S_POD_UID=u", "a", "n", "u"),
        ("K8S_POD_UID=u;K8S_POD_NAMESPACE=n;K8S_POD_NAME=a", "a", "n", "u"),
        ('K8S_POD_NAME="a";K8S_POD_NAMESPACE="n"', "a", "n", ""),
        ("K8S_POD_NAME=a; K8S_POD_NAMESPACE=n ;X=1;;Y", "a", "n", ""),
        ("K8S_POD_NAME=a", "a", "default", ""),
        ("K8S_POD_NAME=a;K8S_POD_NAME=b", "b", "default", ""),
        ('"K8S_POD_NAME=a;K8S_POD_NAMESPACE=n"', "a", "n", ""),
        ("K8S_POD_NAME='a';K8S_POD_NAMESPACE='n'", "a", "n", ""),
    ],
)
def test_the_pod_is_read_from_arguments_in_any_form(text: str, name: str, namespace: str, uid: str) -> None:
    attachment = parse({**ENVIRONMENT, "CNI_ARGS": text}, b"{}").attachment
    assert (attachment.pod, attachment.uid) == (PodKey(namespace, name), uid)


def test_a_call_without_pod_is_no_pods_call() -> None:
    assert parse({**ENVIRONMENT, "CNI_ARGS": "IgnoreUnknown=1"}, b"{}").attachment.pod is None


@pytest.mark.parametrize("version", VERSIONS)
def test_addresses_are_read_from_results_of_every_version(version: str) -> None:
    result = {
        "cniVersion": version,
        "ips": [{"version": "4", "address": "10.1.2.3/24"}, {"address": "fd00::5/64", "gateway": "fd00::1"}],
        "unknown": {"deep": [1]},
    }
    stdin = json.dumps({"cniVersion": version, "prevResult": result}).encode()
    request = parse(ENVIRONMENT, stdin)
    assert (request.version, request.attachment.ips) == (version, ("10.1.2.3", "fd00::5"))


@pytest.mark.parametrize("result", ["null", "[]", "7", '{"ips": 5}', '{"ips": [{"address": "here"}]}'])
def test_a_result_of_unknown_shape_is_no_reason_to_refuse(result: str) -> None:
    assert parse(ENVIRONMENT, f'{{"prevResult": {result}}}'.encode()).attachment.ips == ()


def test_annotations_come_by_the_runtimes_capability() -> None:
    stdin = b'{"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"a": "b"}, "portMappings": []}}'
    assert parse(ENVIRONMENT, stdin).attachment.annotations == {"a": "b"}
    assert parse(ENVIRONMENT, b"{}").attachment.annotations is None


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b"\xff\xfe", b'{"cniVersion": 5}', b"null", b"{} {}"])
def test_what_cannot_be_decoded_refuses_add_and_never_del(stdin: bytes) -> None:
    with pytest.raises(CniError) as caught:
        parse(ENVIRONMENT, stdin)
    assert caught.value.code is Code.DECODE
    request = parse({**ENVIRONMENT, "CNI_COMMAND": "DEL", "CNI_NETNS": ""}, stdin)
    assert (request.verb, request.attachment.container_id) == (Verb.DEL, "c1")


def test_gc_lists_what_lives() -> None:
    stdin = b'{"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}]}'
    assert parse({"CNI_COMMAND": "GC"}, stdin).valid == {("a", "eth0")}
    assert parse({"CNI_COMMAND": "GC"}, b'{"cni.dev/valid-attachments": []}').valid == frozenset()
    assert parse({"CNI_COMMAND": "GC"}, b"{}").valid is None
    assert parse({"CNI_COMMAND": "GC"}, b"broken").valid is None


def test_an_error_speaks_the_version_of_its_configuration() -> None:
    error = CniError(Code.LATER, 'cannot redirect pod "x"', "line\nbreak")
    assert json.loads(error_object("0.4.0", error)) == {
        "cniVersion": "0.4.0",
        "code": 11,
        "msg": 'cannot redirect pod "x"',
        "details": "line\nbreak",
    }
    assert json.loads(error_object("9.9.9", error))["cniVersion"] == "1.1.0"
    assert "details" not in json.loads(error_object("1.0.0", CniError(Code.LATER, "no")))
    assert (version_of(b'{"cniVersion": "0.3.1"}'), version_of(b"junk")) == ("0.3.1", "1.1.0")
    assert (
        version_of(b'{"cniVersion": null}') == parse(ENVIRONMENT, b'{"cniVersion": null}').version == "1.1.0"
    )


@given(st.dictionaries(st.sampled_from([*ENVIRONMENT, "OTHER"]), st.text()), st.binary())
def test_whatever_comes_is_a_request_or_a_cni_error(environment: dict[str, str], stdin: bytes) -> None:
    answer = _answer(environment, stdin)
    assert answer in list(Verb) or answer in list(Code)


def _answer(environment: dict[str, str], stdin: bytes) -> str | int:
    try:
        return parse(environment, stdin).verb
    except CniError as error:
        code: int = json.loads(error_object(version_of(stdin), error))["code"]
        return code


@given(st.text(), st.binary())
def test_arguments_and_versions_never_fail(text: str, stdin: bytes) -> None:
    assert all(isinstance(value, str) for value in arguments(text).values())
    assert isinstance(version_of(stdin), str)
