"""Small builders of cluster objects for tests."""

from typing import Any

import msgspec

from agent.core.objects import Namespace, Pod, Service


def pod(name: str = "web", *, uid: str = "uid-1", meshed: bool = True, **fields: Any) -> Pod:
    """A pod, meshed unless told otherwise. `fields`: annotations, labels, and parts of spec and status."""
    metadata = {"name": name, "uid": uid, "namespace": fields.pop("namespace", "default")}
    for key in ("annotations", "labels"):
        metadata[key] = fields.pop(key, None)
    status = {key: fields.pop(key) for key in ("phase", "podIP", "initContainerStatuses") if key in fields}
    containers = [{"name": "app"}, *([{"name": "linkerd-proxy"}] if meshed else [])]
    spec = {"containers": containers, **fields}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def namespace(name: str = "default", **annotations: str) -> Namespace:
    return msgspec.convert({"metadata": {"name": name, "annotations": annotations}}, Namespace)


def api_service(*ports: tuple[int, int | str]) -> Service:
    entries = [{"port": port, "targetPort": target} for port, target in ports]
    metadata = {"name": "kubernetes", "namespace": "default"}
    return msgspec.convert({"metadata": metadata, "spec": {"ports": entries}}, Service)
