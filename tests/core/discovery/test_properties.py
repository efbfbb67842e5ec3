"""Whatever happens to the objects, in whatever order: answers are those of the objects that are there, and
who is waiting for another answer is told."""

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.discovery import objects
from agent.core.discovery.answers import Lack, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.endpoints import get
from agent.core.discovery.profiles import profile
from agent.core.discovery.targets import Client, ServiceTarget, parse_authority
from agent.core.objects import Drop, Namespace, Object, Pod, Put, Replace, Service
from tests.core.discovery.world import (
    CONFIG,
    KINDS,
    OPAQUE,
    SKIP,
    endpoint_slice,
    make,
    namespace,
    node,
    owned,
    pod,
    server,
    service,
    service_profile,
    workload,
)

IPS = ("10.1.0.1", "10.1.0.2", "fd00::1")
SPACES = ("shop", "team")
CONFIGS = (
    CONFIG,
    msgspec.structs.replace(CONFIG, ipv6=False, zone_weights=True, serving_fallback=True, server_wins=True),
    msgspec.structs.replace(CONFIG, transport="transport-header", endpoint_slices=False),
)
PATHS = [
    *(f"{host}.svc.cluster.test:{port}" for host in ("web.shop", "db.shop", "web.team") for port in (80, 81)),
    *(f"{host}.web.shop.svc.cluster.test:80" for host in ("h0", "h1")),
    *(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in IPS for port in (80, 81)),
    *("10.96.0.1:80", "10.96.0.1:81", "10.96.0.2:80", "192.0.2.1:8080", "192.0.2.1:80"),
]
CLIENTS = (Client(), Client("team", "n1"), Client("shop", "n2"))

spaces = st.sampled_from(SPACES)
lists = st.sampled_from((None, "", "80", "81,http", "nonsense"))


@st.composite
def annotations(draw: st.DrawFn, *keys: str) -> dict[str, str]:
    found = {key: draw(lists) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


@st.composite
def services(draw: st.DrawFn) -> Service:
    kind = draw(st.sampled_from(("ClusterIP", "ClusterIP", "ClusterIP", "ExternalName")))
    ports = draw(st.lists(st.sampled_from(("http 80", "- 81->3306", "x 80/UDP")), max_size=2, unique=True))
    return service(
        draw(st.sampled_from(("web", "db"))),
        *ports,
        namespace=draw(spaces),
        ip=draw(st.sampled_from(("", "10.96.0.1", "10.96.0.2"))) if kind == "ClusterIP" else "",
        type=kind,
        internalTrafficPolicy=draw(st.sampled_from(("Cluster", "Local"))),
        annotations=draw(annotations(OPAQUE)),
    )


@st.composite
def endpoints(draw: st.DrawFn) -> str:
    ref = draw(st.sampled_from(("pod=a", "pod=b", "pod=b uid=b-0", "ew=vm", "")))
    said = [draw(st.sampled_from(options)) for options in ENDPOINT]
    return " ".join(part for part in (draw(st.sampled_from(IPS)), ref, *said) if part)


ENDPOINT = (
    ("ready=true", "ready=false serving=true terminating=true", "ready=-"),
    ("host=h0", "host=h1", ""),
    ("zone=za", "zone=zb", ""),
    ("hint=za", "hint=zb", ""),
    ("node=n1", ""),
)


@st.composite
def slices(draw: st.DrawFn) -> objects.EndpointSlice:
    return endpoint_slice(
        draw(st.sampled_from(("s1", "s2"))),
        draw(st.sampled_from(("web", "db", None))),
        draw(st.sampled_from((["http 80"], ["http 8080", "- 3306"], ["- -"], None))),
        *draw(st.lists(endpoints(), max_size=3)),
        namespace=draw(spaces),
    )


@st.composite
def old_endpoints(draw: st.DrawFn) -> objects.Endpoints:
    ips = draw(st.lists(st.sampled_from(IPS), max_size=2))
    target = draw(st.sampled_from((None, {"kind": "Pod", "name": "a"})))
    addresses = [{"ip": ip, "hostname": "h0", "targetRef": target} for ip in ips]
    subsets = [{"addresses": addresses, "ports": [{"name": "http", "port": 8080}]}]
    return make(objects.Endpoints, draw(st.sampled_from(("web", "db"))), draw(spaces), subsets=subsets)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    name, number = draw(st.sampled_from(("a", "b"))), draw(st.integers(0, 1))
    fields: dict[str, Any] = {
        "uid": f"{name}-{number}",
        "namespace": draw(spaces),
        "labels": draw(st.sampled_from(({}, {"app": "x"}, {"app": "y"}))),
        "annotations": draw(annotations(OPAQUE, SKIP)),
        "node": draw(st.sampled_from(("n1", "n2"))),
        "phase": draw(st.sampled_from(("Running", "Running", "Pending", "Failed"))),
        "owner": draw(st.sampled_from((None, "ReplicaSet r", "Job j"))),
        "ports": draw(st.sampled_from(([], ["http 80:8080"]))),
        "host_ips": ["192.0.2.1"],
        "host_network": draw(st.sampled_from((None, None, True))),
        "creationTimestamp": f"2026-0{number + 1}-01T00:00:0{'ab'.index(name)}Z",
    }
    if draw(st.booleans()):
        fields["deletionTimestamp"] = "2026-01-03T00:00:00Z"
    if draw(st.booleans()):
        fields["redirected"] = draw(st.sampled_from(("True", "False Drifted")))
    ips = draw(st.lists(st.sampled_from(IPS), max_size=2, unique=True))
    return pod(name, *ips, mesh=draw(st.sampled_from((True, True, False, "other"))), **fields)


@st.composite
def servers(draw: st.DrawFn) -> objects.Server:
    chosen = st.sampled_from(({}, {"app": "x"}, {"app": "x", "z": "z"}, {"app": 7}, None))
    port = draw(st.sampled_from((80, 8080, "http")))
    protocol = draw(st.sampled_from(("opaque", "HTTP/1")))
    found: objects.Server = server(
        draw(st.sampled_from(("s1", "s2"))),
        draw(chosen),
        port,
        protocol,
        namespace=draw(spaces),
        workloads=draw(st.sampled_from(({}, {"app": "x"}))),
    )
    return found


@st.composite
def workloads(draw: st.DrawFn) -> objects.ExternalWorkload:
    name, space = draw(st.sampled_from(("vm", "wm"))), draw(spaces)
    return workload(
        name,
        draw(st.sampled_from(IPS)),
        ports=["http 80"],
        namespace=space,
        creationTimestamp=f"2026-01-01T0{'vw'.index(name[0])}:00:0{SPACES.index(space)}Z",
        labels=draw(st.sampled_from(({}, {"app": "x"}))),
        identity=draw(st.sampled_from(("spiffe://a", "spiffe://b", ""))),
        annotations=draw(annotations(OPAQUE)),
    )


@st.composite
def service_profiles(draw: st.DrawFn) -> objects.ServiceProfile:
    route = draw(st.sampled_from(("r1", "r2", {"name": "broken"})))
    return service_profile(draw(st.sampled_from(("web.shop", "db.shop"))), draw(spaces), routes=[route])


@st.composite
def namespaces(draw: st.DrawFn) -> Namespace:
    said = {key: draw(lists) for key in ("opaque", "skip")}
    if draw(st.booleans()):
        said["redirect"] = "disabled"
    return namespace(draw(spaces), **{key: value for key, value in said.items() if value is not None})


nodes = st.builds(node, st.sampled_from(("n1", "n2")), st.sampled_from((None, "za", "zb")))
owners = st.builds(
    owned,
    st.sampled_from((objects.ReplicaSet, objects.Job)),
    st.sampled_from(("r", "j")),
    st.sampled_from(("", "Deployment d", "CronJob c")),
    namespace=spaces,
)
items = st.one_of(
    *(services(), slices(), pods(), pods(), slices(), servers(), workloads(), service_profiles()),
    *(namespaces(), nodes, owners, old_endpoints()),
)
uids = st.sampled_from(("a-0", "a-1", "b-0", "b-1"))
states = st.sampled_from(("redirected", "failed", "pending"))
lacks = st.one_of(
    st.builds(Lack, st.just("pod"), st.sampled_from(("a", "b")), spaces),
    st.builds(Lack, st.just("address"), st.sampled_from(IPS)),
)


class Play:
    """A catalog that is fed event by event, and the objects that are there by now."""

    def __init__(self, *, on_demand: bool) -> None:
        self.on_demand = on_demand
        self.catalog = listed(Catalog(on_demand=on_demand))
        self.there: dict[tuple[type, Any], Object] = {}
        self.states: dict[str, str] = {}
        self.absent: set[Lack] = set()

    def do(self, step: Any) -> frozenset[Any]:
        match step:
            case ("put", item):
                self.there[key(item)] = item
                return self.catalog.apply(Put(item))
            case ("drop", item):
                self.there.pop(key(item), None)
                if isinstance(item, Pod):
                    self.states.pop(item.uid, None)
                return self.catalog.apply(Drop(item))
            case ("list", kind):
                kept = [item for at, item in enumerate(self.of(kind)) if at % 2]
                for item in self.of(kind):
                    if item not in kept:
                        del self.there[key(item)]
                        if isinstance(item, Pod):
                            self.states.pop(item.uid, None)
                return self.catalog.apply(Replace(kind, tuple(kept)))
            case ("state", uid, state):
                self.states[uid] = state
                return self.catalog.set_redirection(uid, state)
            case ("absent", lack):
                self.absent.add(lack)
                return self.catalog.prove_absent(lack)
            case _:
                self.absent.discard(step[1])
                return self.catalog.doubt(step[1])

    def of(self, kind: type[Object]) -> list[Object]:
        return [item for item in self.there.values() if type(item) is kind]

    def anew(self, seed: int) -> Catalog:
        """A catalog of the objects that are there, which came in another order."""
        catalog = listed(Catalog(on_demand=self.on_demand))
        objects_there = list(self.there.values())
        random.Random(seed).shuffle(objects_there)
        for item in objects_there:
            catalog.apply(Put(item))
        for uid, state in self.states.items():
            catalog.set_redirection(uid, state)  # type: ignore[arg-type]
        for lack in self.absent:
            catalog.prove_absent(lack)
        return catalog


def key(item: Object) -> tuple[type, Any]:
    if isinstance(item, Pod):
        return Pod, item.uid
    space = "" if isinstance(item, Namespace | objects.Node) else item.metadata.namespace
    return type(item), (space, item.metadata.name)


def listed(catalog: Catalog) -> Catalog:
    for kind in KINDS:
        catalog.apply(Replace(kind, ()))
    return catalog


def answers(catalog: Catalog, config: Discovery) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for path in PATHS:
        target = parse_authority(path, config.cluster_domain)
        for client in CLIENTS:
            found["profile", path, client] = profile(catalog, config, target, client)
            if isinstance(target, ServiceTarget):
                found["get", path, client] = get(catalog, config, target, client)
    return found


def at_first(answer: Any) -> Any:
    """What a new stream is sent; what an open one is sent may remember a Service that was deleted."""
    return answer.first if isinstance(answer, Twofold) and answer.first is not None else answer


steps = st.one_of(
    *[st.tuples(st.just("put"), items)] * 6,
    *[st.tuples(st.just("drop"), items)] * 2,
    st.tuples(st.just("list"), st.sampled_from(KINDS)),
    st.tuples(st.just("state"), uids, states),
    st.tuples(st.sampled_from(("absent", "doubt")), lacks),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=4, max_size=40), st.sampled_from(CONFIGS), st.booleans(), st.integers(0, 99))
def test_answers_depend_on_what_is_there_alone(
    script: list[Any], config: Discovery, on_demand: bool, seed: int
) -> None:
    play = Play(on_demand=on_demand)
    for step in script:
        play.do(step)
    fresh = answers(play.anew(seed), config)
    for question, (answer, _) in answers(play.catalog, config).items():
        assert at_first(answer) == at_first(fresh[question][0]), question


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=2, max_size=25), st.sampled_from(CONFIGS), st.booleans())
def test_b18_an_event_touches_whoever_gets_another_answer(
    script: list[Any], config: Discovery, on_demand: bool
) -> None:
    play = Play(on_demand=on_demand)
    before = answers(play.catalog, config)
    for step in script:
        touched = play.do(step)
        after = answers(play.catalog, config)
        for question, (answer, subjects) in before.items():
            if answer != after[question][0]:
                assert subjects & touched, (step, question)
        before = after


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=40), st.booleans())
def test_m03_nothing_is_left_when_everything_is_gone(script: list[Any], on_demand: bool) -> None:
    play = Play(on_demand=on_demand)
    for step in script:
        play.do(step)
    for kind in KINDS:
        play.catalog.apply(Replace(kind, ()))
    catalog = play.catalog
    for table in (catalog.namespaces, catalog.services, catalog.slices, catalog.endpoints, catalog.pods):
        assert not table.of
        assert not any(len(value) for name, value in vars(table).items() if hasattr(value, "add"))
    assert not any((catalog.workloads.of, catalog.servers.of, catalog.profiles.of, catalog.zones.of))
    assert catalog.complaints == {}
    assert all(not value for value in vars(catalog.servers).values())
    assert catalog.pods.groups("shop").__len__() == 0
