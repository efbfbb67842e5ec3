"""The options of the destination service, with Linkerd's words where it has one."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agent.cli.types import Address, Port, Ports
from agent.core.discovery.config import Discovery
from agent.core.spec import NodeDefaults
from agent.settings import Answering

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--destination/--no-destination",
        default=True,
        show_default=True,
        help="Answer for destinations, once it is known how Linkerd was installed.",
    ),
    click.option(
        "--diagnostics-address",
        type=Address(),
        default="127.0.0.1:4188",
        show_default=True,
        help='Address of the node\'s own listener, for diagnostics; "" for none.',
    ),
    click.option(
        "--destination-port",
        type=Port(),
        default=4186,
        show_default=True,
        help="Port in pods whose proxies do not say where they ask.",
    ),
    click.option(
        "--node-name", default="", help="Name of this node; it decides about zones and local traffic."
    ),
    click.option(
        "--linkerd-namespace",
        "control_plane_namespace",
        default=Discovery().control_plane_namespace,
        show_default=True,
        help="Namespace of Linkerd's control plane, and of its ConfigMap linkerd-config.",
    ),
    click.option("--cluster-domain", help="As Linkerd was installed; by default what linkerd-config says."),
    click.option(
        "--identity-trust-domain",
        "trust_domain",
        help="As Linkerd was installed; nothing is answered before it is known. By default what "
        "linkerd-config says.",
    ),
    click.option(
        "--default-opaque-ports",
        type=Ports(),
        help="Ports that are opaque unless annotated; by default what linkerd-config says.",
    ),
    click.option(
        "--outbound-transport-mode",
        "transport",
        type=click.Choice(["transparent", "transport-header"]),
        help="As Linkerd was installed; by default what linkerd-config says.",
    ),
    click.option(
        "--require-redirection",
        type=click.Choice(["withhold", "deny", "allow"]),
        default="withhold",
        show_default=True,
        help="For a meshed pod that is not redirected: withhold its identity, so that it is reached in clear "
        "text; deny its traffic; or allow it to be announced as if it were.",
    ),
)

_OVERRIDES = ("cluster_domain", "trust_domain", "default_opaque_ports", "transport")


def options(command: F) -> F:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def answering(values: dict[str, Any], defaults: NodeDefaults) -> Answering:
    """Takes what `options` put into the command's values."""
    given = {name: values.pop(name) for name in _OVERRIDES}
    overrides = {name: value for name, value in given.items() if value is not None}
    base = Discovery(
        control_plane_namespace=values.pop("control_plane_namespace"),
        require_redirection=values.pop("require_redirection"),
        defaults=defaults,
        **overrides,
    )
    return Answering(
        enabled=values.pop("destination"),
        discovery=base,
        overrides=overrides,
        trust_domain=given["trust_domain"],
        diagnostics=values.pop("diagnostics_address"),
        port=values.pop("destination_port"),
        node_name=values.pop("node_name"),
    )
