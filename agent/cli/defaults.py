"""The options that make up the node's defaults, shared by `run` and by the commands that simulate.

They take the words of linkerd-init and linkerd-cni where these have one.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agent.cli.types import Id, NamespaceList, Port, Ports, SubnetList
from agent.core.spec import NodeDefaults

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--incoming-proxy-port",
        type=Port(),
        default=4143,
        show_default=True,
        help="Inbound port of proxies that do not say.",
    ),
    click.option(
        "--outgoing-proxy-port",
        type=Port(),
        default=4140,
        show_default=True,
        help="Outbound port of proxies that do not say.",
    ),
    click.option(
        "--proxy-control-port",
        type=Port(),
        default=4190,
        show_default=True,
        help="Control port: never redirected.",
    ),
    click.option(
        "--proxy-admin-port",
        type=Port(),
        default=4191,
        show_default=True,
        help="Admin port: never redirected.",
    ),
    click.option(
        "--proxy-uid",
        type=Id(),
        default=2102,
        show_default=True,
        help="User of proxies that do not say.",
    ),
    click.option(
        "--proxy-gid",
        type=Id(least=-1),
        default=-1,
        show_default=True,
        help="Group that is never redirected; -1 for none.",
    ),
    click.option(
        "--ports-to-redirect",
        type=Ports(),
        default="",
        help="Redirect only these inbound ports. [default: all]",
    ),
    click.option(
        "--inbound-ports-to-ignore",
        type=Ports(),
        default="4567,4568",
        show_default=True,
        help="Inbound ports left alone.",
    ),
    click.option(
        "--outbound-ports-to-ignore",
        type=Ports(),
        default="4567,4568",
        show_default=True,
        help="Outbound ports left alone.",
    ),
    click.option(
        "--subnets-to-ignore",
        type=SubnetList(),
        default="",
        help="Sources of inbound connections left alone. [default: none]",
    ),
    click.option(
        "--ipv6",
        type=click.Choice(["auto", "true", "false"]),
        default="auto",
        show_default=True,
        help="Redirect IPv6; auto: as the proxy listens.",
    ),
    click.option(
        "--local-only/--no-local-only",
        default=True,
        show_default=True,
        help="Redirect inbound only what is addressed to the pod itself.",
    ),
    click.option(
        "--exclude-namespaces",
        type=NamespaceList(),
        default="",
        help="Namespaces whose pods are left alone, comma separated.",
    ),
    click.option(
        "--takeover/--no-takeover",
        default=False,
        show_default=True,
        help="Replace complete rules of linkerd-init, too.",
    ),
    click.option(
        "--before-proxy",
        type=click.Choice(["redirect", "hold"]),
        default="redirect",
        show_default=True,
        help="Outbound rules of pods whose init containers run before the proxy: at once, or held back until "
        "it listens.",
    ),
)

FLAGS = {
    "inbound_port": "--incoming-proxy-port",
    "outbound_port": "--outgoing-proxy-port",
    "control_port": "--proxy-control-port",
    "admin_port": "--proxy-admin-port",
    "proxy_uid": "--proxy-uid",
    "proxy_gid": "--proxy-gid",
    "skip_inbound": "--inbound-ports-to-ignore",
    "skip_outbound": "--outbound-ports-to-ignore",
    "skip_subnets": "--subnets-to-ignore",
    "only_inbound": "--ports-to-redirect",
    "ipv6": "--ipv6",
    "local_only": "--local-only",
}
"""The flag that sets each node default."""


def options(function: F) -> F:
    """Add the options; the command gets them as keyword arguments, see `node_defaults`."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def node_defaults(values: dict[str, Any]) -> NodeDefaults:
    """Take the options out of a command's keyword arguments and make the defaults of them."""
    gid = values.pop("proxy_gid")
    listed = values.pop("ports_to_redirect")
    ipv6 = values.pop("ipv6")
    return NodeDefaults(
        inbound_port=values.pop("incoming_proxy_port"),
        outbound_port=values.pop("outgoing_proxy_port"),
        control_port=values.pop("proxy_control_port"),
        admin_port=values.pop("proxy_admin_port"),
        proxy_uid=values.pop("proxy_uid"),
        proxy_gid=gid if gid > 0 else None,
        skip_inbound=values.pop("inbound_ports_to_ignore"),
        skip_outbound=values.pop("outbound_ports_to_ignore"),
        skip_subnets=values.pop("subnets_to_ignore"),
        only_inbound=listed or None,
        ipv6={"auto": None, "true": True, "false": False}[ipv6],
        local_only=values.pop("local_only"),
        exclude_namespaces=values.pop("exclude_namespaces"),
        takeover=values.pop("takeover"),
        hold_before_proxy=values.pop("before_proxy") == "hold",
    )
