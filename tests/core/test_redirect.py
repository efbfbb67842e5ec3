"""From pod, namespace and node defaults to a spec: precedence, origins, and what is complained about."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core import names
from agent.core.objects import Pod
from agent.core.ports import PortSet, Subnets, parse_ports
from agent.core.reasons import Complaint, Reason
from agent.core.redirect import derive
from agent.core.ruleset import render
from agent.core.spec import Derivation, NodeDefaults, Origin, RedirectSpec
from tests.build import namespace, pod

DEFAULTS = NodeDefaults()
GALERA = PortSet.of((4567, 4568))
LISTED = (names.SKIP_INBOUND_PORTS, names.SKIP_OUTBOUND_PORTS)


def meshed(
    annotations: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    proxy_uid: int | None = None,
    pod_uid: int | None = None,
    apps: dict[str, int | None] | None = None,
    **fields: Any,
) -> Pod:
    """A pod with a proxy; `apps` maps further containers to their runAsUser."""
    proxy = {
        "name": "linkerd-proxy",
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "securityContext": {"runAsUser": proxy_uid},
    }
    others = [{"name": name, "securityContext": {"runAsUser": uid}} for name, uid in (apps or {}).items()]
    context = {"runAsUser": pod_uid}
    return pod(annotations=annotations, containers=[*others, proxy], securityContext=context, **fields)


def derived(
    annotations: dict[str, str] | None = None, defaults: NodeDefaults = DEFAULTS, **fields: Any
) -> Derivation:
    return derive(meshed(annotations, **fields), None, defaults)


def spec_of(derivation: Derivation) -> RedirectSpec:
    assert derivation.spec is not None
    assert derivation.excluded is None
    return derivation.spec


def reasons(derivation: Derivation) -> list[Reason]:
    return [complaint.reason for complaint in derivation.complaints]


def only(derivation: Derivation) -> Complaint:
    (complaint,) = derivation.complaints
    return complaint


def test_a_plain_meshed_pod_gets_the_defaults() -> None:
    derivation = derived()
    assert derivation.complaints == ()
    assert derivation.close_wait is None
    assert spec_of(derivation) == RedirectSpec(
        inbound_port=4143,
        outbound_port=4140,
        proxy_uid=2102,
        proxy_gid=None,
        skip_inbound=GALERA,
        proxy_ports=PortSet.of(4190, 4191),
        skip_outbound=GALERA,
        skip_subnets=Subnets(),
        only_inbound=None,
        ipv6=False,
        local_only=True,
        pin=True,
    )


def test_every_field_has_an_origin() -> None:
    origins = derived().origins
    assert set(origins) == set(RedirectSpec.__struct_fields__) - {"pin", "hold_outbound"}
    assert origins["inbound_port"] == (Origin("node default", "inbound_port", "4143"),)
    assert [origin.name for origin in origins["proxy_ports"]] == ["control_port", "admin_port"]


# -- which pods


@pytest.mark.parametrize(
    ("left_alone", "reason"),
    [
        (pod(meshed=False), Reason.NOT_MESHED),
        (pod(meshed=False, labels={"linkerd.io/control-plane-ns": "linkerd"}), Reason.NOT_MESHED),
        (pod(hostNetwork=True), Reason.HOST_NETWORK),
        (pod(meshed=False, hostNetwork=True), Reason.HOST_NETWORK),
        (pod(namespace="kube-system"), Reason.NAMESPACE_EXCLUDED),
        (pod(phase="Succeeded"), Reason.FINISHED),
        (pod(phase="Failed", annotations={names.REDIRECT: "disabled"}), Reason.FINISHED),
        (pod(annotations={names.REDIRECT: "disabled"}), Reason.DISABLED),
    ],
)
def test_pods_that_are_left_alone(left_alone: Pod, reason: Reason) -> None:
    defaults = NodeDefaults(exclude_namespaces=frozenset({"kube-system"}))
    assert derive(left_alone, None, defaults) == Derivation(excluded=reason)


def test_a_native_sidecar_is_a_proxy_too() -> None:
    native = pod(meshed=False, initContainers=[{"name": "linkerd-proxy", "restartPolicy": "Always"}])
    assert spec_of(derive(native, None, DEFAULTS)).inbound_port == 4143


@pytest.mark.parametrize(
    ("own", "inherited", "excluded", "complaints"),
    [
        (None, "disabled", Reason.DISABLED, []),
        ("enabled", "disabled", None, []),
        ("disabled", "enabled", Reason.DISABLED, []),
        ("off", None, None, [Reason.INVALID_ANNOTATION]),
        ("Disabled", "disabled", Reason.DISABLED, [Reason.INVALID_ANNOTATION]),
        ("enabled", "off", None, []),
    ],
)
def test_the_switch_of_the_pod_beats_that_of_the_namespace(
    own: str | None, inherited: str | None, excluded: Reason | None, complaints: list[Reason]
) -> None:
    switched = meshed({names.REDIRECT: own} if own else None)
    around = namespace(**({names.REDIRECT: inherited} if inherited else {}))
    derivation = derive(switched, around, DEFAULTS)
    assert (derivation.excluded, reasons(derivation)) == (excluded, complaints)


# -- lists


def test_pod_beats_namespace_beats_node() -> None:
    name = names.SKIP_OUTBOUND_PORTS
    around = namespace(**{name: "25"})
    assert spec_of(derive(meshed({name: "26"}), around, DEFAULTS)).skip_outbound == PortSet.of(26)
    assert spec_of(derive(meshed(), around, DEFAULTS)).skip_outbound == PortSet.of(25)
    assert spec_of(derive(meshed({name: ""}), around, DEFAULTS)).skip_outbound == PortSet()
    assert spec_of(derive(meshed({name: "26"}), around, DEFAULTS)).skip_inbound == GALERA


def test_c04_all_four_origins_of_a_list_can_be_shown() -> None:
    name = names.SKIP_OUTBOUND_PORTS
    defaults = NodeDefaults(skip_outbound=PortSet.of((4567, 4568), 443))
    derivation = derive(meshed({name: "8125"}), namespace(**{name: "25"}), defaults)
    assert spec_of(derivation).skip_outbound == PortSet.of(8125)
    assert derivation.origins["skip_outbound"] == (Origin("pod annotation", name, "8125"),)
    assert derivation.shadowed["skip_outbound"] == (
        Origin("namespace annotation", name, "25"),
        Origin("node default", "skip_outbound", "443,4567-4568"),
        Origin("built-in default", "skip_outbound", "4567-4568"),
    )


@pytest.mark.parametrize(
    ("value", "ports", "complaints"),
    [
        (None, "4567-4568", []),
        ("", "", []),
        (" ", "", [Reason.INVALID_ANNOTATION]),
        (",", "", [Reason.INVALID_ANNOTATION]),
        ("abc", "", [Reason.INVALID_ANNOTATION]),
        ("abc,25", "25", [Reason.INVALID_ANNOTATION]),
        ("25, 26", "25-26", [Reason.PORTS_DIFFER]),
    ],
)
@pytest.mark.parametrize("name", LISTED)
def test_c13_unset_empty_blank_and_invalid_lists(
    name: str, value: str | None, ports: str, complaints: list[Reason]
) -> None:
    derivation = derived(None if value is None else {name: value})
    spec = spec_of(derivation)
    taken = spec.skip_inbound if name == names.SKIP_INBOUND_PORTS else spec.skip_outbound
    assert (str(taken), reasons(derivation)) == (ports, complaints)
    assert spec.proxy_ports == PortSet.of(4190, 4191)


def test_bad_entries_are_named_and_the_rest_is_applied() -> None:
    derivation = derived({names.SKIP_OUTBOUND_PORTS: "mysql,3306,70000,30-20,1-2-3"})
    assert spec_of(derivation).skip_outbound == PortSet.of(3306)
    complaint = only(derivation)
    assert complaint.subject == names.SKIP_OUTBOUND_PORTS
    assert "'mysql', '70000', '30-20', '1-2-3'" in complaint.message
    assert "the rest is applied" in complaint.message


def test_entries_that_linkerd_init_drops_are_named() -> None:
    complaint = only(derived({names.SKIP_OUTBOUND_PORTS: "3306, 5432 , 6379"}))
    assert complaint.reason is Reason.PORTS_DIFFER
    assert "' 5432 ', ' 6379'" in complaint.message


def test_a_list_that_lost_is_not_complained_about() -> None:
    name = names.SKIP_INBOUND_PORTS
    assert derive(meshed({name: "22"}), namespace(**{name: "x, 1"}), DEFAULTS).complaints == ()


def test_c07_subnets_hold_in_every_path() -> None:
    name = names.SKIP_SUBNETS
    around = namespace(**{name: " 10.1.0.7/16 ,fd99::/64"})
    assert spec_of(derive(meshed(), around, DEFAULTS)).skip_subnets == Subnets(
        ("10.1.0.0/16",), ("fd99::/64",)
    )
    derivation = derived({name: "10.0.0.0/8,0.0.0.0"})
    assert spec_of(derivation).skip_subnets == Subnets(("10.0.0.0/8",))
    assert "'0.0.0.0'" in only(derivation).message
    assert only(derivation).remedy == "write 0.0.0.0/32"


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize(
    "text", ["80; add rule inet x y accept", "80 } accept #", "9" * 100_000, "\n", "\uff18\uff10"]
)
def test_c14_hostile_lists_change_no_rule(name: str, text: str) -> None:
    derivation = derived({name: text})
    assert reasons(derivation) == [Reason.INVALID_ANNOTATION]
    assert render(spec_of(derivation)) == render(spec_of(derived({name: ""})))


LINE = re.compile(
    r'[\t a-z0-9_@!=&|()"{}:;,-]*|'
    r"\t\t(elements = \{ )?[0-9a-f.:/, -]*( \})?|"
    r'\t\t[^"]*("[a-z_]*" [^"]*)?"pointsman [a-z0-9-]+( spec=[0-9a-f]{12})?"'
)

anything = st.dictionaries(
    st.sampled_from(
        [
            value
            for key, value in vars(names).items()
            if key.isupper() and isinstance(value, str) and "/" in value
        ]
    )
    | st.text().map(lambda text: "pointsman.io/" + text),
    st.text()
    | st.text(alphabet="0123456789-, ;{}\n./:")
    | st.sampled_from(["25", "3000", "10.0.0.0/8", "60s"]),
)
variables = st.dictionaries(
    st.sampled_from([value for key, value in vars(names).items() if key.startswith("ENV_")]),
    st.text() | st.sampled_from(["127.0.0.1:4140", "[::1]:4140", "127.0.0.1:1,[::1]:2"]),
)


@given(
    anything, anything, variables, st.none() | st.integers(-1, 2**33), st.none() | st.just(PortSet.of(443))
)
def test_c14_whatever_is_written_makes_a_ruleset_of_known_words(
    own: dict[str, str],
    inherited: dict[str, str],
    env: dict[str, str],
    uid: int | None,
    kubernetes_ports: PortSet | None,
) -> None:
    derivation = derive(meshed(own, env, uid), namespace(**inherited), DEFAULTS, kubernetes_ports)
    assert all(complaint.message.startswith("cannot ") for complaint in derivation.complaints)
    assert all(complaint.message.isprintable() for complaint in derivation.complaints)
    assert all(len(complaint.message) < 500 for complaint in derivation.complaints)
    if derivation.spec:
        assert all(LINE.fullmatch(line) for line in render(derivation.spec).splitlines())


# -- control plane


def test_c16_the_control_plane_reaches_the_api_server_without_a_proxy() -> None:
    labels = {names.CONTROL_PLANE_COMPONENT: "destination"}
    component = meshed(labels=labels)
    derivation = derive(component, None, DEFAULTS, PortSet.of(443, 8443))
    assert str(spec_of(derivation).skip_outbound) == "443,4567-4568,8443"
    assert derivation.origins["skip_outbound"] == (
        Origin("node default", "skip_outbound", "4567-4568"),
        Origin("kubernetes service", "default/kubernetes", "443,8443"),
    )
    assert spec_of(derive(component, None, DEFAULTS, PortSet.of(443, 6443))).skip_inbound == GALERA
    assert spec_of(derive(meshed(), None, DEFAULTS, PortSet.of(443, 6443))).skip_outbound == GALERA


def test_c16_an_unknown_api_server_falls_back_and_says_so() -> None:
    derivation = derived(labels={names.CONTROL_PLANE_COMPONENT: "identity"})
    assert str(spec_of(derivation).skip_outbound) == "443,4567-4568,6443"
    assert "fallback" in derivation.origins["skip_outbound"][-1].name


# -- the proxy's ports


@pytest.mark.parametrize(
    ("variable", "annotation", "field"),
    [
        (names.ENV_INBOUND, names.INBOUND_PORT, "inbound_port"),
        (names.ENV_OUTBOUND, names.OUTBOUND_PORT, "outbound_port"),
        (names.ENV_OUTBOUND_SINGLE, names.OUTBOUND_PORT, "outbound_port"),
    ],
)
def test_ports_come_from_env_then_annotation_then_default(variable: str, annotation: str, field: str) -> None:
    agreeing = derived({annotation: "5000"}, env={variable: "127.0.0.1:5000"})
    assert getattr(spec_of(agreeing), field) == 5000
    assert agreeing.complaints == ()
    assert agreeing.origins[field] == (Origin("proxy env", variable, "5000"),)
    assert getattr(spec_of(derived({annotation: "5001"})), field) == 5001
    inherited = derive(meshed(), namespace(**{annotation: "5002"}), DEFAULTS)
    assert getattr(spec_of(inherited), field) == 5002
    node = NodeDefaults(inbound_port=5003, outbound_port=5003)
    assert getattr(spec_of(derived(defaults=node)), field) == 5003


def test_env_beats_an_annotation_that_disagrees() -> None:
    derivation = derived({names.INBOUND_PORT: "5143"}, env={names.ENV_INBOUND: "0.0.0.0:4143"})
    assert spec_of(derivation).inbound_port == 4143
    complaint = only(derivation)
    assert (complaint.reason, complaint.subject) == (Reason.SETTINGS_DISAGREE, names.INBOUND_PORT)
    assert "5143" in complaint.message
    assert "4143" in complaint.message


def test_only_the_annotation_in_force_can_disagree() -> None:
    agreeing = meshed({names.INBOUND_PORT: "4143"}, env={names.ENV_INBOUND: "0.0.0.0:4143"})
    assert derive(agreeing, namespace(**{names.INBOUND_PORT: "5143"}), DEFAULTS).complaints == ()
    silent = meshed(env={names.ENV_INBOUND: "0.0.0.0:4143"})
    assert reasons(derive(silent, namespace(**{names.INBOUND_PORT: "5143"}), DEFAULTS)) == [
        Reason.SETTINGS_DISAGREE
    ]


@pytest.mark.parametrize("text", ["", "4143", "0.0.0.0:0", "$(IP):4143", "0.0.0.0:99999", "9" * 100_000])
def test_an_unreadable_env_is_passed_over(text: str) -> None:
    derivation = derived({names.INBOUND_PORT: "5143"}, env={names.ENV_INBOUND: text})
    assert spec_of(derivation).inbound_port == 5143
    assert (only(derivation).reason, only(derivation).subject) == (
        Reason.INVALID_PROXY_SETTING,
        names.ENV_INBOUND,
    )
    assert len(only(derivation).message) < 200


def test_the_plural_beats_the_singular_unless_it_is_unreadable() -> None:
    both = {names.ENV_OUTBOUND: "127.0.0.1:5140,[::1]:5140", names.ENV_OUTBOUND_SINGLE: "127.0.0.1:4140"}
    assert spec_of(derived(env=both)).outbound_port == 5140
    fallen = derived(env={**both, names.ENV_OUTBOUND: "nonsense"})
    assert (spec_of(fallen).outbound_port, spec_of(fallen).ipv6) == (4140, False)
    assert reasons(fallen) == [Reason.INVALID_PROXY_SETTING]


def test_several_outbound_ports_are_complained_about() -> None:
    derivation = derived(env={names.ENV_OUTBOUND: "127.0.0.1:4140,[::1]:4150"})
    assert spec_of(derivation).outbound_port == 4140
    assert only(derivation).reason is Reason.INVALID_PROXY_SETTING
    assert "4140, its first port" in only(derivation).message


def test_control_and_admin_ports_follow_the_proxy() -> None:
    env = {names.ENV_ADMIN: "0.0.0.0:14191", names.ENV_CONTROL: "0.0.0.0:14190"}
    assert spec_of(derived(env=env)).proxy_ports == PortSet.of(14190, 14191)
    assert spec_of(derived({names.ADMIN_PORT: "5191"})).proxy_ports == PortSet.of(4190, 5191)


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "", "4143 4144"])
def test_an_unreadable_port_annotation_is_passed_over(text: str) -> None:
    derivation = derived({names.INBOUND_PORT: text})
    assert spec_of(derivation).inbound_port == 4143
    assert only(derivation).reason is Reason.INVALID_ANNOTATION


# -- IPv6


@pytest.mark.parametrize(
    ("env", "default", "ipv6"),
    [
        ({}, None, False),
        ({names.ENV_OUTBOUND: "127.0.0.1:4140"}, None, False),
        ({names.ENV_OUTBOUND: "127.0.0.1:4140,[::1]:4140"}, None, True),
        ({names.ENV_OUTBOUND: "[::1]:4140"}, None, True),
        ({names.ENV_OUTBOUND_SINGLE: "[::1]:4140"}, None, True),
        ({names.ENV_INBOUND: "[::]:4143"}, None, False),
        ({names.ENV_OUTBOUND: "127.0.0.1:4140,[::1]:4140"}, False, False),
        ({names.ENV_OUTBOUND: "127.0.0.1:4140"}, True, True),
    ],
)
def test_e02_ipv6_is_decided_per_pod_by_its_proxy(
    env: dict[str, str], default: bool | None, ipv6: bool
) -> None:
    derivation = derived(env=env, defaults=NodeDefaults(ipv6=default))
    assert spec_of(derivation).ipv6 is ipv6
    text = render(spec_of(derivation))
    assert ("meta nfproto != ipv4 return" in text) is not ipv6
    assert ("ip6" in text) is ipv6


def test_an_override_of_ipv6_shows_what_the_proxy_said() -> None:
    derivation = derived(env={names.ENV_OUTBOUND: "[::1]:4140"}, defaults=NodeDefaults(ipv6=False))
    assert derivation.origins["ipv6"] == (Origin("node default", "ipv6", "false"),)
    assert derivation.shadowed["ipv6"] == (Origin("proxy env", names.ENV_OUTBOUND, "true"),)


# -- users and groups


@pytest.mark.parametrize(
    ("proxy", "whole", "annotation", "uid", "complaints"),
    [
        (1000650000, None, None, 1000650000, []),
        (3000, None, "3000", 3000, []),
        (3000, 1000, None, 3000, []),
        (None, 1000650000, None, 1000650000, []),
        (None, None, "3000", 3000, []),
        (None, None, None, 2102, []),
        (2102, None, "3000", 2102, [Reason.SETTINGS_DISAGREE]),
        (None, 4000, "3000", 4000, [Reason.SETTINGS_DISAGREE]),
        (None, None, "nobody", 2102, [Reason.INVALID_ANNOTATION]),
        (None, None, "-1", 2102, [Reason.INVALID_ANNOTATION]),
        (None, None, "4294967295", 2102, [Reason.INVALID_ANNOTATION]),
        (-5, None, None, 2102, [Reason.INVALID_PROXY_SETTING]),
        (0, None, None, 0, [Reason.PROXY_UID_SHARED]),
    ],
)
def test_c10_the_uid_is_the_proxy_containers_own(
    proxy: int | None, whole: int | None, annotation: str | None, uid: int, complaints: list[Reason]
) -> None:
    annotations = {names.PROXY_UID: annotation} if annotation else None
    derivation = derived(annotations, proxy_uid=proxy, pod_uid=whole)
    assert (spec_of(derivation).proxy_uid, reasons(derivation)) == (uid, complaints)


@pytest.mark.parametrize(
    ("apps", "whole", "named"),
    [
        ({"app": 2102}, None, "'app'"),
        ({"app": None}, 2102, "'app'"),
        ({"app": 1000, "job": 2102}, 2102, "'job'"),
        ({"app": 1000}, 2102, None),
        ({"app": None}, None, None),
    ],
)
def test_containers_that_share_the_proxys_user(
    apps: dict[str, int | None], whole: int | None, named: str | None
) -> None:
    derivation = derived(proxy_uid=2102, pod_uid=whole, apps=apps)
    assert reasons(derivation) == ([Reason.PROXY_UID_SHARED] if named else [])
    if named:
        assert f"cannot redirect {named}:" in only(derivation).message


@pytest.mark.parametrize(
    ("annotation", "default", "gid", "complaints"),
    [
        (None, None, None, []),
        (None, 2150, 2150, []),
        ("2150", None, 2150, []),
        ("-1", 2150, None, []),
        ("0", 2150, None, [Reason.INVALID_ANNOTATION]),
        (None, 0, None, [Reason.INVALID_ANNOTATION]),
        ("staff", 2150, 2150, [Reason.INVALID_ANNOTATION]),
    ],
)
def test_the_gid_is_an_explicit_setting(
    annotation: str | None, default: int | None, gid: int | None, complaints: list[Reason]
) -> None:
    annotations = {names.PROXY_GID: annotation} if annotation else None
    derivation = derived(annotations, NodeDefaults(proxy_gid=default))
    assert (spec_of(derivation).proxy_gid, reasons(derivation)) == (gid, complaints)


def test_the_proxy_containers_group_is_not_exempt() -> None:
    proxy = {"name": "linkerd-proxy", "securityContext": {"runAsGroup": 2102}}
    assert spec_of(derive(pod(containers=[proxy]), None, DEFAULTS)).proxy_gid is None


# -- lists that leave nothing


@pytest.mark.parametrize(
    ("annotations", "defaults", "complaints"),
    [
        ({names.SKIP_OUTBOUND_PORTS: "0-65535"}, DEFAULTS, [Reason.OUTBOUND_OFF]),
        ({names.SKIP_OUTBOUND_PORTS: "1-65535"}, DEFAULTS, [Reason.OUTBOUND_OFF]),
        ({names.SKIP_INBOUND_PORTS: "1-4189,4192-65535"}, DEFAULTS, [Reason.INBOUND_OFF]),
        ({names.SKIP_SUBNETS: "0.0.0.0/0"}, DEFAULTS, [Reason.INBOUND_OFF]),
        ({names.SKIP_SUBNETS: "0.0.0.0/0"}, NodeDefaults(ipv6=True), []),
        ({names.SKIP_SUBNETS: "0.0.0.0/0,::/0"}, NodeDefaults(ipv6=True), [Reason.INBOUND_OFF]),
        ({}, NodeDefaults(only_inbound=PortSet()), [Reason.INBOUND_OFF]),
        ({}, NodeDefaults(only_inbound=PortSet.of(80)), []),
    ],
)
def test_a_direction_that_is_switched_off_is_said(
    annotations: dict[str, str], defaults: NodeDefaults, complaints: list[Reason]
) -> None:
    assert reasons(derived(annotations, defaults)) == complaints


# -- other annotations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("1m30s", 90), ("1.5h", 5400), ("1500ms", 1), ("0", None), ("0s", None), ("168h", 604800)],
)
def test_close_wait_timeouts(text: str, seconds: int | None) -> None:
    derivation = derived({names.CLOSE_WAIT_TIMEOUT: text})
    assert (derivation.close_wait, derivation.complaints) == (seconds, ())


@pytest.mark.parametrize("text", ["", "60", "5ms", "-1s", "1y", "s", "169h", "9" * 100_000 + "s"])
def test_close_wait_timeouts_that_are_refused(text: str) -> None:
    derivation = derived({names.CLOSE_WAIT_TIMEOUT: text})
    assert derivation.close_wait is None
    assert only(derivation).reason is Reason.INVALID_ANNOTATION


def test_a_close_wait_timeout_of_the_namespace_has_no_effect() -> None:
    derivation = derive(meshed(), namespace(**{names.CLOSE_WAIT_TIMEOUT: "60s"}), DEFAULTS)
    assert derivation.close_wait is None
    assert only(derivation).reason is Reason.UNSUPPORTED_ANNOTATION


@pytest.mark.parametrize(
    ("name", "value", "subject"),
    [
        (names.DATAPATH, "nftables", None),
        (names.DATAPATH, "ebpf", names.DATAPATH),
        (names.SOCKMAP, "enabled", names.SOCKMAP),
        (names.SKIP_CONTAINERS, "backup", names.SKIP_CONTAINERS),
        (names.NETNS, "/run/netns/a", None),
        (names.CGROUP, "/kubepods/a", names.CGROUP),
        ("pointsman.io/redirct", "disabled", "pointsman.io/*"),
        ("config.linkerd.io/proxy-cpu-limit", "1", None),
    ],
)
def test_annotations_without_effect_are_said(name: str, value: str, subject: str | None) -> None:
    for derivation in (derived({name: value}), derive(meshed(), namespace(**{name: value}), DEFAULTS)):
        assert [complaint.subject for complaint in derivation.complaints] == ([subject] if subject else [])
        assert set(reasons(derivation)) <= {Reason.UNSUPPORTED_ANNOTATION}


def test_c01_a_long_list_reaches_the_spec_whole() -> None:
    text = ",".join(str(port) for port in range(10_000, 20_000, 2))
    assert spec_of(derived({names.SKIP_OUTBOUND_PORTS: text})).skip_outbound == parse_ports(text).ports


@pytest.mark.parametrize("ports", [[4190, "4191", "4567-4568"], "4190,4191,4567-4568"])
def test_c02_node_defaults_take_either_form(ports: object) -> None:
    defaults = NodeDefaults(skip_inbound=parse_ports(ports).ports)
    assert str(spec_of(derived(defaults=defaults)).skip_inbound) == "4190-4191,4567-4568"
