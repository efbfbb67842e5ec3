"""What `/state` and the CLI show: the agent's view of its node, as one JSON document.

Shape: `NodeState`, with camelCase keys; settings keep the names of `RedirectSpec`'s fields, in `spec` as in
`origins`. Times are unix seconds, durations what their names say.
"""

from typing import Literal

import msgspec

from agent.cni.install import Inspection
from agent.core.discovery.asked import Asks
from agent.core.lifecycle import Redirection
from agent.core.reasons import Complaint
from agent.core.spec import Origin, RedirectSpec
from agent.core.tally import Counters


class Stranger(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that the gate let through, and that its source does not know to this day. `container`: id of its
    sandbox; `since`: when it passed."""

    namespace: str
    name: str
    container: str
    since: float


class CniState(msgspec.Struct, frozen=True, rename="camel"):
    """The CNI gate. `answering`: this agent has the shim's socket. `attachments`: sandboxes that the runtime
    has told of and not ended. `chain`: the node's CNI configuration at the last look; None where this agent
    does not keep it. `left`: it was told to take shim and entry out, and keeps them out."""

    answering: bool
    attachments: int
    strangers: tuple[Stranger, ...] = ()
    chain: Inspection | None = None
    left: bool = False


class PodAsks(msgspec.Struct, frozen=True, rename="camel"):
    """Whom a pod asks for destinations: the agent (`us`), the `central` controller, or `nobody` that its
    manifest names. `port`: of our listener in the pod, 0 for none; `complaint`: why there is none, or who has
    come to share its port."""

    asks: Asks
    port: int = 0
    complaint: Complaint | None = None


class PodState(msgspec.Struct, frozen=True, rename="camel"):
    """One pod. `differences` of the status are what the last look found and what was put right.
    `netns_from`: who told of its netns, "" while nobody has: the runtime by CNI, its manifest, or the scan of
    /proc. `addresses`: of its netns, loopback too; only the answer to a visit has them. `container`: id of
    the sandbox that CNI told of, "" for a pod that did not come by the gate; `let_through`: it passed the
    gate before its source knew it, without rules. `destination`: None for a pod without a proxy."""

    namespace: str
    name: str
    uid: str
    status: Redirection
    netns: str = ""
    netns_from: Literal["", "cni", "manifest", "proc"] = ""
    netns_inode: int | None = None
    spec: RedirectSpec | None = None
    origins: dict[str, tuple[Origin, ...]] = {}
    shadowed: dict[str, tuple[Origin, ...]] = {}
    counters: Counters = {}
    addresses: tuple[str, ...] = ()
    container: str = ""
    let_through: bool = False
    destination: PodAsks | None = None

    @property
    def complaints(self) -> tuple[Complaint, ...]:
        """About its settings, its kernel state, and its way to destinations."""
        asks = self.destination
        return (*self.status.complaints, *((asks.complaint,) if asks and asks.complaint else ()))


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """The whole node. `not_ready`: what readiness waits for, empty when ready. `netns_held`: network
    namespaces held open, `netns_live`: those of them that are still the pods'."""

    version: str
    pid: int
    writer: bool
    observe: bool
    draining: bool
    owned_tables: bool
    not_ready: tuple[str, ...]
    netns_held: int
    netns_live: int
    totals: Counters
    cni: CniState
    pods: tuple[PodState, ...]
