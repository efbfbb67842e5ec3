"""Whom a pod's proxy asks for destinations: the agent of its node, or somebody else. Pure."""

from typing import Literal

import msgspec

from agent.core.discovery.names import ENV_DESTINATION
from agent.core.names import PROXY_CONTAINER
from agent.core.objects import Pod
from agent.core.ports import LAST_PORT

Asks = Literal["us", "central", "nobody"]


class Asked(msgspec.Struct, frozen=True):
    """`asks`: us (a loopback address), the central controller (any other), or nobody that its manifest names.
    `port`: where we are to listen in the pod, 0 = nowhere. `declared_by`: a container of the application that
    declares this port, "" for none."""

    asks: Asks
    port: int = 0
    declared_by: str = ""


def asked(pod: Pod, default: int) -> Asked:
    """What the variable of the pod's proxy says; `default` is the port for a proxy that does not say.

    Loopback means clear text to the proxy: 127.0.0.0/8, [::1], and the name `localhost.`.
    """
    address = _variable(pod)
    if address is None:
        return Asked("nobody", default, _declarer(pod, default))
    host, _, text = address.rpartition(":")
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not _loopback(host) or not 0 < port <= LAST_PORT:
        return Asked("central")
    return Asked("us", port, _declarer(pod, port))


def _variable(pod: Pod) -> str | None:
    for container in pod.all_containers:
        if container.name == PROXY_CONTAINER:
            found = (each.value for each in container.env or () if each.name == ENV_DESTINATION)
            return next(found, None)
    return None


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host == "[::1]" or host.lower() == "localhost."


def _declarer(pod: Pod, port: int) -> str:
    declares = (
        container.name
        for container in pod.all_containers
        if container.name != PROXY_CONTAINER
        and any(each.container_port == port and each.protocol != "UDP" for each in container.ports or ())
    )
    return next(declares, "")
