"""A cluster of a given size, as JSON that an API server would send, and the part of it that one node needs.

The same arguments give the same cluster. Slices have four endpoints each; every Service has one at least.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

NODE = "node-0"
HASH = "6f7d8c9b5"
PER_SLICE = 4
PORT, TARGET = 80, 8080
NAMESPACES = 40
WORKLOADS = 22
"""Kinds of pod on the node; the pods of one kind ask for the same."""
GETS, BY_IP, BY_POD = 40, 4, 2
"""What each pod of the node asks: Get, GetProfile of a ClusterIP, GetProfile of a pod's IP."""

Objects = dict[str, Any]


class Size(msgspec.Struct, frozen=True):
    pods: int = 10_000
    services: int = 2_000
    slices: int = 5_000
    own: int = 110


class Cluster:
    """`questions`: for each own pod, the (method, path) of its streams."""

    def __init__(self, size: Size) -> None:
        self.size = size
        chance = random.Random(7)
        self._owner = [*range(size.services)]
        self._owner += [chance.randrange(size.services) for _ in range(size.slices - size.services)]
        self._pods = [chance.sample(range(size.pods), PER_SLICE) for _ in range(size.slices)]
        asked = [chance.sample(range(size.services), min(GETS, size.services)) for _ in range(WORKLOADS)]
        direct = [chance.sample(range(size.pods), BY_POD) for _ in range(WORKLOADS)]
        self.asked = sorted({service for services in asked for service in services})
        self._direct = {pod for pods in direct for pod in pods}
        self.questions = [
            [("Get", self.authority(service)) for service in asked[pod % WORKLOADS]]
            + [("GetProfile", f"{cluster_ip(service)}:{PORT}") for service in asked[pod % WORKLOADS][:BY_IP]]
            + [("GetProfile", f"{pod_ip(other)}:{TARGET}") for other in direct[pod % WORKLOADS]]
            for pod in range(size.own)
        ]

    def authority(self, service: int) -> str:
        return f"service-{service}.{namespace(service)}.svc.cluster.local:{PORT}"

    def owner(self, number: int) -> int:
        """The Service of a slice."""
        return self._owner[number]

    def services(self) -> Iterator[Objects]:
        for number in range(self.size.services):
            ip = cluster_ip(number)
            yield {
                "metadata": {"name": f"service-{number}", "namespace": namespace(number)},
                "spec": {
                    "type": "ClusterIP",
                    "clusterIP": ip,
                    "clusterIPs": [ip],
                    "ports": [{"name": "http", "port": PORT, "targetPort": TARGET, "protocol": "TCP"}],
                },
            }

    def slices(self) -> Iterator[Objects]:
        for number in range(self.size.slices):
            yield self.slice(number)

    def slice(self, number: int, zone: str = "zone-a") -> Objects:
        """A slice; its first endpoint is in `zone`."""
        service = self._owner[number]
        return {
            "metadata": {
                "name": f"slice-{number}",
                "namespace": namespace(service),
                "labels": {"kubernetes.io/service-name": f"service-{service}"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": TARGET, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [pod_ip(pod)],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "nodeName": node(pod, self.size.own),
                    "zone": "zone-a" if at else zone,
                    "targetRef": {"kind": "Pod", "name": f"pod-{pod}", "namespace": namespace(pod)},
                }
                for at, pod in enumerate(self._pods[number])
            ],
        }

    def slices_asked(self) -> list[int]:
        """The slices of the Services that somebody on the node asks for."""
        asked = set(self.asked)
        return [number for number, service in enumerate(self._owner) if service in asked]

    def pods(self) -> Iterator[Objects]:
        """Those of the node, and those that the answers to its questions name."""
        needed = {*range(self.size.own), *self._direct}
        for number in self.slices_asked():
            needed.update(self._pods[number])
        return (pod(number, namespace(number), self.size.own) for number in sorted(needed))

    def nodes(self) -> Iterator[Objects]:
        labels = {"topology.kubernetes.io/zone": "zone-a"}
        return iter([{"metadata": {"name": NODE, "labels": labels}}])


def hot(name: str, count: int, own: int) -> tuple[Objects, Objects, list[Objects]]:
    """A Service, its slice of `count` endpoints, and their pods, in a namespace of their own."""
    ip = f"10.98.{count >> 8}.{count & 255}"
    service = {
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "clusterIP": ip,
            "clusterIPs": [ip],
            "ports": [{"name": "http", "port": PORT, "targetPort": TARGET}],
        },
    }
    pods = [pod(60_000 + count * 8 + at, name, own) for at in range(count)]
    endpoints = [
        {
            "addresses": [each["status"]["podIP"]],
            "targetRef": {"kind": "Pod", "name": each["metadata"]["name"], "namespace": name},
        }
        for each in pods
    ]
    metadata = {"name": name, "namespace": name, "labels": {"kubernetes.io/service-name": name}}
    ports = [{"name": "http", "port": TARGET}]
    return (
        service,
        {"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints},
        pods,
    )


def pod(number: int, where: str, own: int) -> Objects:
    """A meshed pod that runs."""
    ip, name = pod_ip(number), f"workload-{number % 500}"
    listen = {"INBOUND": 4143, "OUTBOUND": 4140, "ADMIN": 4191, "CONTROL": 4190}
    proxy = {
        "name": "linkerd-proxy",
        "restartPolicy": "Always",
        "image": "proxy",
        "env": [
            {"name": f"LINKERD2_PROXY_{what}_LISTEN_ADDR", "value": f"0.0.0.0:{port}"}
            for what, port in listen.items()
        ],
        "ports": [{"name": "linkerd-proxy", "containerPort": 4143}],
        "securityContext": {"runAsUser": 2102},
    }
    running = {"state": {"running": {"startedAt": "2026-11-01T00:00:00Z"}}, "ready": True}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": where,
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {
                "app": name,
                "pod-template-hash": "6f7d8c9b5",
                "linkerd.io/control-plane-ns": "linkerd",
            },
            "annotations": {"linkerd.io/proxy-version": "edge", "linkerd.io/inject": "enabled"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": f"{name}-{HASH}", "controller": True}],
        },
        "spec": {
            "nodeName": node(number, own),
            "serviceAccountName": name,
            "initContainers": [proxy],
            "containers": [{"name": "app", "ports": [{"name": "http", "containerPort": TARGET}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "hostIP": "192.0.2.1",
            "initContainerStatuses": [{"name": "linkerd-proxy", **running}],
            "containerStatuses": [{"name": "app", **running}],
        },
    }


def namespace(number: int) -> str:
    return f"namespace-{number % NAMESPACES}"


def node(pod: int, own: int) -> str:
    return NODE if pod < own else f"node-{1 + pod // 110}"


def pod_ip(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def cluster_ip(number: int) -> str:
    return f"10.96.{number >> 8}.{number & 255}"


def lines(items: Iterator[Objects]) -> str:
    """One object a line, as in a watch."""
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items)
