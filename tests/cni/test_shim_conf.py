"""What the shim makes of its configuration and environment."""

import itertools
import json
from pathlib import Path

import pytest

from agent.cni.wire import reply
from agent.core.cni import LATEST, VERSIONS
from tests.cni.scripted import SUCCESS, agent, says
from tests.cni.shim import PREVIOUS, UNSTRIPPED, Call, build, call, call_all, conf, with_previous
from tests.lab.cni import arguments, environment


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [
        ('{"cniVersion":"0.4.0","socket":"S"}', '{"cniVersion":"0.4.0"}'),
        ('{"cniVersion":"0.4.0","prevResult":null,"socket":"S"}', '{"cniVersion":"0.4.0"}'),
        ('{"cniVersion":"1.0.0","prevResult":{"a":1},"prevResult":{"b":2},"socket":"S"}', '{"b":2}'),
        (
            '{"cniVersion":"1.0.0","prevResult":{"a":1},"prevResult":null,"socket":"S"}',
            '{"cniVersion":"1.0.0"}',
        ),
        ('{"cniVersion":"1.0.0","prev\\u0052esult":{"a":1},"socket":"S"}', '{"a":1}'),
        ('{"cniVersion":"1.0.0","x":{"prevResult":{"a":1}},"socket":"S"}', '{"cniVersion":"1.0.0"}'),
        ('{"cniVersion":"1.0\\u002e0","socket":"\\/nowhere","socket":"S"}', '{"cniVersion":"1.0.0"}'),
        ('{"cniVersion":"9","cniVersion":"1.1.0","socket":"S"}', '{"cniVersion":"1.1.0"}'),
        # libcni takes a configuration without a version for 0.1.0, and passes on what the plugins print.
        ('{"socket":"S"}', '{"cniVersion":"0.1.0"}'),
        ('{"cniVersion":"","prevResult":{"ip4":{}},"socket":"S"}', '{"ip4":{}}'),
        ('{"cniVersion":null,"socket":"S"}', '{"cniVersion":"0.1.0"}'),
    ],
)
def test_what_the_configuration_means(shim: Path, path: Path, stdin: str, expected: str) -> None:
    with agent(path, SUCCESS):
        done = call(shim, "ADD", stdin.replace('"S"', json.dumps(str(path))).encode())
    assert (done.code, done.out.decode(), done.err) == (0, expected, "")


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        (b"", "it is empty"),
        (b"   ", "ends too early at byte 3"),
        (b"no", "expected an object at byte 0"),
        (b"[1]", "expected an object at byte 0"),
        (b'"x"', "expected an object at byte 0"),
        (b"\xef\xbb\xbf{}", "expected an object at byte 0"),
        (b"{", "ends too early at byte 1"),
        (b'{"a":1', "ends too early at byte 6"),
        (b'{"a":1,}', "expected a string at byte 7"),
        (b'{"a" 1}', "expected a colon at byte 5"),
        (b'{"a":1 "b":2}', "expected a comma or a closing bracket at byte 7"),
        (b'{"a":1}x', "something follows the object at byte 7"),
        (b'{"a":1}\0', "something follows the object at byte 7"),
        (b'{"a":1}{}', "something follows the object at byte 7"),
        (b'{"a":[1,]}', "expected a value at byte 8"),
        (b'{"a":[1}}', "expected a comma or a closing bracket at byte 7"),
        (b'{"a":01}', "expected a comma or a closing bracket at byte 6"),
        (b'{"a":1.}', "expected a digit at byte 7"),
        (b'{"a":-}', "expected a digit at byte 6"),
        (b'{"a":+1}', "expected a value at byte 5"),
        (b'{"a":NaN}', "expected a value at byte 5"),
        (b'{"a":nul}', "expected a value at byte 8"),
        (b'{"a":"\n"}', "control character in a string at byte 6"),
        (b'{"a":"\\x"}', "unknown escape in a string at byte 7"),
        (b'{"a":"\\u12g4"}', "expected a hexadecimal digit at byte 10"),
        (b"{'a':1}", "expected a string at byte 1"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b",}", "expected a string"),
        (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "nested too deeply at byte 69"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b'{"cniVersion":1}', "cniVersion is not a short string at byte 14"),
        (b'{"cniVersion":"1.0.0\\u0000"}', "cniVersion is not a short string at byte 14"),
        (b'{"prevResult":[]}', "prevResult is not an object at byte 14"),
        (b'{"prevResult":"{}"}', "prevResult is not an object at byte 14"),
    ],
)
def test_bad_configurations_are_named(shim: Path, stdin: bytes, words: str) -> None:
    for verb in ("ADD", "CHECK", "STATUS"):
        done = call(shim, verb, stdin)
        assert done.error["code"] == 6
        assert done.error["cniVersion"] == LATEST
        assert done.error["msg"].startswith("cannot decode the configuration on stdin: ")
        assert words in done.error["msg"]
    done = call(shim, "VERSION", stdin)
    assert json.loads(done.out) == {"cniVersion": LATEST, "supportedVersions": list(VERSIONS)}


def test_invalid_utf8_in_a_string_is_carried(shim: Path, path: Path) -> None:
    previous = b'{"a":"\xff\xc3"}'
    stdin = conf(path)[:-1] + b',"\xff":1,"prevResult":' + previous + b"}"
    with agent(path, SUCCESS) as requests:
        assert call(shim, "ADD", stdin).out == previous
    assert requests[0].stdin == stdin


@pytest.mark.parametrize("verb", ["DEL", "GC"])
@pytest.mark.parametrize("stdin", [b"", b"no", b'{"socket":1}', b'{"cniVersion":"9.9"}', b" " * (2 << 20)])
def test_a_removal_never_fails_for_its_configuration(
    tmp_path: Path, path: Path, verb: str, stdin: bytes
) -> None:
    shim = build(tmp_path / "shim", f"""{UNSTRIPPED} -DDEFAULT_SOCKET='"{path}"'""")
    refusal = b'{"code":6,"msg":"cannot decode"}'
    with agent(path, says(reply(refusal))) as requests:
        done = call(shim, verb, stdin)
    assert [request.environment["CNI_COMMAND"] for request in requests] == [verb]
    readable = stdin.startswith(b"{")
    assert (done.code, done.out) == ((1, refusal) if readable else (0, b""))
    done = call(shim, verb, stdin)
    assert (done.code, done.out) == (0, b"")


@pytest.mark.parametrize("version", [*VERSIONS, "0.2.0", None])
def test_version_is_answered_without_an_agent(shim: Path, version: str | None) -> None:
    nothing = dict.fromkeys(environment("VERSION"), None) | {"CNI_COMMAND": "VERSION"}
    done = call(shim, "VERSION", conf(None, version), **nothing)
    known = version if version in VERSIONS else LATEST
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {"cniVersion": known, "supportedVersions": list(VERSIONS)}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "1.2.0", "2.0.0", "1.0", 'x"\\', "1.0.0 "])
def test_other_versions_are_refused(shim: Path, path: Path, version: str) -> None:
    with agent(path, SUCCESS):
        for verb in ("ADD", "CHECK", "STATUS"):
            error = call(shim, verb, conf(path, version)).error
            assert (error["code"], error["cniVersion"]) == (1, LATEST)
            assert version in error["msg"]
            assert all(known in error["details"] for known in VERSIONS)
        for verb in ("DEL", "GC"):
            assert call(shim, verb, conf(path, version)).code == 0


@pytest.mark.parametrize(
    ("verb", "needs"),
    [
        ("ADD", ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")),
        ("CHECK", ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")),
        ("DEL", ("CNI_CONTAINERID",)),
        ("STATUS", ()),
        ("GC", ()),
    ],
)
def test_what_each_verb_needs(shim: Path, path: Path, verb: str, needs: tuple[str, ...]) -> None:
    with agent(path, SUCCESS):
        for name, value in itertools.product(environment(verb), (None, "")):
            done = call(shim, verb if name != "CNI_COMMAND" else "", conf(path, "0.4.0"), **{name: value})
            if name == "CNI_COMMAND":
                assert (done.error["code"], done.error["cniVersion"]) == (4, LATEST)
            elif name in needs:
                assert (done.error["code"], done.error["cniVersion"]) == (4, "0.4.0")
                assert done.error["msg"] == f"invalid environment: {verb} needs {name}"
            else:
                assert done.code == 0


@pytest.mark.parametrize("command", ["", "add", "ADD ", "UPDATE", "x" * 100_000])
def test_unknown_verbs_are_refused_without_reading(shim: Path, command: str) -> None:
    done = call(shim, command, b"")
    assert (done.error["code"], done.error["cniVersion"]) == (4, LATEST)
    assert "CNI_COMMAND" in done.error["msg"]


def test_an_environment_of_64_kib_is_carried_and_not_a_byte_more(shim: Path, path: Path) -> None:
    usual = environment("ADD", "c1", "/run/netns/x")
    room = (64 << 10) - sum(len(key) + len(value) + 2 for key, value in usual.items())
    with agent(path, SUCCESS) as requests:
        assert call(shim, "ADD", conf(path), CNI_ARGS="x" * room).code == 0
        assert len(requests[0].environment["CNI_ARGS"]) == room
        assert call(shim, "ADD", conf(path), CNI_ARGS="x" * (room + 1)).error["code"] == 4


INVALID = [
    ("whenAgentAway", "Deny"),
    ("whenAgentAway", ""),
    ("whenAgentAway", True),
    ("whenAgentAway", "deny\0"),
    ("whenAgentAway", "x" * 5000),
    ("socket", "cni.sock"),
    ("socket", ""),
    ("socket", 7),
    ("socket", "/a\0b"),
    ("socket", "/" + "s" * 107),
    ("exemptNamespaces", "kube-system"),
    ("exemptNamespaces", ["kube-system", 1]),
    ("exemptNamespaces", {"kube-system": True}),
    ("agentPod", "linkerd-cni"),
    ("agentPod", "/linkerd-cni-"),
    ("agentPod", "linkerd-cni/"),
    ("agentPod", ["linkerd-cni/x"]),
]


def test_invalid_settings_are_named_and_hold_up_nobody_who_is_exempt(shim: Path, path: Path) -> None:
    settings = {"socket": str(path), "agentPod": "agents/a-", "exemptNamespaces": ["kube-system"]}
    ours, critical = arguments("a-1", "agents"), arguments("coredns", "kube-system")
    refused, passed = [], []
    for setting, value in INVALID:
        given = {"cniVersion": "0.3.1", **settings, setting: value}
        stdin = with_previous(json.dumps(given).encode())
        refused += [Call(verb, stdin) for verb in ("ADD", "CHECK", "STATUS")]
        passed += [Call("ADD", stdin, {"CNI_ARGS": critical if setting == "agentPod" else ours})]
        passed += [Call("DEL", stdin)]
    with agent(path, SUCCESS):
        for index, done in enumerate(call_all(shim, refused)):
            assert (done.error["code"], done.error["cniVersion"]) == (7, "0.3.1")
            assert f'"{INVALID[index // 3][0]}"' in done.error["msg"]
            assert "install-cni" in done.error["details"]
        # An object's keys are no list of names.
        stdin = conf(path, exemptNamespaces={"kube-system": True})
        assert call(shim, "ADD", stdin, CNI_ARGS=critical).error["code"] == 7
        for index, done in enumerate(call_all(shim, passed)):
            expected = b"" if index % 2 else PREVIOUS.encode()
            assert (done.code, done.out) == (0, expected)
            assert f'"{INVALID[index // 2][0]}"' in done.err


def test_null_is_the_default(shim: Path, path: Path) -> None:
    """For the socket too, at which this test expects no agent."""
    names = ("socket", "whenAgentAway", "exemptNamespaces", "agentPod")
    given = [{"cniVersion": "1.0.0", "socket": str(path), name: None} for name in names]
    stdins = [with_previous(json.dumps(each).encode()) for each in given]
    for done in call_all(shim, [Call("ADD", stdin) for stdin in stdins]):
        assert (done.code, done.out) == (0, PREVIOUS.encode())
        assert "passed without the agent" in done.err


def test_the_longest_path_of_a_socket_works(shim: Path, tmp_path: Path) -> None:
    path = tmp_path / ("s" * (107 - len(str(tmp_path)) - 1))
    with agent(path, SUCCESS):
        done = call(shim, "ADD", conf(path))
    assert (len(str(path)), done.code, done.err) == (107, 0, "")
