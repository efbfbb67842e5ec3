"""A container runtime as far as the agent's CNI socket sees it: one call, one answer."""

import json
import socket
from pathlib import Path
from typing import Any

from agent.cni.wire import HEADER, MAGIC, call

JSON = dict[str, Any]

CONF: JSON = {"cniVersion": "1.0.0", "name": "net", "type": "pointsman-cni"}
CAPABILITY = "io.kubernetes.cri.pod-annotations"


def arguments(name: str, namespace: str = "default", uid: str = "") -> str:
    """CNI_ARGS as containerd writes them."""
    pairs = {"IgnoreUnknown": "1", "K8S_POD_UID": uid, "K8S_POD_NAMESPACE": namespace, "K8S_POD_NAME": name}
    return ";".join(f"{key}={value}" for key, value in pairs.items())


def conf(address: str = "10.9.0.2/32", annotations: JSON | None = None, **more: Any) -> JSON:
    """Configuration with a prevResult, and with the pod's annotations where the runtime passes them."""
    found = {**CONF, "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": address}]}, **more}
    if annotations is not None:
        found["runtimeConfig"] = {CAPABILITY: annotations}
    return found


def environment(
    command: str, container: str = "c1", netns: Path | str = "", args: str = "", ifname: str = "eth0"
) -> dict[str, str]:
    return {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": str(netns),
        "CNI_IFNAME": ifname,
        "CNI_ARGS": args,
        "CNI_PATH": "/opt/cni/bin",
    }


def ask(
    path: Path, environment: dict[str, str], conf: JSON | bytes = CONF, timeout: float = 15
) -> JSON | None:
    """The error object, None for success. OSError or EOFError when nobody answers."""
    stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(timeout)
        peer.connect(str(path))
        peer.sendall(call(environment, stdin))
        magic, code, size = HEADER.unpack(_exactly(peer, HEADER.size))
        assert magic == MAGIC
        body = _exactly(peer, size)
        assert (code == 0) == (body == b"")
        return json.loads(body) if body else None


def _exactly(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = peer.recv(size - len(found))
        if not part:
            raise EOFError("the agent hung up")
        found += part
    return found
