"""Sets of values by key, in little memory: the indexes of discovery."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class Multimap(Generic[K, V]):
    """A few values are kept in a tuple, a quarter of a set's size; a key without values vanishes.

    As long as they are few, they stay in the order in which they came.
    """

    FEW = 8

    def __init__(self) -> None:
        self._values: dict[K, tuple[V, ...] | set[V]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __getitem__(self, key: K) -> tuple[V, ...] | set[V]:
        """The values of a key, none for a key that is not there. Not to be changed."""
        return self._values.get(key, ())

    def add(self, key: K, value: V) -> None:
        values = self._values.get(key, ())
        if isinstance(values, set):
            values.add(value)
        elif value not in values:
            more = (*values, value)
            self._values[key] = more if len(more) <= self.FEW else set(more)

    def discard(self, key: K, value: V) -> None:
        values = self._values.get(key, ())
        if isinstance(values, set):
            values.discard(value)
        else:
            values = tuple(each for each in values if each != value)
        if values:
            self._values[key] = values
        else:
            self._values.pop(key, None)


Place = tuple[Multimap[Any, Any], Hashable]
"""A key of an index."""


def move(value: Hashable, before: Iterable[Place], after: Iterable[Place]) -> None:
    """Take a value to where it belongs now. Where it stays, it keeps its turn."""
    old, new = set(before), set(after)
    for index, key in old - new:
        index.discard(key, value)
    for index, key in new - old:
        index.add(key, value)
