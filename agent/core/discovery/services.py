"""Services as discovery needs them."""

import sys

import msgspec

from agent.core.discovery.names import LOCAL_DISCOVERY, REMOTE_DISCOVERY
from agent.core.discovery.opaque import read_opaque
from agent.core.discovery.targets import canonical_ip
from agent.core.objects import Service
from agent.core.ports import PortSet, named
from agent.core.reasons import Complaint, Reason


class ServicePortFacts(msgspec.Struct, frozen=True, gc=False):
    """`target`: the number of the target port; 0 = not given as a number."""

    name: str
    number: int
    target: int
    tcp: bool


class ServiceFacts(msgspec.Struct, frozen=True, gc=False):
    """`ips`: cluster IPs in canonical form; none when it is headless. `external`: it is an ExternalName.
    `local`: internalTrafficPolicy. `opaque`: what its own annotation says, None = nothing."""

    namespace: str
    name: str
    ips: tuple[str, ...]
    ports: tuple[ServicePortFacts, ...]
    external: bool
    local: bool
    opaque: PortSet | None

    def port(self, number: int) -> ServicePortFacts | None:
        """The port of this number, the TCP one where there are several."""
        found = [port for port in self.ports if port.number == number]
        return next((port for port in found if port.tcp), found[0] if found else None)


def read_service(service: Service) -> tuple[ServiceFacts, tuple[Complaint, ...]]:
    """What discovery keeps of a Service, and what is wrong with it. Never raises."""
    metadata, spec = service.metadata, service.spec
    where = f"Service {metadata.namespace}/{metadata.name}"
    annotations = metadata.annotations or {}
    names: dict[str, int] = {}
    for port in spec.ports or ():
        names.setdefault(port.name or "", port.port)
    names.pop("", None)
    opaque, found = read_opaque(annotations, names, where)
    complaints = list(found)
    texts = spec.cluster_ips or ((spec.cluster_ip,) if spec.cluster_ip else ())
    ips = {text: canonical_ip(text) for text in texts if text not in ("", "None")}
    if wrong := [text for text, ip in ips.items() if ip is None]:
        message = f"cannot read {named(wrong)} as an IP ({where}): it is passed over"
        complaints.append(
            Complaint(Reason.INVALID_OBJECT, "spec.clusterIPs", message, "correct what writes the Service")
        )
    if {REMOTE_DISCOVERY, LOCAL_DISCOVERY} & {*annotations, *(metadata.labels or {})}:
        message = f"cannot answer for other clusters ({where}): its endpoints in this one are served"
        remedy = "let the pods that use it ask Linkerd's own destination service"
        complaints.append(Complaint(Reason.MULTICLUSTER, REMOTE_DISCOVERY, message, remedy))
    facts = ServiceFacts(
        namespace=sys.intern(metadata.namespace),
        name=sys.intern(metadata.name),
        ips=tuple(ip for ip in ips.values() if ip is not None),
        ports=tuple(
            ServicePortFacts(
                name=sys.intern(port.name or ""),
                number=port.port,
                target=port.target_port if isinstance(port.target_port, int) else 0,
                tcp=port.protocol in (None, "TCP"),
            )
            for port in spec.ports or ()
        ),
        external=spec.type == "ExternalName",
        local=spec.internal_traffic_policy == "Local",
        opaque=opaque,
    )
    return facts, tuple(complaints)
