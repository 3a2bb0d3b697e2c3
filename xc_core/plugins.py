"""Tables of parts by name, and ``Part``, the base class of their configs.

A part registers itself when its module is imported. Modules of other packages are found through entry points of the
group ``xc.parts``.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from xc_core.errors import ConfigError, in_words, nearest, shown

T = TypeVar("T")
P = TypeVar("P")

GROUP: Final = "xc.parts"
"""Entry points of this group name modules that register parts."""


class Part:
    """Base of the configs of parts: frozen dataclasses, registered in a table under their kind.

    A config has the settings of its own part and no others. In params.yaml it is ``{kind: triplet, margin: 0.3}``.
    """

    table: ClassVar[Table[Any]]
    """The table of all parts of the family; set by the family's base class."""
    kind: ClassVar[str] = ""
    """The part's name in the table; set by ``Table.register``."""
    code_version: ClassVar[str] = "1"
    """Increment if a change of the part's code alters results. Only artefacts that use the part become stale."""


class Table(Generic[T]):
    """A mapping from names to parts of one family.

    >>> colours: Table[int] = Table("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["red"], colours.names()
    (1, ['red'])
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._parts: dict[str, T] = {}

    def add(self, name: str, part: P) -> P:
        """Put ``part`` under ``name`` and return it.

        Raises ConfigError if the name is already in use.
        """
        if name in self._parts:
            raise ConfigError(
                f"a second {self.what} named {name!r}", expected="one part per name", do="choose another name"
            )
        self._parts[name] = part  # type: ignore[assignment]
        return part

    def register(self, name: str) -> Callable[[P], P]:
        """Return a decorator that registers a class or function; ``name`` also becomes the kind of a ``Part``."""

        def put(part: P) -> P:
            self.add(name, part)
            if isinstance(part, type) and issubclass(part, Part):
                part.kind = name
            return part

        return put

    def __getitem__(self, name: str) -> T:
        """Return the part; raise ConfigError, with the nearest name, if there is none."""
        if name not in self:
            raise ConfigError(
                f"{self.what} {shown(name)}{nearest(name, self._parts)}",
                expected=f"one of {', '.join(self.names())}",
                do=f"use a known {self.what}, or install the package that registers it (entry point {GROUP})",
            )
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._parts:
            _load_once()
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Return all names, sorted."""
        _load_once()
        return sorted(self._parts)


_loaded: dict[str, ConfigError | None] = {}
"""The plug-ins imported so far, with the error of each one that failed."""


@cache
def _load_once() -> None:
    load_plugins()


def load_plugins() -> None:
    """Import the modules named by entry points of the group ``xc.parts``, each once per process.

    Raises ConfigError, at every call, for a plug-in that cannot be imported.
    """
    for entry in metadata.entry_points(group=GROUP):
        if entry.value not in _loaded:
            _loaded[entry.value] = None  # before the import, because a plug-in may read a table while it is imported
            _loaded[entry.value] = _import_error(entry)
        if failed := _loaded[entry.value]:
            raise failed


def plugin_files() -> list[Path]:
    """Return the file of each plug-in that can be found, without importing it."""
    found = []
    for entry in metadata.entry_points(group=GROUP):
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(entry.module)
            if spec is not None and spec.origin:
                found.append(Path(spec.origin))
    return sorted(found)


def _import_error(entry: metadata.EntryPoint) -> ConfigError | None:
    """Import a plug-in and return the error if that fails, whatever the plug-in raised."""
    try:
        entry.load()
    except Exception as error:
        failed = ConfigError(
            f"the plug-in {entry.name!r} ({entry.value}), which cannot be imported: {in_words(error)}",
            expected="a module that can be imported",
            do="fix or uninstall the package that provides it",
        )
        failed.__cause__ = error
        return failed
    return None


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of ``package`` to register its parts; ``path`` is the package's ``__path__``."""
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")


@contextmanager
def importing() -> Iterator[None]:
    """Pause the garbage collection while libraries are imported: it would search their million objects many times."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
