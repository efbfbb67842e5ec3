"""Linkerd's own values as settings."""

from typing import Any

import pytest

from agent.core.discovery.config import Discovery, FlowControl, Http2, Internals, KeepAlive
from agent.core.discovery.linkerd_config import read_values
from agent.core.ports import PortSet

VALUES: dict[str, Any] = {
    "clusterDomain": "k8s.corp.test",
    "identityTrustDomain": "mesh.test",
    "disableIPv6": False,
    "enableH2Upgrade": False,
    "enableEndpointSlices": False,
    "proxy": {"opaquePorts": "25,9000-9010", "outboundTransportMode": "transparent"},
    "destinationController": {
        "meshedHttp2ClientProtobuf": {
            "keep_alive": {
                "interval": {"seconds": 10.0},
                "timeout": {"seconds": 3, "nanos": 5},
                "while_idle": True,
            }
        }
    },
    "something": "else",
}


def test_all_values() -> None:
    found, complaints = read_values(VALUES, "l5d", Discovery())
    assert complaints == ()
    assert found == Discovery(
        cluster_domain="k8s.corp.test",
        trust_domain="mesh.test",
        control_plane_namespace="l5d",
        default_opaque_ports=PortSet.of(25, (9000, 9010)),
        transport="transparent",
        h2_upgrade=False,
        http2=Http2(keep_alive=KeepAlive(10_000_000_000, 3_000_000_005, True)),
        ipv6=True,
        endpoint_slices=False,
    )


def test_what_is_not_said_stays() -> None:
    base = Discovery(zone_weights=True, trust_domain="mesh.test", ipv6=True)
    found, complaints = read_values({"proxy": None}, "linkerd", base)
    assert (found, complaints) == (base, ())


@pytest.mark.parametrize(
    "values", [{"identityTrustDomain": ""}, {"identityTrustDomain": "", "clusterDomain": "a.b."}]
)
def test_an_empty_trust_domain_is_the_clusters(values: dict[str, Any]) -> None:
    found, _ = read_values(values, "linkerd", Discovery())
    assert (
        found.trust_domain == found.cluster_domain == values.get("clusterDomain", "cluster.local").strip(".")
    )


def test_all_parameters_of_http2() -> None:
    http2 = {
        "flow_control": {"initial_stream_window_size": 65535, "adaptive_flow_control": True},
        "internals": {"max_frame_size": 16384},
        "unknown": 1,
    }
    values = {"destinationController": {"meshedHttp2ClientProtobuf": http2}}
    found, complaints = read_values(values, "linkerd", Discovery())
    assert complaints == ()
    assert found.http2 == Http2(FlowControl(0, 65535, True), None, Internals(0, 16384, 0))
    values = {"destinationController": {"meshedHttp2ClientProtobuf": {}}}
    assert read_values(values, "linkerd", Discovery())[0].http2 is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("clusterDomain", 7),
        ("clusterDomain", "."),
        ("identityTrustDomain", ["x"]),
        ("disableIPv6", "true"),
        ("proxy.opaquePorts", "25,mysql"),
        ("destinationController.meshedHttp2ClientProtobuf", "text"),
        ("destinationController.meshedHttp2ClientProtobuf", {"keep_alive": 7}),
        ("destinationController.meshedHttp2ClientProtobuf", {"keep_alive": {"interval": {"seconds": -1}}}),
        ("destinationController.meshedHttp2ClientProtobuf", {"keep_alive": {"while_idle": "yes"}}),
        ("destinationController.meshedHttp2ClientProtobuf", {"internals": {"max_frame_size": 0.5}}),
    ],
)
def test_a_bad_value_is_named_and_leaves_the_default(path: str, value: Any) -> None:
    values = value
    for step in reversed(path.split(".")):
        values = {step: values}
    found, complaints = read_values(values, "linkerd", Discovery())
    assert found == Discovery()
    assert [complaint.subject for complaint in complaints] == [path]
    assert complaints[0].message.startswith(f"cannot use {path} of ConfigMap linkerd/linkerd-config: ")
