"""One table in one pod: installed, kept, claimed, replaced, verified. Real network namespaces, root."""

import contextlib
import errno
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from agent.core.names import TABLE
from agent.core.ports import PortSet, Subnets
from agent.core.redirect import RedirectSpec
from agent.core.ruleset import drain, render
from agent.node.netns import open_netns, run_in
from agent.node.nft.channel import NftError
from agent.node.nft.compile import Compiler, Template
from agent.node.nft.datapath import TRIES, Applied, NftDatapath, OwnedByAnother, Unverified
from agent.node.nft.records import OWNER, PERSIST
from agent.node.nft.socket import Nft, State
from tests.lab.netns import configure, inside, netns, path_of, run, user_netns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

OWNED, PLAIN = OWNER | PERSIST, 0

SPEC = RedirectSpec(
    inbound_port=4143,
    outbound_port=4140,
    proxy_uid=2102,
    proxy_gid=None,
    skip_inbound=PortSet.of(22, (9000, 9010)),
    proxy_ports=PortSet.of(4190, 4191),
    skip_outbound=PortSet.of((4567, 4568), 5432),
    skip_subnets=Subnets(v4=("10.0.0.0/8",), v6=("fd00::/8",)),
    only_inbound=None,
    ipv6=True,
    local_only=True,
)
TEXT = render(SPEC)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with contextlib.closing(Compiler()) as made:
        yield made


@pytest.fixture(scope="module")
def template(compiler: Compiler) -> Template:
    return compiler.compile(TEXT)


@pytest.fixture(scope="module")
def owned(compiler: Compiler) -> int:
    if not compiler.flags():
        pytest.skip(compiler.reason)
    return compiler.flags()


@pytest.fixture
def name() -> Iterator[str]:
    with netns() as made:
        yield made


@pytest.fixture
def nl(name: str) -> Iterator[Nft]:
    with contextlib.closing(opened(name)) as made:
        yield made


def opened(name: str, datapath: NftDatapath | None = None) -> Nft:
    fd = open_netns(path_of(name))
    try:
        return (datapath or NftDatapath()).open(fd)
    finally:
        os.close(fd)


def apply(nl: Nft, template: Template, flags: int) -> Applied:
    return NftDatapath().apply(nl, template, flags)


def nft(name: str, script: str) -> str:
    return run("ip", "netns", "exec", name, "nft", "-f", "-", script=script)


def listing(name: str) -> str:
    """The table with handles and counter values; who owns it is in the first lines."""
    return run("ip", "netns", "exec", name, "nft", "-a", "list", "table", "inet", TABLE)


def handles(name: str) -> dict[str, str]:
    """Handle of every table, chain, set and counter. Those of rules move when rules are rewritten."""
    found = re.findall(
        r"^\t?(table|chain|set|counter)(?: inet)? (\S+) \{ # (?:.*)handle (\d+)", listing(name), re.M
    )
    return {f"{kind} {named}": handle for kind, named, handle in found}


def values(nl: Nft) -> dict[str, tuple[int, int]]:
    return {key: value for key, value in nl.read(TABLE).counters.items() if value != (0, 0)}


def with_values(name: str, text: str) -> None:
    """Install a text by nft, as a table whose counters have counted already."""
    nft(name, text.replace("counter out_redirect { }", "counter out_redirect { packets 7 bytes 420 }"))


# --- results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [PLAIN, OWNED], ids=("plain", "owned"))
def test_fresh_install_then_nothing_to_do(
    name: str, nl: Nft, template: Template, owned: int, flags: int
) -> None:
    first = apply(nl, template, flags)
    assert (first.result, first.differences) == ("installed", ("table missing",))
    assert (first.state.flags, first.state.owner) == (flags, nl.portid if flags else 0)
    assert first.install_ms > 0 < first.verify_ms
    before = listing(name)
    again = apply(nl, template, flags)
    assert (again.result, again.differences, again.state) == ("unchanged", (), first.state)
    assert listing(name) == before


def test_installed_table_is_what_nft_would_install(name: str, nl: Nft, template: Template) -> None:
    apply(nl, template, PLAIN)
    with netns() as other:
        nft(other, TEXT)
        lists = [
            run("ip", "netns", "exec", each, "nft", "list", "table", "inet", TABLE) for each in (name, other)
        ]
    assert sorted(lists[0].splitlines()) == sorted(lists[1].splitlines())


def test_change_of_ports_keeps_handles_rules_and_counters(name: str, nl: Nft, compiler: Compiler) -> None:
    text = render(msgspec.structs.replace(SPEC, skip_outbound=PortSet.of(3306)))
    with_values(name, TEXT)
    before = handles(name)
    done = apply(nl, compiler.compile(text), PLAIN)
    assert done.result == "updated"
    assert "element 3306 missing in set out_skip_ports" in done.differences
    assert "extra element 4567-4568 in set out_skip_ports" in done.differences
    assert handles(name) == before
    assert len(before) > 14
    assert values(nl) == {"out_redirect": (7, 420)}
    assert done.lost_counters == {}


def test_other_ruleset_in_place_reports_what_its_counters_had(name: str, nl: Nft, compiler: Compiler) -> None:
    with_values(name, TEXT)
    done = apply(nl, compiler.compile(drain()), PLAIN)
    assert done.result == "updated"
    assert done.lost_counters["out_redirect"] == (7, 420)
    assert "extra chain output" in done.differences
    back = apply(nl, compiler.compile(TEXT), PLAIN)
    assert (back.result, back.lost_counters) == ("updated", {})


INTERVAL = "\t\ttype inet_service\n\t\tflags interval\n\t\telements = { 4567-4568, 5432 }"

ONLY_NEW = {
    "priority": (
        "output priority -101",
        "output priority -100",
        "chain output priority is -100, should be -101",
    ),
    "hook": ("hook output", "hook prerouting", "chain output hook is prerouting, should be output"),
    "no-base": ("type nat hook output priority -101; policy accept;", "", "chain output type is none"),
    "set": (INTERVAL, "\t\ttype inet_service", "set out_skip_ports is defined otherwise"),
}


@pytest.mark.parametrize("case", ONLY_NEW)
def test_what_only_a_new_table_can_have_is_replaced(
    name: str, nl: Nft, template: Template, case: str
) -> None:
    old, new, words = ONLY_NEW[case]
    with_values(name, TEXT.replace(old, new))
    done = apply(nl, template, PLAIN)
    assert done.result == "replaced"
    assert any(words in each for each in done.differences), done.differences
    assert done.lost_counters["out_redirect"] == (7, 420)
    assert apply(nl, template, PLAIN).result == "unchanged"


def test_orphan_is_claimed_with_handles_and_counters(name: str, template: Template, owned: int) -> None:
    with contextlib.closing(opened(name)) as first:
        apply(first, template, owned)
    before = listing(name)
    with contextlib.closing(opened(name)) as second:
        seen = NftDatapath().observe(second, template, owned)
        assert seen.differences == ("table is an orphan, should be owned",)
        done = apply(second, template, owned)
        assert (done.result, done.state.owner) == ("claimed", second.portid)
        (change,) = second.events()
        assert change.own
        assert rules_and_handles(listing(name)) == rules_and_handles(before)


def rules_and_handles(listed: str) -> list[str]:
    """All but the lines about the owner."""
    return [line for line in listed.splitlines() if not line.startswith(("table", "\tflags"))]


def test_orphan_of_another_version_is_claimed_and_updated(
    name: str, template: Template, compiler: Compiler, owned: int
) -> None:
    with contextlib.closing(opened(name)) as first:
        apply(first, compiler.compile(TEXT.replace("4140", "5140")), owned)
    with contextlib.closing(opened(name)) as second:
        done = apply(second, template, owned)
        assert (done.result, done.state.owner) == ("updated", second.portid)


def test_every_way_between_plain_and_owned(name: str, template: Template, owned: int) -> None:
    with contextlib.closing(opened(name)) as first:
        assert apply(first, template, PLAIN).result == "installed"
        assert apply(first, template, owned).result == "replaced"
        assert apply(first, template, PLAIN).result == "replaced"
        assert apply(first, template, owned).state.owner == first.portid
    with contextlib.closing(opened(name)) as second:
        done = apply(second, template, PLAIN)
        assert (done.result, done.state.flags) == ("replaced", PLAIN)


def test_owner_refuses_foreign_flush_and_delete(name: str, nl: Nft, template: Template, owned: int) -> None:
    apply(nl, template, owned)
    before = listing(name)
    nft(name, "flush ruleset")
    for script in (
        f"delete table inet {TABLE}",
        f"flush chain inet {TABLE} output",
        f"add rule inet {TABLE} output drop",
    ):
        with pytest.raises(RuntimeError, match="Operation not permitted"):
            nft(name, script)
    assert listing(name) == before
    assert apply(nl, template, owned).result == "unchanged"


def test_table_of_a_living_agent_is_left_to_it(
    name: str, template: Template, compiler: Compiler, owned: int
) -> None:
    other = compiler.compile(drain())
    with contextlib.closing(opened(name)) as first, contextlib.closing(opened(name)) as second:
        apply(first, template, owned)
        for wanted in (template, other):
            with pytest.raises(OwnedByAnother, match=f"socket {first.portid} owns it"):
                apply(second, wanted, owned)
        assert NftDatapath().observe(second, template, owned).differences == ()
        first.close()
        assert apply(second, template, owned).result == "claimed"


# --- drift -------------------------------------------------------------------------------------------

# Each: what somebody does (given the listing where handles are needed), and the words for it.
DRIFT: dict[str, tuple[str | Callable[[str], str], str]] = {
    "extra-port": (
        "add element inet pointsman out_skip_ports { 80 }",
        "extra element 80 in set out_skip_ports",
    ),
    "missing-port": (
        "delete element inet pointsman out_skip_ports { 5432 }",
        "element 5432 missing in set out_skip_ports",
    ),
    "merged-port": (
        "delete element inet pointsman out_skip_ports { 5432 }\n"
        + "add element inet pointsman out_skip_ports { 5432-5433 }",
        "extra element 5432-5433 in set out_skip_ports",
    ),
    "extra-v6": (
        "add element inet pointsman in_skip_src6 { 2001:db8::/32 }",
        "extra element 2001:db8::/32 in set in_skip_src6",
    ),
    "missing-v4": (
        "delete element inet pointsman in_skip_src4 { 10.0.0.0/8 }",
        "element 10.0.0.0/8 missing in set in_skip_src4",
    ),
    "set-flushed": (
        "flush set inet pointsman out_skip_ports",
        "element 5432 missing in set out_skip_ports",
    ),
    "rule-inserted": ("insert rule inet pointsman output accept", "extra rule in chain output at 1"),
    "rule-appended": ("add rule inet pointsman prerouting drop", "extra rule in chain prerouting at 8"),
    "rule-deleted": (
        lambda listed: f"delete rule inet pointsman output handle {handle_of(listed, 'out-skip-port')}",
        "rule missing in chain output at 5 (pointsman out-skip-port)",
    ),
    "rules-swapped": (
        lambda listed: (
            f"delete rule inet pointsman output handle {handle_of(listed, 'out-lo')}\n"
            "add rule inet pointsman output "
            'oifname "lo" counter name "out_skip_lo" goto pin comment "pointsman out-lo"'
        ),
        "extra rule in chain output at 6 (pointsman out-lo)",
    ),
    "comment-changed": (
        lambda listed: (
            f"replace rule inet pointsman pin handle {handle_of(listed, 'pin-ip6')} "
            'dnat ip6 to ip6 daddr comment "mine now"'
        ),
        "extra rule in chain pin at 2 (mine now)",
    ),
    "chain-flushed": (
        "flush chain inet pointsman output",
        "rule missing in chain output at 6 (pointsman out-redirect)",
    ),
    "table-flushed": ("flush table inet pointsman", "rule missing in chain output at 1"),
    "table-deleted": ("delete table inet pointsman", "table missing"),
    "ruleset-flushed": ("flush ruleset", "table missing"),
    "dormant": ("add table inet pointsman { flags dormant; }", "table is dormant"),
    "policy": (
        "add chain inet pointsman output { policy drop; }",
        "chain output policy is drop, should be accept",
    ),
    "extra-chain": ("add chain inet pointsman x", "extra chain x"),
    "extra-base-chain": (
        "table inet pointsman {\n chain x { type filter hook output priority 0; drop; }\n}",
        "extra chain x",
    ),
    "extra-jumps": (
        "table inet pointsman {\n chain y { }\n chain x { jump y; }\n}\n"
        + "insert rule inet pointsman output jump x",
        "extra chain y",
    ),
    "extra-set": ("add set inet pointsman x { type ipv4_addr; }", "extra set x"),
    "extra-map": (
        "table inet pointsman {\n chain y { }\n"
        + " map x { type inet_service : verdict; elements = { 1 : jump y }\n }\n}",
        "extra map x",
    ),
    "extra-counter": ("add counter inet pointsman x", "extra counter x"),
    "anonymous-set": ("insert rule inet pointsman output tcp dport { 1, 2, 80 } drop", "extra set __set0"),
}


def handle_of(listed: str, rule: str) -> str:
    (found,) = re.findall(rf'"pointsman {rule}[^"]*" # handle (\d+)', listed)
    return str(found)


@pytest.mark.parametrize("case", DRIFT)
def test_drift_is_named_and_repaired_in_place(name: str, nl: Nft, template: Template, case: str) -> None:
    with_values(name, TEXT)
    assert apply(nl, template, PLAIN).result == "unchanged"
    before = handles(name)
    change, words = DRIFT[case]
    nft(name, change if isinstance(change, str) else change(listing(name)))
    assert any(event.comm == "nft" and not event.own for event in nl.events())
    seen = NftDatapath().observe(nl, template, PLAIN)
    assert any(words in each for each in seen.differences), seen.differences
    done = apply(nl, template, PLAIN)
    assert done.differences == seen.differences
    assert apply(nl, template, PLAIN).result == "unchanged"
    if words == "table missing":
        assert (done.result, seen.absent) == ("installed", True)
    else:
        assert (done.result, seen.absent, handles(name)) == ("updated", False, before)
        assert values(nl) == {"out_redirect": (7, 420)}


@pytest.mark.parametrize(
    "script",
    [
        "reset counters",
        "add table inet other",
        f"table ip {TABLE} {{\n chain output {{ type nat hook output priority -110; tcp dport 1 drop; }}\n}}",
        f"delete table inet {TABLE}\n{TEXT}",
    ],
    ids=("counters", "other-table", "other-family", "same-again"),
)
def test_what_is_no_drift(name: str, nl: Nft, template: Template, script: str) -> None:
    with_values(name, TEXT)
    nft(name, script)
    assert NftDatapath().observe(nl, template, PLAIN).differences == ()
    assert apply(nl, template, PLAIN).result == "unchanged"


def test_a02_one_rule_is_back_exactly_once(name: str, nl: Nft, template: Template) -> None:
    apply(nl, template, PLAIN)
    before = re.sub(r" # handle \d+", "", listing(name))
    nft(name, f"delete rule inet {TABLE} output handle {handle_of(listing(name), 'out-redirect')}")
    apply(nl, template, PLAIN)
    assert re.sub(r" # handle \d+", "", listing(name)) == before


def test_a07_foreign_tables_are_byte_identical(name: str, nl: Nft, compiler: Compiler, owned: int) -> None:
    nft(
        name,
        "table inet appfw {\n"
        ' ct helper ftp { type "ftp" protocol tcp;\n }\n'
        " map verdicts { type inet_service : verdict; elements = { 80 : accept }\n }\n"
        " set pairs { type ipv4_addr . inet_service; elements = { 10.0.0.1 . 80 }\n }\n"
        " chain input { type filter hook input priority 0\n"
        """  tcp dport 21 ct helper set "ftp" comment "a 'b' { }"\n }\n"""
        "}\n",
    )
    command = ("ip", "netns", "exec", name, "nft", "-a", "list", "table", "inet", "appfw")
    before = run(*command)
    for text, flags in ((TEXT, PLAIN), (TEXT, owned), (drain(), owned), (drain(), PLAIN)):
        apply(nl, compiler.compile(text), flags)
        assert run(*command) == before


# --- verification ------------------------------------------------------------------------------------


def test_b11_a_read_back_that_is_empty_is_unverified(nl: Nft, template: Template) -> None:
    blind = NftDatapath(lambda nl, table: msgspec.structs.replace(nl.read(table), records=(), owner=0))
    with pytest.raises(Unverified, match="cannot verify table inet pointsman") as caught:
        blind.apply(nl, template, PLAIN)
    assert caught.value.differences == ("table missing",)


def test_update_that_does_not_take_is_replaced_and_then_unverified(nl: Nft, template: Template) -> None:
    """As if a kernel acknowledged everything and left out the last rule."""

    def forgetful(nl: Nft, table: str) -> State:
        state = nl.read(table)
        return msgspec.structs.replace(state, records=state.records[:-1])

    apply(nl, template, PLAIN)
    nl.events()
    with pytest.raises(Unverified) as caught:
        NftDatapath(forgetful).apply(nl, template, PLAIN)
    assert caught.value.differences == ("rule missing in chain prerouting at 7 (pointsman in-redirect)",)
    assert len(nl.events()) == 2
    assert nl.read(TABLE).records == template.records


def test_foreign_change_between_read_and_commit_is_seen_and_overcome(
    name: str, nl: Nft, template: Template
) -> None:
    meddled: list[int] = []

    def meddle(nl: Nft, table: str) -> State:
        state = nl.read(table)
        if len(meddled) < 3:
            meddled.append(state.generation)
            nft(name, f"add table inet {TABLE}\nadd chain inet {TABLE} foreign")
        return state

    done = NftDatapath(meddle).apply(nl, template, PLAIN)
    assert len(meddled) == 3
    assert NftDatapath().observe(nl, template, PLAIN).differences == ()
    assert done.state.records == template.records


def test_endless_meddling_ends_as_a_transient_error(name: str, nl: Nft, template: Template) -> None:
    reads: list[int] = []

    def meddle(nl: Nft, table: str) -> State:
        state = nl.read(table)
        reads.append(state.generation)
        nft(name, f"add table inet {TABLE}\nadd chain inet {TABLE} x{len(reads)}")
        return state

    with pytest.raises(NftError, match=f"changed by others during {TRIES} attempts") as caught:
        NftDatapath(meddle).apply(nl, template, PLAIN)
    assert caught.value.transient
    assert len(reads) == TRIES


def test_kernel_without_the_flags_says_so(nl: Nft, template: Template) -> None:
    """Flags that no kernel has stand in for those that an old one lacks."""
    with pytest.raises(NftError) as caught:
        apply(nl, template, 0x80)
    assert caught.value.errno in (errno.EINVAL, errno.EOPNOTSUPP)
    assert nl.read(TABLE).records == ()


# --- scale and surroundings --------------------------------------------------------------------------


def test_i04_five_thousand_elements_through_a_small_buffer(name: str, compiler: Compiler) -> None:
    spec = msgspec.structs.replace(SPEC, skip_outbound=PortSet.of(*range(1, 10_001, 2)))
    template = compiler.compile(render(spec))
    reads: list[int] = []

    def counted(nl: Nft, table: str) -> State:
        reads.append(nl.generation())
        return nl.read(table)

    fd = open_netns(path_of(name))
    with contextlib.closing(run_in(fd, lambda: Nft(events=True, buffer=4096))) as nl:
        done = NftDatapath(counted).apply(nl, template, PLAIN)
        assert (done.result, done.state.records) == ("installed", template.records)
        assert len(reads) <= 3
        nft(name, f"delete element inet {TABLE} out_skip_ports {{ 4999 }}")
        assert apply(nl, template, PLAIN).differences == ("element 4999 missing in set out_skip_ports",)
    os.close(fd)


def test_ten_thousand_elements(nl: Nft, compiler: Compiler, owned: int) -> None:
    spec = msgspec.structs.replace(
        SPEC,
        skip_outbound=PortSet.of(*((port, port + 1) for port in range(1, 4000, 4))),
        skip_subnets=Subnets(
            v4=tuple(f"10.{a}.{b}.0/24" for a in range(20) for b in range(0, 200, 2)),
            v6=tuple(f"fd00:{a:x}:{b:x}::/48" for a in range(20) for b in range(0, 200, 2)),
        ),
    )
    template = compiler.compile(render(spec))
    done = apply(nl, template, owned)
    assert done.result == "installed"
    smaller = compiler.compile(render(msgspec.structs.replace(spec, skip_outbound=PortSet.of(5))))
    assert apply(nl, smaller, owned).result == "updated"
    # Hundreds of hundreds: 1000 ranges missing, what is there too much, and the two hashes in comments.
    assert apply(nl, template, owned).differences[-1] == "and 985 more"


def test_user_namespaced_pod(template: Template, owned: int) -> None:
    with user_netns() as name, contextlib.closing(opened(name)) as nl:
        assert apply(nl, template, owned).result == "installed"
        apply(nl, template, PLAIN)
        nft(name, "flush ruleset")
        assert apply(nl, template, PLAIN).result == "installed"


def test_namespace_that_has_ended_is_no_error(template: Template, owned: int) -> None:
    with netns() as name:
        nl = opened(name)
    assert apply(nl, template, owned).result == "installed"
    nl.close()


def test_i08_eight_threads_enrol_two_hundred_pods(template: Template, owned: int) -> None:
    failures: list[BaseException] = []
    results: list[str] = []

    def body(names: list[str]) -> None:
        try:
            for name in names:
                with contextlib.closing(opened(name)) as nl:
                    results.append(apply(nl, template, owned).result)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            failures.append(error)

    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(netns()) for _ in range(200)]
        threads = [threading.Thread(target=body, args=(names[start::8],)) for start in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert results == ["installed"] * 200


# --- traffic -----------------------------------------------------------------------------------------


def test_a04_no_connection_escapes_while_rules_are_rewritten(
    name: str, nl: Nft, compiler: Compiler, owned: int
) -> None:
    """Connections to a black hole succeed only by way of the proxy; an old one lives through it all."""
    configure(
        name,
        "link add hole type veth peer name bottom",
        "link set hole up",
        "link set bottom up",
        "addr add 10.99.0.2/24 dev hole",
        "neigh add 10.99.0.1 lladdr 02:00:00:00:00:01 dev hole",
    )
    variants = [
        compiler.compile(render(msgspec.structs.replace(SPEC, skip_outbound=PortSet.of(p)))) for p in (1, 2)
    ]
    apply(nl, variants[0], owned)
    listener = inside(name, lambda: socket.create_server(("127.0.0.1", 4140), backlog=512))

    def connect() -> socket.socket:
        made = socket.create_connection(("10.99.0.1", 9999), timeout=1)
        assert made.getpeername() == ("10.99.0.1", 9999)
        return made

    stop = threading.Event()
    connected: list[int] = []
    escaped: list[OSError] = []

    def hammer() -> None:
        while not stop.is_set():
            try:
                connect().close()
                listener.accept()[0].close()
                connected.append(1)
            except OSError as error:
                escaped.append(error)

    with contextlib.closing(listener):
        old = inside(name, connect, uid=1000)
        near, _ = listener.accept()
        thread = threading.Thread(target=lambda: inside(name, hammer, uid=1000))
        thread.start()
        results = [
            apply(nl, variants[round_ % 2], owned if round_ % 3 else PLAIN).result for round_ in range(50)
        ]
        stop.set()
        thread.join()
        results.append(apply(nl, compiler.compile(drain()), owned).result)
        with contextlib.closing(old), contextlib.closing(near):
            old.sendall(b"still here")
            near.settimeout(2)
            assert near.recv(64) == b"still here"
    assert escaped == []
    assert len(connected) > 50
    assert {"updated", "replaced"} <= set(results)
