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
    PORT_CLASH = "PortClash"
    NOT_ANSWERING = "NotAnswering"
    # The node's CNI configuration
    CNI_OVERWRITTEN = "CniConfigOverwritten"
    CNI_CONTESTED = "CniConfigContested"
    CNI_BROKEN = "CniConfigBroken"
    CNI_MISSING = "CniConfigMissing"
    CNI_NEIGHBOUR = "CniConfigForeignPlugin"
    CNI_UNWRITABLE = "CniInstallFailed"
    # Objects that discovery reads
    INVALID_OBJECT = "InvalidObject"
    INVALID_PROFILE = "InvalidServiceProfile"
    ADDRESS_CLAIMED = "AddressClaimedTwice"
    MULTICLUSTER = "MulticlusterNotServed"
    # Why a meshed target is answered without identity
    PORT_SKIPPED = "PortSkipped"
    NOT_REDIRECTED = "NotRedirected"
    OTHER_CONTROL_PLANE = "OtherControlPlane"
    NO_TRUST_DOMAIN = "NoTrustDomain"
    OPAQUE_HOST_PORT = "OpaqueHostPort"


class Complaint(msgspec.Struct, frozen=True):
    """Something a person should know about a pod's settings or its kernel state.

    `subject` is the annotation, env variable, chain or interface it is about; `message` names the
    value and what was done about it; `remedy` says what to do.
    """

    reason: Reason
    subject: str
    message: str
    remedy: str = ""


class Meaning(msgspec.Struct, frozen=True):
    """A reason in words. `phase` is None for complaints, which stand beside any phase."""

    phase: Phase | None
    meaning: str
    remedy: str = "nothing to do"


def _applied(meaning: str, remedy: str = "nothing to do") -> Meaning:
    return Meaning(Phase.APPLIED, meaning, remedy)


def _pending(meaning: str, remedy: str = "nothing to do: it is retried") -> Meaning:
    return Meaning(Phase.PENDING, meaning, remedy)


def _failed(meaning: str, remedy: str) -> Meaning:
    return Meaning(Phase.FAILED, meaning, remedy)


def _excluded(meaning: str, remedy: str = "nothing to do") -> Meaning:
    return Meaning(Phase.EXCLUDED, meaning, remedy)


def _complaint(meaning: str, remedy: str) -> Meaning:
    return Meaning(None, meaning, remedy)


MEANINGS = {
    Reason.REDIRECTED: _applied("The pod's rules were read back from the kernel and are as they should be."),
    Reason.IPTABLES: _applied(
        "linkerd-init's own rules are complete, and are left alone.",
        "`pointsman cleanup NAMESPACE/POD --yes` installs ours and then removes these",
    ),
    Reason.DRAINING: _applied(
        "The pod leaves the mesh: new connections are direct, old ones keep their proxy.",
        "to redirect it again, delete the annotation pointsman.io/redirect, or after `uninstall` start the "
        "agent anew",
    ),
    Reason.NOT_YET_SEEN: _pending("The pod is new and has not been looked at yet."),
    Reason.NETNS_MISSING: _pending(
        "The pod's network namespace is not there yet.",
        "if it lasts: is the path in pointsman.io/netns right, and has a process of the pod been started?",
    ),
    Reason.INIT_RUNNING: _pending("linkerd-init is still to run or running; two writers would help nobody."),
    Reason.OBSERVED: _pending(
        "The rules are missing, and this agent only looks (`--observe`, or another agent writes).",
        "run without `--observe`, or let the other agent do its work",
    ),
    Reason.NOT_LISTED: _pending("The pod's table differs, and is left until all objects are listed."),
    Reason.DRIFTED: _failed(
        "The rules differ from what they should be, and this agent only looks.",
        "run without `--observe`; the differences are in `pointsman explain NAMESPACE/POD`",
    ),
    Reason.CONTESTED: _failed(
        "Another program undoes the rules in a loop; repairs go on at a capped rate.",
        "stop the program that is named, or run with `--table-ownership auto` on Linux 6.9 or newer",
    ),
    Reason.OWNED_BY_ANOTHER: _failed(
        "A live process owns the pod's table, so that the kernel refuses us.",
        "is a second agent running with another --run-dir? Stop one of them",
    ),
    Reason.PERMISSION_DENIED: _failed(
        "The kernel or a security module refused an access.",
        "give the agent NET_ADMIN, SYS_ADMIN and, for /proc, SYS_PTRACE; look into the audit log",
    ),
    Reason.COMPILE_FAILED: _failed(
        "The rule set could not be compiled by libnftables, or this kernel does not take it.",
        "run `pointsman check`; is Debian's python3-nftables installed?",
    ),
    Reason.COMMIT_REFUSED: _failed(
        "The kernel refused the transaction; nothing of it was applied.",
        "the message names the refused object; run `pointsman check`",
    ),
    Reason.UNVERIFIED: _failed(
        "The kernel acknowledged the rules and reads back others.",
        "report this with the differences and the kernel's version",
    ),
    Reason.NETNS_MISMATCH: _failed(
        "The network namespace found is not this pod's: the node's own, another pod's, or without its IP.",
        "correct the annotation pointsman.io/netns; where CNI named it, the runtime has two pods in one "
        "namespace",
    ),
    Reason.INTERNAL_ERROR: _failed(
        "A fault of pointsman itself; the pod is retried.", "report the traceback in the log"
    ),
    Reason.NOT_MESHED: _excluded("The pod has no container linkerd-proxy."),
    Reason.HOST_NETWORK: _excluded("The pod uses the node's network, which is never touched."),
    Reason.NAMESPACE_EXCLUDED: _excluded("The pod's namespace is in `--exclude-namespaces`."),
    Reason.DISABLED: _excluded(
        "The annotation pointsman.io/redirect of the pod or its namespace is `disabled`.",
        "delete it to have the pod redirected",
    ),
    Reason.FINISHED: _excluded("All containers of the pod have ended."),
    Reason.NETNS_GONE: _excluded("The pod's network namespace has ended."),
    Reason.ORPHANED: _excluded(
        "The pod's object is gone and its network namespace is not; it is left as it is.",
        "put the manifest back, or end the namespace",
    ),
    Reason.INVALID_ANNOTATION: _complaint(
        "An annotation, or an entry of its list, cannot be read; the rest of it is in force.",
        "correct the value named",
    ),
    Reason.INVALID_PROXY_SETTING: _complaint(
        "A variable or field of the proxy container cannot be read; annotation or default was taken.",
        "correct the value named",
    ),
    Reason.PORTS_DIFFER: _complaint(
        "An entry is honoured here that linkerd-init would have dropped without a word.",
        "write the list without blanks to have the same everywhere",
    ),
    Reason.SETTINGS_DISAGREE: _complaint(
        "Two sources name different values for one setting; the proxy container's own is in force.",
        "make them agree; most often the pod is older than its annotation",
    ),
    Reason.UNSUPPORTED_ANNOTATION: _complaint("An annotation has no effect here.", "remove it"),
    Reason.PROXY_UID_SHARED: _complaint(
        "Another container runs as the proxy's user, so its connections are not redirected.",
        "run it as another user",
    ),
    Reason.OUTBOUND_OFF: _complaint(
        "All outbound ports are skipped: nothing outbound is redirected.",
        "narrow config.linkerd.io/skip-outbound-ports",
    ),
    Reason.INBOUND_OFF: _complaint(
        "All inbound ports are skipped: nothing inbound is redirected.",
        "narrow config.linkerd.io/skip-inbound-ports",
    ),
    Reason.SHADOWED: _complaint(
        "Another nat chain decides before ours; what it takes never reaches the proxy.",
        "remove the chain, or give it a priority above -101",
    ),
    Reason.FOREIGN_RULES: _complaint(
        "Another nat chain stands behind ours; ours decide first.", "nothing to do"
    ),
    Reason.LEFTOVER: _complaint(
        "Rules of linkerd-init are in the pod; harmless beside ours.",
        "`pointsman cleanup` removes exactly these",
    ),
    Reason.PROXY_NOT_LISTENING: _complaint(
        "Nothing listens on a proxy port, so every redirected connection is refused.",
        "look at the container linkerd-proxy: is it running, and on which ports?",
    ),
    Reason.IPV6_NOT_REDIRECTED: _complaint(
        "The pod has an IPv6 address and its proxy no IPv6 listener: IPv6 goes in clear text.",
        "install Linkerd with disableIPv6=false and restart the pod",
    ),
    Reason.SECONDARY_INTERFACE: _complaint(
        "An interface has addresses that are not in the pod's status: the proxy refuses connections to them.",
        "skip the ports used there with config.linkerd.io/skip-inbound-ports",
    ),
    Reason.INIT_MISMATCH: _complaint(
        "linkerd-init reports success, and its rules were not complete in the kernel; ours are in place.",
        "nothing to do; remove linkerd-init by installing Linkerd with cniEnabled=true",
    ),
    Reason.PORT_CLASH: _complaint(
        "The port at which the pod's proxy asks for destinations belongs to the pod's own application.",
        "give the proxy another one in LINKERD2_PROXY_DESTINATION_SVC_ADDR, or move the application's",
    ),
    Reason.NOT_ANSWERING: _complaint(
        "The pod's proxy asks this agent for destinations, and the agent does not answer yet.",
        "is there a ConfigMap linkerd-config that can be read? Else give `run` --identity-trust-domain",
    ),
    Reason.CNI_OVERWRITTEN: _complaint(
        "Another program took our entry out of the CNI configuration, or changed the shim; it is back.",
        "nothing to do; pods that started meanwhile are repaired in place",
    ),
    Reason.CNI_CONTESTED: _complaint(
        "Another program takes our entry out again and again; it is put back at most every 30 s.",
        "tell that program to leave the configuration alone: Cilium with cni.exclusive=false",
    ),
    Reason.CNI_BROKEN: _complaint(
        "A file of CNI configuration cannot be used; containerd has no network while it is the first one.",
        "correct or remove the file named; it is left as it is",
    ),
    Reason.CNI_MISSING: _complaint(
        "There is no CNI configuration yet, so no pod can start; our entry waits for it.",
        "install the cluster's network; is --conf-dir the directory that the runtime reads?",
    ),
    Reason.CNI_NEIGHBOUR: _complaint(
        "Another plugin of the chain redirects pods as well.",
        "uninstall linkerd-cni, which this agent replaces; mesh no pod by Linkerd and Istio at once",
    ),
    Reason.CNI_UNWRITABLE: _complaint(
        "The shim, or our entry in the CNI configuration, cannot be written; it is retried.",
        "the message names the file and the remedy; new pods are redirected late meanwhile",
    ),
    Reason.INVALID_OBJECT: _complaint(
        "A field of an object cannot be used; it is passed over, and every other object is served.",
        "correct the field named",
    ),
    Reason.INVALID_PROFILE: _complaint(
        "A ServiceProfile, or a timeout in it, cannot be read.",
        "correct the field named; new streams get the default profile meanwhile",
    ),
    Reason.ADDRESS_CLAIMED: _complaint(
        "Two live objects claim one address; the newest is taken for its owner.",
        "look at the older one: is it really still there?",
    ),
    Reason.MULTICLUSTER: _complaint(
        "A Service stands for one in another cluster, which is not looked up here.",
        "let the pods that use it ask Linkerd's own destination service",
    ),
    Reason.PORT_SKIPPED: _complaint(
        "The target's port is skipped inbound, so no proxy would take TLS there.",
        "take the port out of config.linkerd.io/skip-inbound-ports",
    ),
    Reason.NOT_REDIRECTED: _complaint(
        "The target's pod is known not to be redirected: TLS would reach the application.",
        "`pointsman explain NAMESPACE/POD` on its node says why",
    ),
    Reason.OTHER_CONTROL_PLANE: _complaint(
        "The target belongs to another control plane, whose identities are not trusted here.",
        "nothing to do",
    ),
    Reason.NO_TRUST_DOMAIN: _complaint(
        "No trust domain is known, so that nobody has an identity.",
        "is there a ConfigMap linkerd-config, with identityTrustDomain?",
    ),
    Reason.OPAQUE_HOST_PORT: _complaint(
        "An opaque port was asked for by the node's address, where the transport header cannot be sent.",
        "connect to the pod's own address",
    ),
}
"""Every reason, for people. docs/troubleshooting.md holds the same table."""
