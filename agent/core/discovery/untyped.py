"""Fields of specs that may hold anything."""

from typing import Any

from agent.core.ports import named

_WORDS = {dict: "an object", list: "a list", str: "a text", int: "an integer", bool: "true or false"}


def typed(value: Any, kind: type, what: str) -> Any:
    """The value, if it is of this kind: dict, list, str, int or bool, where true is no integer. Raises
    ValueError for any other, with `what` as its name."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        shown = "missing" if value is None else named([repr(value)[:40]])
        raise ValueError(f"{what} is {shown}: it shall be {_WORDS[kind]}")
    return value
