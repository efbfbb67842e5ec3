"""What a client knows by the messages is what the answer said."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.discovery.answers import Address, Endpoints, Hint, RetryBudget
from agent.core.discovery.config import Discovery
from agent.destination.address import Encoder
from agent.destination.encode import difference, snapshot
from agent.destination.profile import encode_profile
from agent.destination.proto.destination_pb2 import Update
from agent.destination.view import View, applied, read_profile
from tests.cli.answered import PROFILES

HTTP2 = Discovery().http2

ips = st.ip_addresses(v=4).map(str) | st.sampled_from(["fd00::1", "2001:db8::ffff:68", "::1"])
labels = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3).map(
    lambda found: tuple(sorted(found.items()))
)
addresses = st.builds(
    Address,
    ip=ips,
    port=st.integers(1, 65535),
    labels=labels,
    weight=st.integers(0, 100_000),
    identity=st.sampled_from(["", "a.b.serviceaccount.identity.linkerd.cluster.test"]),
    server_name=st.sampled_from(["", "vm.cluster.test"]),
    hint=st.none() | st.builds(Hint, st.sampled_from(["", "h2", "opaque"]), st.sampled_from([0, 4143])),
    http2=st.booleans(),
    authority=st.sampled_from(["", "web.shop.svc.cluster.test:80"]),
)
sets = st.builds(
    Endpoints,
    exists=st.just(True),
    addresses=st.lists(addresses, max_size=6, unique_by=lambda each: (each.ip, each.port)).map(tuple),
    labels=labels,
)


@given(st.lists(sets, min_size=1, max_size=4))
def test_updates_add_up_to_each_answer(answers: list[Endpoints]) -> None:
    encoder = Encoder()
    encoder.use(HTTP2)
    view, before = None, None
    for answer in answers:
        now = snapshot(encoder, answer)
        view = applied(view, difference(before, now))
        before = now
        assert [told.address for told in view.addresses.values()] == unordered(view, answer)
        assert all((told.http2 is not None) == told.address.http2 for told in view.addresses.values())


def unordered(view: View, answer: Endpoints) -> list[Address]:
    """The answer's addresses in the order of the view."""
    known = {(each.ip, each.port): each for each in answer.addresses}
    assert view.addresses.keys() == known.keys()
    return [known[key] for key in view.addresses]


def test_an_identity_may_be_a_uri() -> None:
    encoder = Encoder()
    vm = Address("10.0.0.1", 80, identity="spiffe://cluster.test/vm", server_name="vm", uri=True)

    view = applied(None, difference(None, snapshot(encoder, Endpoints(True, (vm,)))))

    assert view.addresses["10.0.0.1", 80].address == vm


@pytest.mark.parametrize("exists", [True, False])
def test_no_endpoints_says_whether_the_service_exists(exists: bool) -> None:
    encoder = Encoder()
    full = snapshot(encoder, Endpoints(True, (Address("10.0.0.1", 80),)))
    empty = snapshot(encoder, Endpoints(exists))

    first = applied(None, difference(None, empty))
    assert (first.exists, first.addresses) == (exists, {})

    later = applied(applied(None, difference(None, full)), difference(full, empty))
    assert later.addresses == {}


def test_what_was_never_added_may_be_removed() -> None:
    update = Update()
    update.remove.addrs.add(port=80).ip.ipv4 = 1

    assert applied(None, [update.SerializeToString()]) == View(exists=False)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_read_as_it_was_said(name: str) -> None:
    said = PROFILES[name]

    found = read_profile(encode_profile(said, HTTP2))

    assert (found.name, found.opaque, found.overrides) == (said.name, said.opaque, said.overrides)
    assert found.routes == tuple(dict(route.labels).get("route", "") for route in said.routes)
    assert found.source == said.source
    assert found.endpoint == (said.endpoint and with_sorted_labels(said.endpoint))
    assert found.retry_budget == (said.retry_budget and as_float32(said.retry_budget))


def as_float32(budget: RetryBudget) -> RetryBudget:
    (ratio,) = struct.unpack("f", struct.pack("f", budget.ratio))
    return msgspec.structs.replace(budget, ratio=ratio)


def with_sorted_labels(address: Address) -> Address:
    return msgspec.structs.replace(address, labels=tuple(sorted(address.labels)))
