"""Pod, namespace and node defaults of a case, as the product holds them."""

from typing import Any

import msgspec

from agent.core import names
from agent.core.objects import (
    Container,
    ContainerPort,
    EnvVar,
    Metadata,
    Namespace,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    SecurityContext,
)
from agent.core.ports import PortSet, parse_ports, parse_subnets
from agent.core.spec import NodeDefaults
from tests.cases.schema import ContainerText, NodeText, PodText, SecurityText, Texts


def pod(text: PodText, addresses: list[str], *, add_proxy: bool) -> Pod:
    """The pod; `add_proxy` gives it a proxy container unless it names one. Raises msgspec.ValidationError."""
    init = tuple(_container(each, text) for each in (*text.init, *text.init_containers))
    containers = tuple(_container(each, text) for each in text.containers or ())
    if add_proxy and names.PROXY_CONTAINER not in {each.name for each in (*init, *containers)}:
        containers += (_container(ContainerText(name=names.PROXY_CONTAINER), text),)
    return Pod(
        metadata=Metadata(
            name=text.name,
            namespace=text.namespace,
            uid=f"uid-of-{text.name}",
            labels=text.labels,
            annotations=text.annotations,
        ),
        spec=PodSpec(
            host_network=text.host_network,
            host_users=text.host_users,
            security_context=_security(text.security_context),
            containers=containers,
            init_containers=init,
        ),
        status=PodStatus(
            phase=text.phase or "Running",
            pod_ip=addresses[0] if addresses else None,
            pod_ips=tuple(map(PodIP, addresses)) or None,
        ),
    )


def _container(text: ContainerText, pod: PodText) -> Container:
    env = _variables(text.env) if isinstance(text.env, dict) else text.env or []
    said = text.security_context
    user = said.run_as_user if text.run_as_user is None else text.run_as_user
    group = said.run_as_group if text.run_as_group is None else text.run_as_group
    if text.name == names.PROXY_CONTAINER:
        env = [*env, *_variables(pod.proxy_env)]
        user = pod.proxy_run_as_user if user is None else user
    return Container(
        name=text.name,
        env=msgspec.convert(env, tuple[EnvVar, ...]) or None,
        ports=msgspec.convert(text.ports, tuple[ContainerPort, ...] | None),
        security_context=_security(SecurityText(user, group)),
        restart_policy=text.restart_policy,
    )


def _security(text: SecurityText) -> SecurityContext | None:
    context = SecurityContext(text.run_as_user, text.run_as_group)
    return context if context != SecurityContext() else None


def _variables(env: Texts) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in env.items()]


def kubernetes_ports(text: PodText) -> PortSet | None:
    """Ports and numeric target ports of the service default/kubernetes; None when the case has none."""
    if text.kubernetes_service_ports is None:
        return None
    found = [port for each in text.kubernetes_service_ports for port in (each.port, each.target_port)]
    return PortSet.of(*(port for port in found if isinstance(port, int)))


def defaults(text: NodeText) -> NodeDefaults:
    """The node's settings; lists go through the product's own parsers, as its settings do."""
    given: dict[str, Any] = {
        "inbound_port": text.inbound_port,
        "outbound_port": text.outbound_port,
        "proxy_uid": text.proxy_uid,
        "proxy_gid": text.proxy_gid,
        "ipv6": text.ipv6,
        "local_only": text.local_only,
        "takeover": text.takeover,
    }
    for field, value in (("skip_inbound", text.skip_inbound), ("skip_outbound", text.skip_outbound)):
        given[field] = None if value is None else parse_ports(value).ports
    if text.ports_to_redirect not in (None, [], ""):
        given["only_inbound"] = parse_ports(text.ports_to_redirect).ports
    if text.skip_subnets is not None:
        given["skip_subnets"] = parse_subnets(text.skip_subnets).subnets
    if text.exclude_namespaces is not None:
        given["exclude_namespaces"] = frozenset(text.exclude_namespaces)
    return NodeDefaults(**{field: value for field, value in given.items() if value is not None})


def namespace(text: PodText) -> Namespace:
    """The pod's namespace, with the annotations that the case gives it."""
    return Namespace(Metadata(text.namespace, annotations=text.ns_annotations))
