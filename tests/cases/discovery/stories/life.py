"""Stories about the life of streams: cancelled, ended, kept through an outage, opened again."""

import asyncio
import os
import re
import socket
import tempfile
import time
from pathlib import Path

from tests.cases.discovery.case import Call
from tests.cases.discovery.client import Client, Stream
from tests.cases.discovery.goldens import GOLDENS
from tests.cases.discovery.run import PROMPT, SILENCE, Run
from tests.cases.discovery.stories.stage import SERVICE, Bench, Story, service, web_slice
from tests.cases.discovery.wire import decode
from tests.cases.discovery.world import World
from tests.lab.agent import Agent

_GET = Call("Get", f"{SERVICE}:80")
_PROFILE = Call("Profile", "10.1.0.11:80")
_PODS = (
    {"pod": "a", "ip": ["10.1.0.11"], "mesh": True},
    {"pod": "b", "ip": ["10.1.0.12"], "mesh": True},
)
_WORLD = (service(), web_slice("10.1.0.11 pod=a", "10.1.0.12 pod=b"), *_PODS)
_END = 2.0
"""Seconds within which every stream has ended at shutdown."""
_PROMPT_SECTIONS = "BEF"


async def cancelled(bench: Bench) -> None:
    async with bench.run(*_WORLD) as run:
        stream = (await run.open(_GET))[0]
        await run.holds(stream, "stream: open")
        await stream.cancel()
        await asyncio.sleep(SILENCE)
        run.failures += run.service.leftovers()


async def shut_down(bench: Bench) -> None:
    """The service alone, and, for those who may run it, the agent as a process with the same objects."""
    match = re.match(r"(\d+) open streams", bench.case.call)
    calls = [_GET, _PROFILE] * (int(match[1]) // 2 if match else 50)
    async with bench.run(*_WORLD) as run:
        streams = await run.open(*calls)
        began = time.monotonic()
        await run.service.stop()
        await _all_unavailable(run, streams, began)
        if os.geteuid() == 0:
            await _terminated(bench, run, calls)


async def _terminated(bench: Bench, run: Run, calls: list[Call]) -> None:
    with tempfile.TemporaryDirectory(prefix="pm-") as directory, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        config = bench.case.config
        domains = ("--cluster-domain", config.cluster_domain, "--identity-trust-domain", config.trust_domain)
        agent = Agent(Path(directory), *domains, "--diagnostics-address", address)
        for item in run.world.items.values():
            agent.put(item)
        try:
            await asyncio.to_thread(agent.start)
            async with Client(address) as client:
                streams = [client.open(call) for call in calls]
                await asyncio.to_thread(agent.wait, lambda: all(each.answered for each in streams), "answers")
                began = time.monotonic()
                status = await asyncio.to_thread(agent.stop)
                await _all_unavailable(run, streams, began)
        finally:
            agent.close()
    run.checks += 1
    if status != 0:
        run.failures.append(f"the agent ended with {status}: {agent.tail()}")


async def _all_unavailable(run: Run, streams: list[Stream], began: float) -> None:
    """Every stream ends in time, with a status that makes its proxy ask again."""
    await asyncio.wait([asyncio.create_task(stream.ended(_END)) for stream in streams])
    run.checks += len(streams)
    late = [stream for stream in streams if stream.status is None or stream.last > began + _END]
    if late:
        run.failures.append(f"{late[0]} is open {_END:.0f} s after the end was asked for, one of {len(late)}")
    ended = {str(stream.status) for stream in streams}
    if ended != {"UNAVAILABLE"}:
        run.failures.append(f"streams ended with {', '.join(sorted(ended))}, expected UNAVAILABLE")


def _leaves(world: World) -> None:
    """Pod b goes, and its endpoint with it."""
    world.drop(world.only("Pod", "b"))
    with world.changed(world.only("EndpointSlice")) as item:
        item["endpoints"] = item["endpoints"][:1]


def _cut(world: World) -> None:
    world.cut = True
    _leaves(world)


def _resume(world: World) -> None:
    world.cut = False
    world.relist()


def _redelivered(world: World) -> None:
    world.relist()
    world.resync()


def _missed(world: World) -> None:
    """The watch has expired, and a new list tells what it did not."""
    _cut(world)
    _resume(world)


async def outage(bench: Bench) -> None:
    async with bench.run(*_WORLD) as run:
        get, lasting, leaving = await run.open(_GET, _PROFILE, Call("Profile", "10.1.0.12:80"))
        run.begin()
        await run.act(_cut)
        for stream in (get, lasting, leaving):
            await run.holds(stream, {"msgs": 0, "stream": "open"})
        late = (await run.open(_GET))[0]
        await run.holds(late, {"view": ["10.1.0.11:80", "10.1.0.12:80"], "within_s": 1})
        run.begin()
        await run.act(_resume)
        for stream in (get, late):
            await run.holds(stream, {"view": ["10.1.0.11:80"], "msgs": 1}, "only a remove of .12")
        await run.holds(leaving, "bare endpoint", {"msgs": 1})
        await run.holds(lasting, "full endpoint", {"msgs": 0})


async def relisted(bench: Bench) -> None:
    async with bench.run(*_WORLD) as run:
        streams = await run.open(_GET, _PROFILE)
        run.begin()
        await run.act(_redelivered)
        for stream in streams:
            await run.holds(stream, {"msgs": 0, "stream": "open"})
        run.begin()
        await run.act(_missed)
        await run.holds(streams[0], {"msgs": 1, "view": ["10.1.0.11:80"]})
        await run.holds(streams[1], {"msgs": 0})


async def prompt(bench: Bench) -> None:
    """Every call of these sections that has an answer has its first message in time."""
    for case in bench.cases:
        if case.id[0] not in _PROMPT_SECTIONS or not case.calls or case.prose or case.multicluster:
            continue
        async with bench.run(*case.objects, config=case.config) as run:
            for stream in await run.open(*case.calls):
                run.checks += 1
                if not stream.answered:
                    run.failures.append(f"{case.id}: {stream} has no answer after {PROMPT:.0f} s")


async def reopened(bench: Bench) -> None:
    async with bench.run(*_WORLD) as run:
        first = (await run.open(_GET))[0]
        await run.act(_leaves)
        await run.holds(first, {"view": ["10.1.0.11:80"]})
        held = dict(first.view.addresses)
        await first.cancel()
        again = (await run.open(_GET))[0]
        await run.holds(again, {"first": "add", "view": ["10.1.0.11:80"], "msgs": 1})
        if again.view.addresses != held:
            run.failures.append(f"the second state is {again.view.addresses}, the first was {held}")


_NAMES = ("web", "shop", "10.1.0.", '"a"', '"b"')


async def measured(bench: Bench) -> None:
    async with bench.run(*_WORLD) as run:
        streams = await run.open(_GET, _PROFILE)
        before = run.service.metrics()
        for method in ("Get", "GetProfile"):
            if before.get(f'pointsman_destination_streams{{method="{method}"}}') != 1:
                run.failures.append(f"streams of {method} are not 1: {before}")
        await run.act(_leaves)
        after = run.service.metrics()
        updates = [name for name in after if name.startswith("pointsman_destination_updates_total")]
        if not any(after[name] > before.get(name, 0) for name in updates):
            run.failures.append(f"pointsman_destination_updates_total has not moved: {updates}")
        for stream in streams:
            await stream.cancel()
        await asyncio.sleep(SILENCE)
        left = run.service.metrics()
        for name, value in left.items():
            run.checks += 1
            if name.startswith("pointsman_destination_streams{") and value:
                run.failures.append(f"{name} is {value} after the last stream")
            if any(f'="{word}' in name or f"={word}" in name for word in _NAMES):
                run.failures.append(f"a label holds a name: {name}")


async def goldens(bench: Bench) -> None:
    async with bench.run() as run:
        for golden in GOLDENS:
            run.checks += 1
            got = decode(golden.kind, bytes.fromhex(golden.hex))
            if got != golden.content:
                run.failures.append(f"{golden.id} is read as {got}")
            written = golden.written()
            if decode(golden.kind, written) != golden.content or (
                golden.exact and written.hex() != golden.hex
            ):
                run.failures.append(f"{golden.id} is written as {written.hex()}")


STORIES: dict[str, Story] = {
    "G02": cancelled,
    "G03": shut_down,
    "G05": outage,
    "G06": relisted,
    "G07": prompt,
    "G10": reopened,
    "G11": measured,
    "G12": goldens,
}
