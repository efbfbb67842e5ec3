"""Everything that keepers ask of the kernel, as awaitables: each call runs on its lane.

Also the cache of compiled rule sets: pods with equal settings share one template, and only a text
that is new waits for the child that runs libnftables.
"""

import asyncio

from agent.core.reasons import Complaint
from agent.core.spec import RedirectSpec
from agent.core.tally import Counters
from agent.node.addresses import addresses
from agent.node.hold import Hold, Place
from agent.node.lanes import Lanes, alone, on
from agent.node.leftovers import Leftover, cleanup, find
from agent.node.netns import stay_in
from agent.node.nft.channel import NftError
from agent.node.nft.compile import Compiler, Template
from agent.node.nft.datapath import NftDatapath
from agent.node.survey import survey
from agent.node.trial import Trial, trial
from agent.node.visit import Order, Sight, peek_counters, read_counters, read_generation, visit

SLOW_ELEMENTS = 1000
"""Rule sets with more set elements than this go to the slow lane (12-35 ms instead of 0.5), and so do
pods with a legacy nat table, into which only a program can look."""

DOORS = 4
"""Namespaces that are being opened at one time."""


class Kernel:
    """The lanes, the compiler and the datapath of one agent."""

    def __init__(self, owned_tables: bool = True) -> None:
        self.lanes = Lanes()
        self._owned = owned_tables
        self._compiler = Compiler()
        self._datapath = NftDatapath()
        self._doors = asyncio.Semaphore(DOORS)
        self._openings: set[asyncio.Future[Hold]] = set()
        self.flags: int | None = None
        """Table flags to use; None until the kernel was probed."""

    async def probe(self) -> int:
        """Table flags to use: owner + persist where the kernel has them and the settings allow it."""
        supported = await on(self.lanes.compile, self._compiler.flags)
        self.flags = supported if self._owned else 0
        return self.flags

    async def template(self, text: str) -> Template:
        """The rule set as this kernel writes it. CompileError when kernel or library refuse it."""
        known = self._compiler.known(text)
        if known is not None:
            return known
        if self.flags is None:
            await self.probe()
        return await on(self.lanes.compile, self._compiler.compile, text)

    async def open(self, place: Place) -> Hold:
        """Raises what `Place.open` and the datapath's `open` raise. Cancelled, it leaves nothing open.

        Not on the kernel lane, which would only wait: to enter a namespace takes a thread that ends there.
        """
        opening = asyncio.ensure_future(self._open(place))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A thread cannot be cancelled, and nobody else knows of what it opens.
            opening.add_done_callback(_give_back)
            raise

    async def _open(self, place: Place) -> Hold:
        async with self._doors:
            return await alone(Hold, place, self._datapath, stay_in)

    async def visit(self, hold: Hold, order: Order, elements: int) -> Sight:
        slow = elements > SLOW_ELEMENTS or hold.has_legacy
        return await on(self.lanes.slow if slow else self.lanes.kernel, visit, hold, self._datapath, order)

    async def generations(self, holds: list[Hold]) -> list[int | None]:
        """Generation of each netns, None where it could not be read: one job for all."""
        return await on(self.lanes.kernel, _generations, holds)

    async def counters(self, hold: Hold) -> Counters | None:
        """Counters now; None while a slow visit has the socket."""
        return await on(self.lanes.kernel, peek_counters, hold)

    async def last_counters(self, hold: Hold) -> Counters:
        """Counters of a netns that ends, {} when they cannot be read any more."""
        try:
            return await on(self.lanes.kernel, read_counters, hold)
        except (OSError, NftError):
            return {}

    async def survey(
        self, hold: Hold, spec: RedirectSpec, ips: tuple[str, ...], close_wait: int | None
    ) -> tuple[Complaint, ...]:
        return await on(self.lanes.kernel, survey, hold.fd, spec, ips, close_wait)

    async def trial(self, hold: Hold, spec: RedirectSpec) -> Trial:
        """Try a connection from inside the pod."""
        return await on(self.lanes.kernel, trial, hold, spec)

    async def leftovers(self, hold: Hold) -> tuple[Leftover, ...]:
        """What linkerd-init left; changes nothing. NftError."""
        return await on(self.lanes.slow, _find, hold)

    async def addresses(self, hold: Hold) -> tuple[str, ...]:
        """All addresses of the netns, loopback too. AddressesUnreadableError."""
        return await on(self.lanes.kernel, _addresses, hold)

    async def clean(self, hold: Hold) -> tuple[str, ...]:
        """Remove what linkerd-init left. Only for a pod whose own table is verified."""
        return await on(self.lanes.slow, _cleanup, hold)

    async def close(self, hold: Hold) -> None:
        """Cancelled, it closes all the same."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self.lanes.close, hold.close))

    async def rest(self) -> None:
        """Let the compiler's child go when it has had nothing to do."""
        await on(self.lanes.compile, self._compiler.rest)

    async def stop(self) -> None:
        """End all threads after the work that is under way."""
        await asyncio.gather(*self._openings, return_exceptions=True)
        self.lanes.stop()
        self._compiler.close()


def _give_back(opening: asyncio.Future[Hold]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _find(hold: Hold) -> tuple[Leftover, ...]:
    with hold.using:
        return find(hold.nft, hold.fd)


def _cleanup(hold: Hold) -> tuple[str, ...]:
    with hold.using:
        return cleanup(hold.nft, hold.fd)


def _addresses(hold: Hold) -> tuple[str, ...]:
    return tuple(sorted({entry.address for entry in addresses(hold.fd)}))


def _generations(holds: list[Hold]) -> list[int | None]:
    answers: list[int | None] = []
    for hold in holds:
        try:
            answers.append(read_generation(hold))
        except (OSError, NftError):
            # Answered by a full visit, which says what is wrong.
            answers.append(None)
    return answers
