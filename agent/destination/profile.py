"""A profile as bytes. The empty profile is a message of no bytes."""

from agent.core.discovery.answers import (
    METHODS,
    All,
    AnyOf,
    Match,
    Method,
    Not,
    Path,
    Profile,
    Ref,
    ResponseClass,
    Route,
    Status,
)
from agent.core.discovery.config import Http2
from agent.destination.address import weighted_addr
from agent.destination.proto import destination_pb2 as pb
from agent.destination.proto.http_types_pb2 import HttpMethod
from agent.destination.proto.meta_pb2 import Metadata, Resource


def encode_profile(answer: Profile, http2: Http2 | None) -> bytes:
    """Equal profiles give equal bytes. `http2` goes with an endpoint that takes it."""
    message = pb.DestinationProfile(
        fully_qualified_name=answer.name,
        opaque_protocol=answer.opaque,
        routes=[_route(each) for each in answer.routes],
        dst_overrides=[
            pb.WeightedDst(authority=each.authority, weight=each.weight) for each in answer.overrides
        ],
    )
    if answer.retry_budget is not None:
        budget = answer.retry_budget
        message.retry_budget.SetInParent()
        message.retry_budget.retry_ratio = budget.ratio
        message.retry_budget.min_retries_per_second = budget.min_retries
        message.retry_budget.ttl.FromNanoseconds(budget.ttl)
    if answer.endpoint is not None:
        message.endpoint.CopyFrom(weighted_addr(answer.endpoint, http2))
    if answer.parent is not None:
        message.parent_ref.CopyFrom(_reference(answer.parent))
    if answer.source is not None:
        message.profile_ref.CopyFrom(_reference(answer.source))
    return message.SerializeToString(deterministic=True)


def _reference(ref: Ref) -> Metadata:
    return Metadata(
        resource=Resource(
            group=ref.group, kind=ref.kind, name=ref.name, namespace=ref.namespace, port=ref.port
        )
    )


def _route(route: Route) -> pb.Route:
    message = pb.Route(
        condition=_request(route.condition),
        response_classes=[_response_class(each) for each in route.responses],
        is_retryable=route.retryable,
    )
    message.metrics_labels.update(route.labels)
    if route.timeout:
        message.timeout.FromNanoseconds(route.timeout)
    return message


def _response_class(given: ResponseClass) -> pb.ResponseClass:
    return pb.ResponseClass(condition=_response(given.condition), is_failure=given.failure)


def _request(match: Match) -> pb.RequestMatch:
    # `not` is a keyword of Python and a field of the message.
    message = pb.RequestMatch()
    match match:
        case All(matches=matches):
            message.all.CopyFrom(pb.RequestMatch.Seq(matches=[_request(each) for each in matches]))
        case AnyOf(matches=matches):
            message.any.CopyFrom(pb.RequestMatch.Seq(matches=[_request(each) for each in matches]))
        case Not(match=inner):
            getattr(message, "not").CopyFrom(_request(inner))
        case Path(regex=regex):
            message.path.CopyFrom(pb.PathMatch(regex=regex))
        case Method(name=name):
            message.method.CopyFrom(_method(name))
        case Status():
            raise TypeError("cannot encode a status as a condition of a request")
    return message


def _response(match: Match) -> pb.ResponseMatch:
    message = pb.ResponseMatch()
    match match:
        case All(matches=matches):
            message.all.CopyFrom(pb.ResponseMatch.Seq(matches=[_response(each) for each in matches]))
        case AnyOf(matches=matches):
            message.any.CopyFrom(pb.ResponseMatch.Seq(matches=[_response(each) for each in matches]))
        case Not(match=inner):
            getattr(message, "not").CopyFrom(_response(inner))
        case Status(low=low, high=high):
            message.status.CopyFrom(pb.HttpStatusRange(min=low, max=high))
        case Path() | Method():
            raise TypeError("cannot encode a path or method as a condition of a response")
    return message


def _method(name: str) -> HttpMethod:
    if name in METHODS:
        # Said even when it is 0: in a oneof, presence is the message.
        return HttpMethod(registered=name)
    return HttpMethod(unregistered=name)
