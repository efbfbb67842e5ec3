"""Whom a pod's proxy asks for destinations: the agent of its node, or somebody else. Pure."""

from ipaddress import IPv4Address, IPv6Address
from typing import Literal

import msgspec

from agent.core.discovery.names import ENV_DESTINATION
from agent.core.names import PROXY_CONTAINER
from agent.core.objects import Pod
from agent.core.ports import LAST_PORT

Asks = Literal["us", "central", "nobody"]

LOCALHOST = "127.0.0.1"


class Asked(msgspec.Struct, frozen=True):
    """`asks`: us (a loopback address), the central controller (any other), or nobody that its manifest names.
    `host`, `port`: where we are to listen in the pod; port 0 = nowhere. `declared_by`: a container of the
    application that declares this port, "" for none."""

    asks: Asks
    host: str = LOCALHOST
    port: int = 0
    declared_by: str = ""

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def asked(pod: Pod, default: int) -> Asked | None:
    """What the variable of the pod's proxy says, None for a pod without a proxy; `default` is the port for a
    proxy that does not say.

    Loopback means clear text to the proxy: 127.0.0.0/8, [::1], and the name `localhost.`.
    """
    proxy = next((each for each in pod.all_containers if each.name == PROXY_CONTAINER), None)
    if proxy is None:
        return None
    address = {variable.name: variable.value for variable in proxy.env or ()}.get(ENV_DESTINATION)
    if address is None:
        return Asked("nobody", port=default, declared_by=_declarer(pod, default))
    name, _, text = address.rpartition(":")
    host = _loopback(name)
    port = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 0
    if not host or not 0 < port <= LAST_PORT:
        return Asked("central")
    return Asked("us", host, port, _declarer(pod, port))


def _loopback(name: str) -> str:
    """The loopback address that is meant, "" where it is none to a proxy: an IPv4 address within IPv6 is not,
    and neither is a name but for this one."""
    if name.lower() == "localhost.":
        return LOCALHOST
    try:
        if name.startswith("[") and name.endswith("]"):
            return "::1" if IPv6Address(name[1:-1]) == IPv6Address("::1") else ""
        return name if IPv4Address(name).is_loopback else ""
    except ValueError:
        return ""


def _declarer(pod: Pod, port: int) -> str:
    declares = (
        container.name
        for container in pod.all_containers
        if container.name != PROXY_CONTAINER
        and any(
            each.container_port == port and each.protocol in (None, "", "TCP")
            for each in container.ports or ()
        )
    )
    return next(declares, "")
