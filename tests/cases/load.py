"""Read cases out of a file: fenced yaml blocks of a Markdown text, or a plain YAML file.

What is malformed never hides the rest: it becomes a Problem that names file, block and case.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

_OPEN = re.compile(r"^\s*(`{3,}|~{3,})\s*(\S*)")
_STRING, _NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"
_TEXT_KEYS = {"annotations", "ns_annotations", "proxy_env", "labels", "env"}
"""Mappings whose values are strings in Kubernetes: `010` stays 010 and `22:30` does not become 1350."""
_PROSE_KEYS = {"id", "title", "note"}
"""What is text for people, `2026-01-01` and `yes` included."""
_JOINED_KEYS = {"note", "do"}
"""What is prose, and may hold commas within braces."""
_LARGEST = 100_000
"""Nodes of one case with its aliases written out; a few lines of nested aliases are millions."""


class Block(msgspec.Struct, frozen=True):
    """YAML text, and where it stands: `where` for people, `line` (from 0) of its first line."""

    where: str
    text: str
    line: int


class Entry(msgspec.Struct, frozen=True):
    """One case as it was written."""

    id: str
    where: str
    data: dict[str, Any]


class Problem(msgspec.Struct, frozen=True):
    """Something that is no case, though it should be one. `id` may be made up from the place."""

    id: str
    message: str


class Loaded(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]
    problems: tuple[Problem, ...]


def load(path: Path) -> Loaded:
    """All cases of a file, in order. Raises OSError, or UnicodeError when it is no text."""
    text = path.read_text(encoding="utf-8-sig")
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    for block in _blocks(path.name, text, plain=path.suffix in (".yaml", ".yml", ".json")):
        for found in _entries(block):
            if isinstance(found, Problem):
                problems.append(found)
            elif found.id in entries:
                message = (
                    f"cannot use {found.where}: {found.id} is taken by {entries[found.id].where}; rename one"
                )
                problems.append(Problem(found.id, message))
            else:
                entries[found.id] = found
    if not entries and not problems:
        problems.append(Problem(path.name, f"cannot find a case in {path.name}: it has no fenced yaml block"))
    return Loaded(tuple(entries.values()), tuple(problems))


def _blocks(name: str, text: str, *, plain: bool) -> Iterator[Block]:
    if plain:
        yield Block(name, text, 0)
        return
    number = 0
    lines = iter(enumerate(text.splitlines()))
    for start, line in lines:
        fence = _OPEN.match(line)
        if not fence:
            continue
        body: list[str] = []
        for _, inner in lines:
            if inner.strip().startswith(fence[1]) and not inner.strip().strip(fence[1][0]):
                break
            body.append(inner)
        if fence[2].lower() in ("yaml", "yml"):
            number += 1
            yield Block(f"{name} block {number} (line {start + 1})", "\n".join(body) + "\n", start + 1)


def _entries(block: Block) -> Iterator[Entry | Problem]:
    try:
        documents = list(yaml.compose_all(block.text, yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        yield Problem(block.where, f"cannot read {block.where} as YAML: {error}")
        return
    for document in documents:
        if not isinstance(document, yaml.SequenceNode):
            yield Problem(block.where, f"cannot use {block.where}: it is no list of cases")
            continue
        for node in document.value:
            yield _entry(block, node)


def _entry(block: Block, node: yaml.Node) -> Entry | Problem:
    where = f"{block.where}, case at line {block.line + node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        return Problem(where, f"cannot use {where}: a case is a mapping with id, title, ...")
    ids = (value.value for key, value in node.value if key.value == "id")
    case_id = next((text for text in ids if isinstance(text, str)), "")
    named = f"{case_id} ({where})" if case_id else where
    try:
        if _size(node, {}) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST} values with its aliases written out")
        _prepare(node)
        data = _construct(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return Problem(case_id or where, f"cannot read {named}: {error}")
    if not case_id:
        return Problem(where, f"cannot use {where}: it has no id")
    return Entry(case_id, where, data)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes in `node`, each as often as it is referred to. Raises RecursionError for one within itself."""
    if id(node) not in known:
        inner = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else []
        inner += node.value if isinstance(node, yaml.SequenceNode) else []
        known[id(node)] = 1 + sum(_size(each, known) for each in inner)
    return known[id(node)]


def _prepare(node: yaml.Node) -> None:
    """Keep the text of what Kubernetes holds as text. Raises ValueError for a key that is written twice."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _prepare(item)
    if not isinstance(node, yaml.MappingNode):
        return
    _join_prose(node)
    seen: set[str] = set()
    for key, value in node.value:
        if str(key.value) in seen:
            raise ValueError(f"key {key.value!r} is written twice")
        seen.add(str(key.value))
        if key.value in _TEXT_KEYS and isinstance(value, yaml.MappingNode):
            for pair in value.value:
                for each in pair:
                    _as_text(each)
        elif key.value in _PROSE_KEYS:
            _as_text(value)
        _prepare(value)


def _as_text(node: yaml.Node) -> None:
    if isinstance(node, yaml.ScalarNode) and node.tag != _NULL:
        node.tag = _STRING


def _join_prose(node: yaml.MappingNode) -> None:
    """Join prose with commas again: `{note: there, and back}` reads as a note and a key without value."""
    pairs: list[tuple[yaml.Node, yaml.Node]] = []
    for key, value in node.value:
        valueless = isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None
        if (
            pairs
            and valueless
            and pairs[-1][0].value in _JOINED_KEYS
            and isinstance(pairs[-1][1], yaml.ScalarNode)
        ):
            pairs[-1][1].value += f", {key.value}"
            pairs[-1][1].tag = _STRING
        else:
            pairs.append((key, value))
    node.value = pairs


def _construct(node: yaml.MappingNode) -> dict[str, Any]:
    loader = yaml.SafeLoader("")
    try:
        data: dict[str, Any] = loader.construct_document(node)
        return data
    finally:
        loader.dispose()
