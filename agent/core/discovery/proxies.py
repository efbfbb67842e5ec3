"""What a pod's proxy container says of itself."""

import msgspec

from agent.core import names
from agent.core.discovery.names import ENV_OPAQUE, OPAQUE_PORTS
from agent.core.discovery.opaque import opaque_ports
from agent.core.objects import Container
from agent.core.ports import PortSet, named, parse_listen, parse_ports
from agent.core.reasons import Complaint, Reason


class ProxyPorts(msgspec.Struct, frozen=True, gc=False):
    """Ports of a proxy; 0 = not said, so that the node's default holds."""

    inbound: int = 0
    admin: int = 0
    control: int = 0


def read_proxy(
    proxy: Container, annotations: dict[str, str], where: str
) -> tuple[ProxyPorts, tuple[Complaint, ...]]:
    """Ports as the proxy was started with, else as its pod's annotations say. Never raises.

    `annotations`: the pod's. `where`: the pod, for complaints.
    """
    env = {variable.name: variable.value or "" for variable in proxy.env or ()}
    ports: list[int] = []
    complaints: list[Complaint] = []
    for variable, annotation in (
        (names.ENV_INBOUND, names.INBOUND_PORT),
        (names.ENV_ADMIN, names.ADMIN_PORT),
        (names.ENV_CONTROL, names.CONTROL_PORT),
    ):
        if listen := parse_listen(env.get(variable, "")):
            ports.append(listen[0].port)
            continue
        ports.append(_annotated(annotations.get(annotation)))
        what = f"read a port from {named([env[variable]])}" if variable in env else "find the variable"
        message = f"cannot {what} ({where}): the annotation or the default is used"
        remedy = "let the injector set it: an address with a port, such as 0.0.0.0:4143"
        complaints.append(Complaint(Reason.INVALID_PROXY_SETTING, variable, message, remedy))
    if missing := _late(env.get(ENV_OPAQUE), annotations.get(OPAQUE_PORTS)):
        message = f"cannot have {named(missing)} opaque at the proxy ({where}): it began without it"
        remedy = "restart the pod, or create a Server with proxyProtocol opaque for the port"
        complaints.append(Complaint(Reason.SETTINGS_DISAGREE, ENV_OPAQUE, message, remedy))
    return ProxyPorts(*ports), tuple(complaints)


def _annotated(text: str | None) -> int:
    ranges = parse_ports(text).ports.ranges
    low, high = ranges[0] if len(ranges) == 1 else (0, 0)
    return low if low == high else 0


def _late(started: str | None, asked: str | None) -> tuple[str, ...]:
    """Ports that are annotated as opaque, and that the proxy does not know for it: it keeps the list that it
    was started with."""
    if started is None or asked is None:
        return ()
    known, wanted = opaque_ports(started, ()), opaque_ports(asked, ())
    if known == wanted:
        return ()
    return tuple(str(PortSet((each,))) for each in wanted.ranges if known | PortSet((each,)) != known)
