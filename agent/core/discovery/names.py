"""Names that only discovery reads: labels, annotations and variables of Kubernetes and Linkerd."""

OPAQUE_PORTS = "config.linkerd.io/opaque-ports"
CONTROL_PLANE_NS = "linkerd.io/control-plane-ns"
POD_TEMPLATE_HASH = "pod-template-hash"
SERVICE_NAME = "kubernetes.io/service-name"
ZONE = "topology.kubernetes.io/zone"

MIRROR_CLUSTER = "mirror.linkerd.io/cluster-name"
MIRROR_SERVICE = "mirror.linkerd.io/remote-svc-fq-name"
MIRROR_IDENTITY = "mirror.linkerd.io/remote-gateway-identity"
REMOTE_DISCOVERY = "multicluster.linkerd.io/remote-discovery"
LOCAL_DISCOVERY = "multicluster.linkerd.io/local-discovery"

REDIRECTED = "pointsman.io/Redirected"
"""Condition of a pod, written by the agent of its node: `False` means known not to be redirected."""

ENV_OPAQUE = "LINKERD2_PROXY_INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION"
"""The opaque ports that a proxy was started with."""

ENV_DESTINATION = "LINKERD2_PROXY_DESTINATION_SVC_ADDR"
"""Whom a proxy asks for destinations."""
