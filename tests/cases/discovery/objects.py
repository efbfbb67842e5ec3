"""Objects of the notation as Kubernetes manifests: plain dicts, shaped as the API server sends them."""

import ipaddress
import re
from typing import Any

from tests.cases.discovery import pods
from tests.cases.discovery.schema import (
    ConfigText,
    EndpointsText,
    JobText,
    NamespaceText,
    NodeText,
    PodText,
    ProfileText,
    ReplicaSetText,
    ServerText,
    ServiceText,
    SliceText,
    Text,
    WorkloadText,
)

Manifest = dict[str, Any]

NAMESPACE = "shop"
"""Where an object lives that says no `ns`."""
ZONE = "topology.kubernetes.io/zone"
SERVICE_NAME = "kubernetes.io/service-name"
_SERVICE_PORT = re.compile(r"(?P<name>\S+) (?P<port>\d+)(?:/(?P<protocol>\w+))?(?:->(?P<target>\S+))?")
_MANY = re.compile(r"(?P<count>\d+) endpoints")
_PORT = re.compile(r"(?P<name>\S+) (?P<port>\d+|-)(?:/(?P<protocol>\w+))?")


def manifest(text: Text, config: ConfigText) -> Manifest:
    """The manifest, without what only a server adds (uid, resourceVersion). Raises ValueError."""
    match text:
        case ServiceText():
            return _service(text)
        case SliceText():
            return _slice(text)
        case EndpointsText():
            return _endpoints(text)
        case PodText():
            return pods.pod(text, metadata(text.pod, text))
        case ServerText():
            return _server(text)
        case ProfileText():
            return _profile(text, config)
        case WorkloadText():
            return _workload(text)
        case NodeText():
            found = _object("Node", text.node, text, spec={}, status={})
            found["metadata"]["labels"] = {**(text.labels or {}), **({ZONE: text.zone} if text.zone else {})}
            return _cluster_wide(found)
        case ReplicaSetText():
            return _object("ReplicaSet", text.rs, text, spec={})
        case JobText():
            return _object("Job", text.job, text, spec={})
        case NamespaceText():
            return _cluster_wide(_object("Namespace", text.nsobj, text))


def metadata(name: str, text: Text) -> Manifest:
    """`metadata` of any object."""
    found: Manifest = {"name": name, "namespace": text.ns or NAMESPACE}
    if text.labels is not None:
        found["labels"] = dict(text.labels)
    if text.ann is not None:
        found["annotations"] = dict(text.ann)
    owners = [text.owner] if isinstance(text.owner, str) else text.owner or []
    if owners:
        found["ownerReferences"] = [owner(each) for each in owners]
    return found


def owner(written: str) -> Manifest:
    """An owner reference of `Kind name`."""
    kind, _, name = written.partition(" ")
    if not name:
        raise ValueError(f"owner {written!r} is no 'Kind name'")
    return {"kind": kind, "name": name, "uid": f"{kind}-{name}".lower(), "controller": True}


def endpoint(written: str, namespace: str = NAMESPACE) -> Manifest:
    """One endpoint of a slice in `namespace`: `IP pod=P host=H zone=Z hint=Z1+Z2 ready=true|false|-`."""
    ip, *words = written.split()
    found: Manifest = {"addresses": [ip], "conditions": {"ready": True}}
    for word in words:
        key, _, value = word.partition("=")
        match key:
            case "pod" | "ew":
                kind = "Pod" if key == "pod" else "ExternalWorkload"
                found["targetRef"] = {"kind": kind, "name": value, "namespace": namespace}
            case "host":
                found["hostname"] = value
            case "zone":
                found["zone"] = value
            case "hint":
                found["hints"] = {"forZones": [{"name": zone} for zone in value.split("+")]}
            case "ready" if value == "-":
                del found["conditions"]["ready"]
            case "ready" | "serving" | "terminating" if value in ("true", "false"):
                found["conditions"][key] = value == "true"
            case _:
                raise ValueError(f"endpoint {written!r}: cannot read {word!r}")
    return found


def slice_port(written: str) -> Manifest:
    """A port of a slice; `-` is a name or a number that is not there."""
    match = _PORT.fullmatch(written)
    if not match:
        raise ValueError(f"port {written!r} is no 'NAME NUMBER'")
    found: Manifest = {"name": _named(match["name"]), "protocol": match["protocol"] or "TCP"}
    if match["port"] != "-":
        found["port"] = int(match["port"])
    return found


def service_port(written: str) -> Manifest:
    match = _SERVICE_PORT.fullmatch(written)
    if not match:
        raise ValueError(f"port {written!r} is no 'NAME PORT[/PROTOCOL][->TARGET]'")
    target = match["target"]
    found: Manifest = {"port": int(match["port"]), "protocol": match["protocol"] or "TCP"}
    if target:
        found["targetPort"] = int(target) if target.isdecimal() else target
    if _named(match["name"]):
        found["name"] = match["name"]
    return found


def route(written: str | Manifest) -> Manifest:
    """A route of a ServiceProfile: as it is, or one with this name and some condition."""
    return (
        {"name": written, "condition": {"pathRegex": f"/{written}"}} if isinstance(written, str) else written
    )


def _named(name: str) -> str:
    return "" if name == "-" else name


def _object(kind: str, name: str, text: Text, **fields: Any) -> Manifest:
    return {"kind": kind, "metadata": metadata(name, text), **fields}


def _cluster_wide(found: Manifest) -> Manifest:
    del found["metadata"]["namespace"]
    return found


def _service(text: ServiceText) -> Manifest:
    ips = [text.ip] if isinstance(text.ip, str) else text.ip or []
    spec: Manifest = {
        "type": text.type or "ClusterIP",
        "ports": [service_port(each) for each in text.ports or []],
    }
    if ips:
        spec |= {"clusterIP": ips[0], "clusterIPs": ips}
    if text.type == "ExternalName":
        spec["externalName"] = "db.example.org"
    if text.itp:
        spec["internalTrafficPolicy"] = text.itp
    if text.pnra:
        spec["publishNotReadyAddresses"] = True
    return _object("Service", text.svc, text, spec=spec, status={})


def _slice(text: SliceText) -> Manifest:
    found = _object("EndpointSlice", text.slice, text)
    if text.of:
        found["metadata"].setdefault("labels", {})[SERVICE_NAME] = text.of
    many = _MANY.fullmatch(text.eps[0]) if len(text.eps) == 1 else None
    eps = plain_addresses(int(many["count"])) if many else text.eps
    first = eps[0].split()[0] if eps else ""
    found["addressType"] = text.fam or ("IPv6" if ":" in first else "IPv4")
    found["endpoints"] = [endpoint(each, text.ns or NAMESPACE) for each in eps]
    # An API server stores an empty list as null.
    found["ports"] = [slice_port(each) for each in text.ports] if text.ports else None
    return found


def _endpoints(text: EndpointsText) -> Manifest:
    subsets = []
    for written in text.subsets:
        subset: Manifest = {}
        for word in written.split():
            key, _, value = word.partition("=")
            if key == "ports":
                name, _, number = value.partition(":")
                subset["ports"] = [{"name": _named(name), "port": int(number), "protocol": "TCP"}]
            elif key in ("ready", "notready"):
                field = "addresses" if key == "ready" else "notReadyAddresses"
                subset[field] = [{"ip": ip} for ip in value.split(",")]
            else:
                raise ValueError(f"subset {written!r}: cannot read {word!r}")
        subsets.append(subset)
    return _object("Endpoints", text.endpoints, text, subsets=subsets)


def _server(text: ServerText) -> Manifest:
    spec: Manifest = {"port": text.port, "proxyProtocol": text.proto}
    for field, selector in (("podSelector", text.sel), ("externalWorkloadSelector", text.ewsel)):
        if selector is not None:
            spec[field] = selector_of(selector)
    return _object("Server", text.server, text, spec=spec)


def selector_of(written: Manifest) -> Manifest:
    """`{app: p}` are labels that must match; a selector in Kubernetes' own words stays as it is."""
    if not written or {"matchLabels", "matchExpressions"} & set(written):
        return written
    return {"matchLabels": written}


def _profile(text: ProfileText, config: ConfigText) -> Manifest:
    """`svc.ns` is short for the full name; it lives in the Service's namespace unless it says `ns`."""
    service, _, namespace = text.sp.partition(".")
    spec: Manifest = {"routes": [route(each) for each in text.routes]}
    for field, value in (
        ("retryBudget", text.retry_budget),
        ("opaquePorts", text.opaque_ports),
        ("dstOverrides", text.overrides),
    ):
        if value is not None:
            spec[field] = value
    name = f"{service}.{namespace}.svc.{config.cluster_domain}"
    found = _object("ServiceProfile", name, text, spec=spec)
    found["metadata"]["namespace"] = text.ns or namespace
    return found


def _workload(text: WorkloadText) -> Manifest:
    ports = [slice_port(each) for each in text.ports]
    spec: Manifest = {"workloadIPs": [{"ip": ip} for ip in text.ips], "ports": ports}
    if text.id is not None:
        spec["meshTLS"] = {"identity": text.id, "serverName": text.sni or ""}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return _object("ExternalWorkload", text.ew, text, spec=spec, status=status)


def plain_addresses(count: int) -> list[str]:
    """That many addresses that no case names."""
    return [f"10.200.{number >> 8}.{number & 255}" for number in range(count)]


def canonical(ip: str) -> str:
    """An address in the form in which views show it."""
    return str(ipaddress.ip_address(ip.strip("[]")))


def at(ip: str, port: int | str) -> str:
    """`ip:port`, IPv6 in brackets."""
    return f"[{canonical(ip)}]:{port}" if ":" in ip else f"{ip}:{port}"
