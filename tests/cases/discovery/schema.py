"""The words that a case of the destination service may use, by name and type; an unknown one is an error."""

from typing import Any, Literal

import msgspec

Texts = dict[str, str]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the file. Every object may say `ns`, `ann`, `labels` and `owner`."""

    ns: str | None = None
    ann: Texts | None = None
    labels: Texts | None = None
    owner: str | list[str] | None = None


class ServiceText(_Strict, frozen=True, kw_only=True):
    svc: str
    ip: str | list[str] | None = None
    ports: list[str] | None = None
    type: str | None = None
    itp: str | None = None
    pnra: bool | None = None


class SliceText(_Strict, frozen=True, kw_only=True):
    slice: str
    of: str | None = None
    fam: str | None = None
    ports: list[str] | None = None
    eps: list[str] = []


class EndpointsText(_Strict, frozen=True, kw_only=True):
    endpoints: str
    subsets: list[str] = []


class PodText(_Strict, frozen=True, kw_only=True):
    pod: str
    ip: str | list[str] = []
    mesh: bool | str = False
    phase: str = "Running"
    ready: bool = True
    node: str = "n1"
    sa: str | None = None
    ports: list[str] = []
    init_ports: list[str] = []
    sidecar: str | list[str] = "init"
    hostip: str | list[str] | None = None
    hostnet: bool = False
    deleting: bool = False
    proxy_state: str | None = None
    env: str | Texts = {}
    redirection: Literal["broken", "working"] | None = None


class ServerText(_Strict, frozen=True, kw_only=True):
    server: str
    sel: dict[str, Any] | None = None
    ewsel: dict[str, Any] | None = None
    port: int | str = 80
    proto: str = "opaque"


class ProfileText(_Strict, frozen=True, kw_only=True, rename={"retry_budget": "retryBudget"}):
    sp: str
    routes: list[str | dict[str, Any]] = []
    retry_budget: dict[str, Any] | None = None
    opaque_ports: list[str] | None = msgspec.field(default=None, name="opaquePorts")
    overrides: list[dict[str, Any]] | None = msgspec.field(default=None, name="dstOverrides")


class WorkloadText(_Strict, frozen=True, kw_only=True):
    ew: str
    ips: list[str] = []
    ports: list[str] = []
    id: str | None = None
    sni: str | None = None


class NodeText(_Strict, frozen=True, kw_only=True):
    node: str
    zone: str | None = None


class ReplicaSetText(_Strict, frozen=True, kw_only=True):
    rs: str


class JobText(_Strict, frozen=True, kw_only=True):
    job: str


class NamespaceText(_Strict, frozen=True, kw_only=True):
    nsobj: str


Text = (
    ServiceText
    | SliceText
    | EndpointsText
    | PodText
    | ServerText
    | ProfileText
    | WorkloadText
    | NodeText
    | ReplicaSetText
    | JobText
    | NamespaceText
)

KINDS: dict[str, type[Text]] = {
    "svc": ServiceText,
    "slice": SliceText,
    "endpoints": EndpointsText,
    "pod": PodText,
    "server": ServerText,
    "sp": ProfileText,
    "ew": WorkloadText,
    "rs": ReplicaSetText,
    "job": JobText,
    "nsobj": NamespaceText,
    "node": NodeText,
}
"""Type by the key that names the object; `node` is last, since a pod says it too."""


class ConfigText(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={
        "cluster_domain": "CD",
        "trust_domain": "TD",
        "control_plane_namespace": "CNS",
        "default_opaque_ports": "DOP",
        "require_redirection": "requireRedirection",
    },
):
    """`cfg` of a case; the defaults are the base config of the notation.

    `node`: the agent's own, of whose pods the case tells the redirection.
    """

    cluster_domain: str = "cluster.test"
    trust_domain: str = "mesh.test"
    control_plane_namespace: str = "l5d"
    default_opaque_ports: str = "25,587,3306,4444,5432,6379,9300,11211"
    transport: str = "transparent"
    h2: bool = True
    slices: bool = True
    ipv6: bool = True
    http2: dict[str, Any] | None = None
    zone_weights: bool = False
    node: str = ""
    require_redirection: bool | str = True


class StepText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"upstream": "U"}):
    """`expect` is a list, or one item. `do` may be any scalar, read as text."""

    do: Any = None
    expect: Any = None
    upstream: Any = None


class CaseText(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"token": "tok", "upstream": "U"}
):
    id: str
    call: str | list[str]
    title: str = ""
    cfg: ConfigText = ConfigText()
    objects: str | list[Any] = []
    token: str = ""
    expect: Any = None
    steps: list[StepText] = []
    data: Any = None
    upstream: Any = None
    note: str | None = None


def text_of(written: Any) -> Text:
    """One object of the file. Raises ValueError that names what is wrong."""
    if not isinstance(written, dict):
        raise ValueError(f"{written!r} is no object of the notation")
    for word, kind in KINDS.items():
        if word in written:
            try:
                return msgspec.convert(written, type=kind)
            except msgspec.ValidationError as error:
                raise ValueError(f"object {word} {written[word]}: {error}") from error
    raise ValueError(f"an object names none of {', '.join(KINDS)}: {written!r}")
