"""What of a case's objects may decide whether a port is opaque, in the words of the table."""

from collections.abc import Iterator

from tests.cases.discovery.acts import OPAQUE_PORTS
from tests.cases.discovery.objects import SERVICE_NAME, Manifest
from tests.cases.discovery.pods import CONTROL_PLANE_LABEL
from tests.cases.discovery.world import World


def at_address(items: Iterator[Manifest], ip: str) -> Manifest | None:
    """The Service, pod or ExternalWorkload that is at an IP, None for nobody."""
    return next((item for item in items if ip in _addresses(item)), None)


def kind_of(found: Manifest | None) -> str:
    """What is asked for, as people call it."""
    if found is None:
        return "unknown address"
    if found["kind"] != "Pod":
        return str(found["kind"])
    return "Pod" if CONTROL_PLANE_LABEL in found["metadata"].get("labels", {}) else "unmeshed Pod"


def has(world: World, found: Manifest | None, port: int) -> str:
    """The object's and its namespace's annotation, Servers and the like; ports whose name these may mean."""
    if found is None:
        return ""
    if found["kind"] == "ExternalWorkload" and port not in [each["port"] for each in found["spec"]["ports"]]:
        return "the port is not declared"
    namespace = found["metadata"]["namespace"]
    own = _annotation(found)
    inherited = [
        _annotation(item) for key, item in world.items.items() if key[::2] == ("Namespace", namespace)
    ]
    servers = [world.items[key] for key in world.keys("Server")]
    said = {each.strip() for each in (own or "").split(",")} | {each["spec"]["port"] for each in servers}
    words = [f"`{name}` is {meant}" for name, meant in _named(found) if name in said]
    words += [f'own annotation `"{own}"`'] if own is not None else []
    words += [f'its Namespace\'s annotation `"{text}"`' for text in inherited if text is not None]
    words += [f'Pods with annotation `"{text}"`' for text in _behind(world, found)]
    words += [_server(each, found) for each in servers]
    profiles = [world.items[key]["spec"] for key in world.keys("ServiceProfile")]
    words += ["ServiceProfile with `opaquePorts`" for spec in profiles if "opaquePorts" in spec]
    words += _targets(found)
    return "; ".join(words)


def _addresses(item: Manifest) -> list[str]:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    match item["kind"]:
        case "Service":
            return list(spec.get("clusterIPs", ()))
        case "Pod":
            mapped = any("hostPort" in port for each in spec["containers"] for port in each.get("ports", ()))
            many = (*status.get("podIPs", ()), *(status.get("hostIPs", ()) if mapped else ()))
            return [each["ip"] for each in many]
        case "ExternalWorkload":
            return [each["ip"] for each in spec["workloadIPs"]]
        case _:
            return []


def _annotation(item: Manifest) -> str | None:
    text: str | None = (item["metadata"].get("annotations") or {}).get(OPAQUE_PORTS)
    return text


def _named(found: Manifest) -> Iterator[tuple[str, str]]:
    spec = found["spec"]
    if found["kind"] != "Pod":
        yield from ((port["name"], f"port {port['port']}") for port in spec["ports"] if port.get("name"))
        return
    for port in (
        port for each in (*spec["initContainers"], *spec["containers"]) for port in each.get("ports", ())
    ):
        mapped = f", host port {port['hostPort']}" if "hostPort" in port else ""
        if "name" in port:
            yield port["name"], f"port {port['containerPort']}{mapped}"


def _behind(world: World, found: Manifest) -> list[str]:
    """Annotations of the pods behind a Service: they are not its own."""
    slices = (world.items[key] for key in world.keys("EndpointSlice"))
    behind = {
        endpoint["targetRef"]["name"]
        for each in slices
        if each["metadata"]["labels"][SERVICE_NAME] == found["metadata"]["name"]
        for endpoint in each["endpoints"]
    }
    if found["kind"] != "Service":
        return []
    annotations = (_annotation(world.items[key]) for key in world.keys("Pod") if key.name in behind)
    return [text for text in annotations if text is not None]


def _targets(found: Manifest) -> list[str]:
    if found["kind"] != "Service":
        return []
    return [f"target port {port['targetPort']}" for port in found["spec"]["ports"] if "targetPort" in port]


def _server(server: Manifest, found: Manifest) -> str:
    """A Server, whether it selects the object, and for what."""
    spec, metadata = server["spec"], found["metadata"]
    if server["metadata"]["namespace"] != metadata["namespace"]:
        return "Server in another namespace"
    field = "podSelector" if found["kind"] in ("Pod", "Service") else "externalWorkloadSelector"
    wanted = (spec.get(field) or {}).get("matchLabels", {})
    labels = metadata.get("labels") or {}
    if found["kind"] != "Service" and not wanted.items() <= labels.items():
        return "Server that selects others"
    return f"Server for port `{spec['port']}`, {spec['proxyProtocol']}"
