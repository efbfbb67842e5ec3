"""The objects that answers are made of, indexed so that an event costs what it touches and no more."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

import msgspec

from agent.core.discovery.answers import Lack, Subject
from agent.core.discovery.names import ZONE
from agent.core.discovery.namespaces import NamespaceFacts, read_namespace
from agent.core.discovery.objects import (
    Endpoints,
    EndpointSlice,
    ExternalWorkload,
    Job,
    Node,
    ReplicaSet,
    Server,
    ServiceProfile,
)
from agent.core.discovery.pods import Owner, PodFacts, Redirected, owner_of, read_pod
from agent.core.discovery.policy import ServerFacts, Servers, read_server
from agent.core.discovery.serviceprofiles import ProfileFacts, read_profile
from agent.core.discovery.services import ServiceFacts, read_service
from agent.core.discovery.slices import SliceFacts, read_endpoints, read_slice
from agent.core.discovery.tables import Name, Pods, Services, Slices, Table, Workloads, host_ports
from agent.core.discovery.workloads import WorkloadFacts, read_workload
from agent.core.objects import Drop, Event, Namespace, Object, Pod, Put, Replace, Service
from agent.core.reasons import Complaint, Reason

_SILENT = NamespaceFacts()
_ROOTS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
"""Kinds of owner that a ReplicaSet's pods are called by; any other leaves them to the ReplicaSet."""


class _Shelf(msgspec.Struct, frozen=True):
    """How one kind of object is kept: its key, what is read from it, the table, and what facts touch."""

    key: Callable[[Any], Any]
    read: Callable[[Any], tuple[Any, tuple[Complaint, ...]]]
    table: Any
    touched: Callable[[Any, Any], Iterable[Subject]]


class Catalog:
    """Services, slices, pods, workloads and policy of the cluster, in compact form.

    What answers say depends on the objects alone, not on the order in which they came. `on_demand`: pods of
    other nodes are not listed, but fetched one by one as answers lack them. `listed`: kinds whose whole list
    has been seen. `complaints`: by kind and key (UID of a pod, else namespace and name), what of an object
    cannot be used, as long as it cannot.
    """

    def __init__(self, *, on_demand: bool = False) -> None:
        self.on_demand = on_demand
        self.listed: set[type[Object]] = set()
        self.complaints: dict[tuple[str, Any], tuple[Complaint, ...]] = {}
        self._complained: dict[tuple[str, Any], tuple[Complaint, ...]] = {}
        self.namespaces: Table[str, NamespaceFacts] = Table()
        self.services = Services()
        self.slices = Slices(with_ips=on_demand)
        self.endpoints = Slices(with_ips=on_demand)
        self.pods = Pods()
        self.workloads = Workloads()
        self.servers = Servers()
        self.profiles: Table[Name, ProfileFacts] = Table()
        self.zones: Table[str, str] = Table()
        self._owners: dict[str, Table[Name, Owner | None]] = {"ReplicaSet": Table(), "Job": Table()}
        self._redirections: dict[str, tuple[Redirected, str]] = {}
        self._absent: set[Lack] = set()
        self._shelves: dict[type[Object], _Shelf] = {
            Namespace: _Shelf(_single, read_namespace, self.namespaces, self._by_namespace),
            Service: _Shelf(_name, read_service, self.services, self._by_service),
            EndpointSlice: _Shelf(_name, read_slice, self.slices, self._by_slice),
            Endpoints: _Shelf(_name, read_endpoints, self.endpoints, self._by_slice),
            Pod: _Shelf(_uid, read_pod, self.pods, self._by_pod),
            ExternalWorkload: _Shelf(_name, read_workload, self.workloads, self._by_workload),
            Server: _Shelf(_name, read_server, self.servers, self._by_server),
            ServiceProfile: _Shelf(_name, read_profile, self.profiles, self._by_profile),
            Node: _Shelf(_single, _read_node, self.zones, self._by_node),
            **{
                kind: _Shelf(_name, _read_owner, self._owners[name], partial(self._by_owner, name))
                for kind, name in ((ReplicaSet, "ReplicaSet"), (Job, "Job"))
            },
        }

    def apply(self, event: Event) -> frozenset[Subject]:
        """Take one event in; the subjects whose answers may now be others. What changes nothing that is
        read touches nobody. Never raises, whatever the objects hold."""
        match event:
            case Replace(kind=kind, items=items):
                return frozenset(self._replace(kind, items))
            case Put(item=item):
                return frozenset(self._put(item))
            case Drop(item=item):
                shelf = self._shelves.get(type(item))
                return frozenset(self._remove(type(item), shelf.key(item))) if shelf else frozenset()

    def set_redirection(
        self, uid: str, state: Literal["redirected", "failed", "pending", "unknown"], reason: str = ""
    ) -> frozenset[Subject]:
        """What the agent of this node knows of a pod's redirection: it stands over the pod's condition.

        `pending` and `unknown` say nothing. It is dropped with the pod, of which it may come ahead.
        """
        before = self._redirections.pop(uid, None)
        if state in ("redirected", "failed"):
            self._redirections[uid] = (state, reason)
        pod = self.pods.of.get(uid)
        if pod is None or before == self._redirections.get(uid):
            return frozenset()
        return frozenset(self._by_pod(uid, pod))

    def news(self) -> Iterator[tuple[Complaint, bool]]:
        """Each complaint that came (True) or went (False) since this was last asked."""
        told, self._complained = self._complained, {}
        for at, before in told.items():
            now = self.complaints.get(at, ())
            yield from ((each, False) for each in before if each not in now)
            yield from ((each, True) for each in now if each not in before)

    def prove_absent(self, lack: Lack) -> frozenset[Subject]:
        """What an answer lacked was looked for and is not there; this holds until `doubt`."""
        self._absent.add(lack)
        return frozenset(self._waiting_for(lack))

    def doubt(self, lack: Lack) -> frozenset[Subject]:
        """A proof of absence is too old to be relied upon."""
        self._absent.discard(lack)
        return frozenset(self._waiting_for(lack))

    def is_absent(self, lack: Lack) -> bool:
        """Whether there is no use in waiting for it: all pods are listed, or it was looked for."""
        return not self.on_demand or lack in self._absent

    def unlisted(self, *kinds: type[Object]) -> frozenset[Lack]:
        """Those of these kinds whose list has not been seen yet."""
        return frozenset(Lack("kind", kind.__name__) for kind in kinds if kind not in self.listed)

    def namespace(self, name: str) -> NamespaceFacts:
        return self.namespaces.of.get(name, _SILENT)

    def owner(self, pod: PodFacts) -> Owner:
        """Who stands behind a pod, as far as it is known: the Deployment above its ReplicaSet, the owner of
        its Job, else its direct owner; itself when it has none, or several."""
        if pod.owner is None:
            return Owner("pod", pod.name)
        table = self._owners.get(pod.owner.kind)
        above = table.of.get((pod.namespace, pod.owner.name)) if table else None
        if above is None or (pod.owner.kind == "ReplicaSet" and above.kind not in _ROOTS):
            return pod.owner
        return above

    def redirection(self, pod: PodFacts) -> tuple[Redirected, str]:
        """What is known of a pod's redirection, and for `failed` the Reason, if one is given."""
        if pod.uid in self._redirections:
            return self._redirections[pod.uid]
        if self.namespace(pod.namespace).disabled if pod.disabled is None else pod.disabled:
            return "failed", Reason.DISABLED
        return pod.condition, pod.condition_reason

    def _replace(self, kind: type[Object], items: tuple[Object, ...]) -> set[Subject]:
        touched = set() if kind in self.listed else {Subject("listing", kind.__name__)}
        self.listed.add(kind)
        if shelf := self._shelves.get(kind):
            present = {shelf.key(item) for item in items}
            blamed = [key for name, key in self.complaints if name == kind.__name__]
            for key in {*shelf.table.of, *blamed} - present:
                touched |= self._remove(kind, key)
        for item in items:
            touched |= self._put(item)
        return touched

    def _put(self, item: Object) -> set[Subject]:
        shelf = self._shelves.get(type(item))
        if shelf is None:
            return set()
        key = shelf.key(item)
        facts, complaints = shelf.read(item)
        self._complain(type(item), key, complaints)
        before = shelf.table.of.get(key)
        if before == facts:
            return set()
        touched = set(shelf.touched(key, before)) if before is not None else set()
        if facts is None:
            shelf.table.drop(key)
            return touched
        shelf.table.put(key, facts)
        return touched.union(shelf.touched(key, facts))

    def _remove(self, kind: type[Object], key: Any) -> set[Subject]:
        shelf = self._shelves[kind]
        self._complain(kind, key, ())
        before = shelf.table.of.get(key)
        touched: set[Subject] = set()
        if before is not None:
            touched.update(shelf.touched(key, before))
            shelf.table.drop(key)
        if kind is Pod:
            self._redirections.pop(key, None)
        return touched

    def _complain(self, kind: type[Object], key: Any, complaints: tuple[Complaint, ...]) -> None:
        at = kind.__name__, key
        before = self.complaints.pop(at, ())
        if complaints:
            self.complaints[at] = complaints
        if complaints != before and self._complained.setdefault(at, before) == complaints:
            # What came and went unheard.
            del self._complained[at]

    def _by_namespace(self, name: str, _: NamespaceFacts) -> Iterator[Subject]:
        yield from (Subject("service", key[1], name) for key in self.services.by_namespace[name])
        for uid in self.pods.in_namespace(name):
            yield from self._by_pod(uid, self.pods.of[uid])
        for key in self.workloads.by_namespace[name]:
            yield from self._by_workload(key, self.workloads.of[key])

    def _by_service(self, key: Name, service: ServiceFacts) -> Iterator[Subject]:
        yield Subject("service", key[1], key[0])
        yield from (Subject("address", ip) for ip in service.ips)

    def _by_slice(self, _: Name, slices: tuple[SliceFacts, ...]) -> Iterator[Subject]:
        for one in slices:
            yield Subject("service", one.service, one.namespace)
            for entry in one.entries if self.on_demand else ():
                yield from (Subject("address", ip) for ip in entry.ips)

    def _by_pod(self, _: str, pod: PodFacts) -> Iterator[Subject]:
        yield from (Subject("address", ip) for ip in pod.ips)
        yield from (Subject("address", ip) for ip, _ in host_ports(pod))
        yield from self._behind((pod.namespace, pod.name))
        yield from self._meant_by((pod.namespace, pod.name))

    def _by_workload(self, key: Name, workload: WorkloadFacts) -> Iterator[Subject]:
        yield from (Subject("address", ip) for ip in workload.ips)
        yield from self._behind(key)

    def _by_server(self, _: Name, server: ServerFacts) -> Iterator[Subject]:
        if server.pods is not None:
            groups = self.pods.groups(server.namespace)
            selected = (labels for labels in groups if server.pods.matches(dict(labels)))
            for uid in (uid for labels in selected for uid in groups[labels]):
                yield from self._by_pod(uid, self.pods.of[uid])
        if server.workloads is not None:
            for key in self.workloads.by_namespace[server.namespace]:
                workload = self.workloads.of[key]
                if server.workloads.matches(dict(workload.labels)):
                    yield from self._by_workload(key, workload)

    def _by_profile(self, key: Name, _: ProfileFacts) -> Iterator[Subject]:
        labels = key[1].split(".")
        if len(labels) > 1:
            yield Subject("service", labels[0], labels[1])

    def _by_node(self, name: str, _: str) -> Iterator[Subject]:
        yield Subject("node", name)

    def _by_owner(self, kind: str, key: Name, _: Owner | None) -> Iterator[Subject]:
        for uid in self.pods.by_owner[key[0], Owner(kind, key[1])]:
            yield from self._by_pod(uid, self.pods.of[uid])

    def _behind(self, target: Name) -> Iterator[Subject]:
        for slices in (self.slices, self.endpoints):
            yield from (Subject("service", name, space) for space, name in slices.services_with(target))

    def _meant_by(self, target: Name) -> Iterator[Subject]:
        """Who asked for an IP may wait for the pod that slices name there."""
        for slices in (self.slices, self.endpoints) if self.on_demand else ():
            yield from (Subject("address", ip) for ip in slices.ips_of(target))

    def _waiting_for(self, lack: Lack) -> Iterator[Subject]:
        if lack.what == "address":
            yield Subject("address", lack.name)
            return
        yield from self._behind((lack.namespace, lack.name))
        yield from self._meant_by((lack.namespace, lack.name))


def _name(item: Object) -> Name:
    return item.metadata.namespace, item.metadata.name


def _single(item: Object) -> str:
    return item.metadata.name


def _uid(pod: Pod) -> str:
    return pod.uid


def _read_node(node: Node) -> tuple[str | None, tuple[Complaint, ...]]:
    return (node.metadata.labels or {}).get(ZONE), ()


def _read_owner(item: ReplicaSet | Job) -> tuple[Owner | None, tuple[Complaint, ...]]:
    return owner_of(item.metadata), ()
