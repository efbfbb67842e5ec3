"""A node of a few pods under an enforcer in this very process, and everything that may happen to it."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from agent.core.cluster import Cluster
from agent.core.names import TABLE
from agent.core.objects import Drop, Event, Namespace, Pod, Put, Replace, Service
from agent.files.source import with_uid
from agent.node.duty import Policy
from agent.node.enforcer import Enforcer
from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError
from agent.node.nft.records import OWNER, PERSIST, record
from agent.node.nft.socket import Nft
from agent.node.nft.wire import attr, string, u32
from tests.chaos.tables import OFF, SKIP_OUT, nft
from tests.lab.agent import pod_manifest
from tests.lab.netns import path_of, run
from tests.node.pods import opened, socket_in

NAMESPACE = "shop"

SHAPES: dict[str, dict[str, Any]] = {
    "25": {"annotations": {SKIP_OUT: "25"}},
    "25,3306": {"annotations": {SKIP_OUT: "25,3306"}},
    "1-1024": {"annotations": {SKIP_OUT: "1-1024"}},
    "as its namespace": {},
    "off": {"annotations": OFF},
    "unmeshed": {"meshed": False},
    "finished": {"status": {"phase": "Succeeded"}},
}
"""What the object of a pod may say, as arguments of `pod_manifest`."""

NAMESPACES: dict[str, dict[str, str]] = {"skips 7000": {SKIP_OUT: "7000"}, "off": OFF, "plain": {}}
"""Annotations that the namespace may have."""

OWNERSHIP = {"until its end": OWNER, "and beyond": OWNER | PERSIST}
"""How long a table that somebody has seized lives."""


class Slot:
    """A place for one pod: a path that leads to a netns or does not, and perhaps an object.

    `fixed`: its pod keeps one UID; else the UID follows the netns, as with manifests that have none.
    `rival`: somebody else's socket, which owns a table of our name.
    """

    def __init__(self, number: int) -> None:
        self.name = f"pm-{os.getpid()}-slot-{number}"
        self.pod_name = f"pod-{number}"
        self.fixed = number % 2 == 0
        self.shape = ""
        self.pod: Pod | None = None
        self.rival: Nft | None = None

    @property
    def there(self) -> bool:
        return path_of(self.name).exists()

    @property
    def inode(self) -> int:
        return path_of(self.name).stat().st_ino

    def object(self, shape: str) -> Pod:
        uid = self.pod_name if self.fixed else None
        manifest = pod_manifest(self.pod_name, self.name, uid=uid, namespace=NAMESPACE, **SHAPES[shape])
        return with_uid(msgspec.convert(manifest, Pod))

    def release(self) -> None:
        if self.rival is not None:
            self.rival.close()
            self.rival = None


class Node:
    """Slots and an enforcer that can be started again. Each `async` method is one thing that happens."""

    def __init__(self, slots: int, *, owned: bool) -> None:
        self.slots = [Slot(number) for number in range(slots)]
        self.cluster = Cluster()
        self.enforcer: Enforcer
        self._policy = Policy(owned_tables=owned, discover=False, round_period=0.2)
        self._running: asyncio.Task[None]
        for kind in (Namespace, Service, Pod):
            self.cluster.apply(Replace(kind, ()))

    async def start(self) -> None:
        self.enforcer = Enforcer(self.cluster, self._policy, CollectorRegistry(), lambda *_: None)
        self.enforcer.set_writer(True)
        self._running = asyncio.create_task(self.enforcer.run())
        # A task that is cancelled before it has begun never does anything, not even its end.
        await asyncio.sleep(0)
        self.enforcer.wake(list(self.cluster.pods))

    async def stop(self) -> None:
        """Nothing may have ended the enforcer before."""
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running

    def close(self) -> None:
        """Remove all namespaces."""
        for slot in self.slots:
            slot.release()
            if slot.there:
                run("ip", "netns", "delete", slot.name)

    async def happen(self, what: tuple[Any, ...]) -> None:
        """One step: the name of a method, the slot if it is about one, and what else it needs."""
        name, *arguments = what
        act: Callable[..., Awaitable[None]] = getattr(self, name)
        await act(*(self.slots[each] if isinstance(each, int) else each for each in arguments))

    def _apply(self, event: Event) -> None:
        self.enforcer.wake(self.cluster.apply(event))

    # Objects

    async def put(self, slot: Slot, shape: str) -> None:
        before, slot.shape, slot.pod = slot.pod, shape, slot.object(shape)
        if before is not None and before.uid != slot.pod.uid:
            self._apply(Drop(before))
        self._apply(Put(slot.pod))

    async def drop(self, slot: Slot) -> None:
        if slot.pod is not None:
            self._apply(Drop(slot.pod))
            slot.pod = None

    async def namespace(self, kind: str) -> None:
        metadata = {"name": NAMESPACE, "annotations": NAMESPACES[kind]}
        self._apply(Put(msgspec.convert({"metadata": metadata}, Namespace)))

    async def no_namespace(self) -> None:
        self._apply(Drop(msgspec.convert({"metadata": {"name": NAMESPACE}}, Namespace)))

    # Network namespaces

    async def vanish(self, slot: Slot) -> None:
        slot.release()
        if slot.there:
            await asyncio.to_thread(run, "ip", "netns", "delete", slot.name)

    async def appear(self, slot: Slot) -> None:
        if not slot.there:
            await asyncio.to_thread(run, "ip", "netns", "add", slot.name)

    async def remake(self, slot: Slot, seconds: float) -> None:
        """As when a sandbox is made anew: another netns at the same path, of which the source hears late."""
        await self.vanish(slot)
        await self.appear(slot)
        await asyncio.sleep(seconds)
        if slot.pod is not None:
            await self.put(slot, slot.shape)

    # Other programs

    async def harm(self, slot: Slot, command: str) -> None:
        """Refused where the table is owned, and where there is nothing to be harmed."""
        with contextlib.suppress(RuntimeError, FileNotFoundError):
            await asyncio.to_thread(nft, slot.name, command)

    async def seize(self, slot: Slot, ownership: str) -> None:
        """Somebody else makes a table of our name, and owns it."""
        if slot.there and slot.rival is None:
            await asyncio.to_thread(_seize, slot, OWNERSHIP[ownership])

    async def release(self, slot: Slot) -> None:
        slot.release()

    async def churn(self, slot: Slot) -> None:
        """Somebody commits so often that every generation has passed before it can be used."""
        if slot.there:
            await asyncio.to_thread(_churn, slot.name)

    # Time, and the agent itself

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def restart(self) -> None:
        await self.stop()
        await self.start()


def _table(flags: int) -> Any:
    return record("table", attr(1, string(TABLE)) + attr(2, u32(flags)))


def _seize(slot: Slot, flags: int) -> None:
    try:
        rival = opened(slot.name, partial(Nft))
    except OSError:
        return
    try:
        rival.commit(batch((_table(flags),), rival.read(TABLE).records, replace=True))
        slot.rival = rival
    except NftError:
        # Our table is owned.
        rival.close()


def _churn(name: str) -> None:
    noise = (record("table", attr(1, string("noise"))),)
    with contextlib.suppress(OSError), socket_in(name, Nft) as other:
        for _ in range(100):
            other.commit(batch(noise))
            other.commit(batch((), noise))
