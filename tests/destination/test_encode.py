"""From one set of endpoints to the next: what is sent, in which order, in how large messages."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from agent.core.discovery.answers import Address, Endpoints, Hint
from agent.core.discovery.config import Http2, KeepAlive
from agent.destination.address import Encoder, varint
from agent.destination.encode import LIMIT, difference, snapshot
from agent.destination.proto.destination_pb2 import Update, WeightedAddr
from tests.destination.stage import address, endpoints, key, meshed

View = dict[str, WeightedAddr]


def play(view: View | None, messages: tuple[bytes, ...]) -> View | None:
    """What a proxy knows after the messages. AssertionError where it would refuse one."""
    for message in messages:
        update = Update.FromString(message)
        kind = update.WhichOneof("update")
        if kind == "no_endpoints":
            view = {}
        elif kind == "add":
            assert update.add.addrs, "an add of nothing"
            view = (view or {}) | {key(each.addr): each for each in update.add.addrs}
        else:
            assert view is not None, "remove came first"
            assert update.remove.addrs, "a remove of nothing"
            view = {k: a for k, a in view.items() if k not in {key(gone) for gone in update.remove.addrs}}
    return view


def kinds(messages: tuple[bytes, ...]) -> list[str | None]:
    return [Update.FromString(message).WhichOneof("update") for message in messages]


def changes(before: Endpoints | None, after: Endpoints) -> tuple[bytes, ...]:
    encoder = Encoder()
    return difference(None if before is None else snapshot(encoder, before), snapshot(encoder, after))


addresses = st.builds(
    Address,
    ip=st.sampled_from([f"10.0.0.{n}" for n in range(6)]),
    port=st.sampled_from([80, 81]),
    hint=st.sampled_from([None, Hint("h2"), Hint("opaque", 4143)]),
)
sets = st.builds(
    lambda found, labels: Endpoints(True, tuple(found), labels),
    st.lists(addresses, max_size=8, unique_by=lambda each: (each.ip, each.port)),
    st.sampled_from([(), (("service", "web"),)]),
) | st.just(Endpoints(False))


@given(st.lists(sets, min_size=1, max_size=6))
def test_a_view_that_follows_is_a_view_that_comes_anew(states: list[Endpoints]) -> None:
    encoder = Encoder()
    sent, view = None, None
    for state in states:
        made = snapshot(encoder, state)
        messages = difference(sent, made)
        view = play(view, messages)
        assert view == play(None, difference(None, made))
        assert difference(made, snapshot(encoder, state)) == ()
        order = kinds(messages)
        assert order == sorted(order, key=["no_endpoints", "add", "remove"].index)
        sent = made


def test_only_what_changed_is_sent() -> None:
    before, after = endpoints(*map(meshed, range(200))), endpoints(*map(meshed, range(1, 201)))
    added, removed = changes(before, after)
    assert [key(each.addr) for each in Update.FromString(added).add.addrs] == ["10.1.0.200:8080"]
    assert [key(each) for each in Update.FromString(removed).remove.addrs] == ["10.1.0.0:8080"]


def test_a_changed_address_is_added_and_never_removed() -> None:
    assert kinds(changes(endpoints(address(1)), endpoints(meshed(1)))) == ["add"]


def test_other_labels_of_the_set_are_sent_with_every_address() -> None:
    before, after = Endpoints(True, (address(1), address(2))), endpoints(address(1), address(2))
    [message] = changes(before, after)
    assert len(Update.FromString(message).add.addrs) == 2
    assert Update.FromString(message).add.metric_labels == {"service": "web", "namespace": "shop"}


def test_an_empty_set_is_said_first_and_removed_later() -> None:
    assert kinds(changes(None, Endpoints(True))) == ["no_endpoints"]
    assert kinds(changes(endpoints(address(1)), Endpoints(True))) == ["remove"]
    assert changes(Endpoints(True), Endpoints(True)) == ()


def test_a_service_that_goes_or_comes_is_said() -> None:
    [gone] = changes(endpoints(address(1)), Endpoints(False))
    assert Update.FromString(gone).HasField("no_endpoints")
    assert not Update.FromString(gone).no_endpoints.exists
    [come] = changes(Endpoints(False), Endpoints(True))
    assert Update.FromString(come).no_endpoints.exists


def test_thirty_thousand_endpoints_come_in_parts() -> None:
    whole = endpoints(*map(meshed, range(30_000)))
    parts = changes(None, whole)
    assert kinds(parts) == ["add"] * len(parts)
    assert max(map(len, parts)) <= LIMIT
    assert sum(map(len, parts)) > (len(parts) - 1) * LIMIT * 0.99
    assert len(play(None, parts) or {}) == 30_000
    removed = changes(whole, endpoints(meshed(0)))
    assert kinds(removed) == ["remove"]
    assert changes(whole, Endpoints(True)) != ()


def test_an_address_is_encoded_once_as_long_as_it_is_held() -> None:
    encoder = Encoder()
    first = snapshot(encoder, endpoints(*map(meshed, range(100))))
    second = snapshot(encoder, endpoints(*map(meshed, range(1, 101))))
    assert encoder.count == 101
    assert first.addresses["10.1.0.5", 8080] is second.addresses["10.1.0.5", 8080]
    del first, second
    gc.collect()
    snapshot(encoder, endpoints(meshed(5)))
    assert encoder.count == 102


def test_other_parameters_of_http2_encode_anew() -> None:
    encoder = Encoder()
    before = snapshot(encoder, endpoints(meshed(1)))
    encoder.use(Http2(keep_alive=KeepAlive(10**10, 3 * 10**9, True)))
    after = snapshot(encoder, endpoints(meshed(1)))
    assert kinds(difference(before, after)) == ["add"]


@given(st.integers(min_value=0, max_value=1 << 40))
def test_varint(value: int) -> None:
    encoded = varint(value)
    assert sum((byte & 127) << 7 * at for at, byte in enumerate(encoded)) == value
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]
