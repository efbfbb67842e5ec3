"""One running service with its objects and its clients: what a case, or one variant of it, is played on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.cases.discovery.case import Call, Case
from tests.cases.discovery.client import Stream
from tests.cases.discovery.doors import Doors
from tests.cases.discovery.expect import FORMAL, Check, Scene, formal, spread
from tests.cases.discovery.phrases import phrase
from tests.cases.discovery.schema import ConfigText, Text
from tests.cases.discovery.service import Service
from tests.cases.discovery.world import World

LIMIT = 5.0
"""Seconds until a step must have shown what is expected."""
SETTLED = 0.15
"""Seconds without a message after which one act is taken to have had all its effects."""
SILENCE = 1.0
"""Seconds without a message that `msgs: 0` asks for."""
PROMPT = 1.0
"""Seconds within which every call that has an answer has its first message."""
_POLL = 0.01


class Run:
    """The service of one case. `failures` collects what is not as expected, `notes` what nobody has checked.

    `prompt`: seconds within which each first message must come.
    """

    def __init__(self, case: Case, world: World, service: Service, doors: Doors) -> None:
        self.world = world
        self.service = service
        self.scene = Scene(case, world, [])
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.checks = 0
        self.prompt = PROMPT
        self._doors = doors

    @property
    def streams(self) -> list[Stream]:
        return self.scene.streams

    async def open(self, *calls: Call) -> list[Stream]:
        """Open these calls at once and wait for the first answer to each, for some seconds at most."""
        opened = await self.begin_calls(*calls)
        await self.answered()
        return opened

    async def begin_calls(self, *calls: Call) -> list[Stream]:
        """Open these calls, and wait for nothing."""
        opened = [await self._doors.open(call) for call in calls]
        self.streams.extend(opened)
        return opened

    async def answered(self) -> None:
        """Wait until every stream has an answer, for some seconds at most."""
        await _until(lambda: all(stream.answered for stream in self.streams), LIMIT)

    async def get(self, path: str, token: str = "") -> Stream:
        return (await self.open(Call("Get", path, token)))[0]

    async def profile(self, path: str, token: str = "") -> Stream:
        return (await self.open(Call("Profile", path, token)))[0]

    def begin(self) -> None:
        """From here on, messages count as caused by the next step."""
        self.scene.since = {id(stream): len(stream.view.seen) for stream in self.streams}

    async def act(self, change: Callable[[World], None]) -> None:
        """Change the objects, and let the change have its effects."""
        began = time.monotonic()
        change(self.world)
        await self.quiet(began, SETTLED)

    async def quiet(self, since: float, seconds: float, limit: float = LIMIT) -> None:
        """Wait until no stream has had a message for that long."""
        await _until(lambda: self._quiet_for(since) >= seconds, limit)

    def _quiet_for(self, since: float) -> float:
        return time.monotonic() - max([since, *(stream.last for stream in self.streams)])

    async def expect(self, items: tuple[Any, ...], streams: list[Stream] | None = None) -> bool:
        """Wait until everything holds and stays so; what does not is a failure. False after any."""
        self.scene.silent = False
        checks = self._checks(items, self.streams if streams is None else streams)
        self.checks += len(checks)
        began = time.monotonic()
        wanted = SILENCE if self.scene.silent else SETTLED
        failures: list[str] = []

        def held() -> bool:
            failures[:] = [each for check in checks for each in check.failures()]
            return not failures and self._quiet_for(began) >= wanted

        await _until(held, LIMIT)
        self.failures += failures
        return not failures

    async def holds(self, stream: Stream, *items: Any) -> bool:
        """As `expect`, of one stream."""
        return await self.expect(items, [stream])

    def judge(self) -> None:
        """What no stream may do, whatever the case is about."""
        for stream in self.streams:
            self.failures += [f"{stream}: {fault}" for fault in stream.view.faults]
            seen = stream.view.seen
            if seen and seen[0].after > self.prompt:
                self.failures.append(f"{stream}: its first message came after {seen[0].after:.1f} s")

    def _checks(self, items: tuple[Any, ...], streams: list[Stream]) -> list[Check]:
        found: list[Check] = []
        before: dict[int, Any] = {}
        for item, about in spread(items, streams):
            if isinstance(item, dict):
                found += [check for key, value in item.items() for check in self._item(key, value, about)]
                continue
            for stream in about:
                word = before.get(len(before) - 1) if item == "same" else item
                checks = phrase(word, stream, self.scene)
                if checks is None:
                    self.notes.append(f"not checked: {item}")
                found += checks or []
            before[len(before)] = word
        return found

    def _item(self, key: str, value: Any, streams: list[Stream]) -> list[Check]:
        written = f"{key}: {value}"
        if key not in FORMAL:
            known = [phrase(value if key == "order" else written, stream, self.scene) for stream in streams]
            if None in known:
                self.notes.append(f"not checked: {written}")
            return [check for checks in known for check in checks or ()]
        found = [(stream, formal(key, value, stream, self.scene)) for stream in streams]
        checks = [Check(stream, written, held) for stream, held in found if held]
        if not checks:
            self.notes.append(f"not checked: {written}")
        return checks


@contextlib.asynccontextmanager
async def running(
    case: Case, texts: tuple[Text, ...], *, in_pod: bool, config: ConfigText | None = None
) -> AsyncIterator[Run]:
    """A service that has listed these objects, with a door to it; everything is closed at the end."""
    settings = config or case.config
    world = World(settings, texts)
    async with Service(settings) as service:
        world.watched(service.watch)
        async with Doors(service, in_pod=in_pod) as doors:
            run = Run(case, world, service, doors)
            yield run
            run.judge()


async def _until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL)
    return True
