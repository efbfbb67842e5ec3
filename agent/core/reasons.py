"""Every reason this product gives, in one table: the same word in status, log, metric and CLI.

docs/troubleshooting.md is written from this table; a test holds the two together.
"""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Where a pod's redirection stands."""

    PENDING = "Pending"
    APPLIED = "Applied"
    FAILED = "Failed"
    EXCLUDED = "Excluded"


class Reason(StrEnum):
    """CamelCase words, stable: scripts and alerts match on them."""

    # Applied
    REDIRECTED = "Redirected"
    IPTABLES = "RedirectedByIptables"
    DRAINING = "Draining"
    # Pending
    NOT_YET_SEEN = "NotYetSeen"
    NETNS_MISSING = "NetnsMissing"
    INIT_RUNNING = "InitRunning"
    OBSERVED = "ObservedOnly"
    NOT_LISTED = "NotYetListed"
    # Failed
    DRIFTED = "Drifted"
    CONTESTED = "Contested"
    OWNED_BY_ANOTHER = "OwnedByAnother"
    PERMISSION_DENIED = "PermissionDenied"
    COMPILE_FAILED = "CompileFailed"
    COMMIT_REFUSED = "CommitRefused"
    UNVERIFIED = "Unverified"
    NETNS_MISMATCH = "NetnsMismatch"
    INTERNAL_ERROR = "InternalError"
    # Excluded
    NOT_MESHED = "NotMeshed"
    HOST_NETWORK = "HostNetwork"
    NAMESPACE_EXCLUDED = "NamespaceExcluded"
    DISABLED = "RedirectDisabled"
    FINISHED = "Finished"
    NETNS_GONE = "NetnsGone"
    ORPHANED = "Orphaned"
    # Complaints and findings beside the phase
    INVALID_ANNOTATION = "InvalidAnnotation"
    INVALID_PROXY_SETTING = "InvalidProxySetting"
    PORTS_DIFFER = "PortListDiffersFromUpstream"
    SETTINGS_DISAGREE = "SettingsDisagree"
    UNSUPPORTED_ANNOTATION = "UnsupportedAnnotation"
    PROXY_UID_SHARED = "ProxyUidShared"
    OUTBOUND_OFF = "OutboundNotRedirected"
    INBOUND_OFF = "InboundNotRedirected"
    SHADOWED = "Shadowed"
    FOREIGN_RULES = "ForeignRules"
    LEFTOVER = "LeftoverRules"
    PROXY_NOT_LISTENING = "ProxyNotListening"
    IPV6_NOT_REDIRECTED = "IPv6NotRedirected"
    SECONDARY_INTERFACE = "SecondaryInterface"
    INIT_MISMATCH = "InitResultMismatch"


class Complaint(msgspec.Struct, frozen=True):
    """Something a person should know about a pod's settings or its kernel state.

    `subject` is the annotation, env variable, chain or interface it is about; `message` names the
    value and what was done about it; `remedy` says what to do.
    """

    reason: Reason
    subject: str
    message: str
    remedy: str = ""
