"""How Linkerd was installed, as its own ConfigMap says, with the flags of this agent over it."""

from typing import Any

import msgspec

from agent.core.discovery.config import Discovery
from agent.core.discovery.linkerd_config import KEY, NAME, read_values
from agent.core.discovery.objects import ConfigMap
from agent.core.reasons import Complaint
from agent.files.documents import documents
from agent.settings import Answering

TRUST = "identityTrustDomain"
DOMAINS = {"clusterDomain": "cluster_domain", TRUST: "trust_domain"}
"""Values without which nothing may be answered, and the settings that they are."""


def is_linkerds(item: ConfigMap, settings: Answering) -> bool:
    """Whether this is the ConfigMap in question."""
    namespace = settings.discovery.control_plane_namespace
    return (item.metadata.namespace, item.metadata.name) == (namespace, NAME)


def read_config(item: ConfigMap, settings: Answering) -> tuple[Discovery, tuple[Complaint, ...]]:
    """The settings of discovery. Raises ValueError when it is not certain whose identities are to be
    trusted; any other value that cannot be read is a complaint."""
    overrides = settings.overrides
    config, complaints = read_values(_values(item), item.metadata.namespace, settings.discovery)
    for complaint in complaints:
        if complaint.subject in DOMAINS and DOMAINS[complaint.subject] not in overrides:
            raise ValueError(complaint.message)
    return msgspec.structs.replace(config, **overrides), complaints


def _values(item: ConfigMap) -> dict[str, Any]:
    """Linkerd's Helm values. Raises ValueError for what cannot be those."""
    text = (item.data or {}).get(KEY)
    if not text:
        raise ValueError(f"it has no key `{KEY}`")
    values = next(iter(documents(text)), None)
    if not isinstance(values, dict) or all(values.get(name) is None for name in DOMAINS):
        raise ValueError(f"its key `{KEY}` names neither {' nor '.join(DOMAINS)}")
    # Without a trust domain of its own it is the cluster's domain.
    return values if values.get(TRUST) is not None else {**values, TRUST: ""}
