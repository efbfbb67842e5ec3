"""Port lists, subnet lists and listen addresses: what is read, what is refused, what is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.ports import (
    ListenAddress,
    ParsedPorts,
    PortSet,
    Range,
    Subnets,
    list_complaints,
    named,
    parse_listen,
    parse_ports,
    parse_subnets,
    upstream_ports,
)
from agent.core.reasons import Reason

port = st.integers(0, 65535)
port_range = st.tuples(port, st.integers(0, 40)).map(lambda pair: (pair[0], min(pair[0] + pair[1], 65535)))
ranges = st.lists(st.one_of(port, port_range), max_size=20)

HOSTILE = [
    "80; add rule inet x y accept",
    "80 } accept #",
    "9" * 100_000,
    "\n",
    "80\n443",
    "80\n",
    "\uff18\uff10",
    "80\x00",
    "\u00a080",
    "-1",
    "+80",
    "1e3",
    "0x50",
    "8_0",
    "80-",
    "-",
    "80--90",
    "10 - 20",
    "65536",
    "\ud800",
]


def members(ports: PortSet) -> set[int]:
    return {port for low, high in ports.ranges for port in range(low, high + 1)}


def naive(entries: list[int | Range]) -> set[int]:
    return {
        port
        for entry in entries
        for port in ([entry] if isinstance(entry, int) else range(entry[0], entry[1] + 1))
    }


@given(ranges, ranges, port)
def test_a_port_set_is_a_set(left: list[int | Range], right: list[int | Range], probe: int) -> None:
    one, two = PortSet.of(*left), PortSet.of(*right)
    assert members(one) == naive(left)
    assert members(one | two) == naive(left) | naive(right)
    assert (probe in one) == (probe in naive(left))
    assert bool(one) == bool(left)
    assert (one == two) == (naive(left) == naive(right))


@given(ranges)
def test_a_port_set_prints_what_it_parses(entries: list[int | Range]) -> None:
    ports = PortSet.of(*entries)
    assert parse_ports(str(ports)) == ParsedPorts(ports)
    assert ",".join(ports.elements()) == str(ports)


def test_adjacent_ranges_are_merged() -> None:
    assert PortSet.of(23, 22, (24, 30), (1, 3)).ranges == ((1, 3), (22, 30))
    assert str(PortSet.of(22, (9000, 9010))) == "22,9000-9010"


@pytest.mark.parametrize("wrong", [((2, 1),), ((1, 2), (3, 4)), ((5, 6), (1, 2)), ((-1, 2),), ((1, 65536),)])
def test_the_constructor_takes_the_canonical_form_only(wrong: tuple[Range, ...]) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        PortSet(wrong)


@pytest.mark.parametrize(
    ("ranges", "everything"),
    [
        (((0, 65535),), True),
        (((1, 65535),), True),
        (((2, 65535),), False),
        (((1, 65534),), False),
        ((), False),
    ],
)
def test_everything_leaves_no_usable_port_out(ranges: tuple[Range, ...], everything: bool) -> None:
    assert PortSet(ranges).everything is everything


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        ("22,9000-9010", "22,9000-9010"),
        ("0", "0"),
        ("0-65535", "0-65535"),
        ("22-22", "22"),
        ("0022", "22"),
        ("25,20-30,28-40,25-25", "20-40"),
        (" 22 ,\t25", "22,25"),
        ("22,25,", "22,25"),
        ("22,,25", "22,25"),
        (8080, "8080"),
        (0, "0"),
        ((22, "25"), "22,25"),
        ([], ""),
        ("", ""),
        (None, ""),
    ],
)
def test_lists_that_are_read_whole(value: object, ports: str) -> None:
    parsed = parse_ports(value)
    assert (str(parsed.ports), parsed.invalid, parsed.blank) == (ports, (), False)


def test_c01_any_number_of_entries_is_one_merged_set() -> None:
    singles = [str(2 * at) for at in range(1000, 1040)]
    spans = [f"{low}-{low + 10}" for low in range(30_000, 30_100, 10)]
    parsed = parse_ports(",".join(["9000-9010", "9005", "1-79", "443", *reversed(singles), *spans]))
    assert parsed.invalid == ()
    assert parsed.ports.ranges[0] == (1, 79)
    assert (30_000, 30_100) in parsed.ports.ranges
    assert 9007 in parsed.ports
    assert 9011 not in parsed.ports
    assert len(parsed.ports.ranges) == 4 + 40


@pytest.mark.parametrize(
    "value", [[4190, "4191", "4567-4568"], "4190,4191,4567-4568", ["4190,4191", "4567-4568"]]
)
def test_c02_numbers_texts_and_ranges_mix(value: object) -> None:
    assert parse_ports(value) == ParsedPorts(PortSet.of((4190, 4191), (4567, 4568)))


@pytest.mark.parametrize(
    "value", [[80, True], [80, 1.5], [80, None], [80, ["81"]], [80, {"a": 1}], [80, 10**6000]]
)
def test_c02_other_values_are_refused_one_by_one(value: object) -> None:
    parsed = parse_ports(value)
    assert parsed.ports == PortSet.of(80)
    assert len(parsed.invalid) == 1


@pytest.mark.parametrize(
    ("value", "blank", "invalid"),
    [
        ("", False, ()),
        (" ", True, ()),
        (",", True, ()),
        (" , ", True, ()),
        ("abc", False, ("abc",)),
        ([""], True, ()),
    ],
)
def test_c13_empty_blank_and_invalid_are_told_apart(
    value: object, blank: bool, invalid: tuple[str, ...]
) -> None:
    parsed = parse_ports(value)
    assert (parsed.ports, parsed.blank, parsed.invalid) == (PortSet(), blank, invalid)


@pytest.mark.parametrize("value", HOSTILE)
def test_c14_hostile_text_is_refused_and_named_short(value: object) -> None:
    parsed = parse_ports(value)
    assert parsed.ports == PortSet()
    assert len(parsed.invalid) == 1
    (complaint,) = list_complaints(parsed, "skip-outbound-ports", "pod annotation")
    assert complaint.reason is Reason.INVALID_ANNOTATION
    assert complaint.message.isprintable()
    assert len(complaint.message) < 200


def test_c14_many_bad_entries_make_a_short_message() -> None:
    parsed = parse_ports(",".join(f"bad{at}" for at in range(5000)))
    assert len(parsed.invalid) == 5000
    (complaint,) = list_complaints(parsed, "skip-outbound-ports", "pod annotation")
    assert "'bad7' and 4992 more" in complaint.message
    assert len(complaint.message) < 250


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
listish = st.text(alphabet="0123456789-, \t\nab:./[]%")


@given(json | listish)
def test_reading_never_raises(value: object) -> None:
    for parsed in (parse_ports(value), parse_subnets(value)):
        assert all(complaint.message.isprintable() for complaint in list_complaints(parsed, "a", "b"))
    if isinstance(value, str):
        upstream_ports(value)
        parse_listen(value)


@given(listish)
def test_upstream_reads_the_same_unless_an_entry_is_named(text: str) -> None:
    parsed = parse_ports(text)
    if not parsed.invalid and not parsed.differs:
        assert parsed.ports == upstream_ports(text)
    assert members(upstream_ports(text)) <= members(parsed.ports) or parsed.invalid


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("22, 25", "22"),
        ("22,25,", "22,25"),
        ("+80", "80"),
        ("000080", "80"),
        ("30-20,1-2-3,70000,mysql", ""),
        (" 22", ""),
        ("22\n", ""),
        ("9" * 100_000, ""),
        ("", ""),
    ],
)
def test_what_linkerd_init_makes_of_a_list(text: str, ports: str) -> None:
    assert str(upstream_ports(text)) == ports


def test_entries_that_upstream_drops_are_named() -> None:
    parsed = parse_ports("3306, 5432 , 6379")
    assert parsed.differs == (" 5432 ", " 6379")
    assert str(parsed.ports) == "3306,5432,6379"
    (complaint,) = list_complaints(parsed, "skip-outbound-ports", "pod annotation")
    assert complaint.reason is Reason.PORTS_DIFFER
    assert "' 5432 ', ' 6379'" in complaint.message


@pytest.mark.parametrize(
    ("value", "subnets"),
    [
        ("10.0.0.0/8", Subnets(v4=("10.0.0.0/8",))),
        ("172.17.0.0/16, fd99::/64", Subnets(v4=("172.17.0.0/16",), v6=("fd99::/64",))),
        ("0.0.0.0/0,10.0.0.0/8", Subnets(v4=("0.0.0.0/0",))),
        ("::/0", Subnets(v6=("::/0",))),
        ("10.1.2.3/32", Subnets(v4=("10.1.2.3/32",))),
        ("FD99:0::1/128", Subnets(v6=("fd99::1/128",))),
        (["10.0.0.0/9", "10.128.0.0/9"], Subnets(v4=("10.0.0.0/8",))),
        ("10.0.0.0/8,", Subnets(v4=("10.0.0.0/8",))),
        ("", Subnets()),
        (None, Subnets()),
    ],
)
def test_subnets_that_are_read_whole(value: object, subnets: Subnets) -> None:
    parsed = parse_subnets(value)
    assert (parsed.subnets, parsed.invalid, parsed.blank) == (subnets, (), False)


def test_c07_blanks_and_host_bits_are_accepted() -> None:
    assert parse_subnets(" 10.1.0.0/16 ,10.2.0.0/16 ").subnets == Subnets(v4=("10.1.0.0/16", "10.2.0.0/16"))
    assert parse_subnets("10.1.0.7/16").subnets == Subnets(v4=("10.1.0.0/16",))


def test_c07_an_address_without_length_is_refused_with_the_remedy() -> None:
    parsed = parse_subnets("10.1.2.3, 10.0.0.0/8, FD99::1")
    assert parsed.subnets == Subnets(v4=("10.0.0.0/8",))
    assert parsed.invalid == ("10.1.2.3", " FD99::1")
    (complaint,) = list_complaints(parsed, "skip-subnets", "pod annotation")
    assert "'10.1.2.3'" in complaint.message
    assert complaint.remedy == "write 10.1.2.3/32,fd99::1/128"


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0/33",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/-1",
        "10.0.0/8",
        "010.0.0.0/8",
        "fe80::1%eth0; flush ruleset/64",
        "fe80::1%eth0",
        "fd99::/129",
        "10.0.0.0/\uff18",
        "10.0.0.0/8\n",
        "example.com/8",
        "/8",
    ],
)
def test_c14_subnets_that_are_refused(text: str) -> None:
    parsed = parse_subnets(text)
    assert (parsed.subnets, len(parsed.invalid), parsed.bare) == (Subnets(), 1, ())


@pytest.mark.parametrize("value", [" ", ",", [" "]])
def test_c13_a_blank_subnet_list_is_empty_and_said(value: object) -> None:
    assert parse_subnets(value).blank
    (complaint,) = list_complaints(parse_subnets(value), "skip-subnets", "pod annotation")
    assert complaint.reason is Reason.INVALID_ANNOTATION


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("0.0.0.0:4143", (ListenAddress(4, 4143),)),
        ("[::]:4143", (ListenAddress(6, 4143),)),
        ("127.0.0.1:4140, [::1]:4140", (ListenAddress(4, 4140), ListenAddress(6, 4140))),
        ("127.0.0.1:4140,", None),
        ("127.0.0.1:0", None),
        ("127.0.0.1:65536", None),
        ("127.0.0.1", None),
        ("127.0.0.1.1:80", None),
        ("::1:4140", None),
        ("[127.0.0.1]:4140", None),
        ("localhost:4140", None),
        ("$(POD_IP):4140", None),
        ("127.0.0.1:\uff14\uff11\uff14\uff10", None),
        ("", None),
    ],
)
def test_listen_addresses(text: str, addresses: tuple[ListenAddress, ...] | None) -> None:
    assert parse_listen(text) == addresses


def test_named_quotes_and_bounds() -> None:
    assert named(["a\n", "b'"]) == "'a\\n', \"b'\""
    assert named(["x" * 1000]) == "'xxxxxxxxxxxxxxxxxxxx... (1000 characters)'"
    assert named([str(at) for at in range(9)]).endswith("'7' and 1 more")
