"""The objects that answers are made of, indexed so that an event costs what it touches and no more."""

from agent.core.discovery.answers import Subject
from agent.core.objects import Event


class Catalog:
    """Services, slices, pods, workloads and policy of the cluster, in compact form.

    `apply` takes one event in and says which subjects may now have another answer. An object that
    cannot be read is in `complaints` until it can, and breaks nothing else.
    """

    def apply(self, event: Event) -> frozenset[Subject]:
        """Take one event in; the subjects whose answers may now be others. Equal objects touch nobody."""
        raise NotImplementedError

    def set_redirection(self, uid: str, state: str, reason: str = "") -> frozenset[Subject]:
        """What this node's agent knows of a pod: `redirected`, `failed` (for `reason`), `pending` or `unknown`;
        it stands over the pod's condition. The state is dropped with the pod."""
        raise NotImplementedError
