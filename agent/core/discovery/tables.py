"""Tables of facts with the indexes by which events and questions find them.

All are used alike: `of` holds the facts by key, `put` takes facts in place of those that were known by
their key, and `drop` takes out what is there.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from agent.core.discovery.answers import Labels
from agent.core.discovery.multimap import Multimap, Place, move
from agent.core.discovery.pods import SHARED, Owner, PodFacts
from agent.core.discovery.services import ServiceFacts
from agent.core.discovery.slices import SliceFacts, TargetRef
from agent.core.discovery.workloads import WorkloadFacts

K = TypeVar("K", bound=Hashable)
F = TypeVar("F")

Name = tuple[str, str]
"""Namespace and name."""


class Table(Generic[K, F]):
    """Facts that nobody looks up but by their key."""

    def __init__(self) -> None:
        self.of: dict[K, F] = {}

    def put(self, key: K, facts: F) -> None:
        self.of[key] = facts

    def drop(self, key: K) -> None:
        self.of.pop(key, None)


class Pods:
    """Pods by UID, and the UIDs by name, IP, host port, owner, and namespace with labels."""

    def __init__(self) -> None:
        self.of: dict[str, PodFacts] = {}
        self.by_name: Multimap[Name, str] = Multimap()
        self.by_ip: Multimap[str, str] = Multimap()
        self.by_host_port: Multimap[tuple[str, int], str] = Multimap()
        self.by_owner: Multimap[tuple[str, Owner], str] = Multimap()
        self._by_labels: dict[str, Multimap[Labels, str]] = {}

    def put(self, uid: str, pod: PodFacts) -> None:
        pod = self._sharing(pod)
        before = self.of.get(uid)
        self._by_labels.setdefault(pod.namespace, Multimap())
        move(uid, self._places(before), self._places(pod))
        self.of[uid] = pod
        if before is not None and not self._by_labels[before.namespace]:
            del self._by_labels[before.namespace]

    def drop(self, uid: str) -> None:
        pod = self.of.pop(uid, None)
        if pod is None:
            return
        move(uid, self._places(pod), ())
        if not self._by_labels[pod.namespace]:
            del self._by_labels[pod.namespace]

    def groups(self, namespace: str) -> Multimap[Labels, str]:
        """UIDs of a namespace by their labels: as many groups as there are different sets of labels."""
        return self._by_labels.get(namespace, Multimap())

    def in_namespace(self, name: str) -> Iterator[str]:
        groups = self.groups(name)
        return (uid for labels in groups for uid in groups[labels])

    def claiming(self, uids: Iterable[str]) -> list[PodFacts]:
        """Those of these that are not finished; the first has what they all claim. Of equals, it is the one
        that came last."""
        pods = [self.of[uid] for uid in uids if not self.of[uid].finished]
        return sorted(pods, key=lambda pod: pod.precedence)[::-1]

    def named(self, ref: TargetRef) -> PodFacts | None:
        """The pod that a slice means: the one of that UID, else who bears the name now."""
        uids = self.by_name[ref.namespace, ref.name]
        if len(uids) == 1 or ref.uid in uids:
            return self.of[ref.uid if ref.uid in uids else next(iter(uids))]
        return next(iter(self.claiming(uids)), None)

    def _places(self, pod: PodFacts | None) -> Iterator[Place]:
        if pod is None:
            return
        yield self.by_name, (pod.namespace, pod.name)
        yield from ((self.by_ip, ip) for ip in pod.ips if not pod.host_network)
        yield from ((self.by_host_port, each) for each in host_ports(pod))
        if pod.owner is not None:
            yield self.by_owner, (pod.namespace, pod.owner)
        yield self._by_labels[pod.namespace], pod.labels

    def _sharing(self, pod: PodFacts) -> PodFacts:
        """The same pod, made of the parts of another pod of its owner where they are equal."""
        siblings = self.by_owner[pod.namespace, pod.owner] if pod.owner is not None else ()
        for uid in siblings:
            other = self.of[uid]
            parts = {field: getattr(other, field) for field in SHARED}
            equal = {field: part for field, part in parts.items() if part == getattr(pod, field)}
            return msgspec.structs.replace(pod, **equal)
        return pod


def host_ports(pod: PodFacts) -> Iterator[tuple[str, int]]:
    """(host IP, host port) by which a pod can be reached."""
    return ((ip, port.host) for ip in pod.host_ips for port in pod.ports if port.host)


class Services:
    """Services by name, and the names by cluster IP and namespace.

    The last of those that were deleted are remembered, by the streams that began while they were there.
    """

    REMEMBERED = 1024

    def __init__(self) -> None:
        self.of: dict[Name, ServiceFacts] = {}
        self.by_ip: Multimap[str, Name] = Multimap()
        self.by_namespace: Multimap[str, Name] = Multimap()
        self.departed: dict[Name, ServiceFacts] = {}
        self._departed_from: dict[str, Name] = {}

    def put(self, key: Name, service: ServiceFacts) -> None:
        self._forget(key)
        move(key, self._places(self.of.get(key)), self._places(service))
        self.of[key] = service

    def drop(self, key: Name) -> None:
        service = self.of.pop(key, None)
        if service is None:
            return
        move(key, self._places(service), ())
        self.departed[key] = msgspec.structs.replace(service, opaque=None)
        self._departed_from.update((ip, key) for ip in service.ips)
        if len(self.departed) > self.REMEMBERED:
            self._forget(next(iter(self.departed)))

    def departed_from(self, ip: str) -> Name | None:
        """The Service that was the last to have this IP, if it is remembered."""
        return self._departed_from.get(ip)

    def _places(self, service: ServiceFacts | None) -> Iterator[Place]:
        if service is not None:
            yield self.by_namespace, service.namespace
            yield from ((self.by_ip, ip) for ip in service.ips)

    def _forget(self, key: Name) -> None:
        service = self.departed.pop(key, None)
        for ip in service.ips if service is not None else ():
            if self._departed_from.get(ip) == key:
                del self._departed_from[ip]


class Slices:
    """What each slice, or Endpoints object, contributes; and the slices by Service, target and IP.

    `with_ips`: keep the index by IP, which nobody needs where all pods are known.
    """

    def __init__(self, *, with_ips: bool) -> None:
        self.of: dict[Name, tuple[SliceFacts, ...]] = {}
        self._with_ips = with_ips
        self._by_service: Multimap[Name, Name] = Multimap()
        self._by_target: Multimap[Name, Name] = Multimap()
        self._by_ip: Multimap[str, Name] = Multimap()

    def put(self, key: Name, facts: tuple[SliceFacts, ...]) -> None:
        move(key, self._places(self.of.get(key, ())), self._places(facts))
        self.of[key] = facts

    def drop(self, key: Name) -> None:
        move(key, self._places(self.of.pop(key, ())), ())

    def of_service(self, service: Name) -> list[SliceFacts]:
        """The slices of a Service in ascending order of their names."""
        keys = sorted(self._by_service[service])
        return [one for key in keys for one in self.of[key] if (one.namespace, one.service) == service]

    def services_with(self, target: Name) -> set[Name]:
        """The Services that have the pod or ExternalWorkload of this name behind them."""
        found = (one for key in self._by_target[target] for one in self.of[key])
        return {(one.namespace, one.service) for one in found}

    def ips_of(self, target: Name) -> set[str]:
        """The IPs by which slices mean this pod or ExternalWorkload."""
        entries = self._entries(self._by_target[target])
        return {ip for ref, ips in entries if (ref.namespace, ref.name) == target for ip in ips}

    def targets_at(self, ip: str) -> set[TargetRef]:
        """What slices say that is at an IP; nothing is known `with_ips` False."""
        return {ref for ref, ips in self._entries(self._by_ip[ip]) if ip in ips}

    def _places(self, facts: tuple[SliceFacts, ...]) -> Iterator[Place]:
        for one in facts:
            yield self._by_service, (one.namespace, one.service)
            for entry in one.entries:
                if entry.ref is not None:
                    yield self._by_target, (entry.ref.namespace, entry.ref.name)
                    yield from ((self._by_ip, ip) for ip in entry.ips if self._with_ips)

    def _entries(self, keys: Iterable[Name]) -> Iterator[tuple[TargetRef, tuple[str, ...]]]:
        for key in keys:
            for one in self.of[key]:
                yield from ((entry.ref, entry.ips) for entry in one.entries if entry.ref is not None)


class Workloads:
    """ExternalWorkloads by name, and the names by IP and namespace."""

    def __init__(self) -> None:
        self.of: dict[Name, WorkloadFacts] = {}
        self.by_ip: Multimap[str, Name] = Multimap()
        self.by_namespace: Multimap[str, Name] = Multimap()

    def put(self, key: Name, workload: WorkloadFacts) -> None:
        move(key, self._places(self.of.get(key)), self._places(workload))
        self.of[key] = workload

    def drop(self, key: Name) -> None:
        move(key, self._places(self.of.pop(key, None)), ())

    def at(self, ip: str, port: int) -> list[WorkloadFacts]:
        """Those that declare a port at an IP, the newest first; of equals, the one that came last."""
        found = (self.of[key] for key in self.by_ip[ip])
        declaring = [each for each in found if any(number == port for _, number in each.ports)]
        return sorted(declaring, key=lambda each: each.created)[::-1]

    def _places(self, workload: WorkloadFacts | None) -> Iterator[Place]:
        if workload is not None:
            yield self.by_namespace, workload.namespace
            yield from ((self.by_ip, ip) for ip in workload.ips)
