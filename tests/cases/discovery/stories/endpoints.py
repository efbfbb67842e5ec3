"""Stories about Get: who asks, owners, identities, zones."""

import asyncio
import re
from typing import Any

from tests.cases.discovery.run import SILENCE
from tests.cases.discovery.stories.stage import CLUSTER_IP, SERVICE, Bench, Story, service, web_slice

_POD = "p"
_OWNER = "own-1"
_TOP = "top"


async def token_forms(bench: Bench) -> None:
    """What a token says shows in whose ServiceProfile is chosen."""
    written = next(str(item) for step in bench.case.steps for item in step.expect if "parsed ns" in str(item))
    wanted = re.sub(r"parsed ns = ", "", written).split(", ")
    named = {each for each in wanted if each != "empty"}
    clients = [{"sp": "web.shop", "ns": name, "routes": [f"{name}-route"]} for name in named]
    async with bench.run(service(), {"sp": "web.shop", "routes": ["server-route"]}, *clients) as run:
        for written_token, name in zip(bench.case.data, wanted, strict=True):
            token = written_token.replace("\\n", "\n")  # in the file it is within single quotes
            asked = await run.profile(bench.case.calls[0].path, token)
            await run.holds(asked, "stream: open", "bare endpoint")
            chosen = await run.profile(f"{CLUSTER_IP}:80", token)
            await run.holds(chosen, "server-route" if name == "empty" else f"{name}-route")


async def late_subscriber(bench: Bench) -> None:
    match = re.match(r"Get (\S+) twice", bench.case.call)
    path = match[1] if match else ""
    async with bench.run(*bench.case.objects) as run:
        first = await run.get(path)
        await asyncio.sleep(SILENCE)
        run.begin()
        second = await run.get(path)
        await run.holds(second, {"first": "add", "view": "all", "msgs": 1})
        await run.holds(first, {"msgs": 0, "view": "all"})


def _owned(written: str) -> tuple[list[dict[str, Any]], Any]:
    """Objects of the owners, and the pod's `owner`."""
    if written == "no owner":
        return [], None
    if written == "two owners":
        return [], [f"ReplicaSet {_OWNER}", f"StatefulSet {_OWNER}"]
    words = {"ReplicaSet": "rs", "Job": "job"}
    if match := re.fullmatch(r"(ReplicaSet|Job) (?:without owner|owned by (\w+))", written):
        top = {"owner": f"{match[2]} {_TOP}"} if match[2] else {}
        return [{words[match[1]]: _OWNER, **top}], f"{match[1]} {_OWNER}"
    kind = written.removeprefix("custom kind ").removesuffix(" not in cache")
    return [], f"{kind} {_OWNER}"


async def owner_kinds(bench: Bench) -> None:
    for written, label in bench.case.data.items():
        objects, owner = _owned(written)
        key, _, which = label.partition("=")
        top = which == "<cj>" or (not which and "owned by" in written)
        value = _POD if which == "<pod>" else _TOP if top else _OWNER
        pod = {"pod": _POD, "ip": ["10.1.0.11"], "mesh": True, "owner": owner}
        async with bench.run(service(), web_slice(f"10.1.0.11 pod={_POD}"), pod, *objects) as run:
            for stream in (await run.get(f"{SERVICE}:80"), await run.profile("10.1.0.11:80")):
                await run.holds(stream, f"label {key}={value}", f"label pod={_POD}")


async def identity_conditions(bench: Bench) -> None:
    for written, wanted in bench.case.data.items():
        pod: dict[str, Any] = {"pod": _POD, "ip": ["10.1.0.11"], "mesh": True, "sa": "webby"}
        config = bench.case.config
        if match := re.fullmatch(r"mesh (\S+)", written):
            pod["mesh"] = {"true": True, "false": False}.get(match[1], match[1])
        elif written == "TD empty":
            config = bench.configured(trust_domain="")
        else:
            pod["sa"] = None
        async with bench.run(service(), web_slice(f"10.1.0.11 pod={_POD}"), pod, config=config) as run:
            stream = await run.get(f"{SERVICE}:80")
            if wanted.endswith("..."):
                wanted = {"addr": {"tls": "default.shop.serviceaccount.identity.l5d.mesh.test"}}  # noqa: PLW2901
            await run.holds(stream, wanted)


async def no_zone_filter(bench: Bench) -> None:
    hints = {"hints only zb": ("zb", "zb")}
    nodes = {"node not in cache": "n7"}
    for written, wanted in bench.case.data.items():
        one, other = hints.get(written, ("za", "zb"))
        eps = (f"10.1.0.11 hint={one}", f"10.1.0.12 hint={other}")
        node = nodes.get(written, "n1")
        token = '{"ns":"x"}' if "without nodeName" in written else f'{{"ns":"x","nodeName":"{node}"}}'
        async with bench.run({"node": "n1", "zone": "za"}, service(), web_slice(*eps)) as run:
            await run.holds(await run.get(f"{SERVICE}:80", token), {"view": wanted})


STORIES: dict[str, Story] = {
    "A11": token_forms,
    "B26": late_subscriber,
    "C02": owner_kinds,
    "C03": identity_conditions,
    "D03": no_zone_filter,
}
