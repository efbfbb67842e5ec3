"""Random histories: after each quiet point, every open stream holds what a new service would answer."""

import asyncio
import random
from collections.abc import Callable

import pytest

from agent.core import names as linkerd
from tests.cases.discovery import pods
from tests.cases.discovery.acts import OPAQUE_PORTS
from tests.cases.discovery.case import Call, Case
from tests.cases.discovery.client import Stream
from tests.cases.discovery.objects import endpoint
from tests.cases.discovery.run import Run, running
from tests.cases.discovery.schema import ConfigText, Text, text_of
from tests.cases.discovery.world import Key, World

ROUNDS = 6
CHANGES = 8
"""Changes between two quiet points; some come in one turn of the loop, others not."""

SERVICES = ("web", "db")
PODS = {f"{letter}": f"10.1.0.{number}" for number, letter in enumerate("abcdef", 11)}
ZONES = ("za", "zb")
PORTS = ("", "80", "8080", "80,8080", "http")
TOKEN = '{"ns":"team","nodeName":"n1"}'

CALLS = (
    *(Call("Get", f"{name}.shop.svc.cluster.test:{port}") for name in SERVICES for port in (80, 9999)),
    Call("Get", "web.shop.svc.cluster.test:80", TOKEN),
    Call("Get", "a.db.shop.svc.cluster.test:80"),
    *(Call("Profile", f"{ip}:{port}") for ip in PODS.values() for port in (80, 8080)),
    Call("Profile", "a.db.shop.svc.cluster.test:80"),
    Call("Profile", "web.shop.svc.cluster.test:80", TOKEN),
    Call("Profile", "10.96.0.2:80"),
)
_OF_SERVICE = (Call("Profile", "web.shop.svc.cluster.test:80", TOKEN), Call("Profile", "10.96.0.2:80"))
"""What open streams keep when their Service is deleted, and new ones are not given."""


def _objects() -> tuple[Text, ...]:
    written = [
        {"nsobj": "shop"},
        {"node": "n1", "zone": "za"},
        {"svc": "web", "ip": ["10.96.0.1"], "ports": ["http 80->8080"]},
        {"svc": "db", "ip": ["10.96.0.2"], "ports": ["- 80"]},
        {
            "slice": "web-1",
            "of": "web",
            "ports": ["http 8080"],
            "eps": ["10.1.0.11 pod=a", "10.1.0.12 pod=b"],
        },
        {"slice": "db-1", "of": "db", "ports": ["- 80"], "eps": ["10.1.0.13 pod=c host=a", "192.0.2.7"]},
        {"slice": "db-2", "of": "db", "ports": ["- 80"], "eps": ["10.1.0.14 pod=d", "192.0.2.7"]},
        *(
            {"pod": name, "ip": [ip], "mesh": name != "f", "ports": ["http 80"], "labels": {"app": name}}
            for name, ip in PODS.items()
        ),
        {"server": "s", "sel": {"app": "a"}, "port": 80},
        {"sp": "web.shop", "ns": "shop", "routes": ["server-route"]},
        {"sp": "web.shop", "ns": "team", "routes": ["client-route"]},
    ]
    return tuple(text_of(each) for each in written)


def _one(chance: random.Random, world: World, *kinds: str) -> Key | None:
    """Some object of these kinds."""
    found = [key for kind in kinds for key in world.keys(kind)]
    return chance.choice(found) if found else None


def _vanish(chance: random.Random, world: World) -> None:
    key = _one(chance, world, "EndpointSlice", "Pod", "Server", "ServiceProfile", "Service")
    if key:
        world.drop(key)


def _return(chance: random.Random, world: World) -> None:
    if world.gone:
        world.recreate(chance.choice(list(world.gone)))


def _ready(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, "EndpointSlice"):
        with world.changed(key) as item:
            for each in item["endpoints"]:
                each["conditions"]["ready"] = chance.random() < 0.7


def _members(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, "EndpointSlice"):
        chosen = chance.sample(sorted(PODS), chance.randrange(4))
        with world.changed(key) as item:
            eps = [f"{PODS[name]} pod={name} host={chance.choice('ab')} zone=zb" for name in chosen]
            if chance.random() < 0.5:
                eps = [f"{each} hint={chance.choice(ZONES)}" for each in eps]
            item["endpoints"] = [endpoint(each) for each in (*eps, "192.0.2.7 hint=za")]


def _move(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, "EndpointSlice"):
        with world.changed(key) as item:
            item["metadata"]["labels"]["kubernetes.io/service-name"] = chance.choice(SERVICES)


def _phase(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, "Pod"):
        with world.changed(key) as item:
            pods.set_phase(item, chance.choice(("Running", "Running", "Pending", "Failed")))


def _address(chance: random.Random, world: World) -> None:
    """A pod gets the address of another, perhaps."""
    if key := _one(chance, world, "Pod"):
        with world.changed(key) as item:
            ip = chance.choice(list(PODS.values()))
            item["status"] |= {"podIP": ip, "podIPs": [{"ip": ip}]}


def _annotate(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, chance.choice(("Pod", "Service", "Namespace"))):
        annotation = chance.choice((OPAQUE_PORTS, linkerd.SKIP_INBOUND_PORTS))
        with world.changed(key) as item:
            item["metadata"].setdefault("annotations", {})[annotation] = chance.choice(PORTS)


def _policy(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, "Server"):
        with world.changed(key) as item:
            item["spec"]["podSelector"] = chance.choice(({}, {"matchLabels": {"app": chance.choice("abc")}}))
            item["spec"]["port"] = chance.choice((80, 8080, "http"))
    if key := _one(chance, world, "Service"):
        with world.changed(key) as item:
            item["spec"]["internalTrafficPolicy"] = chance.choice(("Cluster", "Cluster", "Local"))


def _redirected(chance: random.Random, world: World) -> None:
    if key := _one(chance, world, "Pod"):
        world.redirect(key, chance.choice(("redirected", "failed", "unknown")))


def _relist(chance: random.Random, world: World) -> None:
    """The watch was cut for one change."""
    world.cut = True
    chance.choice((_vanish, _return, _members, _annotate))(chance, world)
    world.cut = False
    world.relist()


HISTORY: tuple[Callable[[random.Random, World], None], ...] = (
    _vanish,
    _return,
    _return,
    _ready,
    _members,
    _move,
    _phase,
    _address,
    _annotate,
    _policy,
    _redirected,
    _relist,
)


def _case() -> Case:
    return Case("random", "", ConfigText(), (), CALLS, (), None, "")


def _held(stream: Stream) -> object:
    return stream.view.profile if stream.call.method == "Profile" else stream.view.addresses


async def _afresh(world: World, calls: tuple[Call, ...]) -> dict[Call, object]:
    """What a service that has just listed the objects answers to new calls."""
    async with running(_case(), (), in_pod=False) as run:
        run.world.items = world.items
        run.world.relist()
        for key, state in world.redirection.items():
            run.world.redirect(key, state)
        return {stream.call: _held(stream) for stream in await run.open(*calls)}


async def _compare(run: Run) -> None:
    comparable = tuple(
        call for call in CALLS if call not in _OF_SERVICE or len(run.world.keys("Service")) == len(SERVICES)
    )
    wanted = await _afresh(run.world, comparable)
    for stream in run.streams:
        assert stream.status is None, f"{stream} has ended with {stream.status}"
        if stream.call in wanted:
            assert _held(stream) == wanted[stream.call], str(stream)
        assert stream.view.faults == [], str(stream)


@pytest.mark.parametrize("seed", range(8))
async def test_every_view_is_what_a_new_service_would_answer(seed: int) -> None:
    chance = random.Random(seed)
    async with running(_case(), _objects(), in_pod=False) as run:
        await run.open(*CALLS)
        for _ in range(ROUNDS):
            for _ in range(CHANGES):
                chance.choice(HISTORY)(chance, run.world)
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.choice((0, 0.002, 0.02)))
            await run.act(lambda _: None)
            await _compare(run)
    assert run.failures == []
