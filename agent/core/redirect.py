"""From a pod, its namespace and the node's defaults to a RedirectSpec, or why there is none.

The proxy container itself is the truth: its environment names its ports, its security context its
user. Annotations say what the injector was asked for; where the two disagree the proxy wins, and
somebody should know. Lists come from the pod's annotation, else the namespace's, else the node's
default; the more specific list replaces the other, it never adds to it.

Whatever is written and has no effect is a complaint. Nothing here raises for what people write.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from agent.core import names
from agent.core.contradictions import coverage_complaints, effectless_complaints, uid_complaints
from agent.core.objects import Container, Namespace, Pod
from agent.core.ports import (
    LAST_PORT,
    ParsedPorts,
    ParsedSubnets,
    PortSet,
    list_complaints,
    named,
    parse_listen,
    parse_ports,
    parse_subnets,
)
from agent.core.reasons import Complaint, Reason
from agent.core.spec import Derivation, NodeDefaults, Origin, OriginKind, RedirectSpec

LAST_ID = 2**32 - 2  # the highest user or group id: to the kernel, the next one means "none"

_KUBERNETES_PORTS = PortSet.of(443, 6443)
_BUILT_IN = NodeDefaults()
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:h|ms|m|s|us|µs|ns))+")
_DURATION_PART = re.compile(r"([0-9.]+)([a-zµ]+)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

T = TypeVar("T")
P = TypeVar("P", ParsedPorts, ParsedSubnets)


def derive(
    pod: Pod, namespace: Namespace | None, defaults: NodeDefaults, kubernetes_ports: PortSet | None = None
) -> Derivation:
    """Decide what redirection a pod shall have. Equal input gives an equal answer.

    `kubernetes_ports`: ports and target ports of the service default/kubernetes, which the control
    plane's own pods must reach without a proxy; None while they are not known.
    """
    if pod.spec.host_network:
        return Derivation(excluded=Reason.HOST_NETWORK)
    proxy = next((each for each in pod.all_containers if each.name == names.PROXY_CONTAINER), None)
    if proxy is None:
        return Derivation(excluded=Reason.NOT_MESHED)
    if pod.finished:
        return Derivation(excluded=Reason.FINISHED)
    if pod.metadata.namespace in defaults.exclude_namespaces:
        return Derivation(excluded=Reason.NAMESPACE_EXCLUDED)
    reading = _Reading(pod, namespace.annotations if namespace else {}, proxy, defaults)
    if reading.disabled():
        return Derivation(excluded=Reason.DISABLED, complaints=tuple(reading.complaints))
    spec = reading.spec(kubernetes_ports)
    close_wait = reading.close_wait()
    reading.complaints += (*uid_complaints(pod, spec), *coverage_complaints(spec))
    for kind, annotations in reading.annotations:
        reading.complaints += effectless_complaints(kind, annotations)
    return Derivation(
        spec=spec,
        origins=reading.origins,
        shadowed=reading.shadowed,
        close_wait=close_wait,
        complaints=tuple(reading.complaints),
    )


class _Reading:
    """One pod while it is read: what made each field, what lost against it, and what is wrong."""

    def __init__(self, pod: Pod, inherited: dict[str, str], proxy: Container, defaults: NodeDefaults) -> None:
        self.pod = pod
        self.proxy = proxy
        self.defaults = defaults
        self.env = {variable.name: variable.value or "" for variable in proxy.env or ()}
        self.annotations: tuple[tuple[OriginKind, dict[str, str]], ...] = (
            ("pod annotation", pod.annotations),
            ("namespace annotation", inherited),
        )
        self.origins: dict[str, tuple[Origin, ...]] = {}
        self.shadowed: dict[str, tuple[Origin, ...]] = {}
        self.complaints: list[Complaint] = []

    def disabled(self) -> bool:
        switch = {"enabled": False, "disabled": True}
        found = self._annotated(names.REDIRECT, switch.get, "enabled or disabled")
        return found[0][1] if found else False

    def spec(self, kubernetes_ports: PortSet | None) -> RedirectSpec:
        control = self._port("control_port", names.CONTROL_PORT, names.ENV_CONTROL, field="proxy_ports")
        admin = self._port("admin_port", names.ADMIN_PORT, names.ENV_ADMIN, field="proxy_ports")
        listen = (names.ENV_OUTBOUND, names.ENV_OUTBOUND_SINGLE)
        return RedirectSpec(
            inbound_port=self._port("inbound_port", names.INBOUND_PORT, names.ENV_INBOUND),
            outbound_port=self._port("outbound_port", names.OUTBOUND_PORT, *listen),
            proxy_uid=self._proxy_uid(),
            proxy_gid=self._proxy_gid(),
            skip_inbound=self._list("skip_inbound", names.SKIP_INBOUND_PORTS, parse_ports, lambda p: p.ports),
            proxy_ports=PortSet.of(control, admin),
            skip_outbound=self._skip_outbound(kubernetes_ports),
            skip_subnets=self._list("skip_subnets", names.SKIP_SUBNETS, parse_subnets, lambda p: p.subnets),
            only_inbound=self._choose("only_inbound", []),
            ipv6=self._ipv6(*listen),
            local_only=self._choose("local_only", []),
        )

    def close_wait(self) -> int | None:
        grammar = "a duration between a second and a week, such as 90s or 1h30m, or 0 for none"
        found = self._annotated(names.CLOSE_WAIT_TIMEOUT, _close_wait_seconds, grammar)
        return next((seconds for origin, seconds in found if origin.kind == "pod annotation"), 0) or None

    def _port(self, setting: str, annotation: str, *variables: str, field: str = "") -> int:
        found: list[tuple[Origin, int]] = []
        for variable in variables:
            if found or variable not in self.env:
                continue
            text = self.env[variable]
            ports = [address.port for address in parse_listen(text) or ()]
            if ports:
                found.append((Origin("proxy env", variable, str(ports[0])), ports[0]))
            if len(set(ports)) != 1:
                done = f"{ports[0]}, its first port, is used" if ports else "it is passed over"
                message = f"cannot read one port from {named([text])}: {done}"
                remedy = "let the injector set it: addresses with one port, such as 127.0.0.1:4140"
                self._complain(Reason.INVALID_PROXY_SETTING, variable, message, remedy)
        found += self._annotated(annotation, _integer(1, LAST_PORT), f"a port of 1-{LAST_PORT}")
        return self._choose(field or setting, found, setting)

    def _ipv6(self, *variables: str) -> bool:
        found = self._default("ipv6") if self.defaults.ipv6 is not None else []
        for variable in variables:
            if addresses := parse_listen(self.env.get(variable, "")):
                wanted = any(address.version == 6 for address in addresses)
                found.append((Origin("proxy env", variable, _show(wanted)), wanted))
                break
        return bool(self._choose("ipv6", found))

    def _proxy_uid(self) -> int:
        found: list[tuple[Origin, int]] = []
        own, shared = self.proxy.security_context, self.pod.spec.security_context
        for owner, context in ((names.PROXY_CONTAINER, own), ("pod", shared)):
            uid = context.run_as_user if context else None
            if uid is None:
                continue
            name = f"runAsUser of {owner}"
            if 0 <= uid <= LAST_ID:
                found.append((Origin("security context", name, str(uid)), uid))
            else:
                message = f"cannot use {uid} as a user id: it is passed over"
                self._complain(Reason.INVALID_PROXY_SETTING, name, message, f"write a user id of 1-{LAST_ID}")
        found += self._annotated(names.PROXY_UID, _integer(0, LAST_ID), f"a user id of 1-{LAST_ID}")
        return self._choose("proxy_uid", found)

    def _proxy_gid(self) -> int | None:
        grammar = f"a group id of 1-{LAST_ID}, or -1 for none"
        found = self._annotated(names.PROXY_GID, _integer(-LAST_ID, LAST_ID), grammar)
        gid: int | None = self._choose("proxy_gid", found)
        if gid == 0:
            message = "cannot exempt group 0, the group of most containers: no group is exempt"
            remedy = "give the proxy a group of its own, or write -1 for none"
            self._complain(Reason.INVALID_ANNOTATION, names.PROXY_GID, message, remedy)
        return gid if gid is not None and gid > 0 else None

    def _skip_outbound(self, kubernetes_ports: PortSet | None) -> PortSet:
        annotation = names.SKIP_OUTBOUND_PORTS
        ports: PortSet = self._list("skip_outbound", annotation, parse_ports, lambda p: p.ports)
        if names.CONTROL_PLANE_COMPONENT not in (self.pod.metadata.labels or {}):
            return ports
        added = kubernetes_ports or _KUBERNETES_PORTS
        name = "default/kubernetes" if kubernetes_ports else "default/kubernetes (not seen yet: fallback)"
        self.origins["skip_outbound"] += (Origin("kubernetes service", name, str(added)),)
        return ports | added

    def _list(self, field: str, annotation: str, parse: Callable[[object], P], take: Callable[[P], T]) -> T:
        """The most specific list that is present, however little of it can be read."""
        found: list[tuple[Origin, T]] = []
        for kind, annotations in self.annotations:
            if annotation in annotations:
                parsed = parse(annotations[annotation])
                if not found:
                    self.complaints += list_complaints(parsed, annotation, kind)
                found.append((Origin(kind, annotation, _show(take(parsed))), take(parsed)))
        return self._choose(field, found)

    def _annotated(self, name: str, parse: Callable[[str], T | None], grammar: str) -> list[tuple[Origin, T]]:
        """The readable values of one annotation, most specific first; others are passed over."""
        found: list[tuple[Origin, T]] = []
        for kind, annotations in self.annotations:
            if name not in annotations:
                continue
            value = parse(annotations[name].strip())
            if value is not None:
                found.append((Origin(kind, name, _show(value)), value))
            elif not found:
                message = f"cannot read {named([annotations[name]])} ({kind}): it is passed over"
                self._complain(Reason.INVALID_ANNOTATION, name, message, f"write {grammar}")
        return found

    def _default(self, setting: str) -> list[tuple[Origin, Any]]:
        value, built_in = getattr(self.defaults, setting), getattr(_BUILT_IN, setting)
        found = [(Origin("node default", setting, _show(value)), value)]
        if built_in not in (value, None):
            found.append((Origin("built-in default", setting, _show(built_in)), built_in))
        return found

    def _choose(self, field: str, found: list[tuple[Origin, T]], setting: str = "") -> T:
        """The first value wins, the node's default comes last.

        A proxy that contradicts the annotation it was injected by is worth a complaint.
        """
        candidates: list[tuple[Origin, T]] = [*found, *self._default(setting or field)]
        (origin, value), *lost = candidates
        shadowed = (loser for loser, _ in lost if loser != origin)
        self.origins[field] = (*self.origins.get(field, ()), origin)
        self.shadowed[field] = (*self.shadowed.get(field, ()), *shadowed)
        asked, other = next((pair for pair in lost if pair[0].kind.endswith("annotation")), (origin, value))
        if other != value and origin.kind in ("proxy env", "security context"):
            message = f"cannot use {asked.value} ({asked.kind}): the proxy has {origin.value} ({origin.name})"
            remedy = "restart the pod so that it is injected anew, or correct the annotation"
            self._complain(Reason.SETTINGS_DISAGREE, asked.name, message, remedy)
        return value

    def _complain(self, reason: Reason, subject: str, message: str, remedy: str) -> None:
        self.complaints.append(Complaint(reason, subject, message, remedy))


def _integer(low: int, high: int) -> Callable[[str], int | None]:
    """A reader of decimal integers within these bounds."""

    def read(text: str) -> int | None:
        return int(text) if _INTEGER.fullmatch(text) and low <= int(text) <= high else None

    return read


def _close_wait_seconds(text: str) -> int | None:
    """Whole seconds of a duration as Go writes it, `90s` or `1m30s`; 0 for `0`."""
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
    return int(seconds) if seconds == 0 or 1 <= seconds <= 7 * 86400 else None


def _show(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
