"""What all keepers of this node go by: the picture, the rules of the house, and who may write."""

from typing import NamedTuple

import msgspec

from agent.core.attachments import Attachments
from agent.core.cluster import Cluster
from agent.core.names import NETNS, PodKey
from agent.core.objects import Namespace, Pod, Service
from agent.core.plan import Goal, Plan, plan
from agent.core.ports import PortSet
from agent.core.reasons import Reason
from agent.core.redirect import derive
from agent.core.spec import Derivation, NodeDefaults
from agent.node.discovery import Sandbox
from agent.node.hold import Place
from agent.node.netns import NetnsId

REDIRECTING = (Goal.REDIRECT, Goal.REDIRECT_UNLESS_IPTABLES, Goal.WAIT)


class Policy(msgspec.Struct, frozen=True):
    """Settings of enforcement. Times in seconds; repairs of one pod: `repair_burst` at once, then
    `repair_rate` per second."""

    defaults: NodeDefaults = NodeDefaults()
    owned_tables: bool = True
    observe: bool = False
    discover: bool = True
    proc: str = "/proc"
    round_period: float = 2.0
    compare_period: float = 300.0
    listener_period: float = 10.0
    repair_burst: float = 100.0
    repair_rate: float = 5.0


class _Derived(NamedTuple):
    """A derivation and what it was made from."""

    pod: Pod
    namespace: Namespace | None
    ports: PortSet | None
    derivation: Derivation


class Duty:
    """Shared by the keepers of one enforcer, used on the loop only."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self.cluster = cluster
        self.policy = policy
        self.writer = False
        self.draining = False
        self.removing = False
        self.attachments = Attachments()
        self.sandboxes: dict[str, Sandbox] = {}
        self._owners: dict[NetnsId, str] = {}
        self._derived: dict[str, _Derived] = {}

    @property
    def writes(self) -> bool:
        return self.writer and not self.policy.observe

    @property
    def listed(self) -> bool:
        """Nothing is narrowed or removed on half knowledge: all kinds that bear on it are listed."""
        return self.cluster.listed >= {Pod, Namespace, Service}

    def derive(self, pod: Pod) -> Derivation:
        """What the pod is to have; worked out anew only when something that it goes by has changed."""
        namespace, ports = self.cluster.namespace_of(pod), self.cluster.api_server_ports()
        known = self._derived.get(pod.uid)
        if known is None or known.pod is not pod or known.namespace is not namespace or known.ports != ports:
            derivation = derive(pod, namespace, self.policy.defaults, ports)
            known = self._derived[pod.uid] = _Derived(pod, namespace, ports, derivation)
        return known.derivation

    def forget(self, uid: str) -> None:
        """The pod is no more."""
        self._derived.pop(uid, None)

    def plan(self, pod: Pod, derivation: Derivation, takeover: bool = False) -> Plan:
        """The goal for a pod. `takeover`: as the setting of that name, for this pod alone."""
        planned = plan(pod, derivation, takeover or self.policy.defaults.takeover)
        if self.draining and planned.goal in REDIRECTING:
            return Plan(Goal.CLEAR, Reason.DRAINING, "the node's rules are being removed", planned.init)
        return planned

    def place(self, pod: Pod) -> Place:
        """The netns that the runtime named by CNI, else the one in the manifest, else what the scan of /proc
        found for the pod's UID."""
        attached = self.attachments.of(pod.uid, pod.key)
        if attached is not None:
            return Place(attached.netns, attached=attached)
        path = pod.annotations.get(NETNS, "")
        return Place(path) if path else Place(sandbox=self.sandboxes.get(pod.uid), ips=pod.ips)

    def needs_scan(self, pod: Pod) -> bool:
        """Only the scan of /proc can tell where this pod's netns is."""
        names_it = pod.annotations.get(NETNS, "") or pod.spec.host_network
        names_it = names_it or self.attachments.of(pod.uid, pod.key) is not None
        unmeshed = (None, Reason.DISABLED, Reason.NAMESPACE_EXCLUDED)
        return not names_it and self.derive(pod).excluded in unmeshed

    def moved(self, uid: str, pod: PodKey, place: Place, netns: NetnsId) -> bool:
        """The pod is known to be in another netns than the one held: its sandbox was made anew."""
        attached = self.attachments.of(uid, pod)
        if attached is not None:
            return attached.inode is not None and attached.inode != tuple(netns)
        found = self.sandboxes.get(uid)
        return place.sandbox is not None and found is not None and found.netns != netns

    def claim(self, uid: str, netns: NetnsId) -> str:
        """Make `uid` the owner of a netns. Returns the UID of the owner: another one when taken."""
        return self._owners.setdefault(netns, uid)

    def release(self, uid: str) -> None:
        for netns in [netns for netns, owner in self._owners.items() if owner == uid]:
            del self._owners[netns]

    def owner(self, netns: NetnsId) -> str | None:
        return self._owners.get(netns)
