"""Get: the addresses behind one port of a Service, as one client shall see them."""

from collections.abc import Iterable, Iterator

import msgspec

from agent.core.discovery import objects
from agent.core.discovery.addresses import Place, locality, plain_address, pod_address, workload_address
from agent.core.discovery.answers import Address, Ended, Endpoints, Labels, Lack, Subject, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.pods import PodFacts
from agent.core.discovery.services import ServiceFacts
from agent.core.discovery.slices import POD, Entry, SliceFacts
from agent.core.discovery.targets import AddressTarget, Client, Invalid, ServiceTarget, Target
from agent.core.discovery.workloads import WorkloadFacts
from agent.core.objects import Namespace, Object, Pod, Service


class _Candidate(msgspec.Struct, frozen=True):
    """One IP of one endpoint, with what stands behind it."""

    ip: str
    port: int
    entry: Entry
    slice: SliceFacts
    pod: PodFacts | None
    workload: WorkloadFacts | None

    @property
    def precedence(self) -> tuple[object, ...]:
        """Of candidates with one IP and port, the greatest is the one that is sent."""
        pod, workload = self.pod, self.workload
        key = pod.precedence if pod is not None else (False, False, "")
        name = workload.name if workload is not None else ""
        return (pod is not None, workload is not None, key, name, self.slice.name)


def get(
    catalog: Catalog, config: Discovery, target: Target, client: Client
) -> tuple[Endpoints | Ended | Twofold, frozenset[Subject]]:
    """The answer to Get, and the subjects on which it depends. Raises Invalid for an IP as target.

    Of the client only `node` matters. A Service that does not exist (yet) is `Endpoints(exists=False)`.
    """
    if isinstance(target, AddressTarget):
        raise Invalid(f"cannot list endpoints of {target.ip}: Get is for names; ask for its profile")
    subjects = [Subject("service", target.service, target.namespace)]
    if client.node:
        subjects.append(Subject("node", client.node))
    kinds = _kinds(config, client)
    if unlisted := catalog.unlisted(*kinds):
        subjects += [Subject("listing", lack.name) for lack in unlisted]
        return Twofold(lacking=unlisted), frozenset(subjects)
    return _answer(catalog, config, target, client), frozenset(subjects)


def slices_of(catalog: Catalog, config: Discovery, key: tuple[str, str]) -> list[SliceFacts]:
    """What makes up a Service: its slices, or what its Endpoints object says instead."""
    return (catalog.slices if config.endpoint_slices else catalog.endpoints).of_service(key)


def _kinds(config: Discovery, client: Client) -> Iterator[type[Object]]:
    yield from (Service, Namespace, objects.Server, objects.ExternalWorkload)
    yield objects.EndpointSlice if config.endpoint_slices else objects.Endpoints
    yield Pod
    if client.node:
        yield objects.Node


def _answer(
    catalog: Catalog, config: Discovery, target: ServiceTarget, client: Client
) -> Endpoints | Ended | Twofold:
    key = (target.namespace, target.service)
    service = catalog.services.of.get(key)
    if service is None:
        return Endpoints(exists=False)
    if service.external:
        return Ended(f"cannot list endpoints of Service {key[0]}/{key[1]}: it is an ExternalName")
    slices = slices_of(catalog, config, key)
    lacking: set[Lack] = set()
    candidates = list(_candidates(catalog, service, slices, target.port, lacking))
    if config.serving_fallback and not any(each.entry.ready for each in candidates):
        chosen = [each for each in candidates if each.entry.serving]
    else:
        chosen = [each for each in candidates if each.entry.ready]
    zone = catalog.zones.of.get(client.node, "")
    chosen = _filtered(config, service, chosen, target.hostname, client.node, zone)
    best: dict[tuple[str, int], _Candidate] = {}
    for each in chosen:
        other = best.get((each.ip, each.port))
        if other is None or each.precedence > other.precedence:
            best[each.ip, each.port] = each
    addresses = (_address(catalog, config, each, zone, target.port) for each in best.values())
    answer = Endpoints(
        exists=True,
        addresses=tuple(sorted(addresses, key=lambda address: (":" in address.ip, address.ip, address.port))),
        labels=_labels(service, slices),
    )
    return Twofold(later=answer, lacking=frozenset(lacking)) if lacking else answer


def _candidates(
    catalog: Catalog, service: ServiceFacts, slices: Iterable[SliceFacts], port: int, lacking: set[Lack]
) -> Iterator[_Candidate]:
    """All endpoints that can be told, ready or not; pods that are still to be fetched go to `lacking`."""
    defined = service.port(port)
    for one in slices:
        number = port if one.ports else 0
        if defined is not None:
            number = next((each.number for each in one.ports if each.name == defined.name), 0)
        for entry in one.entries if number else ():
            pod = workload = None
            if entry.ref is not None:
                name = (entry.ref.namespace, entry.ref.name)
                if entry.ref.kind == POD:
                    pod = catalog.pods.named(entry.ref)
                    lack = Lack("pod", entry.ref.name, entry.ref.namespace)
                    if pod is None and not catalog.is_absent(lack):
                        lacking.add(lack)
                else:
                    workload = catalog.workloads.of.get(name)
                if pod is None and workload is None:
                    continue
            yield from (_Candidate(ip, number, entry, one, pod, workload) for ip in entry.ips)


def _filtered(
    config: Discovery,
    service: ServiceFacts,
    candidates: list[_Candidate],
    hostname: str,
    node: str,
    zone: str,
) -> list[_Candidate]:
    """Those that this client shall use: by hostname, then policy or topology, then address family."""
    if hostname:
        candidates = [each for each in candidates if each.entry.hostname == hostname]
    if service.local:
        near = [each for each in candidates if each.pod is not None and node and each.pod.node == node]
        return _one_family(config, near)
    near = [each for each in candidates if node in each.entry.nodes]
    if near and all(each.entry.nodes for each in candidates):
        return _one_family(config, near)
    if candidates and all(each.entry.zones for each in candidates):
        candidates = [each for each in candidates if zone in each.entry.zones] or candidates
    return _one_family(config, candidates)


def _one_family(config: Discovery, candidates: list[_Candidate]) -> list[_Candidate]:
    """Of a pod only IPv6 where it has both and IPv6 is on, only IPv4 where it is off. Others stay."""
    if not config.ipv6:
        return [each for each in candidates if each.pod is None or ":" not in each.ip]
    dual = {each.pod.uid for each in candidates if each.pod is not None and ":" in each.ip}
    return [each for each in candidates if ":" in each.ip or each.pod is None or each.pod.uid not in dual]


def _address(catalog: Catalog, config: Discovery, each: _Candidate, zone: str, port: int) -> Address:
    near = locality(each.entry.zone, zone)
    place = Place(each.ip, each.port, each.entry.zone, near)
    if each.pod is not None:
        return pod_address(catalog, config, each.pod, place)[0]
    if each.workload is not None:
        return workload_address(catalog, config, each.workload, place)[0]
    return plain_address(config, place, each.slice, port)


def _labels(service: ServiceFacts, slices: Iterable[SliceFacts]) -> Labels:
    """Labels of the set; of several mirrored slices, the last by name adds its own."""
    labels: Labels = (("service", service.name), ("namespace", service.namespace))
    mirrored = [one.labels for one in slices if one.labels]
    return labels + mirrored[-1] if mirrored else labels
