"""The command line as a function, and a place for a pod and its agent to be."""

import itertools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.cli import main

_numbers = itertools.count()

Cli = Callable[..., Result]


@pytest.fixture
def cli() -> Cli:
    """`cli("check", "-o", "json", stdin="")`. A traceback is a failure of the test."""

    def invoke(*arguments: object, stdin: str | bytes = "") -> Result:
        result = CliRunner().invoke(main, [*map(str, arguments)], input=stdin, prog_name="pointsman")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture(autouse=True)
def cni_directories(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a node without CNI, for commands and agents that are given no others: never the machine's own."""
    nowhere = tmp_path_factory.mktemp("cni")
    monkeypatch.setenv("POINTSMAN_CONF_DIR", str(nowhere / "net.d"))
    monkeypatch.setenv("POINTSMAN_BIN_DIR", str(nowhere / "bin"))
    return nowhere


@pytest.fixture
def netns() -> Iterator[str]:
    """Name of a new network namespace with `lo` up."""
    name = f"pm-cli-{os.getpid()}-{next(_numbers)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.fixture
def netns_dir(tmp_path: Path, netns: str) -> Path:
    """A directory that names the test's namespace, and no other."""
    directory = tmp_path / "netns"
    directory.mkdir()
    (directory / netns).symlink_to(f"/run/netns/{netns}")
    return directory


def answer(result: Result) -> Any:
    """The JSON document on stdout."""
    return json.loads(result.stdout)
