"""What a namespace says for the pods and Services in it that say nothing themselves."""

import msgspec

from agent.core import names
from agent.core.discovery.names import OPAQUE_PORTS
from agent.core.objects import Namespace
from agent.core.ports import PortSet, list_complaints, parse_ports
from agent.core.reasons import Complaint


class NamespaceFacts(msgspec.Struct, frozen=True, gc=False):
    """`opaque`: the list as written, since its names mean the ports of each object; None = nothing said."""

    opaque: str | None = None
    skip: PortSet | None = None
    disabled: bool = False


def read_namespace(item: Namespace) -> tuple[NamespaceFacts, tuple[Complaint, ...]]:
    """What discovery keeps of a namespace. Never raises."""
    opaque, skip = item.annotations.get(OPAQUE_PORTS), item.annotations.get(names.SKIP_INBOUND_PORTS)
    parsed = parse_ports(skip)
    facts = NamespaceFacts(
        opaque=opaque,
        skip=None if skip is None else parsed.ports,
        disabled=item.annotations.get(names.REDIRECT, "").strip() == "disabled",
    )
    where = f"Namespace {item.metadata.name}"
    return facts, tuple(list_complaints(parsed, names.SKIP_INBOUND_PORTS, where))
