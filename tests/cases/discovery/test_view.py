"""The eye of the cases: what a proxy reads on the wire, what it makes of it, and what no stream may do."""

import struct

import pytest

from tests.cases.discovery.goldens import GOLDENS, Golden
from tests.cases.discovery.view import View
from tests.cases.discovery.wire import WireError, decode


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2, len(payload)]) + payload


def _tcp(last: int, port: int = 80) -> bytes:
    ip = _field(1, b"\x0d" + struct.pack("<I", 0x0A010000 + last))
    return ip + bytes([0x10, port])


def _add(*lasts: int, weight: int = 1) -> bytes:
    return _field(1, b"".join(_field(1, _field(1, _tcp(each)) + bytes([0x18, weight])) for each in lasts))


def _remove(*lasts: int) -> bytes:
    return _field(2, b"".join(_field(1, _tcp(each)) for each in lasts))


EXISTS = b"\x1a\x02\x08\x01"
ABSENT = b"\x1a\x00"


def _view(*messages: bytes, method: str = "Get") -> View:
    view = View("Profile" if method == "Profile" else "Get")
    for message in messages:
        view.take(message, 0.1)
    return view


def test_first_add_and_what_follows() -> None:
    view = _view(_add(1, 2), _add(3), _remove(1))
    assert sorted(view.addresses) == ["10.1.0.2:80", "10.1.0.3:80"]
    assert [seen.kind for seen in view.seen] == ["add", "add", "remove"]
    assert not view.faults


def test_no_endpoints_clears_and_tells_whether_the_service_exists() -> None:
    view = _view(_add(1), ABSENT)
    assert (view.addresses, view.exists, view.faults) == ({}, False, [])
    assert _view(EXISTS).exists is True


def test_empty_profile_is_told_from_a_profile() -> None:
    view = _view(b"", b"\x20\x01", method="Profile")
    assert [seen.kind for seen in view.seen] == ["empty-profile", "profile"]
    assert view.opaque is True


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ((_remove(1),), "the first message is a remove"),
        ((_add(1), _remove(2)), "remove of 10.1.0.2:80, which is not held"),
        ((_add(1), _add(1, 2)), "add repeats 10.1.0.1:80"),
        ((_add(1, 1),), "add names 10.1.0.1:80 twice"),
        ((_add(),), "add without addresses"),
        ((_add(1), _remove()), "remove of nothing"),
        ((EXISTS, EXISTS), "message 2 is the one before it once more"),
        ((b"",), "an Update says nothing"),
        ((EXISTS + _add(1),), "an Update says ['add', 'no_endpoints']"),
    ],
)
def test_what_no_stream_may_do(messages: tuple[bytes, ...], fault: str) -> None:
    assert any(fault in each for each in _view(*messages).faults)


def test_a_changed_address_is_no_repetition() -> None:
    assert not _view(_add(1), _add(1, weight=2)).faults


@pytest.mark.parametrize(
    "data",
    [
        b"\x22\x00",  # Update has no field 4
        b"\x0a\x05\x0a",  # ends within a field
        b"\x08\x01",  # add is no number
        b"\x1a\x00\x1a\x00",  # the same oneof member twice
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(WireError):
        decode("Update", data)


@pytest.mark.parametrize("golden", GOLDENS, ids=[golden.id for golden in GOLDENS])
def test_golden_is_read_as_what_it_holds(golden: Golden) -> None:
    assert decode(golden.kind, bytes.fromhex(golden.hex)) == golden.content
