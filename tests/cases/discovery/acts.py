"""What the sentences of steps do to the objects of a case. Each takes the words that its sentence has named.

Raises Unplayable when the words do not say which object is meant.
"""

import re
from typing import Any

import yaml

from tests.cases.discovery import pods
from tests.cases.discovery.objects import Manifest, route, service_port
from tests.cases.discovery.schema import PodText, ProfileText, ServerText
from tests.cases.discovery.world import Key, Unplayable, World

OPAQUE_PORTS = "config.linkerd.io/opaque-ports"
KINDS = {
    "service": "Service",
    "slice": "EndpointSlice",
    "pod": "Pod",
    "server": "Server",
    "sp": "ServiceProfile",
    "workload": "ExternalWorkload",
}
"""Kinds of objects by the words of the steps."""

Words = re.Match[str]


def _key(world: World, kind: str, name: str | None = None) -> Key:
    """The object meant by a kind in words and a name, either of which may be missing."""
    if kind in ("client profile", "server profile", "client sp", "server sp"):
        own = kind.startswith("server")
        found = [
            key for key in world.keys("ServiceProfile") if (key.name.split(".")[1] == key.namespace) is own
        ]
        if len(found) != 1:
            raise Unplayable(f"cannot tell which {kind} is meant")
        return found[0]
    if kind == "object":
        kind = "pod"
    return world.only(KINDS[kind.lower()], name or "") if kind else world.named(name or "")


def delete(match: Words, world: World) -> None:
    words = match.groupdict()
    world.drop(_key(world, words.get("kind") or "", words.get("name")))


def create_again(match: Words, world: World) -> None:
    ip = match.groupdict().get("ip")

    def moved(item: Manifest) -> None:
        for each in item.get("endpoints") or ():
            each["addresses"] = [ip]
            each.pop("targetRef", None)

    name = match["name"]
    keys = [key for key in world.gone if name in ("both", "all", key.name)]
    keys = list(world.gone)[-1:] if name == "it" else keys
    if not keys:
        raise Unplayable(f"{name} was not deleted before")
    for key in keys:
        world.recreate(key, moved if ip else None)


def create_server(match: Words, world: World) -> None:
    words = match["words"]
    selector = re.search(r"(?:sel|matchLabels) (\{[^}]*\})", words)
    port = re.search(r"\bport (\S+)", words)
    protocol = re.search(r"\bproto (\S+)", words)
    namespace = re.search(r"in namespace (\S+)", words)
    text = ServerText(
        server=match["name"] or "server",
        ns=namespace[1] if namespace else world.namespace,
        sel=yaml.safe_load(selector[1]) if selector else None,
        port=_port(port[1]) if port else 80,
        proto=protocol[1] if protocol else "opaque",
    )
    world.add(text)


def _port(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def server_change(match: Words, world: World) -> None:
    """`selector -> {..}`, `selector back`, `proto -> X`, `proto X again`."""
    key = world.only("Server")
    words = match.groupdict()
    with world.changed(key) as item:
        if words.get("protocol"):
            item["spec"]["proxyProtocol"] = words["protocol"]
        elif words.get("labels"):
            world.noted["selector"] = yaml.safe_dump(item["spec"]["podSelector"])
            item["spec"]["podSelector"] = {"matchLabels": yaml.safe_load(words["labels"])}
        else:
            item["spec"]["podSelector"] = yaml.safe_load(world.noted["selector"])


def _annotated(world: World) -> Key:
    """Whose annotation it is: the only pod's, else the only Service's."""
    return world.only("Pod") if world.keys("Pod") else world.only("Service")


def annotate(match: Words, world: World) -> None:
    value = match.groupdict().get("value")
    with world.changed(_annotated(world)) as item:
        annotations = item["metadata"].setdefault("annotations", {})
        if value is None:
            annotations.pop(OPAQUE_PORTS, None)
        else:
            annotations[OPAQUE_PORTS] = value


def recreate_service(match: Words, world: World) -> None:
    def annotated(item: Manifest) -> None:
        item["metadata"].setdefault("annotations", {})[OPAQUE_PORTS] = match["value"]

    gone = [key for key in world.gone if key.kind == "Service"]
    if len(gone) != 1:
        raise Unplayable("no Service, or more than one, was deleted before")
    world.recreate(gone[0], annotated)


def workload_identity(match: Words, world: World) -> None:
    with world.changed(world.only("ExternalWorkload")) as item:
        item["spec"]["meshTLS"]["identity"] += "/new"
        world.noted["identity"] = item["spec"]["meshTLS"]["identity"]


def touch(match: Words, world: World) -> None:
    world.touch(_key(world, match["kind"]))


def heartbeat(match: Words, world: World) -> None:
    """Status writes that change nothing a proxy could see."""
    key = world.only("Pod")
    for number in range(int(match.groupdict().get("times") or 1)):
        with world.changed(key) as item:
            item["status"]["conditions"][0]["lastProbeTime"] = f"2026-01-01T01:00:{number % 60:02}Z"


def redeliver(match: Words, world: World) -> None:
    world.resync()
    world.relist()


def policy(match: Words, world: World) -> None:
    with world.changed(world.only("Service")) as item:
        item["spec"]["internalTrafficPolicy"] = match["policy"]


def add_port(match: Words, world: World) -> None:
    with world.changed(world.only("Service")) as item:
        item["spec"]["ports"].append({**service_port(f"- {match['port']}"), "name": f"p{match['port']}"})


def profile_change(match: Words, world: World) -> None:
    """A change that shows: every route becomes retryable."""
    with world.changed(_key(world, match["kind"])) as item:
        for each in item["spec"]["routes"]:
            each["isRetryable"] = True


def profile_create(match: Words, world: World) -> None:
    own = match["kind"] == "server"
    gone = [
        key
        for key in world.gone
        if key.kind == "ServiceProfile" and (key.name.split(".")[1] == key.namespace) is own
    ]
    if gone:
        world.recreate(gone[-1])
        return
    service = world.only("Service")
    namespace = service.namespace if own else world.noted["client namespace"]
    text = ProfileText(
        sp=f"{service.name}.{service.namespace}", ns=namespace, routes=[f"{match['kind']}-route"]
    )
    world.add(text)


def profile_in(match: Words, world: World) -> None:
    world.add(ProfileText(sp=match["name"], ns=match["ns"], opaque_ports=yaml.safe_load(match["ports"])))


def profile_route(match: Words, world: World) -> None:
    with world.changed(world.named(match["name"])) as item:
        item["spec"]["routes"] = [route(match["route"])]


def label_profile(match: Words, world: World) -> None:
    for key in world.keys("ServiceProfile"):
        with world.changed(key) as item:
            item["metadata"].setdefault("labels", {})["touched"] = "yes"


def pod_ready(match: Words, world: World) -> None:
    with world.changed(world.only("Pod", (match["name"] or "").strip())) as item:
        pods.set_ready(item, match["not"] is None)


def pod_running(match: Words, world: World) -> None:
    with world.changed(world.only("Pod", match["name"] or "")) as item:
        pods.set_phase(item, "Running")


def pod_deleting(match: Words, world: World) -> None:
    with world.changed(world.only("Pod")) as item:
        item["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"


def second_pod(match: Words, world: World) -> None:
    """A new pod, otherwise like the one that lives on that address."""
    for key in world.keys("Pod"):
        item = world.items[key]
        if item["status"]["phase"] == "Running":
            ips = [each["ip"] for each in item["status"]["podIPs"]]
            world.add(PodText(pod=match["name"], ns=key.namespace, ip=ips, mesh=True))
            return
    raise Unplayable("there is no live pod yet")


def host_port_pod(match: Words, world: World) -> None:
    labels: dict[str, Any] = yaml.safe_load("{" + match["label"] + "}")
    hosts = [each.strip() for each in match["ips"].split(",")]
    world.add(
        PodText(
            pod=match["name"],
            ns=world.namespace,
            labels=labels,
            ip="10.1.0.18",
            hostip=hosts,
            ports=[match["port"]],
        )
    )


def repair(match: Words, world: World) -> None:
    world.redirect(world.only("Pod", match["name"]), "redirected")


def cut(match: Words, world: World) -> None:
    world.cut = True


def resume(match: Words, world: World) -> None:
    world.cut = False
    world.relist()
