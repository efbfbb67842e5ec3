"""Whether a port is opaque, and which rule says so.

An object's own annotation, present even if empty, goes before that of its namespace, and that before the
default list. A Server that is opaque is or-ed to it: for pods and workloads, never for Services.
"""

from collections.abc import Iterable

from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.opaque import Named, opaque_ports
from agent.core.discovery.pods import PodFacts
from agent.core.discovery.policy import ServerFacts
from agent.core.discovery.services import ServiceFacts
from agent.core.discovery.workloads import WorkloadFacts
from agent.core.ports import PortSet

Opacity = tuple[bool, str]
"""Whether a port is opaque, and the rule in words."""

DEFAULT = "default opaque ports"


def opaque_unknown(config: Discovery, port: int) -> Opacity:
    """Of an address that is nobody's."""
    return port in config.default_opaque_ports, DEFAULT


def opaque_service(catalog: Catalog, config: Discovery, service: ServiceFacts, port: int) -> Opacity:
    """Of a port of a Service. A default port is one by its own number, or by its target's."""
    names = tuple((each.name, each.number) for each in reversed(service.ports) if each.name)
    ports, rule = _list(catalog, config, service.namespace, service.opaque, names, "Service")
    found = service.port(port)
    if rule == DEFAULT and port not in ports and found is not None and found.target in ports:
        return True, f"{rule}, by target port"
    return port in ports, rule


def opaque_pod(catalog: Catalog, config: Discovery, pod: PodFacts, port: int, target: int) -> Opacity:
    """Of a port of a pod. `target`: the container's port, which is another one for a mapped host port."""
    names = tuple((each.name, each.number) for each in pod.ports if each.name)
    ports, rule = _list(catalog, config, pod.namespace, pod.opaque, names, "Pod")
    called = {each.name for each in pod.ports if port in (each.number, each.host) or each.number == target}
    servers = (
        server
        for server in catalog.servers.selecting_pods(pod.namespace, pod.labels)
        if server.port in (port, target) or server.port in called
    )
    return _with_servers(config, (port in ports or target in ports, rule), servers)


def opaque_workload(catalog: Catalog, config: Discovery, workload: WorkloadFacts, port: int) -> Opacity:
    """Of a port of an ExternalWorkload."""
    names = workload.names
    ports, rule = _list(catalog, config, workload.namespace, workload.opaque, names, "ExternalWorkload")
    called = {name for name, number in names if number == port}
    servers = (
        server
        for server in catalog.servers.selecting_workloads(workload.namespace, workload.labels)
        if server.port == port or server.port in called
    )
    return _with_servers(config, (port in ports, rule), servers)


def _list(
    catalog: Catalog, config: Discovery, namespace: str, own: PortSet | None, names: Named, kind: str
) -> tuple[PortSet, str]:
    if own is not None:
        return own, f"annotation of the {kind}"
    inherited = catalog.namespace(namespace).opaque
    if inherited is not None:
        return opaque_ports(inherited, names), "annotation of the Namespace"
    return config.default_opaque_ports, DEFAULT


def _with_servers(config: Discovery, opacity: Opacity, servers: Iterable[ServerFacts]) -> Opacity:
    if opacity[0] and not config.server_wins:
        return opacity
    selecting = list(servers)
    opaque = [server for server in selecting if server.opaque]
    if found := opaque or (selecting if config.server_wins else []):
        first = min(found, key=lambda server: server.name)
        return bool(opaque), f"Server {first.namespace}/{first.name}"
    return opacity
