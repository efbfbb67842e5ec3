"""Text of a manifest file -> cluster objects.

YAML or JSON, several documents, `List` objects. A file is taken whole or not at all: one document
that cannot be read makes `ManifestError`, which names the document and the field.
"""

import re
from typing import Any

import msgspec

from agent.core.discovery.objects import (
    ConfigMap,
    Endpoints,
    EndpointSlice,
    ExternalWorkload,
    Job,
    Node,
    ReplicaSet,
    Server,
    ServiceProfile,
)
from agent.core.objects import Namespace, Object, Pod, Service
from agent.files.documents import documents

# Wider than Kubernetes' own rule, and narrow enough for NAMESPACE/NAME and for a log line.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")

KINDS: tuple[type[Object], ...] = (
    Namespace,
    Node,
    ConfigMap,
    Service,
    EndpointSlice,
    Endpoints,
    Server,
    ServiceProfile,
    ExternalWorkload,
    ReplicaSet,
    Job,
    Pod,
)
"""Kinds that are read, in the order in which a picture of them is best given: pods last."""

_BY_NAME = {kind.__name__: kind for kind in KINDS}


class ManifestError(Exception):
    """The file holds something that is not a manifest; the message says where and what."""


def parse(text: str) -> tuple[Object, ...]:
    """All objects of KINDS in the text, in order. Other kinds are passed over."""
    try:
        found = documents(text)
    except ValueError as error:
        raise ManifestError(str(error)) from error
    objects: list[Object] = []
    for number, document in enumerate(found, 1):
        for manifest in _flatten(document, number):
            item = _convert(manifest, number)
            if item is not None:
                objects.append(item)
    return tuple(objects)


def _flatten(document: Any, number: int) -> list[dict[str, Any]]:
    if document is None:
        return []
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise ManifestError(f"cannot read document {number}: it is no object with a `kind`")
    if not _is_list(document):
        return [document]
    items = document.get("items") or []
    if not isinstance(items, list):
        raise ManifestError(f"cannot read document {number}: `items` is no list")
    for item in items:
        # Through YAML's aliases a list can hold itself, or a billion objects in a few lines.
        if not isinstance(item, dict) or not isinstance(item.get("kind"), str) or _is_list(item):
            raise ManifestError(f"cannot read document {number}: an item is no single object with a `kind`")
    return items


def _is_list(document: dict[str, Any]) -> bool:
    return document["kind"].endswith("List") and "items" in document


def _convert(manifest: dict[str, Any], number: int) -> Object | None:
    kind = _BY_NAME.get(manifest["kind"])
    if kind is None:
        return None
    where = f"document {number} ({manifest['kind']})"
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") in (None, ""):
        raise ManifestError(f"cannot read {where}: metadata.name is missing")
    metadata = _present(metadata)
    for field in ("name", "namespace"):
        value = metadata.get(field, "default")
        if not isinstance(value, str):
            shown = f"{value!r:.80}; quote it"  # to YAML, `on` and `8080` are no text
            raise ManifestError(f"cannot read {where}: metadata.{field} is no name: {shown}")
        if not _NAME.fullmatch(value):
            raise ManifestError(f"cannot read {where}: metadata.{field} is no name: {value[:80]!r}")
    try:
        for table in ("annotations", "labels"):
            if isinstance(metadata.get(table), dict):
                metadata[table] = {str(key): scalar(value) for key, value in metadata[table].items()}
        return msgspec.convert(_present(manifest) | {"metadata": metadata}, type=kind)
    except (ValueError, RecursionError) as error:
        name = f"{manifest['kind']} {metadata['name']}"
        raise ManifestError(f"cannot read document {number} ({name}): {error}") from error


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what is null, which says as much as what is not there."""
    return {name: value for name, value in fields.items() if value is not None}


def scalar(value: Any) -> Any:
    """An annotation as Kubernetes would hold it. YAML reads `3306` and `true` as other than text; the
    API server refuses them, people write them all the same, and their meaning is plain."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return "" if value is None else value
