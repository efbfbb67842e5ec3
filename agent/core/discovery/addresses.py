"""One address as a proxy is told it: labels, identity, hints."""

import msgspec

from agent.core.discovery.answers import WEIGHT, Address, Hint, Labels
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.opacity import Opacity, opaque_pod, opaque_workload
from agent.core.discovery.pods import PodFacts
from agent.core.discovery.proxies import ProxyPorts
from agent.core.discovery.slices import SliceFacts
from agent.core.discovery.workloads import WorkloadFacts
from agent.core.reasons import Reason

_REASONS = frozenset(Reason)

LOCAL, REMOTE, UNKNOWN = "local", "remote", "unknown"


class Place(msgspec.Struct, frozen=True):
    """Where an address was asked for. `zone`: that of the endpoint. `locality` "": asked for directly, by
    GetProfile, where no labels of a set name the namespace. `mapped`: to a pod, from a port of its node."""

    ip: str
    port: int
    zone: str = ""
    locality: str = ""
    mapped: bool = False


def locality(endpoint_zone: str, client_zone: str) -> str:
    """How far away an endpoint is."""
    if not endpoint_zone or not client_zone:
        return UNKNOWN
    return LOCAL if endpoint_zone == client_zone else REMOTE


def plain_address(
    config: Discovery, place: Place, mirror: SliceFacts | None = None, port: int = 0
) -> Address:
    """An address behind which no object stands; with `mirror`, one of a slice, asked for as `port`."""
    labels = (("zone_locality", UNKNOWN),) if place.locality else ()
    if mirror is None or not (mirror.origin or mirror.identity):
        return Address(place.ip, place.port, labels)
    return Address(
        place.ip,
        place.port,
        labels,
        identity=mirror.identity,
        hint=Hint("h2") if mirror.identity and config.h2_upgrade else None,
        http2=bool(mirror.identity) and config.http2 is not None,
        authority=f"{mirror.origin}:{port}" if mirror.origin else "",
    )


def workload_address(
    catalog: Catalog, config: Discovery, workload: WorkloadFacts, place: Place
) -> tuple[Address, Opacity]:
    """An address of an ExternalWorkload, which is always meshed."""
    opacity = opaque_workload(catalog, config, workload, place.port)
    owner = workload.owner
    labels: Labels = (("external_workload", workload.name), ("zone", place.zone))
    if owner is not None:
        labels = (*labels, (owner.kind.lower(), owner.name))
    inbound = workload.inbound or config.defaults.inbound_port
    labels += _where(place, workload.namespace)
    weight = _weight(config, place)
    if not workload.identity:
        return Address(place.ip, place.port, labels, weight, withheld=Reason.INVALID_OBJECT), opacity
    transport = opacity[0] or config.transport == "transport-header"
    address = Address(
        place.ip,
        place.port,
        labels,
        weight=weight,
        identity=workload.identity,
        server_name=workload.server_name,
        uri=True,
        hint=Hint("opaque" if opacity[0] else "h2", inbound if transport else 0),
        http2=config.http2 is not None,
    )
    return address, opacity


def pod_address(catalog: Catalog, config: Discovery, pod: PodFacts, place: Place) -> tuple[Address, Opacity]:
    """An address of a pod: its own, or a port of its node that is mapped to it."""
    target = target_port(pod, place)
    opacity = opaque_pod(catalog, config, pod, place.port, target)
    labels = _pod_labels(catalog, pod, place)
    redirection, why = catalog.redirection(pod)
    bare = Address(place.ip, place.port, labels, weight=_weight(config, place), redirection=redirection)
    if not pod.control_plane or pod.proxy is None:
        return bare, opacity
    proxy = _proxy_ports(config, pod.proxy)
    itself = target in (proxy.admin, proxy.control)
    if not itself:
        if _skipped(catalog, config, pod, target):
            return msgspec.structs.replace(bare, withheld=Reason.PORT_SKIPPED), opacity
        if redirection == "failed" and config.require_redirection == "withhold":
            known = why if why in _REASONS else Reason.NOT_REDIRECTED
            return msgspec.structs.replace(bare, withheld=known), opacity
    transport = (opacity[0] or config.transport == "transport-header") and not (place.mapped or itself)
    identity, withheld = _identity(config, pod)
    if opacity[0] and place.mapped and not itself:
        identity, withheld = "", withheld or Reason.OPAQUE_HOST_PORT
    address = Address(
        place.ip,
        place.port,
        labels,
        weight=bare.weight,
        identity=identity,
        server_name=identity,
        hint=Hint(
            "opaque" if opacity[0] else "h2" if config.h2_upgrade else "", proxy.inbound if transport else 0
        ),
        http2=config.http2 is not None,
        withheld=withheld,
        redirection=redirection,
    )
    return address, opacity


def target_port(pod: PodFacts, place: Place) -> int:
    """The container's port behind the port that was asked for."""
    if not place.mapped:
        return place.port
    return next((port.number for port in pod.ports if port.host == place.port), place.port)


def _proxy_ports(config: Discovery, said: ProxyPorts) -> ProxyPorts:
    defaults = config.defaults
    return ProxyPorts(
        said.inbound or defaults.inbound_port,
        said.admin or defaults.admin_port,
        said.control or defaults.control_port,
    )


def _skipped(catalog: Catalog, config: Discovery, pod: PodFacts, port: int) -> bool:
    """Whether connections to a port go past the proxy, by the lists that redirection reads too."""
    only = config.defaults.only_inbound
    if only is not None and port not in only:
        return True
    inherited = catalog.namespace(pod.namespace).skip
    skip = pod.skip if pod.skip is not None else inherited
    return port in (config.defaults.skip_inbound if skip is None else skip)


def _identity(config: Discovery, pod: PodFacts) -> tuple[str, str]:
    """The identity of a meshed pod, or "" and why it has none here."""
    if not config.trust_domain:
        return "", Reason.NO_TRUST_DOMAIN
    if pod.control_plane != config.control_plane_namespace:
        return "", Reason.OTHER_CONTROL_PLANE
    suffix = f"serviceaccount.identity.{pod.control_plane}.{config.trust_domain}"
    return f"{pod.account}.{pod.namespace}.{suffix}", ""


def _pod_labels(catalog: Catalog, pod: PodFacts, place: Place) -> Labels:
    owner = catalog.owner(pod)
    kind = "k8s_job" if owner.kind == "Job" else owner.kind.lower()
    labels: list[tuple[str, str]] = [("pod", pod.name), ("serviceaccount", pod.account), ("zone", place.zone)]
    if kind != "pod":
        labels.append((kind, owner.name))
    if pod.control_plane:
        labels.append(("control_plane_ns", pod.control_plane))
    if pod.template:
        labels.append(("pod_template_hash", pod.template))
    return (*labels, *_where(place, pod.namespace))


def _where(place: Place, namespace: str) -> Labels:
    return (("zone_locality", place.locality),) if place.locality else (("namespace", namespace),)


def _weight(config: Discovery, place: Place) -> int:
    return WEIGHT * 10 if config.zone_weights and place.locality == LOCAL else WEIGHT
