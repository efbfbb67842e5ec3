"""What the tests of the whole agent share."""

import contextlib
from pathlib import Path

import pytest

from agent.cni.install import SHIM
from agent.node.nft.compile import Compiler
from tests.cni.confs import Node


@pytest.fixture(scope="session")
def owned_tables() -> bool:
    """Whether this kernel has owned tables; without them every table is plain, and none is ever claimed."""
    with contextlib.closing(Compiler()) as compiler:
        return bool(compiler.flags())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node's CNI directories, for the shim as it is shipped."""
    made = Node(tmp_path)
    made.shim = SHIM
    return made
