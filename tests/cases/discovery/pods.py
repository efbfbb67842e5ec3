"""Pods of the notation as manifests: proxy, container states and addresses as kubelet writes them."""

import re
from typing import Any

from agent.core import names
from tests.cases.discovery.schema import PodText

Manifest = dict[str, Any]

CONTROL_PLANE = "l5d"
CONTROL_PLANE_LABEL = "linkerd.io/control-plane-ns"
_PORT = re.compile(r"(?P<name>\S+) (?P<port>\d+)(?::(?P<host>\d+))?")
_LISTEN = {
    names.ENV_INBOUND: "0.0.0.0:4143",
    names.ENV_ADMIN: "0.0.0.0:4191",
    names.ENV_CONTROL: "0.0.0.0:4190",
}
_SHORT = {"INBOUND": names.ENV_INBOUND, "ADMIN": names.ENV_ADMIN, "CONTROL": names.ENV_CONTROL}
_WITHOUT = re.compile(r"no (?P<which>INBOUND|ADMIN|CONTROL) variable")


def pod(text: PodText, metadata: Manifest) -> Manifest:
    """The manifest of a pod. Raises ValueError that names what cannot be read."""
    if text.mesh:
        label = CONTROL_PLANE if text.mesh is True else text.mesh
        metadata["labels"] = {**metadata.get("labels", {}), CONTROL_PLANE_LABEL: label}
    if text.deleting:
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    init: list[Manifest] = []
    containers: list[Manifest] = [{"name": "app", "ports": [port(each) for each in text.ports]}]
    if text.init_ports:
        init.append({"name": "setup", "ports": [port(each) for each in text.init_ports]})
    sidecar = text.sidecar if isinstance(text.sidecar, str) else text.sidecar[0]
    if text.mesh and sidecar == "init":
        init.append({**_proxy(text), "restartPolicy": "Always"})
    elif text.mesh and sidecar == "ctr":
        containers.append(_proxy(text))
    elif text.mesh and sidecar != "none":
        raise ValueError(f"pod {text.pod}: sidecar is init, ctr or none, not {sidecar!r}")
    spec: Manifest = {"nodeName": text.node, "containers": containers, "initContainers": init}
    if text.sa:
        spec["serviceAccountName"] = text.sa
    if text.hostnet:
        spec["hostNetwork"] = True
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": _status(text, init, containers)}


def port(written: str) -> Manifest:
    """A container port of `NAME NUMBER[:HOSTPORT]`; the name `-` is none."""
    match = _PORT.fullmatch(written)
    if not match:
        raise ValueError(f"port {written!r} is no 'NAME NUMBER[:HOSTPORT]'")
    found: Manifest = {"containerPort": int(match["port"]), "protocol": "TCP"}
    if match["name"] != "-":
        found["name"] = match["name"]
    if match["host"]:
        found["hostPort"] = int(match["host"])
    return found


def set_phase(manifest: Manifest, phase: str, proxy_state: str | None = None) -> None:
    """Give a pod this phase, and its containers the state that goes with it."""
    status = manifest["status"]
    status["phase"] = phase
    usual = {"Running": "running", "Succeeded": "terminated", "Failed": "terminated"}.get(phase, "waiting")
    for field in ("containerStatuses", "initContainerStatuses"):
        for each in status.get(field, ()):
            state = (proxy_state or usual) if each["name"] == names.PROXY_CONTAINER else usual
            each["state"] = _STATES[state]
            each["started"] = state == "running"


def set_ready(manifest: Manifest, ready: bool) -> None:
    manifest["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]


_STATES: dict[str, Manifest] = {
    "running": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
    "waiting": {"waiting": {"reason": "PodInitializing"}},
    "terminated": {"terminated": {"exitCode": 0, "reason": "Completed"}},
}


def _proxy(text: PodText) -> Manifest:
    env = dict(_LISTEN)
    if isinstance(text.env, str):
        match = _WITHOUT.fullmatch(text.env)
        if not match:
            raise ValueError(f"pod {text.pod}: cannot read env {text.env!r}")
        del env[_SHORT[match["which"]]]
    else:
        env |= text.env
    return {
        "name": names.PROXY_CONTAINER,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "securityContext": {"runAsUser": 2102},
    }


def _status(text: PodText, init: list[Manifest], containers: list[Manifest]) -> Manifest:
    ips = [text.ip] if isinstance(text.ip, str) else text.ip
    hosts = [text.hostip] if isinstance(text.hostip, str) else text.hostip or []
    status: Manifest = {
        "containerStatuses": [{"name": each["name"]} for each in containers],
        "initContainerStatuses": [{"name": each["name"]} for each in init],
    }
    if ips:
        status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
    if hosts:
        status |= {"hostIP": hosts[0], "hostIPs": [{"ip": ip} for ip in hosts]}
    found: Manifest = {"status": status}
    set_phase(found, text.phase, text.proxy_state)
    set_ready(found, text.ready)
    return status
