"""Manifests of the stage: pods as Linkerd's injector leaves them, and a Service with its endpoints."""

from typing import Any

from tests.demo.network import Pod
from tests.lab.agent import JSON, pod_manifest

CONTROL_PLANE = {"linkerd.io/control-plane-ns": "linkerd"}
ASKS = "127.0.0.1:4186"
"""Where proxies are told to ask for destinations."""

_ENV = {
    "LINKERD2_PROXY_INBOUND_LISTEN_ADDR": "0.0.0.0:4143",
    "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS": "127.0.0.1:4140",
    "LINKERD2_PROXY_CONTROL_LISTEN_ADDR": "0.0.0.0:4190",
    "LINKERD2_PROXY_ADMIN_LISTEN_ADDR": "0.0.0.0:4191",
    "LINKERD2_PROXY_DESTINATION_SVC_ADDR": ASKS,
}


def pod_of(pod: Pod, *, ready: bool = True, annotations: JSON | None = None, **spec: Any) -> JSON:
    """A running pod with the service account of its own name; `spec` may have a `status` as well."""
    status = {
        "phase": "Running",
        "podIPs": [{"ip": pod.address}],
        "conditions": [{"type": "Ready", "status": str(ready)}],
        **spec.pop("status", {}),
    }
    env = [{"name": name, "value": value} for name, value in _ENV.items()]
    containers = [{"name": "app"}, {"name": "linkerd-proxy", "env": env}]
    found = pod_manifest(
        pod.name,
        pod.netns,
        annotations=annotations,
        containers=containers,
        serviceAccountName=pod.name,
        status=status,
        **spec,
    )
    found["metadata"]["labels"] = CONTROL_PLANE
    return found


def service(name: str, ip: str, port: int) -> JSON:
    metadata = {"name": name, "namespace": "default"}
    spec = {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": port}]}
    return {"kind": "Service", "metadata": metadata, "spec": spec}


def endpoints(name: str, port: int, ready: dict[Pod, bool]) -> JSON:
    """An EndpointSlice of the Service `name`: its pods, and whether each is ready."""
    labels = {"kubernetes.io/service-name": name}
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {
                "addresses": [pod.address],
                "conditions": {"ready": is_ready},
                "targetRef": {"kind": "Pod", "name": pod.name, "namespace": "default"},
            }
            for pod, is_ready in ready.items()
        ],
    }
