"""What a proxy asks for, and who asks: spec sections 2 and 3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.discovery.targets import (
    AddressTarget,
    Client,
    Invalid,
    ServiceTarget,
    canonical_ip,
    parse_authority,
    parse_token,
    split_host_port,
)

DOMAIN = "cluster.test"
WEB = "web.shop.svc.cluster.test"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (WEB, ServiceTarget("web", "shop", "", 80)),
        (f"{WEB}:8080", ServiceTarget("web", "shop", "", 8080)),
        (f"{WEB}:+80", ServiceTarget("web", "shop", "", 80)),
        (f"{WEB}:080", ServiceTarget("web", "shop", "", 80)),
        (f"{WEB}:000000000065535", ServiceTarget("web", "shop", "", 65535)),
        (f"[{WEB}]:80", ServiceTarget("web", "shop", "", 80)),
        (f"db-0.{WEB}:5432", ServiceTarget("web", "shop", "db-0", 5432)),
        ("svc.svc.svc.cluster.test:1", ServiceTarget("svc", "svc", "", 1)),
        (f"{'x' * 63}.shop.svc.cluster.test", ServiceTarget("x" * 63, "shop", "", 80)),
        ("10.1.0.11:8080", AddressTarget("10.1.0.11", 8080)),
        ("10.1.0.11", AddressTarget("10.1.0.11", 80)),
        ("[2001:db8::1]:80", AddressTarget("2001:db8::1", 80)),
        ("[2001:DB8:0:0::1]:80", AddressTarget("2001:db8::1", 80)),
        ("[::ffff:10.96.0.10]:80", AddressTarget("10.96.0.10", 80)),
    ],
)
def test_authorities(path: str, expected: object) -> None:
    assert parse_authority(path, DOMAIN) == expected


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ":",
            ":80",
            "web",
            "web.shop:80",
            "web.shop.svc:80",
            "www.example.org:80",
            "svc.cluster.test:80",
        ),
        *("web.shop.svc.cluster.local:80", f"a.b.{WEB}:80", "shop.svc.cluster.test:80", f"{WEB}.:80"),
        *(f"{WEB}:", f"{WEB}:0", f"{WEB}:65536", f"{WEB}:-80", f"{WEB}:8 0", f"{WEB}: 80", f"{WEB}:8_0"),
        *(f"{WEB}:٨٠", f"{WEB}:http", f"{WEB}:80:80", f"{WEB}:{'9' * 5000}", "Web.shop.SVC.cluster.test:80"),
        *(
            "2001:db8::1",
            "[2001:db8::1]",
            "[2001:db8::1",
            "2001:db8::1]:80",
            "[fe80::1%eth0]:80",
            "[[::1]]:80",
        ),
        *("010.1.0.11:80", "10.1.0.256:80", "10.1.0:80", "[::1]80", "[::1]:80:80", "None:80", "[]:80"),
        *(".shop.svc.cluster.test:80", "web..svc.cluster.test:80", f".{WEB}:80"),
        f"{'x' * 64}.shop.svc.cluster.test:80",
    ],
)
def test_what_can_never_be_answered(path: str) -> None:
    with pytest.raises(Invalid, match=r"^cannot "):
        parse_authority(path, DOMAIN)


def test_a_hostile_authority_does_not_fill_the_message() -> None:
    with pytest.raises(Invalid) as error:
        parse_authority("x" * 1_000_000 + ":80", DOMAIN)
    assert len(str(error.value)) < 300


def test_a_domain_of_several_labels() -> None:
    assert parse_authority("web.shop.svc.k8s.corp.test:80", "k8s.corp.test") == ServiceTarget(
        "web", "shop", "", 80
    )
    with pytest.raises(Invalid):
        parse_authority("web.shop.svc.corp.test:80", "k8s.corp.test")


@given(st.text(max_size=80))
def test_any_text_is_a_target_or_invalid(path: str) -> None:
    try:
        target = parse_authority(path, DOMAIN)
    except Invalid:
        return
    assert 1 <= target.port <= 65535


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"ns":"a","nodeName":"n1","pod":"p"}\n', Client("a", "n1", "p")),
        ('{"ns":"a","x":{"y":[1]}}', Client("a")),
        ('{"NS":"a","NODENAME":"n1","Pod":null}', Client("a", "n1")),
        ("ns:a", Client("a")),
        ("ns:a:b", Client()),
        ("other:a", Client()),
        ("garbage", Client()),
        ("", Client()),
        ("null", Client()),
        ("[1]", Client()),
        ('{"ns":7}', Client()),
        ('{"ns":"a"} trailing', Client()),
        ('{"ns":"a"', Client()),
        ("[" * 100_000, Client()),
    ],
)
def test_a11_tokens_never_fail_a_call(text: str, expected: Client) -> None:
    assert parse_token(text) == expected


@given(st.text(max_size=60))
def test_any_token_is_read(text: str) -> None:
    assert isinstance(parse_token(text), Client)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("255.255.255.255", "255.255.255.255"),
        ("1.2.3.04", None),
        ("1.2.3", None),
        ("1.2.3.4 ", None),
        ("::FFFF:1.2.3.4", "1.2.3.4"),
        ("FD00:0::1", "fd00::1"),
        ("fe80::1%1", None),
        ("None", None),
        ("", None),
        ("db.example.org", None),
        (":::", None),
    ],
)
def test_l15_one_text_per_ip(text: str, expected: str | None) -> None:
    assert canonical_ip(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", ("a", "1")),
        ("[::1]:x", ("::1", "x")),
        ("a", None),
        ("::1", None),
        ("[::1]", None),
        (":", ("", "")),
    ],
)
def test_host_and_port_as_go_splits_them(text: str, expected: tuple[str, str] | None) -> None:
    assert split_host_port(text) == expected
