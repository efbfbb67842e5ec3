"""Text -> documents, as YAML or JSON, within bounds.

A file of brackets makes libyaml recurse until the process dies, and ten lines of nested aliases stand
for a billion values. Both are found in the stream of parser events, before anything is built.
"""

from typing import Any

import msgspec
import yaml

DEEPEST = 200
LARGEST = 1_000_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str) -> list[Any]:
    """The documents of a text. Raises ValueError for what is neither, or beyond the bounds: nested more
    than DEEPEST deep, or with more than LARGEST values once its aliases are written out."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [msgspec.json.decode(text)]
        except (ValueError, RecursionError):
            pass  # also YAML begins like this
    try:
        _measure(text)
        return list(yaml.load_all(text, Loader=_Loader))
    except Exception as error:
        # PyYAML lets the constructors of its tags raise anything: `!!int ""` is an IndexError.
        raise ValueError(f"cannot read YAML: {_one_line(error)}") from error


def _measure(text: str) -> None:
    size = 0
    sizes: dict[str | None, int] = {}
    opened: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, start = opened.pop()
            if anchor:
                sizes[anchor] = size - start
        elif isinstance(event, yaml.AliasEvent):
            size += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.ScalarEvent):
            size += 1
        if len(opened) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        if size > LARGEST:
            raise ValueError(f"it holds more than {LARGEST} values, with its aliases written out")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
