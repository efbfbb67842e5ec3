"""What a proxy is told: immutable values, compared and hashed by content.

A field that is "not on the wire" is for metrics, logs and `diagnostics`; two answers that differ in
nothing else are the same message.
"""

from typing import Literal

import msgspec

from agent.core.reasons import Complaint

WEIGHT = 10_000
SECOND = 1_000_000_000

Labels = tuple[tuple[str, str], ...]


class Subject(msgspec.Struct, frozen=True, gc=False):
    """What an answer depends on and what an event touches: the hub recomputes where the two meet.

    service: `namespace`, `name`, with its slices, ServiceProfiles and everything behind its endpoints.
    address: `name` is an IP in canonical form. node: `name`. listing: `name` is a kind of object that was
    not listed yet, such as `EndpointSlice`.
    """

    kind: Literal["service", "address", "node", "listing"]
    name: str
    namespace: str = ""


class Hint(msgspec.Struct, frozen=True, gc=False):
    """protocol_hint, sent even when it is empty. `transport_port`: opaque_transport's, 0 = none."""

    protocol: Literal["", "h2", "opaque"] = ""
    transport_port: int = 0


class Address(msgspec.Struct, frozen=True, gc=False):
    """One WeightedAddr. `ip`: canonical text, `port`: 1-65535.

    `identity` "": no tls_identity. `server_name` "": none is sent. `uri`: the identity is uri-like, else
    dns-like. `http2`: send the configured parameters of meshed HTTP/2 clients. `authority`: "" = no override.
    Not on the wire: `withheld`, the Reason why a meshed target gets no identity, and `redirection`, what
    is known of its pod's redirection ("" = nothing).
    """

    ip: str
    port: int
    labels: Labels = ()
    weight: int = WEIGHT
    identity: str = ""
    server_name: str = ""
    uri: bool = False
    hint: Hint | None = None
    http2: bool = False
    authority: str = ""
    withheld: str = ""
    redirection: Literal["", "redirected", "failed"] = ""


class Endpoints(msgspec.Struct, frozen=True):
    """What Get answers: every address of one (service, port) for one client, ascending by family, IP, port.

    No two addresses share IP and port. `exists`: whether the Service does; it goes with an empty set.
    `labels`: metric_labels of the set.
    """

    exists: bool
    addresses: tuple[Address, ...] = ()
    labels: Labels = ()


class All(msgspec.Struct, frozen=True):
    """All of `matches` hold; true when there is none."""

    matches: tuple["Match", ...]


class AnyOf(msgspec.Struct, frozen=True):
    """One of `matches` holds; false when there is none."""

    matches: tuple["Match", ...]


class Not(msgspec.Struct, frozen=True):
    match: "Match"


class Path(msgspec.Struct, frozen=True):
    """Of a request only."""

    regex: str


class Method(msgspec.Struct, frozen=True):
    """Of a request only; upper case. One of METHODS is sent by number, any other as text."""

    name: str


class Status(msgspec.Struct, frozen=True):
    """Of a response only; 100-599 each, inclusive; 0 = not given."""

    low: int = 0
    high: int = 0


Match = All | AnyOf | Not | Path | Method | Status

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "HEAD", "TRACE")
"""HttpMethod.Registered, in the order of its numbers."""


class ResponseClass(msgspec.Struct, frozen=True):
    condition: Match
    failure: bool = False


class Route(msgspec.Struct, frozen=True):
    """`timeout`: nanoseconds, 0 = none. `labels`: metrics_labels."""

    condition: Match
    responses: tuple[ResponseClass, ...] = ()
    labels: Labels = ()
    retryable: bool = False
    timeout: int = 0


class RetryBudget(msgspec.Struct, frozen=True):
    """`ttl`: nanoseconds."""

    ratio: float = 0.2
    min_retries: int = 10
    ttl: int = 10 * SECOND


class Override(msgspec.Struct, frozen=True):
    """One of dst_overrides: `host:port`, and a weight where 10,000 is one."""

    authority: str
    weight: int


class Ref(msgspec.Struct, frozen=True):
    """A meta.Metadata resource. `port` 0: none."""

    group: str
    kind: str
    name: str
    namespace: str
    port: int = 0


class Profile(msgspec.Struct, frozen=True):
    """What GetProfile answers; with all defaults it is the empty profile, a message of no bytes.

    `name`: fully_qualified_name. `parent`: parent_ref, `source`: profile_ref. Not on the wire: `rule`, what
    decided `opaque`, and `complaints`, what is doubtful about this answer.
    """

    name: str = ""
    opaque: bool = False
    routes: tuple[Route, ...] = ()
    retry_budget: RetryBudget | None = None
    overrides: tuple[Override, ...] = ()
    endpoint: Address | None = None
    parent: Ref | None = None
    source: Ref | None = None
    rule: str = ""
    complaints: tuple[Complaint, ...] = ()


class Ended(msgspec.Struct, frozen=True):
    """There is no answer. A call that has had no message ends with `code`, which is final; an open stream
    ends with UNAVAILABLE instead, so that its proxy asks again."""

    reason: str
    code: Literal["INVALID_ARGUMENT", "FAILED_PRECONDITION"] = "INVALID_ARGUMENT"


class Lack(msgspec.Struct, frozen=True):
    """Something to be fetched before an answer is whole.

    kind: `name` is a kind of object that has not been listed yet. pod: `namespace`, `name`. address: `name`
    is an IP of which nobody knows yet whose it is.
    """

    what: Literal["kind", "pod", "address"]
    name: str
    namespace: str = ""


class Twofold(msgspec.Struct, frozen=True):
    """An answer that is another for a new stream than for one that has had a message.

    `first`: what a stream is sent as its first message; None: it is held. `later`: what one is sent that has
    had a message; None: it keeps what it has. `lacking`: what has to be fetched, or listed, to know more.
    """

    first: "Endpoints | Profile | Ended | None" = None
    later: "Endpoints | Profile | Ended | None" = None
    lacking: frozenset[Lack] = frozenset()


Answer = Endpoints | Profile | Ended | Twofold
