"""Tables of parts by name, and ``Part``, the base class of their configs.

A part registers itself when its module is imported. Modules of other packages are found through entry points of the
group ``xc.parts``.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, runtime_checkable

from xc_core.errors import ConfigError, XCError, in_words, nearest, shown

T = TypeVar("T")
P = TypeVar("P")

GROUP: Final = "xc.parts"
"""Entry points of this group name modules that register parts."""
COMMANDS: Final = "xc.commands"
"""Entry points of this group name commands."""
_PROJECT_PACKAGES: Final = ("xc_core", "assets", "pipelines")
"""The packages of this project, some of whose commands are entry points too."""


class UnknownPartError(ConfigError):
    """A name that no part of a table has: it is misspelt, or of a plug-in that is not installed."""


@runtime_checkable
class HasUnused(Protocol):
    """A config of which some settings may be unused. A fingerprint contains all settings of any other."""

    def unused(self) -> frozenset[str]:
        """Return the names of settings that cannot affect a result; "table.lr" is one of the config ``table``."""


@runtime_checkable
class HasUnread(Protocol):
    """Settings of a stage with which some inputs may be unread. The stage depends on all its inputs with any other."""

    def unread(self) -> frozenset[str]:
        """Return the names of stages whose artefacts are not read."""


@runtime_checkable
class HasOutside(Protocol):
    """Settings of a stage that may read local models or tokenizers, on whose content its result depends."""

    def outside(self) -> dict[str, list[Path]]:
        """Return the files of each local folder that is read, by a name for people; no files for an absent one."""


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

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "table" in cls.__dict__:
            cls.table.base = cls


class Table(Generic[T]):
    """A mapping from names to parts of one family.

    >>> colours: Table[int] = Table("colour")
    >>> colours.add("red", 1)
    1
    >>> colours["red"], colours.names()
    (1, ['red'])
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self.base: type | None = None
        """The base class of all parts, if they are configs; set by the family's base class."""
        self._parts: dict[str, T] = {}

    def add(self, name: str, part: P) -> P:
        """Put ``part`` under ``name`` and return it; raise ConfigError if the name is already in use."""
        if name in self._parts:
            raise ConfigError(
                f"a second {self.family} named {name!r}", expected="one part per name", do="choose another name"
            )
        self._parts[name] = part  # type: ignore[assignment]
        return part

    def register(self, name: str) -> Callable[[P], P]:
        """Return a decorator that registers a class or function; ``name`` also becomes the kind of a ``Part``.

        The decorator raises ConfigError for a class without the base class of the family.
        """

        def put(part: P) -> P:
            if self.base and not (isinstance(part, type) and issubclass(part, self.base)):
                raise ConfigError(
                    f"{getattr(part, '__qualname__', part)}, registered as the {self.family} {name!r}, "
                    f"without the base class {self.base.__name__}",
                    expected=f"a class derived from {self.base.__module__}.{self.base.__name__}",
                    do="derive it",
                )
            self.add(name, part)
            if isinstance(part, type) and issubclass(part, Part):
                part.kind = name
            return part

        return put

    def __getitem__(self, name: str) -> T:
        """Return the part; raise UnknownPartError, with the nearest name, if there is none."""
        if name not in self:
            raise UnknownPartError(
                f"{self.family} {shown(name)}{nearest(name, self._parts)}",
                expected=f"one of {', '.join(self.names())}",
                do=f"use a known {self.family}, or install the package that registers it (entry point {GROUP})",
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
    """Return the file of each plug-in that can be found, without importing it; its package is imported."""
    files = []
    for entry in metadata.entry_points(group=GROUP):
        with suppress(Exception):  # a package may raise anything
            spec = importlib.util.find_spec(entry.module)
            if spec is not None and spec.origin:
                files.append(Path(spec.origin))
    return sorted(files)


def fault_of(error: BaseException) -> str:
    """Return the line below an unexpected error: whose fault it is.

    It is that of a plug-in if its code raised the error. If the code of this project did, a plug-in that called it, or
    one that is installed and returned the wrong thing, may be the cause.
    """
    entries = [entry for group in (GROUP, COMMANDS) for entry in metadata.entry_points(group=group)]
    names = {_top_package(entry.module): entry.name for entry in entries}
    names = {package: name for package, name in names.items() if package not in _PROJECT_PACKAGES}
    ours, theirs = _last_frame(error, _PROJECT_PACKAGES), _last_frame(error, names)
    shows = "`xc --debug ...` shows where"
    if theirs is not None:
        plugin = f"the plug-in {names[theirs.top]!r} ({theirs})"
        raised_it = ours is None or theirs.depth > ours.depth
        return f"a fault of {plugin}; {shows}" if raised_it else f"a fault of xc, or of {plugin}; {shows}"
    if names:
        listed = ", ".join(sorted(names.values()))
        return f"a fault of xc, or of what a plug-in ({listed}) returned to it; {shows}"
    return f"a fault of xc; {shows}; please report it"


@dataclass(frozen=True)
class _Frame:
    """A line of code on the way to an error."""

    depth: int
    top: str
    """The package, or the module without one."""
    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}, line {self.line}"


def _last_frame(error: BaseException, tops: Container[str]) -> _Frame | None:
    """Return the innermost line of the packages ``tops`` in the traceback of an error; None if there is none."""
    last = None
    for depth, (frame, line) in enumerate(walk_tb(error.__traceback__)):
        if (top := _top_package(str(frame.f_globals.get("__name__")))) in tops:
            last = _Frame(depth, top, frame.f_code.co_filename, line)
    return last


def _top_package(module: str) -> str:
    return module.partition(".")[0]


def _import_error(entry: metadata.EntryPoint) -> ConfigError | None:
    """Import a plug-in and return the error if that fails, whatever the plug-in raised."""
    try:
        entry.load()
    except Exception as error:
        frame = _last_frame(error, (_top_package(entry.module),))
        expected, do = "a module that can be imported", "fix or uninstall the package that provides it"
        if isinstance(error, XCError):
            expected, do = error.expected, f"{error.do}, or uninstall the package that provides it"
        failed = ConfigError(
            f"the plug-in {entry.name!r} ({entry.value}), which cannot be imported: {in_words(error)}"
            f"{f' ({frame})' if frame else ''}",
            expected=expected,
            do=do,
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
