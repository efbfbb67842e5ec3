"""The kernel's lists of legacy tables, read again and again through files that stay open."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.legacy import LegacyTables
from agent.node.netns import open_netns
from tests.lab.netns import netns, path_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
    pytest.mark.skipif(not shutil.which("iptables-legacy"), reason="needs iptables-legacy"),
]


@pytest.fixture
def name() -> Iterator[str]:
    with netns() as name:
        yield name


@pytest.fixture
def tables(name: str) -> Iterator[LegacyTables]:
    fd = open_netns(path_of(name))
    with contextlib.closing(LegacyTables(fd)) as tables:
        yield tables
    os.close(fd)


def make_table(name: str, binary: str, table: str = "nat") -> None:
    subprocess.run(["ip", "netns", "exec", name, binary, "-t", table, "-S"], check=True, capture_output=True)


def test_asking_creates_nothing(tables: LegacyTables) -> None:
    assert tables.families() == []
    assert tables.families() == []


def test_a_table_is_seen_when_it_comes(name: str, tables: LegacyTables) -> None:
    assert tables.families() == []
    make_table(name, "ip6tables-legacy")
    assert tables.families() == [6]
    make_table(name, "iptables-legacy")
    assert tables.families() == [4, 6]


def test_only_nat_counts_and_only_here(name: str, tables: LegacyTables) -> None:
    make_table(name, "iptables-legacy", "filter")
    with netns() as other:
        make_table(other, "iptables-legacy")
        assert tables.families() == []


def test_closing_gives_back_every_descriptor(name: str) -> None:
    fd = open_netns(path_of(name))
    before = descriptors()
    tables = LegacyTables(fd)
    make_table(name, "iptables-legacy")
    assert tables.families() == [4]
    assert descriptors() > before
    tables.close()
    tables.close()
    assert descriptors() == before
    os.close(fd)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
