"""Named tables of parts: a part puts itself in by its name, a recipe takes it out by its name.

Takes: names and objects.  Gives: Table.
May import: errors.        Never: if-chains over names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from xc_core.errors import ConfigError, nearest

T = TypeVar("T")


class Table(Generic[T]):
    """A mapping from names to parts of one kind.

    >>> colours: Table[int] = Table("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["red"], colours.names()
    (1, ['red'])
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}

    def add(self, name: str, part: T) -> T:
        """Put ``part`` under ``name``; a name is taken once."""
        if name in self._parts:
            raise ConfigError(
                f"a second {self.kind} named {name!r}", expected="one part a name", do="choose another name"
            )
        self._parts[name] = part
        return part

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate a class or function to put it under ``name``."""
        return lambda part: self.add(name, part)

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            raise ConfigError(
                f"{self.kind} {name!r}{nearest(name, self._parts)}",
                expected=f"one of {', '.join(self.names())}",
                do=f"name a known {self.kind}, or register yours in a module that is imported",
            )
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._parts)
