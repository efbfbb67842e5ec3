"""Settings that can each be read, and that make no sense, or none that was meant: what to say about them."""

from collections.abc import Iterator

from agent.core import names
from agent.core.objects import Pod, SecurityContext
from agent.core.ports import named
from agent.core.reasons import Complaint, Reason
from agent.core.spec import OriginKind, RedirectSpec

_OURS = "pointsman.io/"


def effectless_complaints(kind: OriginKind, annotations: dict[str, str]) -> Iterator[Complaint]:
    """Annotations that are spelled right, or nearly so, and that change nothing."""
    reason = Reason.UNSUPPORTED_ANNOTATION
    for name in (names.DATAPATH, names.SOCKMAP, names.SKIP_CONTAINERS, names.CGROUP):
        if name in annotations and (name, annotations[name].strip()) != (names.DATAPATH, "nftables"):
            message = f"cannot act on {named([annotations[name]])} ({kind}): the only datapath is nftables"
            yield Complaint(reason, name, message, "remove the annotation")
    if kind == "namespace annotation" and names.CLOSE_WAIT_TIMEOUT in annotations:
        message = f"cannot act on it ({kind}): upstream reads it from pods only, and so do we"
        yield Complaint(reason, names.CLOSE_WAIT_TIMEOUT, message, "annotate the pods")
    known = (names.NETNS, names.CGROUP, names.REDIRECT, names.DATAPATH, names.SOCKMAP, names.SKIP_CONTAINERS)
    if unknown := sorted(name for name in annotations if name.startswith(_OURS) and name not in known):
        message = f"cannot act on {named(unknown)} ({kind}): no such annotation is known"
        yield Complaint(reason, f"{_OURS}*", message, f"correct the spelling: {', '.join(known)}")


def uid_complaints(pod: Pod, spec: RedirectSpec) -> Iterator[Complaint]:
    """Who shares the proxy's user escapes the mesh. Users that only an image names are not known."""
    fallback = pod.spec.security_context or SecurityContext()
    sharing = []
    for container in pod.all_containers:
        own = container.security_context or SecurityContext()
        uid = fallback.run_as_user if own.run_as_user is None else own.run_as_user
        if uid == spec.proxy_uid and container.name != names.PROXY_CONTAINER:
            sharing.append(container.name)
    remedy = "give the proxy a user id of its own, with the annotation config.linkerd.io/proxy-uid"
    if sharing:
        message = f"cannot redirect {named(sharing)}: it runs as user {spec.proxy_uid}, like the proxy"
        yield Complaint(Reason.PROXY_UID_SHARED, "runAsUser", message, remedy)
    elif spec.proxy_uid == 0:
        message = "cannot redirect what runs as root: so does the proxy, which is exempt"
        yield Complaint(Reason.PROXY_UID_SHARED, "runAsUser", message, remedy)


def coverage_complaints(spec: RedirectSpec) -> Iterator[Complaint]:
    """Lists that leave nothing to redirect."""
    remedy = "change the list, or take the pod out of the mesh"
    if spec.skip_outbound.everything:
        message = "cannot redirect any outbound connection: the list covers every port"
        yield Complaint(Reason.OUTBOUND_OFF, names.SKIP_OUTBOUND_PORTS, message, remedy)
    sources = ("0.0.0.0/0" in spec.skip_subnets.v4, "::/0" in spec.skip_subnets.v6 or not spec.ipv6)
    for subject, off, why in (
        (names.SKIP_INBOUND_PORTS, (spec.skip_inbound | spec.proxy_ports).everything, "covers every port"),
        (names.SKIP_SUBNETS, all(sources), "covers every source"),
        ("only_inbound", spec.only_inbound is not None and not spec.only_inbound, "is empty"),
    ):
        if off:
            message = f"cannot redirect any inbound connection: the list {why}"
            yield Complaint(Reason.INBOUND_OFF, subject, message, remedy)
