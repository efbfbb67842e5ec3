"""The rendered text, against golden files.

`python -m tests.core.test_ruleset` writes the golden files anew; read the difference.
"""

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.ports import PortSet, Subnets, parse_ports, parse_subnets
from agent.core.ruleset import COUNTERS, RULES, drain, element_count, inbound, outbound, render, spec_hash
from agent.core.spec import RedirectSpec

GOLDEN = Path(__file__).parent / "golden"

DEFAULT = RedirectSpec(
    inbound_port=4143,
    outbound_port=4140,
    proxy_uid=2102,
    proxy_gid=None,
    skip_inbound=PortSet.of((4567, 4568)),
    proxy_ports=PortSet.of(4190, 4191),
    skip_outbound=PortSet.of((4567, 4568)),
    skip_subnets=Subnets(),
    only_inbound=None,
    ipv6=False,
    local_only=True,
)

BIG = msgspec.structs.replace(
    DEFAULT,
    ipv6=True,
    skip_outbound=parse_ports(
        [*range(20_000, 20_080, 2), *(f"{low}-{low + 5}" for low in range(30_000, 30_100, 10))]
    ).ports,
    skip_subnets=parse_subnets(
        [*(f"10.{at}.0.0/17" for at in range(40)), *(f"fd99:{at:x}::/64" for at in range(40))]
    ).subnets,
)

SPECS = {
    "default": DEFAULT,
    "ipv6": msgspec.structs.replace(
        DEFAULT, ipv6=True, skip_subnets=Subnets(v4=("172.17.0.0/16",), v6=("fd99::/64",))
    ),
    "no-pin": msgspec.structs.replace(DEFAULT, pin=False),
    "listed": msgspec.structs.replace(DEFAULT, only_inbound=PortSet.of(8080, 9090)),
    "gid": msgspec.structs.replace(DEFAULT, proxy_gid=2150),
    "local-only-off": msgspec.structs.replace(DEFAULT, local_only=False),
    "empty-lists": msgspec.structs.replace(DEFAULT, skip_inbound=PortSet(), skip_outbound=PortSet()),
    "held": msgspec.structs.replace(DEFAULT, hold_outbound=True),
    "big": BIG,
}

TEXTS = {**{name: render(spec) for name, spec in SPECS.items()}, "drain": drain()}

ports = st.lists(st.integers(0, 65535), max_size=6).map(lambda found: PortSet.of(*found))
specs = st.builds(
    RedirectSpec,
    inbound_port=st.integers(1, 65535),
    outbound_port=st.integers(1, 65535),
    proxy_uid=st.integers(0, 2**32 - 2),
    proxy_gid=st.none() | st.integers(1, 2**32 - 2),
    skip_inbound=ports,
    proxy_ports=ports,
    skip_outbound=ports,
    skip_subnets=st.sampled_from([Subnets(), Subnets(("10.0.0.0/8",), ("fd99::/64",))]),
    only_inbound=st.none() | ports,
    ipv6=st.booleans(),
    local_only=st.booleans(),
    pin=st.booleans(),
    hold_outbound=st.booleans(),
)


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    assert TEXTS[name] == (GOLDEN / f"{name}.nft").read_text()


def test_there_is_no_other_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.nft")} == set(TEXTS)


def rule_ids(text: str) -> list[str]:
    return re.findall(r'comment "pointsman ((?:in|out)-[a-z0-9-]+)', text)


@given(specs)
def test_rules_come_in_the_one_order_and_each_says_its_id(spec: RedirectSpec) -> None:
    ids = rule_ids(render(spec))
    assert ids == [rule.id for rule in (*inbound(spec), *outbound(spec))]
    assert ids == [rule for rule in RULES if rule in ids]


def test_every_rule_id_is_used_by_some_spec() -> None:
    assert {rule for text in TEXTS.values() for rule in rule_ids(text)} == set(RULES)


@given(specs)
def test_counters_and_sets_that_rules_name_are_defined(spec: RedirectSpec) -> None:
    text = render(spec)
    assert re.findall(r"^\tcounter (\w+)", text, re.M) == [counter.name for counter in COUNTERS]
    assert set(re.findall(r'counter name "(\w+)"', text)) <= {counter.name for counter in COUNTERS}
    assert set(re.findall(r"@(\w+)", text)) == set(re.findall(r"^\tset (\w+)", text, re.M))


def test_every_counter_is_used_by_some_spec() -> None:
    used = {name for text in TEXTS.values() for name in re.findall(r'counter name "(\w+)"', text)}
    assert used == {counter.name for counter in COUNTERS}


def test_counters_are_named_after_direction_and_reason() -> None:
    for counter in COUNTERS:
        assert re.fullmatch(f"{counter.direction}_(skip_)?{counter.reason}", counter.name)


@given(specs)
def test_every_skip_is_pinned_but_for_what_others_may_still_decide(spec: RedirectSpec) -> None:
    for rule in (*inbound(spec), *outbound(spec)):
        if rule.id in ("in-forwarded", "out-held") or rule.counter is None:
            assert rule.end == "return"
        elif not rule.id.endswith("-redirect"):
            assert rule.end == ("goto pin" if spec.pin else "return")
    assert ("chain pin" in render(spec)) is spec.pin


@given(specs)
def test_the_first_rule_of_each_chain_carries_the_hash(spec: RedirectSpec) -> None:
    noted = re.findall(r'comment "pointsman (\S+) spec=(\w+)"', render(spec))
    assert noted == [("in-not-tcp", spec_hash(spec)), ("out-not-tcp", spec_hash(spec))]


@given(specs, specs)
def test_equal_specs_and_only_those_share_text_and_hash(one: RedirectSpec, other: RedirectSpec) -> None:
    assert (one == other) == (render(one) == render(other)) == (spec_hash(one) == spec_hash(other))


@given(specs)
def test_equal_settings_written_in_another_order_are_one_text(spec: RedirectSpec) -> None:
    again = msgspec.json.decode(msgspec.json.encode(spec), type=RedirectSpec)
    assert render(again) == render(spec)


def test_lines_stay_readable() -> None:
    assert max(len(line.expandtabs(4)) for line in TEXTS["big"].splitlines()) <= 120


def test_c01_the_number_of_rules_does_not_depend_on_the_number_of_ports() -> None:
    assert rule_ids(TEXTS["big"]) == rule_ids(TEXTS["ipv6"])


def test_element_count() -> None:
    assert element_count(DEFAULT) == 2 * (2 + 1)
    assert element_count(BIG) == 2 * (2 + 50 + 40 + 40)
    assert element_count(msgspec.structs.replace(BIG, ipv6=False)) == 2 * (2 + 50 + 40)


def test_drain_has_one_nat_rule_that_needs_conntrack_and_no_redirect() -> None:
    assert "type nat hook prerouting priority -101" in drain()
    assert drain().count("ct state new return") == 1
    assert "redirect" not in drain()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, text in TEXTS.items():
        (GOLDEN / f"{name}.nft").write_text(text)
