"""A small cluster as manifests, and what a client in one of its pods asks for."""

import json
from typing import Any

import yaml

from tests.lab.agent import pod_manifest

JSON = dict[str, Any]

ANSWERING = ("--identity-trust-domain", "mesh.test", "--node-name", "n1")
IDENTITY = "default.shop.serviceaccount.identity.linkerd.mesh.test"
ASKS_US = "127.0.0.1:4186"
SERVICE_IP = "10.96.0.10"
WEB = "Get=web.shop.svc.cluster.local:80"


def meshed(
    name: str,
    netns: str | None = None,
    ip: str = "10.1.0.1",
    *,
    asks: str | None = ASKS_US,
    node: str = "n1",
    ready: bool = True,
    ports: tuple[int, ...] = (),
    annotations: JSON | None = None,
    **more: Any,
) -> JSON:
    """A pod of the mesh in namespace shop. `asks`: where its proxy asks; `ports`: what its application
    declares."""
    made = pod_manifest(name, netns, namespace="shop", annotations=annotations, uid=f"uid-{name}", **more)
    made["metadata"] |= {"labels": {"linkerd.io/control-plane-ns": "linkerd", "app": "web"}}
    app, proxy = made["spec"]["containers"]
    app["ports"] = [{"containerPort": port} for port in ports]
    variables = {"LINKERD2_PROXY_INBOUND_LISTEN_ADDR": "0.0.0.0:4143"}
    variables |= {} if asks is None else {"LINKERD2_PROXY_DESTINATION_SVC_ADDR": asks}
    proxy["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    made["spec"] |= {"nodeName": node, "serviceAccountName": "default"}
    conditions = [{"type": "Ready", "status": str(ready)}]
    made["status"] = {"phase": "Running", "podIPs": [{"ip": ip}], "podIP": ip, "conditions": conditions}
    return made


def service(name: str = "web", ip: str = SERVICE_IP, **spec: Any) -> JSON:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return named("Service", name, spec={"clusterIP": ip, "clusterIPs": [ip], "ports": ports, **spec})


def endpoint_slice(
    *pods: JSON, service: str = "web", name: str = "web-1", ports: dict[str, int] | None = None
) -> JSON:
    """The slice of a Service with these pods, ready or not as their conditions say."""
    made = named(
        "EndpointSlice",
        name,
        addressType="IPv4",
        ports=[{"name": name, "port": port} for name, port in (ports or {"http": 8080}).items()],
        endpoints=[
            {
                "addresses": [pod["status"]["podIP"]],
                "conditions": {"ready": pod["status"]["conditions"][0]["status"] == "True"},
                "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": "shop"},
                "hostname": pod["metadata"]["name"],
            }
            for pod in pods
        ],
    )
    made["metadata"]["labels"] = {"kubernetes.io/service-name": service}
    return made


def linkerd_config(values: JSON | str | None = None, **more: Any) -> JSON:
    """Linkerd's own ConfigMap; `values` as text is taken as it is."""
    text = values if isinstance(values, str) else yaml.safe_dump({**(values or {}), **more})
    made = named("ConfigMap", "linkerd-config", data={"values": text})
    made["metadata"]["namespace"] = "linkerd"
    return made


def named(kind: str, name: str, **fields: Any) -> JSON:
    """An object in namespace shop."""
    return {"kind": kind, "metadata": {"name": name, "namespace": "shop"}, **fields}


def token(namespace: str, node: str, pod: str) -> str:
    return json.dumps({"ns": namespace, "nodeName": node, "pod": pod}) + "\n"
