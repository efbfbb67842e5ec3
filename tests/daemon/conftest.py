"""What the tests of the whole agent share."""

import contextlib

import pytest

from agent.node.nft.compile import Compiler


@pytest.fixture(scope="session")
def owned_tables() -> bool:
    """Whether this kernel has owned tables; without them every table is plain, and none is ever claimed."""
    with contextlib.closing(Compiler()) as compiler:
        return bool(compiler.flags())
