"""The messages on the wire: those of Linkerd's proxy API, byte for byte."""

import re
from importlib.resources import files as files_of
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_tools import protoc

from agent.core.discovery.answers import (
    Address,
    All,
    Endpoints,
    Hint,
    Method,
    Not,
    Override,
    Profile,
    Ref,
    ResponseClass,
    RetryBudget,
    Route,
    Status,
)
from agent.core.discovery.answers import (
    Path as PathMatch,
)
from agent.core.discovery.config import Http2, KeepAlive
from agent.destination.address import Encoder
from agent.destination.encode import difference, snapshot
from agent.destination.profile import encode_profile
from agent.destination.proto import destination_pb2 as pb
from agent.destination.proto import http_types_pb2, meta_pb2, net_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "agent" / "destination" / "proto"
IDENTITY = "default.shop.serviceaccount.identity.linkerd.cluster.local"
HTTP2 = Http2(keep_alive=KeepAlive(10_000_000_000, 3_000_000_000, True))

# Made from Linkerd's own descriptors.
REQUEST = (
    "121e64622e73686f702e7376632e636c75737465722e6c6f63616c3a333330361a2c7b226e73223a2273686f70222c226e6f64654e61"
    "6d65223a226e31222c22706f64223a227765622d30227d0a"
)
NOT_THERE = "1a00"
NO_ENDPOINTS = "1a020801"
REMOVE = "120c0a0a0a050d0302010a10903f"
REMOVE_V6 = "121b0a190a1412120900000000b80d012011680000000000000010bb03"
ADD = (
    "0ac5020aa0020a0a0a050d0302010a10ea1918904e221b0a10636f6e74726f6c5f706c616e655f6e7312076c696e6b657264220b0a03"
    "706f64120464622d3022190a0e736572766963656163636f756e74120764656661756c7422110a0b737461746566756c736574120264"
    "6222180a0d7a6f6e655f6c6f63616c6974791207756e6b6e6f776e22080a047a6f6e6512002a7c0a3c0a3a64656661756c742e73686f"
    "702e736572766963656163636f756e742e6964656e746974792e6c696e6b6572642e636c75737465722e6c6f63616c223c0a3a646566"
    "61756c742e73686f702e736572766963656163636f756e742e6964656e746974792e6c696e6b6572642e636c75737465722e6c6f6361"
    "6c3207120308af201a00420c120a0a02080a12020803180112110a096e616d657370616365120473686f70120d0a0773657276696365"
    "12026462"
)
PROFILE = (
    "120b0dcdcc4c3e100a1a02080a20012a1964622e73686f702e7376632e636c75737465722e6c6f63616c3a1e121c0a04636f72651207"
    "536572766963651a026462220473686f7030ea19420e120c0a0a6c696e6b6572642e696f"
)
ROUTES = (
    "0a410a1b0a190a042a0208000a111a0f220d0a0b2f707269766174652f2e2a120c0a08220608f40310d70410011a0b0a05726f757465"
    "1202723120012a05108084af5f1a260a2164622d76322e73686f702e7376632e636c75737465722e6c6f63616c3a3333303610882"
    "7"
)


def update(before: Endpoints | None, after: Endpoints) -> list[str]:
    encoder = Encoder()
    encoder.use(HTTP2)
    old = None if before is None else snapshot(encoder, before)
    return [message.hex() for message in difference(old, snapshot(encoder, after))]


def test_request() -> None:
    request = pb.GetDestination.FromString(bytes.fromhex(REQUEST))
    assert request.path == "db.shop.svc.cluster.local:3306"
    assert request.context_token == '{"ns":"shop","nodeName":"n1","pod":"web-0"}\n'
    assert request.SerializeToString().hex() == REQUEST


def test_no_endpoints_is_said_even_when_the_service_does_not_exist() -> None:
    assert update(None, Endpoints(False)) == [NOT_THERE]
    assert update(None, Endpoints(True)) == [NO_ENDPOINTS]


def test_remove() -> None:
    kept = Address("10.1.2.4", 8080)
    assert update(Endpoints(True, (Address("10.1.2.3", 8080), kept)), Endpoints(True, (kept,))) == [REMOVE]
    assert update(Endpoints(True, (kept, Address("2001:db8::68", 443))), Endpoints(True, (kept,))) == [
        REMOVE_V6
    ]


def test_add() -> None:
    labels = {
        "control_plane_ns": "linkerd",
        "pod": "db-0",
        "serviceaccount": "default",
        "statefulset": "db",
        "zone_locality": "unknown",
        "zone": "",
    }
    address = Address(
        "10.1.2.3",
        3306,
        labels=tuple(labels.items()),
        identity=IDENTITY,
        server_name=IDENTITY,
        hint=Hint("opaque", 4143),
        http2=True,
    )
    [made] = update(None, Endpoints(True, (address,), (("service", "db"), ("namespace", "shop"))))
    assert pb.Update.FromString(bytes.fromhex(made)) == pb.Update.FromString(bytes.fromhex(ADD))
    assert len(made) == len(ADD)


def test_the_empty_profile_has_no_bytes() -> None:
    assert encode_profile(Profile(), HTTP2) == b""


def test_profile_of_a_service() -> None:
    profile = Profile(
        name="db.shop.svc.cluster.local",
        opaque=True,
        retry_budget=RetryBudget(),
        parent=Ref("core", "Service", "db", "shop", 3306),
        source=Ref("linkerd.io", "", "", ""),
    )
    assert encode_profile(profile, HTTP2).hex() == PROFILE


def test_profile_with_a_route() -> None:
    route = Route(
        condition=All((Method("GET"), Not(PathMatch("/private/.*")))),
        responses=(ResponseClass(Status(500, 599), failure=True),),
        labels=(("route", "r1"),),
        retryable=True,
        timeout=200_000_000,
    )
    made = Profile(routes=(route,), overrides=(Override("db-v2.shop.svc.cluster.local:3306", 5000),))
    assert encode_profile(made, HTTP2).hex() == ROUTES


def test_equal_profiles_are_equal_bytes() -> None:
    """Whatever the order of labels: a map has none."""
    one, other = (
        Profile(endpoint=Address("10.1.2.3", 80, labels=labels))
        for labels in ((("a", "1"), ("b", "2"), ("c", "3")), (("c", "3"), ("b", "2"), ("a", "1")))
    )
    assert encode_profile(one, None) == encode_profile(other, None)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Hint(), ""),
        (Hint("h2"), "0a00"),
        (Hint("opaque"), "1a00"),
        (Hint("", 4143), "120308af20"),
        (Hint("h2", 4143), "0a00120308af20"),
    ],
)
def test_hints(hint: Hint, expected: str) -> None:
    """A hint that says nothing is there all the same: it tells of a proxy."""
    made = encode_profile(Profile(endpoint=Address("10.1.2.3", 80, hint=hint)), None)
    endpoint = pb.DestinationProfile.FromString(made).endpoint
    assert endpoint.HasField("protocol_hint")
    assert endpoint.protocol_hint.SerializeToString().hex() == expected


def test_no_hint() -> None:
    made = encode_profile(Profile(endpoint=Address("10.1.2.3", 80)), None)
    assert not pb.DestinationProfile.FromString(made).endpoint.HasField("protocol_hint")


def test_identities() -> None:
    spiffe = Address("10.1.2.3", 80, identity="spiffe://mesh/vm", server_name="vm.mesh", uri=True)
    tls = pb.DestinationProfile.FromString(
        encode_profile(Profile(endpoint=spiffe), None)
    ).endpoint.tls_identity
    assert (tls.uri_like_identity.uri, tls.server_name.name) == ("spiffe://mesh/vm", "vm.mesh")
    gateway = Address("10.1.2.3", 80, identity="gw.mc", authority="pay.shop.svc.east:80")
    made = pb.DestinationProfile.FromString(encode_profile(Profile(endpoint=gateway), None))
    assert made.endpoint.tls_identity.dns_like_identity.name == "gw.mc"
    assert not made.endpoint.tls_identity.HasField("server_name")
    assert made.endpoint.authority_override.authority_override == "pay.shop.svc.east:80"


def test_http2_parameters_go_to_those_that_take_them() -> None:
    for takes, http2, sent in ((True, HTTP2, True), (False, HTTP2, False), (True, None, False)):
        made = encode_profile(Profile(endpoint=Address("10.1.2.3", 80, http2=takes)), http2)
        assert pb.DestinationProfile.FromString(made).endpoint.HasField("http2") is sent


def test_generated_code_is_that_of_the_sources(tmp_path: Path) -> None:
    """Whoever changes a .proto file runs `make proto`."""
    names = sorted(path.name for path in PROTO.glob("*.proto"))
    made = tmp_path / "set.pb"
    files = [f"agent/destination/proto/{name}" for name in names]
    known = files_of("grpc_tools") / "_proto"
    assert protoc.main(["protoc", f"-I{ROOT}", f"-I{known}", f"--descriptor_set_out={made}", *files]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    modules = {module.DESCRIPTOR.name: module for module in (pb, http_types_pb2, meta_pb2, net_pb2)}
    assert sorted(file.name for file in compiled.file) == sorted(modules)
    for file in compiled.file:
        ours = descriptor_pb2.FileDescriptorProto.FromString(modules[file.name].DESCRIPTOR.serialized_pb)
        assert str(ours) == re.sub(r"\n *json_name: .*", "", str(file))


def test_another_library_may_bring_the_same_packages() -> None:
    theirs = descriptor_pb2.FileDescriptorProto(name="net.proto", package="io.linkerd.proxy.net")
    theirs.message_type.add(name="TcpAddress")
    pool = descriptor_pool.Default()
    pool.Add(theirs)
    assert pool.FindMessageTypeByName("io.linkerd.proxy.net.TcpAddress").file.name == "net.proto"
    assert net_pb2.TcpAddress(port=80).SerializeToString() == b"\x10P"


def test_names_and_numbers_are_those_of_the_proxy_api() -> None:
    """Every field of the golden messages is known here: nothing is kept as an unknown field."""
    for kind, hexed in ((pb.Update, ADD), (pb.DestinationProfile, PROFILE), (pb.DestinationProfile, ROUTES)):
        assert not re.search(r"(?m)^\s*\d+[: ]", str(kind.FromString(bytes.fromhex(hexed))))
