"""Stories about many: a reader that stops, a thousand streams of one Service, three thousand of pods."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.core.discovery.objects import EndpointSlice
from agent.core.objects import Put
from tests.cases.discovery.case import Call
from tests.cases.discovery.client import Stream
from tests.cases.discovery.objects import plain_addresses
from tests.cases.discovery.schema import SliceText
from tests.cases.discovery.service import decoded
from tests.cases.discovery.stories.stage import SERVICE, Bench, Story, service, web_slice

_GET = Call("Get", f"{SERVICE}:80")
_BATCH = 50
"""Updates that are made without giving anybody a turn."""
_MOVING = 10
"""Endpoints that come and go."""
_GROWTH_MIB = 20
_OPENED = 10.0
"""Seconds within which thousands of streams have been opened from one process."""
_SPREAD = 5.0
"""Seconds over which thousands of calls are spread."""
_STEP = 1.0
"""Seconds within which every client that reads has the newest state."""


class TooSlow(Exception):  # noqa: N818
    """Streams that have not the newest state in time; the text says how many."""


def _number(text: str, unit: str, default: int) -> int:
    match = re.search(rf"(\d+) {unit}", text)
    return int(match[1]) if match else default


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def _converge(streams: list[Stream], wanted: int, seconds: float) -> float:
    """Seconds until every stream holds that many addresses. Raises TooSlow."""

    def lagging() -> list[Stream]:
        return [stream for stream in streams if len(stream.view.addresses) != wanted]

    return await _took(lagging, seconds)


async def _took(lagging: Callable[[], list[Stream]], seconds: float) -> float:
    began = time.monotonic()
    while behind := lagging():
        if time.monotonic() - began > seconds:
            holds = len(behind[0].view.addresses)
            raise TooSlow(
                f"{len(behind)} streams are behind after {seconds:.0f} s; one holds {holds} addresses"
            )
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def slow_reader(bench: Bench) -> None:
    updates = _number(bench.case.steps[0].do, "slice updates", 5000)
    count = max(
        (
            len(plain_addresses(_number(each.eps[0], "endpoints", 0)))
            for each in bench.case.objects
            if isinstance(each, SliceText)
        ),
        default=1000,
    )
    async with bench.run(*bench.case.objects) as run:
        asked = run.world.only("Service")
        port = run.world.items[asked]["spec"]["ports"][0]["port"]
        domain = bench.case.config.cluster_domain
        call = Call("Get", f"{asked.name}.{asked.namespace}.svc.{domain}:{port}")
        normal, slow = await run.open(call, call)
        await _converge([normal, slow], count, 5)
        slow.reading.clear()
        key = run.world.only("EndpointSlice")
        whole = decoded(run.world.items[key])
        assert isinstance(whole, EndpointSlice)
        endpoints = whole.endpoints or ()
        grown_from = 0.0
        for batch in range(updates // _BATCH):
            left = 0
            for number in range(_BATCH):
                left = (batch * _BATCH + number) % _MOVING
                run.service.feed(Put(msgspec.structs.replace(whole, endpoints=endpoints[: count - left])))
            await _converge([normal], count - left, _STEP)
            grown_from = grown_from or _rss_mib()
        grown = _rss_mib() - grown_from
        if grown > _GROWTH_MIB:
            run.failures.append(f"memory has grown by {grown:.1f} MiB while one client did not read")
        slow.reading.set()
        await _converge([slow], len(normal.view.addresses), 5)
        run.checks += updates // _BATCH + 2
        if slow.view.addresses != normal.view.addresses:
            run.failures.append("the client that was slow holds other addresses than the other one")


async def broadcast(bench: Bench) -> None:
    streams_wanted = _number(bench.case.call, "Get streams", 1000)
    count = _number(bench.case.prose, "endpoints", 200)
    async with bench.run(service(), web_slice(*plain_addresses(count))) as run:
        run.prompt = _OPENED
        streams = await run.open(*[_GET] * streams_wanted)
        await _converge(streams, count, 10)
        encoded = run.service.encoded()
        with run.world.changed(run.world.only("EndpointSlice")) as item:
            item["endpoints"][0]["addresses"] = ["10.201.0.1"]
        took = await _took(
            lambda: [each for each in streams if "10.201.0.1:80" not in each.view.addresses], 5
        )
        run.checks += len(streams) + 2
        if took > _STEP:
            run.failures.append(f"all {len(streams)} streams were updated only after {took:.2f} s")
        if run.service.encoded() - encoded != 1:
            run.failures.append(f"{run.service.encoded() - encoded} addresses were encoded, expected 1")


async def mass_subscription(bench: Bench) -> None:
    count = _number(bench.case.call, "Profile streams", 3000)
    servers = _number(bench.case.call, "Servers", 500)
    ips = plain_addresses(count)
    pods = [
        {"pod": f"p{n}", "ip": [ip], "mesh": True, "labels": {"app": f"a{n % servers}"}}
        for n, ip in enumerate(ips)
    ]
    policy = [{"server": f"s{n}", "sel": {"app": f"a{n}"}, "port": 80} for n in range(servers)]
    async with bench.run(*pods, *policy) as run:
        run.prompt = _OPENED
        calls = [Call("Profile", f"{ip}:80") for ip in ips]
        began = time.monotonic()
        for start in range(0, count, _BATCH):
            await run.begin_calls(*calls[start : start + _BATCH])
            await asyncio.sleep(began + _SPREAD * (start + _BATCH) / count - time.monotonic())
        await run.answered()
        streams = run.streams
        first = sorted(stream.view.seen[0].after for stream in streams if stream.view.seen)
        run.checks += len(streams)
        if len(first) < len(streams):
            run.failures.append(f"{len(streams) - len(first)} of {len(streams)} streams have no message")
        elif first[len(first) * 99 // 100] > 2:
            run.failures.append(f"the first message came after {first[len(first) * 99 // 100]:.1f} s (p99)")
        wrong = [str(stream) for stream in streams if stream.view.opaque is not True]
        run.failures += [f"not opaque: {', '.join(wrong[:5])}"] if wrong else []


STORIES: dict[str, Story] = {"G01": slow_reader, "G08": broadcast, "G09": mass_subscription}
