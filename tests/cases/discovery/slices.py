"""What the sentences of steps do to slices and their endpoints. As in `acts`, Unplayable may be raised."""

from collections.abc import Callable

from tests.cases.discovery.acts import Words
from tests.cases.discovery.objects import SERVICE_NAME, Manifest, endpoint
from tests.cases.discovery.schema import ServiceText, SliceText
from tests.cases.discovery.world import Key, Unplayable, World

GATEWAY_IDENTITY = "mirror.linkerd.io/remote-gateway-identity"


def _slice_with(world: World, chosen: Callable[[Manifest], bool]) -> Key:
    found = [key for key in world.keys("EndpointSlice") if any(map(chosen, world.items[key]["endpoints"]))]
    if len(found) != 1:
        raise Unplayable(f"cannot tell which endpoint is meant: {len(found)} slices have one")
    return found[0]


def _chosen(name: str) -> Callable[[Manifest], bool]:
    """Endpoints by the end of their address (`.12`), or by their pod or hostname."""
    if name.startswith("."):
        return lambda each: any(ip.endswith(name) for ip in each["addresses"])
    return lambda each: name in (each.get("hostname"), each.get("targetRef", {}).get("name"))


def set_ready(match: Words, world: World) -> None:
    chosen = _chosen(match["name"])
    with world.changed(_slice_with(world, chosen)) as item:
        for each in filter(chosen, item["endpoints"]):
            each["conditions"]["ready"] = match["ready"] == "true"


def leave(match: Words, world: World) -> None:
    chosen = _chosen(match["name"])
    with world.changed(_slice_with(world, chosen)) as item:
        item["endpoints"] = [each for each in item["endpoints"] if not chosen(each)]


def empty_slice(match: Words, world: World) -> None:
    with world.changed(world.only("EndpointSlice")) as item:
        item["endpoints"], item["ports"] = [], None


def hints(match: Words, world: World) -> None:
    zones = [each.strip() for each in (match.groupdict().get("zones") or "").split("/") if each.strip()]
    with world.changed(world.only("EndpointSlice")) as item:
        if zones and len(zones) != len(item["endpoints"]):
            raise Unplayable(f"there are {len(item['endpoints'])} endpoints and {len(zones)} hints")
        for number, each in enumerate(item["endpoints"]):
            each.pop("hints", None)
            if zones:
                each["hints"] = {"forZones": [{"name": zones[number]}]}


def create_slice(match: Words, world: World) -> None:
    """A slice of the only Service, with its ports, and one endpoint."""
    key = world.only("Service")
    ports = [f"{each.get('name') or '-'} {_target(each)}" for each in world.items[key]["spec"]["ports"]]
    ready = "false" if match["ready"] == "not-ready" else "true"
    eps = [f"{match['ip'] or '10.1.0.99'} ready={ready}"]
    world.add(SliceText(slice=f"{key.name}-1", ns=key.namespace, of=key.name, ports=ports, eps=eps))


def _target(port: Manifest) -> int:
    target = port.get("targetPort")
    return target if isinstance(target, int) else port["port"]


def create_service(match: Words, world: World) -> None:
    name, ns, ports = match["name"], world.namespace, [f"- {match['port']}"]
    world.add(SliceText(slice=f"{name}-1", ns=ns, of=name, ports=ports, eps=[match["ip"]]))
    world.add(ServiceText(svc=name, ns=ns, ip=["10.96.0.77"], ports=ports))


def gateway_identity(match: Words, world: World) -> None:
    with world.changed(world.only("EndpointSlice")) as item:
        annotations = item["metadata"]["annotations"]
        new = "" if match["how"] == "empty" else "new." + annotations[GATEWAY_IDENTITY]
        annotations[GATEWAY_IDENTITY] = world.noted["identity"] = new


def move_slice(match: Words, world: World) -> None:
    with world.changed(world.only("EndpointSlice")) as item:
        item["metadata"]["labels"][SERVICE_NAME] = match["service"]


def add_endpoint(match: Words, world: World) -> None:
    with world.changed(world.only("EndpointSlice")) as item:
        item["endpoints"].append(endpoint(match["endpoint"], item["metadata"]["namespace"]))
