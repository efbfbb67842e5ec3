"""JSON text of others: where each value stands, so that one element can be put in or taken out of an array
while every other character stays as it was.

Both edits are each other's inverse: `without` an element that `appended` put in is the text from before.
"""

import json
from typing import Any

import msgspec

DEEPEST = 100
"""Levels of nesting that are read. Go's decoder takes 10,000; a configuration needs ten."""

_BLANKS = " \t\r\n"


class Node(msgspec.Struct, frozen=True):
    """One value: what it is, and its place `start` to `end` in the text.

    `items` are those of an array, `members` those of an object; of equal keys the last one counts, as in Go.
    """

    start: int
    end: int
    value: Any
    items: tuple["Node", ...] = ()
    members: dict[str, "Node"] = {}


def parse(text: str) -> Node:
    """The one value of a text. Raises ValueError, which says what is wrong and where."""
    at = _blank(text, 0)
    node = _value(text, at, 0)
    if (end := _blank(text, node.end)) != len(text):
        raise _error(text, end, "something stands behind the end")
    return node


def canonical(value: Any) -> str:
    """Equal for values that are equal as JSON, whatever the order of keys; `true` is not `1`."""
    return json.dumps(value, sort_keys=True)


def appended(text: str, array: Node, value: Any) -> str:
    """The text with `value` as one more, last element of an array that has some, laid out as its last one."""
    last = array.items[-1]
    if len(array.items) > 1:
        blank = text[array.items[-2].end : last.start].partition(",")[2]
    else:
        blank = text[array.start + 1 : last.start]
    return f"{text[: last.end]},{blank}{_laid_out(text, last, blank, value)}{text[last.end :]}"


def without(text: str, array: Node, index: int) -> str:
    """The text without one element of an array, and without the comma that it needed."""
    items = array.items
    if index > 0:
        start, end = items[index - 1].end, items[index].end
    elif len(items) > 1:
        start, end = items[0].start, items[1].start
    else:
        start, end = items[0].start, items[0].end
    return text[:start] + text[end:]


def _laid_out(text: str, model: Node, blank: str, value: Any) -> str:
    """`value` in as many lines, and as deep, as `model`, which stands behind `blank`."""
    inner = text[model.start + 1 : _blank(text, model.start + 1)]
    if "\n" not in inner:
        return json.dumps(value)
    depth, deeper = blank.rpartition("\n")[2], inner.rpartition("\n")[2]
    unit = deeper.removeprefix(depth) if deeper.startswith(depth) and deeper != depth else "  "
    line = "\r\n" if "\r\n" in inner else "\n"
    return json.dumps(value, indent=unit).replace("\n", line + depth)


def _value(text: str, at: int, depth: int) -> Node:
    if depth > DEEPEST:
        raise _error(text, at, f"it is nested more than {DEEPEST} deep")
    match text[at : at + 1]:
        case "{":
            return _object(text, at, depth)
        case "[":
            return _array(text, at, depth)
    try:
        value, end = _SCALARS.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _error(text, error.pos, error.msg[:1].lower() + error.msg[1:]) from error
    except ValueError as error:
        raise _error(text, at, str(error)) from error
    return Node(at, end, value)


def _array(text: str, start: int, depth: int) -> Node:
    items: list[Node] = []
    at = _blank(text, start + 1)
    while text[at : at + 1] != "]":
        if items:
            at = _blank(text, _after(text, at, ","))
        items.append(_value(text, at, depth + 1))
        at = _blank(text, items[-1].end)
    return Node(start, at + 1, [item.value for item in items], tuple(items))


def _object(text: str, start: int, depth: int) -> Node:
    members: dict[str, Node] = {}
    first = at = _blank(text, start + 1)
    while text[at : at + 1] != "}":
        if at != first:
            at = _blank(text, _after(text, at, ","))
        key = _value(text, at, DEEPEST) if text[at : at + 1] == '"' else None
        if key is None:
            raise _error(text, at, "expecting a key in double quotes")
        at = _blank(text, _after(text, _blank(text, key.end), ":"))
        node = _value(text, at, depth + 1)
        members[key.value] = node
        at = _blank(text, node.end)
    values = {key: node.value for key, node in members.items()}
    return Node(start, at + 1, values, members=members)


def _after(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise _error(text, at, f"expecting '{char}'")
    return at + 1


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _error(text: str, at: int, what: str) -> ValueError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return ValueError(f"{what}, at line {line} column {column}")


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


_SCALARS = json.JSONDecoder(parse_constant=_no_constant)
