"""Endpoints that are asked for directly: who is at an address, ready or not."""

from agent.core.discovery.addresses import Place, plain_address, pod_address, workload_address
from agent.core.discovery.answers import Address, Lack, Profile, RetryBudget, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.endpoints import slices_of
from agent.core.discovery.opacity import Opacity, opaque_unknown
from agent.core.discovery.pods import PodFacts
from agent.core.discovery.slices import POD, Entry
from agent.core.discovery.targets import ServiceTarget
from agent.core.ports import named
from agent.core.reasons import Complaint, Reason


def at_address(catalog: Catalog, config: Discovery, ip: str, port: int) -> Profile | Twofold | None:
    """Who is at an IP: a pod by its own, a pod by a port of its node, or an ExternalWorkload by a port that
    it declares. None when nobody is known there; held while there may be somebody."""
    if pods := catalog.pods.claiming(catalog.pods.by_ip[ip]):
        return _of_pod(catalog, config, pods, Place(ip, port))
    if pods := catalog.pods.claiming(catalog.pods.by_host_port[ip, port]):
        return _of_pod(catalog, config, pods, Place(ip, port, mapped=not pods[0].host_network))
    if workloads := catalog.workloads.at(ip, port):
        answer = workload_address(catalog, config, workloads[0], Place(ip, port))
        return _profile(*answer, _claimed(ip, [f"{each.namespace}/{each.name}" for each in workloads]))
    lacking = _lacking(catalog, ip)
    return Twofold(lacking=frozenset(lacking)) if lacking else None


def bare(config: Discovery, ip: str, port: int) -> Profile:
    """The answer for an address of which nothing is known but itself."""
    return _profile(plain_address(config, Place(ip, port)), opaque_unknown(config, port))


def by_hostname(catalog: Catalog, config: Discovery, target: ServiceTarget) -> Profile | Twofold | str:
    """One endpoint of a Service by its hostname, ready or not; the empty profile if there is none. The text
    is the IP of an endpoint behind which the slices name nothing: ask who is at it."""
    service = catalog.services.of.get((target.namespace, target.service))
    if service is None or service.external:
        return Profile()
    slices = slices_of(catalog, config, (target.namespace, target.service))
    entries = [entry for one in slices for entry in one.entries if entry.hostname == target.hostname]
    entry = next(iter(sorted(entries, key=lambda each: not each.ready)), None)
    if entry is None:
        return Profile()
    if entry.ref is not None and entry.ref.kind == POD:
        return _of_entry(catalog, config, entry, target.port)
    if not entry.ips:
        return Profile()
    ref = entry.ref
    workload = catalog.workloads.of.get((ref.namespace, ref.name)) if ref is not None else None
    if workload is None:
        return entry.ips[0]
    return _profile(*workload_address(catalog, config, workload, Place(entry.ips[0], target.port)))


def _of_entry(catalog: Catalog, config: Discovery, entry: Entry, port: int) -> Profile | Twofold:
    ref = entry.ref
    pod = catalog.pods.named(ref) if ref is not None else None
    if pod is None and ref is not None:
        lack = Lack("pod", ref.name, ref.namespace)
        if not catalog.is_absent(lack):
            return Twofold(lacking=frozenset((lack,)))
    ips = (*(pod.ips if pod is not None else ()), *entry.ips)
    if not ips:
        return Profile()
    if pod is None or pod.finished:
        return bare(config, ips[0], port)
    return _of_pod(catalog, config, [pod], Place(ips[0], port))


def _of_pod(catalog: Catalog, config: Discovery, pods: list[PodFacts], place: Place) -> Profile:
    pod = pods[0]
    if not pod.running:
        return bare(config, place.ip, place.port)
    living = [f"{each.namespace}/{each.name}" for each in pods if each.running and not each.terminating]
    return _profile(*pod_address(catalog, config, pod, place), _claimed(place.ip, living))


def _claimed(ip: str, claiming: list[str]) -> tuple[Complaint, ...]:
    if len(claiming) < 2:
        return ()
    message = f"cannot tell whose {ip} is: {named(claiming)} claim it; the newest is taken"
    remedy = "look at the older one: is it really still there?"
    return (Complaint(Reason.ADDRESS_CLAIMED, ip, message, remedy),)


def _lacking(catalog: Catalog, ip: str) -> list[Lack]:
    """What to fetch before an IP can be said to be nobody's: the pods that slices name there, else whatever
    bears it."""
    if not catalog.on_demand:
        return []
    lacking = [
        Lack("pod", ref.name, ref.namespace)
        for slices in (catalog.slices, catalog.endpoints)
        for ref in slices.targets_at(ip)
        if ref.kind == POD and catalog.pods.named(ref) is None
    ]
    missing = [lack for lack in lacking if not catalog.is_absent(lack)]
    address = Lack("address", ip)
    return missing or ([] if catalog.is_absent(address) else [address])


def _profile(address: Address, opacity: Opacity, complaints: tuple[Complaint, ...] = ()) -> Profile:
    opaque, rule = opacity
    return Profile(
        opaque=opaque, rule=rule, retry_budget=RetryBudget(), endpoint=address, complaints=complaints
    )
