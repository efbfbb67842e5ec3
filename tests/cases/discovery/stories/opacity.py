"""Stories about opaque ports: annotations, the proxy's own ports, Servers and what they select."""

import re
from typing import Any

import msgspec

from agent.core import names
from tests.cases.discovery.acts import OPAQUE_PORTS
from tests.cases.discovery.schema import PodText
from tests.cases.discovery.stories.stage import Bench, Story
from tests.cases.discovery.world import Unplayable

_IP = "10.1.0.14"


def _numbers(pod: PodText, key: str, wanted: Any) -> set[int]:
    """Ports that shall be opaque: written out, or `container port named X`, `port of an init container`."""
    if isinstance(wanted, list):
        return set(wanted)
    declared = pod.init_ports if "init container" in wanted else pod.ports
    name = wanted.rpartition("named ")[2] if "named " in wanted else key
    return {int(port.split()[1]) for port in declared if port.split()[0] == name}


async def annotation_syntax(bench: Bench) -> None:
    pod = next(each for each in bench.case.objects if isinstance(each, PodText))
    ip = pod.ip[0]
    tried = {3306, 1, 2, 3, 5, 8080, 8081, 8090}
    tried |= {port for wanted in bench.case.data.values() if isinstance(wanted, list) for port in wanted}
    for key, wanted in bench.case.data.items():
        text = re.sub(r" \(.*\)$", "", key).removeprefix("''")
        opaque = _numbers(pod, text, wanted)
        annotated = msgspec.structs.replace(pod, ann={OPAQUE_PORTS: text})
        async with bench.run(annotated) as run:
            for port in sorted(tried | opaque):
                stream = await run.profile(f"{ip}:{port}")
                said = "opaque, hint opaque + 4143" if port in opaque else "not opaque, h2, no transport"
                if not await run.holds(stream, said):
                    run.failures[-1] += f" (with {text!r})"


async def inbound_port(bench: Bench) -> None:
    pod = next(each for each in bench.case.objects if isinstance(each, PodText))
    kinds = pod.sidecar if isinstance(pod.sidecar, list) else [pod.sidecar]
    for listen in bench.case.data:
        for kind in kinds:
            one = msgspec.structs.replace(pod, sidecar=kind, env={names.ENV_INBOUND: listen})
            async with bench.run(one) as run:
                stream = await run.profile(bench.case.calls[0].path)
                await run.holds(stream, {"addr": {"opaque_transport": int(listen.rpartition(":")[2])}})


def _pod(name: str = "p", ip: str = _IP, **more: Any) -> dict[str, Any]:
    return {"pod": name, "ip": [ip], "mesh": True, "labels": {"app": name}, **more}


_EXPRESSIONS = (
    ("In", ["p", "x"], True),
    ("In", ["x"], False),
    ("NotIn", ["x"], True),
    ("NotIn", ["p"], False),
    ("Exists", None, True),
    ("DoesNotExist", None, False),
)
"""Operator and values on the label `app`, and whether the pod with `app: p` is selected."""
_WITHOUT_KEY = {"In": False, "NotIn": True, "Exists": False, "DoesNotExist": True}
"""Whether each selects a pod that has no such label."""


async def _selector(bench: Bench) -> None:
    for operator, values, selected in _EXPRESSIONS:
        rule = {"key": "app", "operator": operator, **({"values": values} if values else {})}
        server = {"server": "s", "sel": {"matchExpressions": [rule]}, "port": 80}
        bare = {**_pod("bare", "10.1.0.15"), "labels": {}}
        async with bench.run(_pod(), bare, server) as run:
            await run.holds(await run.profile(f"{_IP}:80"), {"profile": {"opaque_protocol": selected}})
            without = {"profile": {"opaque_protocol": _WITHOUT_KEY[operator]}}
            await run.holds(await run.profile("10.1.0.15:80"), without)


async def _absent(bench: Bench) -> None:
    async with bench.run(_pod(), {"server": "s", "ewsel": {}, "port": 80}) as run:
        await run.holds(await run.profile(f"{_IP}:80"), "not opaque, h2")


async def _empty(bench: Bench) -> None:
    foreign = {**_pod("q", "10.1.0.16"), "ns": "other"}
    async with bench.run(_pod(), foreign, {"server": "s", "sel": {}, "port": 80}) as run:
        await run.holds(await run.profile(f"{_IP}:80"), "opaque + 4143")
        await run.holds(await run.profile("10.1.0.16:80"), "not opaque, h2")


async def _number_as_text(bench: Bench) -> None:
    named = _pod("q", "10.1.0.16", ports=["80 8080"])
    async with bench.run(_pod(ports=["http 80"]), named, {"server": "s", "sel": {}, "port": "80"}) as run:
        await run.holds(await run.profile(f"{_IP}:80"), "not opaque, h2")
        await run.holds(await run.profile("10.1.0.16:8080"), "opaque + 4143")


async def _host_port(bench: Bench) -> None:
    pod = _pod(hostip="192.0.2.20", ports=["web 80:7777"])
    async with bench.run(pod, {"server": "s", "sel": {"app": "p"}, "port": "web"}) as run:
        await run.holds(await run.profile("192.0.2.20:7777"), "opaque", "label pod=p")


_SEMANTICS = {
    "podSelector absent, externalWorkloadSelector set": _absent,
    "podSelector {}": _empty,
    "matchExpressions In/NotIn/Exists/DoesNotExist": _selector,
    "port '80' as string": _number_as_text,
    "port name matching hostPort": _host_port,
}


async def server_semantics(bench: Bench) -> None:
    for written in bench.case.data:
        if written not in _SEMANTICS:
            raise Unplayable(f"cannot play {written!r}")
        await _SEMANTICS[written](bench)


STORIES: dict[str, Story] = {"C05": annotation_syntax, "C09": inbound_port, "C14": server_semantics}
