"""The product's own datapath, as the cases use it: text to template to a pod's kernel state."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agent.core.names import TABLE
from agent.core.ruleset import render
from agent.core.spec import RedirectSpec
from agent.node.netns import open_netns
from agent.node.nft.compile import Compiler
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.socket import Nft

Counted = dict[str, int]
"""Connections per named counter."""


class Datapath:
    """One compiler, with its child, for a whole run."""

    def __init__(self) -> None:
        self._compiler = Compiler()
        self._datapath = NftDatapath()
        self._flags = self._compiler.flags()

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[Nft]:
        """A netlink socket in the network namespace at `path`, for as long as the context lasts."""
        fd = open_netns(path)
        try:
            nft = self._datapath.open(fd)
        finally:
            os.close(fd)
        with contextlib.closing(nft):
            yield nft

    def install(self, nft: Nft, spec: RedirectSpec) -> None:
        """Make the kernel redirect as `spec` says. Raises what the product raises."""
        self._datapath.apply(nft, self._compiler.compile(render(spec)), self._flags)

    def close(self) -> None:
        """End the compiler's child."""
        self._compiler.close()


def counted(nft: Nft) -> Counted:
    """The counters of the pod's table."""
    return {name: packets for name, (packets, _) in nft.read(TABLE).counters.items()}
