"""A catalog to ask, and short builders of the objects in it. All are in namespace `shop` unless told."""

from typing import Any, TypeVar

import msgspec

from agent.core.discovery import objects
from agent.core.discovery.answers import Address, Ended, Endpoints, Profile, Subject, Twofold
from agent.core.discovery.catalog import Catalog
from agent.core.discovery.config import Discovery
from agent.core.discovery.endpoints import get
from agent.core.discovery.profiles import profile
from agent.core.discovery.targets import Client, canonical_ip, parse_authority
from agent.core.objects import Drop, Namespace, Object, Pod, Put, Replace, Service
from agent.core.spec import NodeDefaults

KINDS: tuple[type[Object], ...] = (
    Namespace,
    Service,
    Pod,
    objects.EndpointSlice,
    objects.Endpoints,
    objects.Server,
    objects.ServiceProfile,
    objects.ExternalWorkload,
    objects.Node,
    objects.ReplicaSet,
    objects.Job,
)
CONFIG = Discovery(
    cluster_domain="cluster.test",
    trust_domain="mesh.test",
    control_plane_namespace="l5d",
    transport="transparent",
    http2=None,
    ipv6=True,
    defaults=NodeDefaults(),
)
LABEL = "linkerd.io/control-plane-ns"
OPAQUE = "config.linkerd.io/opaque-ports"
SKIP = "config.linkerd.io/skip-inbound-ports"
ENV = {"INBOUND": "0.0.0.0:4143", "ADMIN": "0.0.0.0:4191", "CONTROL": "0.0.0.0:4190"}

T = TypeVar("T")


class World:
    """A catalog with its configuration. Everything is listed, and empty, at the start."""

    def __init__(self, *items: Object, on_demand: bool = False, **config: Any) -> None:
        self.catalog = Catalog(on_demand=on_demand)
        self.config = msgspec.structs.replace(CONFIG, **config)
        for kind in KINDS:
            self.catalog.apply(Replace(kind, ()))
        self.put(*items)

    def put(self, *items: Object) -> frozenset[Subject]:
        return frozenset(subject for item in items for subject in self.catalog.apply(Put(item)))

    def drop(self, *items: Object) -> frozenset[Subject]:
        return frozenset(subject for item in items for subject in self.catalog.apply(Drop(item)))

    def ask(self, path: str, node: str = "") -> Endpoints | Ended | Twofold:
        target = parse_authority(_long(path), self.config.cluster_domain)
        return get(self.catalog, self.config, target, Client(node=node))[0]

    def get(self, path: str, node: str = "") -> Endpoints:
        answer = self.ask(path, node)
        assert isinstance(answer, Endpoints), answer
        return answer

    def view(self, path: str, node: str = "") -> list[str]:
        return [at(address) for address in self.get(path, node).addresses]

    def one(self, path: str, node: str = "") -> Address:
        (address,) = self.get(path, node).addresses
        return address

    def ask_profile(self, path: str, namespace: str = "") -> Profile | Ended | Twofold:
        target = parse_authority(_long(path), self.config.cluster_domain)
        return profile(self.catalog, self.config, target, Client(namespace=namespace))[0]

    def profile(self, path: str, namespace: str = "") -> Profile:
        answer = self.ask_profile(path, namespace)
        assert isinstance(answer, Profile), answer
        return answer

    def endpoint(self, path: str) -> Address:
        endpoint = self.profile(path).endpoint
        assert endpoint is not None
        return endpoint

    def opaque(self, path: str) -> bool:
        return self.profile(path).opaque


def _long(path: str) -> str:
    """`web.shop:80` for the whole name."""
    host, colon, port = path.rpartition(":")
    short = colon and "." in host and "[" not in host and canonical_ip(host) is None
    return f"{host}.svc.cluster.test:{port}" if short else path


def at(address: Address) -> str:
    ip = f"[{address.ip}]" if ":" in address.ip else address.ip
    return f"{ip}:{address.port}"


def make(kind: type[T], name: str, namespace: str = "shop", **fields: Any) -> T:
    """An object as the API would send it; `labels`, `annotations` and others go to its metadata."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    for key in ("uid", "labels", "annotations", "ownerReferences", "creationTimestamp", "deletionTimestamp"):
        if key in fields:
            metadata[key] = fields.pop(key)
    return msgspec.convert({"metadata": metadata, **fields}, kind)


def service(name: str, *ports: str, ip: str | list[str] = "", **fields: Any) -> Service:
    """`ports`: `NAME PORT[/PROTOCOL][->TARGET]`, where `-` is no name."""
    spec: dict[str, Any] = {"ports": [_service_port(port) for port in ports]}
    spec["clusterIPs"] = [ip] if isinstance(ip, str) and ip else ip or ["None"]
    for key in ("type", "internalTrafficPolicy"):
        if key in fields:
            spec[key] = fields.pop(key)
    return make(Service, name, spec=spec, **fields)


def _service_port(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(" ")
    number, _, target = rest.partition("->")
    number, _, protocol = number.partition("/")
    port: dict[str, Any] = {"port": int(number), "protocol": protocol or "TCP"}
    if name != "-":
        port["name"] = name
    if target:
        port["targetPort"] = int(target) if target.isdecimal() else target
    return port


def endpoint_slice(
    name: str, of: str | None, ports: list[str] | None, *endpoints: str, **fields: Any
) -> objects.EndpointSlice:
    """`ports`: `NAME PORT`. `endpoints`: `IP [pod=] [ew=] [host=] [zone=] [hint=a+b] [node=] [ready=]...`."""
    labels = fields.pop("labels", {})
    if of is not None:
        labels = {"kubernetes.io/service-name": of, **labels}
    return make(
        objects.EndpointSlice,
        name,
        labels=labels,
        addressType=fields.pop("family", "IPv4"),
        ports=None if ports is None else [_slice_port(port) for port in ports],
        endpoints=[_endpoint(text) for text in endpoints],
        **fields,
    )


def _slice_port(text: str) -> dict[str, Any]:
    name, _, number = text.partition(" ")
    return {"name": "" if name == "-" else name, "port": None if number == "-" else int(number)}


def _endpoint(text: str) -> dict[str, Any]:
    ip, *rest = text.split()
    said = dict(part.split("=") for part in rest)
    words = {"true": True, "false": False, "-": None}
    conditions = {key: words[said[key]] for key in ("ready", "serving", "terminating") if key in said}
    endpoint: dict[str, Any] = {"addresses": [ip], "conditions": conditions or {"ready": True}}
    for key, kind in (("pod", "Pod"), ("ew", "ExternalWorkload")):
        if key in said:
            endpoint["targetRef"] = {"kind": kind, "name": said[key], "uid": said.get("uid")}
    endpoint["hostname"] = said.get("host")
    endpoint["zone"] = said.get("zone")
    zones = [{"name": zone} for zone in said.get("hint", "").split("+") if zone]
    nodes = [{"name": node} for node in said.get("node", "").split("+") if node]
    endpoint["hints"] = {"forZones": zones or None, "forNodes": nodes or None}
    return endpoint


def pod(name: str, *ips: str, mesh: bool | str = True, **fields: Any) -> Pod:
    """A running pod of the control plane `l5d`, of another one, or of none.

    `ports`, `init_ports`: `NAME PORT[:HOSTPORT]`. `env`: the proxy's, by short names. `proxy`: `init`, `ctr`
    or `none`. `state`: that of the proxy's container.
    """
    labels = dict(fields.pop("labels", {}))
    if mesh:
        labels[LABEL] = "l5d" if mesh is True else mesh
    env = fields.pop("env", ENV)
    where = fields.pop("proxy", "init" if mesh else "none")
    proxy = {
        "name": "linkerd-proxy",
        "env": [{"name": f"LINKERD2_PROXY_{key}_LISTEN_ADDR", "value": env[key]} for key in env],
    }
    app = {"name": "app", "ports": [_container_port(port) for port in fields.pop("ports", ())]}
    side = {"name": "side", "ports": [_container_port(port) for port in fields.pop("init_ports", ())]}
    spec = {
        "nodeName": fields.pop("node", "n1"),
        "hostNetwork": fields.pop("host_network", None),
        "serviceAccountName": fields.pop("account", None),
        "containers": [app, *([proxy] if where == "ctr" else [])],
        "initContainers": [side, *([proxy] if where == "init" else [])],
    }
    status: dict[str, Any] = {
        "phase": fields.pop("phase", "Running"),
        "podIP": ips[0] if ips else None,
        "podIPs": [{"ip": ip} for ip in ips],
        "hostIPs": [{"ip": ip} for ip in fields.pop("host_ips", ())],
        "conditions": [{"type": "Ready", "status": "True" if fields.pop("ready", True) else "False"}],
    }
    if "redirected" in fields:
        condition, _, reason = fields.pop("redirected").partition(" ")
        status["conditions"].append(
            {"type": "pointsman.io/Redirected", "status": condition, "reason": reason}
        )
    if state := fields.pop("state", None):
        status["initContainerStatuses"] = [{"name": "linkerd-proxy", "state": {state: {}}}]
    owner = fields.pop("owner", None)
    if owner is not None:
        fields["ownerReferences"] = [{"kind": kind, "name": each} for kind, each in _owners(owner)]
    uid = fields.pop("uid", f"uid-{fields.get('namespace', 'shop')}-{name}")
    return make(Pod, name, uid=uid, labels=labels, spec=spec, status=status, **fields)


def _owners(text: str) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name in (each.split() for each in text.split(","))]


def _container_port(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(" ")
    number, _, host = rest.partition(":")
    host, _, protocol = host.partition("/")
    return {
        "name": name if name != "-" else None,
        "containerPort": int(number),
        "hostPort": int(host) if host else None,
        "protocol": protocol or None,
    }


def server(name: str, selector: Any, port: int | str, protocol: str = "opaque", **fields: Any) -> Any:
    """`selector`: matchLabels, or a whole podSelector; None is none at all."""
    spec: dict[str, Any] = {"port": port, "proxyProtocol": protocol}
    if selector is not None:
        whole = "matchLabels" in selector or "matchExpressions" in selector
        spec["podSelector"] = selector if whole else {"matchLabels": selector}
    if "workloads" in fields:
        spec["externalWorkloadSelector"] = {"matchLabels": fields.pop("workloads")}
    return make(objects.Server, name, spec=spec, **fields)


def service_profile(name: str, namespace: str = "shop", **spec: Any) -> objects.ServiceProfile:
    """`name`: `SERVICE.NAMESPACE`. `routes`: names of routes, or whole routes."""
    routes = [
        {"name": route, "condition": {"pathRegex": "/"}} if isinstance(route, str) else route
        for route in spec.pop("routes", ())
    ]
    long = f"{name}.svc.cluster.test"
    return make(objects.ServiceProfile, long, namespace, spec={"routes": routes, **spec})


def workload(name: str, *ips: str, ports: list[str], **fields: Any) -> objects.ExternalWorkload:
    """`ports`: `NAME PORT`. `identity`, `server_name`: of its TLS."""
    identity = fields.pop("identity", f"spiffe://mesh.test/{name}")
    owner = fields.pop("owner", None)
    if owner is not None:
        fields["ownerReferences"] = [{"kind": kind, "name": each} for kind, each in _owners(owner)]
    spec = {
        "meshTLS": {"identity": identity, "serverName": fields.pop("server_name", name)},
        "workloadIPs": [{"ip": ip} for ip in ips],
        "ports": [_slice_port(port) for port in ports],
    }
    return make(objects.ExternalWorkload, name, spec=spec, **fields)


def namespace(name: str = "shop", **annotations: str) -> Namespace:
    """`opaque`, `skip` and `redirect` for the annotations of these names."""
    names = {"opaque": OPAQUE, "skip": SKIP, "redirect": "pointsman.io/redirect"}
    return make(Namespace, name, annotations={names[key]: value for key, value in annotations.items()})


def node(name: str, zone: str | None = None) -> objects.Node:
    return make(objects.Node, name, labels={"topology.kubernetes.io/zone": zone} if zone else {})


def owned(kind: type[T], name: str, owner: str = "", **fields: Any) -> T:
    """A ReplicaSet or Job. `owner`: `Kind name`."""
    references = [{"kind": each, "name": who} for each, who in _owners(owner)] if owner else []
    return make(kind, name, ownerReferences=references, **fields)
