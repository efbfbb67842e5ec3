"""Servers, which can make a port opaque, and the selectors by which they choose."""

from collections.abc import Iterator
from typing import Any

import msgspec

from agent.core.discovery.answers import Labels
from agent.core.discovery.objects import Server
from agent.core.discovery.untyped import typed
from agent.core.ports import named
from agent.core.reasons import Complaint, Reason

_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


class Expression(msgspec.Struct, frozen=True, gc=False):
    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: dict[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class Selector(msgspec.Struct, frozen=True, gc=False):
    """A label selector; an empty one selects everything."""

    labels: Labels
    expressions: tuple[Expression, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.labels) and all(
            expression.matches(labels) for expression in self.expressions
        )


class ServerFacts(msgspec.Struct, frozen=True, gc=False):
    """A Server. A selector None selects nothing. `port`: a number, or the name of a container's port."""

    namespace: str
    name: str
    opaque: bool
    pods: Selector | None
    workloads: Selector | None
    port: int | str


def read_server(item: Server) -> tuple[ServerFacts | None, tuple[Complaint, ...]]:
    """What discovery keeps of a Server; None for one that cannot be read, which selects nothing. Never
    raises."""
    metadata = item.metadata
    try:
        spec = typed(item.spec, dict, "spec")
        port = spec.get("port")
        if type(port) not in (int, str):
            raise ValueError("spec.port is neither a number nor a name")
        protocol = spec.get("proxyProtocol")
        facts = ServerFacts(
            namespace=metadata.namespace,
            name=metadata.name,
            opaque=protocol == "opaque",
            pods=_selector(spec, "podSelector"),
            workloads=_selector(spec, "externalWorkloadSelector"),
            port=port,
        )
    except ValueError as error:
        message = f"cannot read Server {metadata.namespace}/{metadata.name}: {error}; it selects nothing"
        remedy = "correct it; the API server takes more than a Server can mean"
        return None, (Complaint(Reason.INVALID_OBJECT, "spec", message, remedy),)
    return facts, ()


def _selector(spec: dict[str, Any], field: str) -> Selector | None:
    value = spec.get(field)
    if value is None:
        return None
    selector = typed(value, dict, field)
    labels = typed(selector.get("matchLabels") or {}, dict, f"{field}.matchLabels")
    for key, wanted in labels.items():
        typed(wanted, str, f"{field}.matchLabels[{named([key])}]")
    expressions = typed(selector.get("matchExpressions") or [], list, f"{field}.matchExpressions")
    return Selector(tuple(sorted(labels.items())), tuple(_expression(each, field) for each in expressions))


def _expression(value: object, field: str) -> Expression:
    where = f"{field}.matchExpressions"
    expression = typed(value, dict, where)
    key = typed(expression.get("key"), str, f"{where}.key")
    operator = expression.get("operator")
    values = typed(expression.get("values") or [], list, f"{where}.values")
    if operator not in _OPERATORS or bool(values) != _OPERATORS[operator]:
        raise ValueError(f"{where} has operator {named([str(operator)])} with {len(values)} values")
    return Expression(key, operator, tuple(typed(each, str, f"{where}.values") for each in values))


class Servers:
    """All Servers by namespace, so that one object's can be found without looking at the others'."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], ServerFacts] = {}
        self._by_label: dict[tuple[str, str, str], dict[str, ServerFacts]] = {}
        self._general: dict[str, dict[str, ServerFacts]] = {}
        self._for_workloads: dict[str, dict[str, ServerFacts]] = {}

    def put(self, key: tuple[str, str], server: ServerFacts) -> None:
        self.drop(key)
        self.of[key] = server
        for table, place in self._places(server):
            table.setdefault(place, {})[server.name] = server

    def drop(self, key: tuple[str, str]) -> None:
        server = self.of.pop(key, None)
        if server is None:
            return
        for table, place in self._places(server):
            del table[place][server.name]
            if not table[place]:
                del table[place]

    def selecting_pods(self, namespace: str, labels: Labels) -> Iterator[ServerFacts]:
        """Those whose podSelector takes a pod of these labels."""
        if not self.of:
            return
        having = dict(labels)
        for key, value in labels:
            for server in self._by_label.get((namespace, key, value), {}).values():
                if server.pods is not None and server.pods.matches(having):
                    yield server
        for server in self._general.get(namespace, {}).values():
            if server.pods is not None and server.pods.matches(having):
                yield server

    def selecting_workloads(self, namespace: str, labels: Labels) -> Iterator[ServerFacts]:
        """Those whose externalWorkloadSelector takes a workload of these labels."""
        having = dict(labels)
        for server in self._for_workloads.get(namespace, {}).values():
            if server.workloads is not None and server.workloads.matches(having):
                yield server

    def _places(self, server: ServerFacts) -> Iterator[tuple[dict[Any, dict[str, ServerFacts]], Any]]:
        """Where it is kept: under the first label that it asks for, so that other pods never meet it."""
        if server.pods is not None:
            if server.pods.labels:
                yield self._by_label, (server.namespace, *server.pods.labels[0])
            else:
                yield self._general, server.namespace
        if server.workloads is not None:
            yield self._for_workloads, server.namespace
