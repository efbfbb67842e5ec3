"""What all partial Kubernetes objects share: how they are decoded, and their metadata."""

import msgspec


class Partial(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all partial objects: immutable, camelCase on the wire."""


class OwnerReference(Partial, frozen=True):
    kind: str = ""
    name: str = ""


class Metadata(Partial, frozen=True):
    name: str = ""
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
