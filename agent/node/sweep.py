"""Our table in network namespaces that no agent keeps: found, drained and removed by path.

For commands that work without a running agent. Whoever drains or removes holds the writer's lock.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from agent.core.names import TABLE
from agent.node.netns import HostNetns, NetnsId, NetnsMissing, identify, open_netns, run_in
from agent.node.nft.channel import NftError
from agent.node.nft.compile import Template
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.records import PERSIST
from agent.node.nft.socket import Nft


class Held(msgspec.Struct, frozen=True):
    """A namespace that holds our table. `redirects` False: it is the drain table."""

    path: str
    netns: NetnsId
    redirects: bool


class Sweep(msgspec.Struct, frozen=True):
    """What a search came to; `unreadable`: paths of which nothing is known, and why."""

    held: tuple[Held, ...] = ()
    unreadable: dict[str, str] = {}


def namespaces(directory: Path) -> list[str]:
    """Paths in a directory such as /run/netns, in order; none when there is no such directory.

    Raises PermissionError.
    """
    try:
        return sorted(str(path) for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def search(paths: Iterable[str]) -> Sweep:
    """Look for our table behind each path. The node's own namespace and leftover files are passed over;
    of several paths to one namespace the first is taken."""
    held: dict[NetnsId, Held] = {}
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            found = _look(path)
        except (HostNetns, NetnsMissing):
            continue
        except (OSError, NftError) as error:
            unreadable[path] = str(error)
            continue
        if found is not None:
            held.setdefault(found.netns, found)
    return Sweep(tuple(held.values()), unreadable)


def drain(path: str, template: Template, flags: int) -> None:
    """Replace our table behind `path`, if it is there, by the drain `template`.

    `flags`: table flags that the kernel supports; a plain table stays plain. Raises what `open_netns`
    and the datapath's `apply` raise.
    """
    with _opened(path) as (_, nl):
        state = nl.read(TABLE)
        if state.records:
            NftDatapath().apply(nl, template, flags if state.flags & PERSIST else 0)


def remove(path: str) -> None:
    """Delete our table behind `path`, if it is there. Raises as `open_netns` and the datapath's `remove`."""
    with _opened(path) as (_, nl):
        NftDatapath().remove(nl)


def _look(path: str) -> Held | None:
    with _opened(path) as (netns, nl):
        records = nl.read(TABLE).records
    # Every table that redirects has counters, the drain table has none.
    return Held(path, netns, any(item.kind == "object" for item in records)) if records else None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[NetnsId, Nft]]:
    fd = open_netns(path)
    try:
        with contextlib.closing(run_in(fd, Nft)) as nl:
            yield identify(fd), nl
    finally:
        os.close(fd)
