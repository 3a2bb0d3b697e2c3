"""Every error meant for a user: what was found, what was expected, what to do. Each kind has an exit code.

    XCError                     70  a fault of this software, or a kind without its own code
    ├── UsageError              64  an invalid command or argument
    ├── DataError               65  the user's files are wrong (names file and line)
    ├── MissingError            66  a file, dataset, recipe or artefact is missing
    ├── UnavailableError        69  an external service (tracking server, model hub) does not answer
    ├── ShortageError           71  the memory is not enough for the sizes in the settings
    ├── DivergedError           72  the loss or its gradient is not finite
    ├── StorageError            73  the disk is full or a folder is not writable
    ├── CorruptError            74  the content of an artefact differs from its manifest
    ├── BusyError               75  the same stage of the same partition is already running
    ├── MovedError              76  inputs are out of date, or parameters or inputs changed during a run
    ├── RefusedError            77  a blocking check or a metric floor failed
    └── ConfigError             78  a parameter has a wrong name, type or value

Codes 64 to 78 follow sysexits.h if it defines a code for the meaning.
"""

from __future__ import annotations

import difflib
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from xc_core.visible import listed

OLDEST_RELEASE: Final = "0.2.0"
"""The oldest release whose files are read (docs/release.md)."""
_MAX_SHOWN: Final = 900
"""Characters that a message shows of what was found and of the place; input of any length can be in it."""


class XCError(Exception):
    """Base of all errors meant for users.

    ``found`` says what is wrong, ``expected`` what would be right, ``do`` how to fix it; ``where`` is the place.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, found: str, *, expected: str, do: str, where: str = "") -> None:
        found = found if len(found) <= _MAX_SHOWN else f"{found[: _MAX_SHOWN - 3]}..."
        where = where if len(where) <= _MAX_SHOWN else f"{where[: _MAX_SHOWN - 3]}..."
        self.found, self.expected, self.do, self.where = found, expected, do, where
        super().__init__(self.__str__())

    def __str__(self) -> str:
        head = f"{self.where}: " if self.where else ""
        return f"{head}found {self.found}\n  expected: {self.expected}\n  do this:  {self.do}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.found, self.expected, self.do, self.where))


def _rebuild(kind: type[XCError], found: str, expected: str, do: str, where: str) -> XCError:
    return kind(found, expected=expected, do=do, where=where)


class UsageError(XCError):
    """A command or an argument is invalid."""

    exit_code = 64


class DataError(XCError):
    """The user's files are wrong; ``where`` names the file and, if there is one, the line."""

    exit_code = 65


class MissingError(XCError):
    """A file, dataset, recipe or artefact is missing."""

    exit_code = 66


class UnavailableError(XCError):
    """An external service does not answer."""

    exit_code = 69


class ShortageError(XCError):
    """The memory is not enough."""

    exit_code = 71


class DivergedError(XCError):
    """The loss or its gradient is not finite."""

    exit_code = 72


class StorageError(XCError):
    """The disk is full or a folder is not writable."""

    exit_code = 73


class CorruptError(XCError):
    """The content of an artefact differs from its manifest."""

    exit_code = 74


class BusyError(XCError):
    """The same stage of the same partition is already running."""

    exit_code = 75


class MovedError(XCError):
    """Inputs are out of date, or parameters or inputs changed during a run; nothing was recorded."""

    exit_code = 76


class RefusedError(XCError):
    """A blocking check or a metric floor failed."""

    exit_code = 77


class ConfigError(XCError):
    """A parameter has a wrong name, type or value."""

    exit_code = 78


def nearest(name: object, known: Iterable[object]) -> str:
    """Return " (nearest: x)" for the known name closest to ``name``, or an empty string.

    A name that looks the same comes first: an accent may be part of its letter, or a character of its own.
    """
    text, names = str(name)[:_MAX_SHOWN], [str(candidate) for candidate in known]
    if not text.isascii():
        form = unicodedata.normalize("NFC", text)
        if equal := next((candidate for candidate in names if unicodedata.normalize("NFC", candidate) == form), ""):
            return f" (nearest: {equal!r}, in another Unicode form)"
    match = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    return f" (nearest: {match[0]!r})" if match else ""


def preview(text: str | bytes, limit: int = 60) -> str:
    """Return ``text`` quoted and cut to ``limit`` characters, control characters escaped."""
    shown = repr(text if isinstance(text, str) else text.decode("utf-8", "backslashreplace"))
    return shown if len(shown) <= limit else shown[: limit - 4] + "...'"


def previews(names: Sequence[str]) -> str:
    """Return the first names, each as a ``preview``, and how many more there are."""
    return listed([preview(name) for name in names])


def bare(name: object, limit: int = 80) -> str:
    """Return a name for a message: without quotes if it is text, always on one line and short."""
    return (preview(name, limit)[1:-1] or "''") if isinstance(name, str) else shown(name, limit)


def shown(value: object, limit: int = 200) -> str:
    """Return ``repr(value)`` on one line, cut to ``limit`` characters; any value is shown, however large or deep."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlist, short.maxdict = 4, 80, 80, 8, 8
    try:
        text = short.repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        text = f"a {type(value).__name__} too large to print"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an error's message, cut to ``limit`` characters, or the kind of an error without one.

    Control characters are escaped.
    """
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return bare(line[:limit], limit + 2)


def in_words(error: BaseException) -> str:
    """Return what an error found; type and message of an error that is not meant for users."""
    return error.found if isinstance(error, XCError) else f"{type(error).__name__}: {error}"
