"""The shim's readers against Python's json, and against whatever a fuzzer thinks of.

FUZZ_SECONDS=600 pytest tests/cni/test_shim_fuzz.py looks for longer than `make test` does.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cni.wire import reply
from tests.cni.scripted import SUCCESS, agent, frame
from tests.cni.shim import PREVIOUS, call, conf, with_previous
from tests.lab.cni import arguments

TARGET = Path(__file__).with_name("fuzz_shim.c")
SECONDS = os.environ.get("FUZZ_SECONDS", "3")
COMMON = ("-g", "-O1", "-std=c11", "-Wall", "-Wextra", "-fno-sanitize-recover=all")

SEEDS = (
    with_previous(
        conf(
            Path("/run/pointsman/cni.sock"),
            whenAgentAway="deny",
            exemptNamespaces=["kube-system", "ä"],
            agentPod="linkerd-cni/linkerd-cni-",
        )
    ),
    b'{"a":"\\ud83d\\ude00\\n","b":[[{}],-1.5E+3,true,null],"cniVersion":"0.3.1"} ',
    PREVIOUS.encode(),
    reply(b""),
    reply(b'{"cniVersion":"1.0.0","code":11,"msg":"later"}'),
    frame(1, length=1 << 31),
    arguments("web", "kube-system", "u-1").encode(),
    b'"K8S_POD_NAME=web; K8S_POD_NAMESPACE = kube-system"',
)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seeds")
    for number, seed in enumerate(SEEDS):
        (directory / str(number)).write_bytes(seed)
    return directory


def test_nothing_that_is_read_breaks_the_shim(seeds: Path, tmp_path: Path) -> None:
    fuzz = tmp_path / "fuzz"
    compiler = ["gcc", *COMMON, "-DDRIVER", "-fsanitize=address,undefined", "-o", str(fuzz), str(TARGET)]
    subprocess.run(compiler, check=True)
    done = subprocess.run([fuzz, SECONDS, *seeds.iterdir()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[0]) > 1000


def test_nothing_that_libfuzzer_finds_breaks_the_shim(seeds: Path, tmp_path: Path) -> None:
    fuzz = tmp_path / "fuzz"
    compiler = ["clang", *COMMON, "-fsanitize=fuzzer,address,undefined", "-o", str(fuzz), str(TARGET)]
    if not shutil.which("clang") or subprocess.run(compiler, check=False, capture_output=True).returncode:
        pytest.skip("clang has no libFuzzer here: install clang and libclang-rt-14-dev")
    command = [str(fuzz), f"-max_total_time={SECONDS}", "-max_len=8192", str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# ---- texts of JSON, with blanks and escapes as nobody would write them ------------------------------------

blanks = st.text(" \t\r\n", max_size=3)
characters = st.one_of(
    st.characters(exclude_characters='"\\', min_codepoint=0x20, codec="utf-8"),
    st.sampled_from(['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"]),
    st.integers(0, 0xFFFF).map(lambda unit: f"\\u{unit:04x}"),
    st.integers(0, 0xFFFF).map(lambda unit: f"\\u{unit:04X}"),
)
strings = st.lists(characters, max_size=8).map(lambda parts: '"' + "".join(parts) + '"')
numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
scalars = st.one_of(strings, numbers, st.sampled_from(["true", "false", "null"]))


def spaced(value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(blanks, value, blanks).map("".join)


def objects(values: st.SearchStrategy[str], keys: st.SearchStrategy[str] = strings) -> st.SearchStrategy[str]:
    members = st.tuples(spaced(keys), spaced(values)).map(":".join)
    return st.one_of(
        blanks.map("{{{}}}".format),
        st.lists(members, min_size=1, max_size=5).map(",".join).map("{{{}}}".format),
    )


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    filled = st.lists(spaced(values), min_size=1, max_size=5).map(",".join)
    return st.one_of(blanks, filled).map("[{}]".format)


values = st.recursive(scalars, lambda inner: st.one_of(objects(inner), arrays(inner)), max_leaves=12)
names = st.one_of(strings, st.sampled_from(['"prevResult"', '"prev\\u0052esult"', '"PrevResult"', '"name"']))
members = st.lists(st.tuples(names, st.one_of(values, objects(values))), max_size=6)


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("agent") / "cni.sock"
    with agent(path, SUCCESS):
        yield path


@settings(max_examples=200, deadline=None)
@given(members=members, outer=blanks)
def test_prev_result_is_the_slice_that_python_would_decode(
    packaged: Path, answering: Path, members: list[tuple[str, str]], outer: str
) -> None:
    tail = [('"cniVersion"', '"1.0.0"'), ('"socket"', json.dumps(str(answering)))]
    text = ",".join(f"{outer}{key}{outer}:{outer}{value}{outer}" for key, value in [*members, *tail])
    document = f"{outer}{{{text}}}{outer}"
    slices = [value for key, value in members if json.loads(key) == "prevResult"]
    expected = json.loads(document).get("prevResult")
    done = call(packaged, "ADD", document.encode())
    if isinstance(expected, dict):
        assert done.out.decode() == slices[-1]
        assert json.loads(done.out) == expected
    elif expected is None:
        assert json.loads(done.out) == {"cniVersion": "1.0.0"}
    else:
        assert "prevResult is not an object" in done.error["msg"]


edits = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.sampled_from(["insert", "replace", "delete", "cut"]),
        st.one_of(st.sampled_from(list(b'{}[]":,\\u0e+-.tfn \n\t\x00\x1f\x7f\x80\xff')), st.integers(0, 255)),
    ),
    max_size=3,
)


def edited(document: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    for position, kind, byte in changes:
        at = position % (len(document) + 1)
        new = bytes([byte]) if kind in ("insert", "replace") else b""
        rest = b"" if kind == "cut" else document[at + (kind != "insert") :]
        document = document[:at] + new + rest
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def is_configuration(document: bytes) -> bool:
    """What Python's json has to say. Bytes that are no UTF-8 are for whoever reads the strings."""
    try:
        found = json.loads(document.decode(errors="surrogateescape"), parse_constant=_no_constant)
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("prevResult"), dict | None)


@settings(max_examples=400, deadline=None)
@given(document=objects(values, names), changes=edits)
def test_the_shim_takes_what_python_takes(
    packaged: Path, document: str, changes: list[tuple[int, str, int]]
) -> None:
    changed = edited(document.encode(), changes)
    # Without a container id the call ends right behind the configuration.
    done = call(packaged, "CHECK", changed, CNI_CONTAINERID=None)
    assert (done.error["code"] == 4) == is_configuration(changed), (changed, done.out)
    assert done.error["code"] in (4, 6)
