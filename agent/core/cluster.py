"""The one in-memory picture of the cluster objects that matter to redirection on this node.

Changed by one consumer of one ordered queue of events; everyone else only reads. `apply` says which
pods are touched, and carries no data: whoever is woken looks again.
"""

from agent.core.names import PodKey
from agent.core.objects import Drop, Event, Namespace, Object, Pod, PodSpec, Put, Replace, Service
from agent.core.ports import LAST_PORT, PortSet

API_SERVICE = ("default", "kubernetes")


class Cluster:
    """Pods by UID (never by name or IP), namespaces by name, and of Services the API server's.

    `pods` are those of the source; `pod` finds those as well that were only announced by their runtime.
    `node`: name of this node, whose pods alone matter; "" for all, where nobody has told the name.
    """

    def __init__(self, node: str = "") -> None:
        self._node = node
        self.pods: dict[str, Pod] = {}
        self._announced: dict[str, Pod] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.services: dict[tuple[str, str], Service] = {}
        self.listed: set[type[Object]] = set()

    def apply(self, event: Event) -> set[str]:
        """Take one event in; return the UIDs of the pods whose redirection may now be another."""
        match event:
            case Replace(kind=kind, items=items):
                self.listed.add(kind)
                return self._replace(kind, items)
            case Put(item=item):
                return self._put(item)
            case Drop(item=item):
                return self._drop(item)

    def pod(self, uid: str) -> Pod | None:
        """The pod of this UID as its source knows it, else as its runtime announced it."""
        return self.pods.get(uid) or self._announced.get(uid)

    def announce(self, pod: Pod) -> None:
        """A pod that runs here, and that the source does not know yet: only its runtime has told of it."""
        if pod.uid not in self.pods:
            self._announced[pod.uid] = pod

    def withdraw(self, uid: str) -> None:
        """The runtime has ended an announced pod."""
        self._announced.pop(uid, None)

    def namespace_of(self, pod: Pod) -> Namespace | None:
        return self.namespaces.get(pod.metadata.namespace)

    def find(self, key: PodKey) -> Pod | None:
        """The pod of that name; while two UIDs share a name, the one that came last."""
        return next((pod for pod in reversed(self.pods.values()) if pod.key == key), None)

    def api_server_ports(self) -> PortSet | None:
        """Service and target ports of `default/kubernetes`; None while it is not known."""
        service = self.services.get(API_SERVICE)
        if service is None or not service.spec.ports:
            return None
        ports: list[int | str | None] = [entry.port for entry in service.spec.ports]
        ports += [entry.target_port for entry in service.spec.ports]
        # A named target port is the container's business; a number out of range cannot be a port.
        return PortSet.of(*(port for port in ports if isinstance(port, int) and 0 <= port <= LAST_PORT))

    def _replace(self, kind: type[Object], items: tuple[Object, ...]) -> set[str]:
        present = {_identity(item) for item in items}
        gone = [item for item in self._table(kind) if _identity(item) not in present]
        touched: set[str] = set()
        for item in gone:
            touched |= self._drop(item)
        for item in items:
            touched |= self._put(item)
        return touched

    def _table(self, kind: type[Object]) -> list[Object]:
        if kind is Pod:
            return list(self.pods.values())
        if kind is Namespace:
            return list(self.namespaces.values())
        return list(self.services.values()) if kind is Service else []

    def _put(self, item: Object) -> set[str]:
        match item:
            case Pod(spec=PodSpec(node_name=node)) if node and self._node not in ("", node):
                return set()
            case Pod():
                self._announced.pop(item.uid, None)
                if self.pods.get(item.uid) == item:
                    return set()
                self.pods[item.uid] = item
                return {item.uid}
            case Namespace():
                before = self.namespaces.get(item.metadata.name)
                self.namespaces[item.metadata.name] = item
                same = before is not None and before.annotations == item.annotations
                return set() if same else self._in_namespace(item.metadata.name)
            case Service() if _identity(item) == API_SERVICE:
                self.services[API_SERVICE] = item
                return {*self.pods, *self._announced}
            case _:
                return set()

    def _drop(self, item: Object) -> set[str]:
        match item:
            case Pod():
                return {item.uid} if self.pods.pop(item.uid, None) else set()
            case Namespace():
                self.namespaces.pop(item.metadata.name, None)
                return self._in_namespace(item.metadata.name)
            case Service() if _identity(item) == API_SERVICE:
                self.services.pop(API_SERVICE, None)
                return {*self.pods, *self._announced}
            case _:
                return set()

    def _in_namespace(self, name: str) -> set[str]:
        pods = (*self.pods.values(), *self._announced.values())
        return {pod.uid for pod in pods if pod.metadata.namespace == name}


def _identity(item: Object) -> tuple[str, ...]:
    match item:
        case Pod():
            return (item.uid,)
        case Namespace():
            return (item.metadata.name,)
        case _:
            return (item.metadata.namespace, item.metadata.name)
