"""A look at what a pod's rules depend on and do not control: its listeners and its addresses.

No netlink event tells of these, so they are asked on a timer.
"""

import ipaddress

from agent.core.discovery.targets import canonical_ip
from agent.core.names import CLOSE_WAIT_TIMEOUT
from agent.core.reasons import Complaint, Reason
from agent.core.spec import RedirectSpec
from agent.node.addresses import InterfaceAddress, SysctlError, addresses, set_close_wait
from agent.node.listeners import Listeners, listening


def survey(
    netns_fd: int, spec: RedirectSpec, pod_ips: tuple[str, ...], close_wait: int | None
) -> tuple[Complaint, ...]:
    """Complaints about the netns of a redirected pod. `pod_ips`: addresses in the pod's status, empty
    when there are none to compare with. `close_wait`: seconds that conntrack shall keep a half-closed
    connection, set in the netns as well; None leaves the kernel's value."""
    interfaces = addresses(netns_fd)
    return (
        *_listeners(listening(netns_fd), spec, interfaces),
        *_unproxied_v6(interfaces, spec),
        *_secondary(interfaces, pod_ips),
        *_close_wait(netns_fd, close_wait),
    )


def _close_wait(netns_fd: int, seconds: int | None) -> list[Complaint]:
    if seconds is None:
        return []
    try:
        set_close_wait(netns_fd, seconds)
    except SysctlError as error:
        return [Complaint(Reason.UNSUPPORTED_ANNOTATION, CLOSE_WAIT_TIMEOUT, str(error))]
    return []


def _listeners(
    seen: Listeners, spec: RedirectSpec, interfaces: tuple[InterfaceAddress, ...]
) -> list[Complaint]:
    has_v6 = _has_global_v6(interfaces)
    has_v4 = any(":" not in entry.address and not _local(entry) for entry in interfaces)
    complaints = []
    for name, port in (("inbound", spec.inbound_port), ("outbound", spec.outbound_port)):
        missing = [
            family
            for family, ports, wanted in (
                ("IPv4", seen.v4, has_v4 or not (spec.ipv6 and has_v6)),
                ("IPv6", seen.v6, spec.ipv6 and has_v6),
            )
            if wanted and port not in ports
        ]
        if missing:
            complaints.append(
                Complaint(
                    Reason.PROXY_NOT_LISTENING,
                    f"{name} port {port}",
                    f"nothing listens on {port} ({', '.join(missing)}), so every redirected {name} "
                    "connection is refused",
                    "look at the container linkerd-proxy: is it running, and on which ports?",
                )
            )
    return complaints


def _unproxied_v6(interfaces: tuple[InterfaceAddress, ...], spec: RedirectSpec) -> list[Complaint]:
    if spec.ipv6 or not _has_global_v6(interfaces):
        return []
    address = next(entry for entry in interfaces if _global_v6(entry))
    return [
        Complaint(
            Reason.IPV6_NOT_REDIRECTED,
            address.interface,
            f"the pod has the address {address.address}, and its proxy has no IPv6 listener: IPv6 "
            "connections go in clear text",
            "install Linkerd with disableIPv6=false and restart the pod",
        )
    ]


def _secondary(interfaces: tuple[InterfaceAddress, ...], pod_ips: tuple[str, ...]) -> list[Complaint]:
    known = {ip for ip in map(canonical_ip, pod_ips) if ip is not None}
    if not known:
        return []
    main = {entry.interface for entry in interfaces if canonical_ip(entry.address) in known}
    others = sorted({entry.interface for entry in interfaces if not _local(entry)} - main)
    return [
        Complaint(
            Reason.SECONDARY_INTERFACE,
            interface,
            f"interface {interface} has addresses that are not in the pod's status: connections to "
            "them are redirected, and the proxy refuses them",
            "skip the ports used there with config.linkerd.io/skip-inbound-ports",
        )
        for interface in others
    ]


def _has_global_v6(interfaces: tuple[InterfaceAddress, ...]) -> bool:
    return any(_global_v6(entry) for entry in interfaces)


def _global_v6(entry: InterfaceAddress) -> bool:
    return ":" in entry.address and not _local(entry)


def _local(entry: InterfaceAddress) -> bool:
    address = ipaddress.ip_address(entry.address)
    return address.is_loopback or address.is_link_local
