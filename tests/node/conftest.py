"""One pod: its network namespace, a socket in it, and the template that it shall have."""

import contextlib
from collections.abc import Iterator

import pytest

from agent.node.nft.compile import Compiler, Template
from agent.node.nft.socket import Nft
from tests.lab.netns import netns
from tests.node.pods import TEXT, socket_in


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with contextlib.closing(Compiler()) as made:
        yield made


@pytest.fixture(scope="module")
def template(compiler: Compiler) -> Template:
    return compiler.compile(TEXT)


@pytest.fixture(scope="module")
def best(compiler: Compiler) -> int:
    """The flags of our tables on this kernel: those of an owned table where it has them, else none."""
    return compiler.flags()


@pytest.fixture(scope="module")
def owned(compiler: Compiler, best: int) -> int:
    """The flags of an owned table; a kernel that has none skips the test."""
    if not best:
        pytest.skip(f"this kernel has no owned tables: {compiler.reason}")
    return best


@pytest.fixture
def name() -> Iterator[str]:
    with netns() as made:
        yield made


@pytest.fixture
def nl(name: str) -> Iterator[Nft]:
    with socket_in(name) as made:
        yield made
