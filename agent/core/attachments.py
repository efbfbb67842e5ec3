"""Which pods the container runtime has attached to the network, as CNI told it.

An attachment is one container id on one interface, the CNI specification's own term and key. It says where
a pod's network namespace is, and nothing of what is in it: no attachment is ever proof of rules.
"""

from collections.abc import Iterable, Iterator

import msgspec

from agent.core.names import PodKey, made_from_name


class Attachment(msgspec.Struct, frozen=True, rename="camel"):
    """What one ADD told. `pod` is None where the arguments name no pod (not Kubernetes), `uid` is "" where
    they name none. `netns` is a path, `inode` its (device, inode) when ADD was called. `annotations` are
    None where the runtime does not pass them. `ips` are the addresses in prevResult. `since` is unix time
    (s). `let_through`: ADD was answered before any rules were there, since nobody knew the pod. `known`: the
    source has had the pod's object."""

    container_id: str
    ifname: str
    netns: str = ""
    inode: tuple[int, int] | None = None
    pod: PodKey | None = None
    uid: str = ""
    annotations: dict[str, str] | None = None
    ips: tuple[str, ...] = ()
    since: float = 0.0
    let_through: bool = False
    known: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.container_id, self.ifname

    @property
    def pod_uid(self) -> str:
        """UID of its pod; where the arguments name none, the container's id stands for it."""
        return self.uid or self.container_id


class Attachments:
    """All of this node, in the order of their ADDs."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], Attachment] = {}
        self._of_uid: dict[str, Attachment] = {}
        self._of_name: dict[PodKey, Attachment] = {}

    def __iter__(self) -> Iterator[Attachment]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def put(self, attachment: Attachment) -> None:
        """Take one in. The last one of a pod stands: its sandbox was made anew."""
        self._all.pop(attachment.key, None)
        self._all[attachment.key] = attachment
        self._index(attachment)

    def note(self, attachment: Attachment) -> bool:
        """Say more of one that is here: its turn among those of its pod stays. False when it is gone."""
        if attachment.key not in self._all:
            return False
        self._all[attachment.key] = attachment
        self._index_all()
        return True

    def of(self, uid: str, pod: PodKey) -> Attachment | None:
        """The attachment of a pod: by UID; by name only where one of both sides has no UID of its own."""
        found = self._of_uid.get(uid)
        if found is not None:
            return found
        named = self._of_name.get(pod)
        return named if named is not None and (not named.uid or made_from_name(uid)) else None

    def forget(self, gone: Iterable[Attachment]) -> None:
        for attachment in list(gone):
            self._all.pop(attachment.key, None)
        self._index_all()

    def of_container(self, container_id: str, ifname: str = "") -> tuple[Attachment, ...]:
        """Of one container: on one interface, or on all."""
        return tuple(a for a in self if a.container_id == container_id and ifname in ("", a.ifname))

    def _index_all(self) -> None:
        self._of_uid, self._of_name = {}, {}
        for attachment in self._all.values():
            self._index(attachment)

    def _index(self, attachment: Attachment) -> None:
        if attachment.uid:
            self._of_uid[attachment.uid] = attachment
        if attachment.pod is not None:
            self._of_name[attachment.pod] = attachment
