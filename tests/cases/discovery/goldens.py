"""The golden messages of the API: bytes as upstream writes them, and what a proxy reads in them."""

from collections.abc import Callable

import msgspec

from agent.core.discovery.answers import (
    Address,
    All,
    Endpoints,
    Hint,
    Method,
    Not,
    Override,
    Path,
    Profile,
    Ref,
    ResponseClass,
    RetryBudget,
    Route,
    Status,
)
from agent.core.discovery.config import Http2, KeepAlive
from agent.destination.address import Encoder
from agent.destination.encode import difference, snapshot
from agent.destination.profile import encode_profile
from tests.cases.discovery.wire import Message, request

_SECOND = 1_000_000_000
_HTTP2 = Http2(keep_alive=KeepAlive(10 * _SECOND, 3 * _SECOND, True))
_IDENTITY = "default.shop.serviceaccount.identity.linkerd.cluster.local"
_LABELS = {
    "control_plane_ns": "linkerd",
    "pod": "db-0",
    "serviceaccount": "default",
    "statefulset": "db",
    "zone": "",
    "zone_locality": "unknown",
}


class Golden(msgspec.Struct, frozen=True):
    """`written`: the same content as the product, or for a request a proxy, encodes it. `exact`: byte for
    byte; the order of a map's entries has no meaning."""

    id: str
    kind: str
    hex: str
    content: Message
    written: Callable[[], bytes]
    exact: bool = True


def _update(new: Endpoints, old: Endpoints | None = None) -> bytes:
    """The one message from `old` to `new`."""
    encoder = Encoder()
    encoder.use(_HTTP2)
    before = None if old is None else snapshot(encoder, old)
    (message,) = difference(before, snapshot(encoder, new))
    return message


def _removed(ip: str, port: int) -> bytes:
    """What takes this one address away from a client that has another one too."""
    stays = Address("192.0.2.1", 1)
    return _update(Endpoints(True, (stays,)), Endpoints(True, (Address(ip, port), stays)))


_V6_ADDRESS = Address(
    "10.1.2.3",
    3306,
    labels=tuple(sorted(_LABELS.items())),
    identity=_IDENTITY,
    server_name=_IDENTITY,
    hint=Hint("opaque", 4143),
    http2=True,
)
_V8_PROFILE = Profile(
    name="db.shop.svc.cluster.local",
    opaque=True,
    retry_budget=RetryBudget(),
    parent=Ref("core", "Service", "db", "shop", 3306),
    source=Ref("linkerd.io", "", "", ""),
)
_V9_ROUTE = Route(
    All((Method("GET"), Not(Path("/private/.*")))),
    (ResponseClass(Status(500, 599), True),),
    (("route", "r1"),),
    retryable=True,
    timeout=200_000_000,
)
_TOKEN = '{"ns":"shop","nodeName":"n1","pod":"web-0"}\n'

GOLDENS: tuple[Golden, ...] = (
    Golden(
        "V1",
        "GetDestination",
        "121e64622e73686f702e7376632e636c75737465722e6c6f63616c3a333330361a2c7b226e73223a2273686f70222c226e6f"
        "64654e616d65223a226e31222c22706f64223a227765622d30227d0a",
        {"path": "db.shop.svc.cluster.local:3306", "context_token": _TOKEN},
        lambda: request("db.shop.svc.cluster.local:3306", _TOKEN),
    ),
    Golden("V2", "Update", "1a00", {"no_endpoints": {}}, lambda: _update(Endpoints(False))),
    Golden("V3", "Update", "1a020801", {"no_endpoints": {"exists": True}}, lambda: _update(Endpoints(True))),
    Golden(
        "V4",
        "Update",
        "120c0a0a0a050d0302010a10903f",
        {"remove": {"addrs": [{"ip": {"ipv4": 0x0A010203}, "port": 8080}]}},
        lambda: _removed("10.1.2.3", 8080),
    ),
    Golden(
        "V5",
        "Update",
        "121b0a190a1412120900000000b80d012011680000000000000010bb03",
        {"remove": {"addrs": [{"ip": {"ipv6": {"first": 0x20010DB8_00000000, "last": 0x68}}, "port": 443}]}},
        lambda: _removed("2001:db8::68", 443),
    ),
    Golden(
        "V6",
        "Update",
        "0ac5020aa0020a0a0a050d0302010a10ea1918904e221b0a10636f6e74726f6c5f706c616e655f6e7312076c696e6b657264"
        "220b0a03706f64120464622d3022190a0e736572766963656163636f756e74120764656661756c7422110a0b737461746566"
        "756c7365741202646222180a0d7a6f6e655f6c6f63616c6974791207756e6b6e6f776e22080a047a6f6e6512002a7c0a3c0a"
        "3a64656661756c742e73686f702e736572766963656163636f756e742e6964656e746974792e6c696e6b6572642e636c7573"
        "7465722e6c6f63616c223c0a3a64656661756c742e73686f702e736572766963656163636f756e742e6964656e746974792e"
        "6c696e6b6572642e636c75737465722e6c6f63616c3207120308af201a00420c120a0a02080a12020803180112110a096e61"
        "6d657370616365120473686f70120d0a077365727669636512026462",
        {
            "add": {
                "addrs": [
                    {
                        "addr": {"ip": {"ipv4": 0x0A010203}, "port": 3306},
                        "weight": 10_000,
                        "metric_labels": _LABELS,
                        "tls_identity": {
                            "dns_like_identity": {"name": _IDENTITY},
                            "server_name": {"name": _IDENTITY},
                        },
                        "protocol_hint": {"opaque": {}, "opaque_transport": {"inbound_port": 4143}},
                        "http2": {
                            "keep_alive": {
                                "interval": {"seconds": 10},
                                "timeout": {"seconds": 3},
                                "while_idle": True,
                            }
                        },
                    }
                ],
                "metric_labels": {"namespace": "shop", "service": "db"},
            }
        },
        lambda: _update(Endpoints(True, (_V6_ADDRESS,), (("namespace", "shop"), ("service", "db")))),
        exact=False,
    ),
    Golden("V7", "DestinationProfile", "", {}, lambda: encode_profile(Profile(), None)),
    Golden(
        "V8",
        "DestinationProfile",
        "120b0dcdcc4c3e100a1a02080a20012a1964622e73686f702e7376632e636c75737465722e6c6f63616c3a1e121c0a04636f"
        "72651207536572766963651a026462220473686f7030ea19420e120c0a0a6c696e6b6572642e696f",
        {
            "retry_budget": {
                "retry_ratio": 0.20000000298023224,
                "min_retries_per_second": 10,
                "ttl": {"seconds": 10},
            },
            "opaque_protocol": True,
            "fully_qualified_name": "db.shop.svc.cluster.local",
            "parent_ref": {
                "resource": {
                    "group": "core",
                    "kind": "Service",
                    "name": "db",
                    "namespace": "shop",
                    "port": 3306,
                }
            },
            "profile_ref": {"resource": {"group": "linkerd.io"}},
        },
        lambda: encode_profile(_V8_PROFILE, None),
        exact=False,
    ),
    Golden(
        "V9",
        "DestinationProfile",
        "0a410a1b0a190a042a0208000a111a0f220d0a0b2f707269766174652f2e2a120c0a08220608f40310d70410011a0b0a0572"
        "6f7574651202723120012a05108084af5f1a260a2164622d76322e73686f702e7376632e636c75737465722e6c6f63616c3a"
        "33333036108827",
        {
            "routes": [
                {
                    "condition": {
                        "all": {
                            "matches": [
                                {"method": {"registered": 0}},
                                {"not": {"path": {"regex": "/private/.*"}}},
                            ]
                        }
                    },
                    "response_classes": [
                        {"condition": {"status": {"min": 500, "max": 599}}, "is_failure": True}
                    ],
                    "metrics_labels": {"route": "r1"},
                    "is_retryable": True,
                    "timeout": {"nanos": 200_000_000},
                }
            ],
            "dst_overrides": [{"authority": "db-v2.shop.svc.cluster.local:3306", "weight": 5000}],
        },
        lambda: encode_profile(
            Profile(routes=(_V9_ROUTE,), overrides=(Override("db-v2.shop.svc.cluster.local:3306", 5000),)),
            None,
        ),
        exact=False,
    ),
)
