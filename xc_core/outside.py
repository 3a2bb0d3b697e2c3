"""Small files from outside, and YAML: bounded in kind, size, depth and repetition before anything is built."""

from __future__ import annotations

import copy
import os
import stat
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from xc_core.errors import ConfigError, bare, preview

MOST_BYTES: Final = 1 << 20
"""Bytes of a file of settings."""
MOST_DEPTH: Final = 32
"""Mappings and lists inside each other."""
MOST_NODES: Final = 100_000
"""Values, keys, mappings and lists of a YAML text, each alias counted as what it repeats."""
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def text_of(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the content of a small text file; it never blocks, and reads ``most_bytes`` at most.

    Raises FileNotFoundError if there is none, ConfigError if it is no regular file, too large, unreadable or not UTF-8.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer would block
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable_error(path, error.strerror or "unknown reason") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if kind := next((name for test, name in _KINDS if test(mode)), ""):
            raise ConfigError(kind, expected="a file", do="replace it by a file", where=path.name)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise ConfigError(
                f"more than {most_bytes:,} bytes", expected="a smaller file", do="shorten it", where=path.name
            )
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable_error(path, str(error)) from error
    finally:
        os.close(descriptor)


def _unreadable_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"a file that cannot be read ({reason})",
        expected="text in UTF-8 that this user may read",
        do="fix the file or its permission",
        where=path.name,
    )


def yaml_of(text: str, where: str = "", *, round_trip: bool = False) -> Any:
    """Return the value of a YAML text; with ``round_trip`` comments are kept for ``YAML().dump``.

    The last texts are remembered: a stage asks for params.yaml about ten times, and parsing takes longer than copying.
    Raises ConfigError, with the place ``where``, for a text that is no YAML or exceeds a bound, and for tags: nothing
    but mappings, lists, texts, numbers, true, false, null and dates is ever built.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            _check_events(text, where)
            return YAML().load(text) if round_trip else copy.deepcopy(_parsed(text))
    except ConfigError:
        raise
    except Exception as error:  # ruamel.yaml raises errors of many types, a ValueError for the date 2001-99-99
        raise _invalid_error(error, text, where) from error


def _invalid_error(error: Exception, text: str, where: str) -> ConfigError:
    """Return the error for a text that ruamel.yaml refuses, with its line and column if they are known."""
    for number, line in enumerate(text.splitlines()):
        if line.startswith("<<<<<<< "):
            do = "keep one of the two versions and delete the lines of git (git diff shows them)"
            found = f"a merge conflict that is not resolved ({bare(line)})"
            return ConfigError(found, expected="YAML", do=do, where=_line(where, number))
    reason, origin, position = str(error) or type(error).__name__, "", None
    if isinstance(error, MarkedYAMLError):
        reason, mark, start_mark = str(error.problem), error.problem_mark, error.context_mark
        position = mark.line, mark.column
        if start_mark and start_mark.line != mark.line:
            origin = f", {error.context} that starts in line {start_mark.line + 1}"
    elif isinstance(error, ReaderError):  # names a position, and calls the text "<unicode string>"
        reason, preceding = f"unacceptable character #x{error.character:04x}", text[: error.position]
        position = preceding.count("\n"), len(preceding) - preceding.rfind("\n") - 1
    if position:
        where = f"{_line(where, position[0])}, column {position[1] + 1}"
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in " ".join(reason.split()))
    found = f"invalid YAML ({shown if len(shown) <= 200 else f'{shown[:197]}...'}{origin})"
    return ConfigError(found, expected="YAML", do="fix it, or quote texts", where=where)


def _line(where: str, number: int) -> str:
    """Return the name of a line, counted from 0, of the text at ``where``."""
    return f"{where}, line {number + 1}".removeprefix(", ")


@lru_cache(maxsize=4)
def _parsed(text: str) -> Any:
    return YAML(typ="safe").load(text)


@lru_cache(maxsize=4)
def _check_events(text: str, where: str) -> None:
    """Raise ConfigError if the text is too deep, too large, has tags or several documents. Nothing is built."""
    total = documents = 0
    totals_at_start: list[int] = []  # value of total at the start of each open collection
    anchors: list[str | None] = []
    sizes: dict[str, int] = {}  # nodes behind each anchor that is complete
    for event in YAML(typ="safe").parse(text):
        line = _line(where, event.start_mark.line)
        documents += isinstance(event, DocumentStartEvent)
        if getattr(event, "tag", None):
            raise _refused_error(f"the tag {preview(str(event.tag))}", "plain values without tags", line)
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            totals_at_start.append(total)
            anchors.append(event.anchor)
            total += 1
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            sizes[anchors.pop() or ""] = total - totals_at_start.pop()
        elif isinstance(event, AliasEvent):
            if event.anchor in anchors or event.anchor not in sizes:
                raise _alias_error(str(event.anchor), anchors, line)
            total += sizes[event.anchor]
        elif isinstance(event, ScalarEvent):
            total += 1
            sizes[event.anchor or ""] = 1
        if len(totals_at_start) > MOST_DEPTH:
            raise _refused_error(f"more than {MOST_DEPTH} levels", "fewer mappings and lists inside each other", line)
        if total > MOST_NODES:
            raise _refused_error(
                f"more than {MOST_NODES:,} values", "fewer values, aliases counted as what they repeat", line
            )
        if documents > 1:
            raise _refused_error("a second document (---)", "one document", line)


def _alias_error(name: str, open_anchors: list[str | None], where: str) -> ConfigError:
    """Return the error for an alias that repeats a value which is not finished, or not there."""
    alias = f"the alias *{bare(name)}"
    if name in open_anchors:
        return _refused_error(f"{alias} inside its own value", "aliases of finished values", where)
    return ConfigError(
        f"{alias}, and no &{bare(name)} before it",
        expected="an alias (*name) of a value that is marked with &name before it",
        do="fix the name; a text that begins with * needs quotes",
        where=where,
    )


def _refused_error(found: str, expected: str, where: str) -> ConfigError:
    return ConfigError(found, expected=expected, do="fix the YAML", where=where)
