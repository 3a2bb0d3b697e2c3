"""The contract of a layout: a source yields rows in blocks, in order; a block knows the file and line of each row."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, overload

import numpy as np
import polars as pl
import pyarrow as pa

from xc_core.artifacts import sha256_file
from xc_core.errors import DataError, MissingError, preview
from xc_core.plugins import Table
from xc_core.shapes import F64, I64, Array
from xc_core.visible import listed


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files are read."""

    max_line_bytes: int = 1_000_000
    """Length limit of a line in bytes; a line that reaches it is an error, as it nearly always lacks a line break."""
    block_bytes: int = 4 << 20
    """Text read at a time, in bytes; memory use is a small multiple of it."""
    label_separator: str = ";"
    """Separates the labels in a text of labels, such as a CSV cell."""
    test_fraction: float = 0.2
    """Share of rows split off as test if a tabular folder has no test file."""
    test_by: str = "uid"
    """How rows are split off as test: "uid": by a hash; "group": by a hash, those with the same value in the column
    group together; "time": the last ones."""
    part: bool = False
    """Read a part of a dataset, as an update is: files without rows may be missing, and documents without a column uid
    get a uid from their text."""


class Texts(Sequence[str]):
    """The strings of an Arrow array without nulls; they become Python strings when they are read."""

    def __init__(self, column: pa.StringArray) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        value: str | list[str] = self.column[row].to_pylist() if isinstance(row, slice) else self.column[row].as_py()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.column.to_pylist())

    def utf8(self) -> tuple[Array, I64]:
        """Return the bytes of all strings, one after the other, and where each begins and the last ends (N + 1)."""
        _, ends, content = self.column.buffers()
        first = self.column.offset
        offsets = np.frombuffer(ends, np.int32)[first : first + len(self) + 1].astype(np.int64)
        data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
        return data[offsets[0] : offsets[-1]], offsets - offsets[0]


def arrow(texts: Sequence[str]) -> pa.StringArray:
    """Return strings as an Arrow array."""
    if isinstance(texts, Texts):
        return texts.column
    return pl.Series(texts, dtype=pl.String).to_arrow().cast(pa.string())  # pa.array would import pandas


@dataclass
class Block:
    """Rows of one file: texts and, for documents, their labels as (flat ids, number of ids per row)."""

    file: str
    first_line: int
    uids: Sequence[str]
    titles: Sequence[str]
    contents: Sequence[str]
    label_ids: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    label_counts: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    relevance: F64 | None = None
    unit: str = "line"
    offsets: I64 | None = None
    """Distance of each row from ``first_line`` if rows are left out; None if the rows are consecutive."""
    label_place: tuple[str, str, int] | None = None
    """File, unit and first line of the labels if they are not in the file of the texts."""
    groups: list[str] | None = None
    """The group of each document, empty if it has none; None if the layout or the file has no groups."""
    times: list[str] | None = None
    """When each document was made, as the file writes it, empty if it does not; None if there are no times."""
    families: list[str] | None = None
    """The name of each document's family of near-duplicates, empty if it is its own uid; None if the file has none."""
    label_name: Callable[[int], str] | None = None
    """Returns what the file calls a label; None if it names labels by their numbers."""
    label_separator: str | None = None
    """The separator at which the texts with labels were cut; None if labels are not written as one text."""

    def __len__(self) -> int:
        return len(self.uids)

    def where(self, row: int) -> str:
        """Return "file, line n" of the block's row ``row``."""
        offset = row if self.offsets is None else int(self.offsets[row])
        return f"{self.file}, {self.unit} {self.first_line + offset}"

    def label(self, number: int) -> str:
        """Return a label for messages, as the file names it."""
        return str(number) if self.label_name is None else preview(self.label_name(number))

    def where_labels(self, row: int) -> str:
        """Return "file, line n" of the labels of the block's row ``row``."""
        if self.label_place is None:
            return self.where(row)
        file, unit, first = self.label_place
        return f"{file}, {unit} {first + row}"


class Source(Protocol):
    """An opened folder of one layout; attributes that have a default may be left out."""

    files: list[Path]
    """All files that are read."""
    splits: tuple[str, ...] = ("train", "test")
    """The files of documents, in the order of the corpus: train, validation, test."""
    splits_off: bool = False
    """True if the test documents are split off the train file, by a hash or by time."""

    @property
    def has_uids(self) -> bool:
        """False if uids are row numbers, so that rows have no name."""
        return True

    @property
    def documents_stay(self) -> bool:
        """True if labels that are added at the end cannot change a document."""
        return False

    @property
    def names_labels(self) -> bool:
        """False if labels are known by row numbers; by default as ``has_uids``."""
        return self.has_uids

    def labels(self) -> Iterator[Block]:
        """Yield all labels in the order of their ids."""

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the documents of the file ``split`` (train, test, or validation if there is one) in file order."""

    def filters(self, split: str) -> Path | None:
        """Return the file of "document label" pairs that are removed from predictions; None if there is none."""


_OPTIONAL: Final = ("splits", "has_uids", "splits_off", "documents_stay", "names_labels")


class _WithDefaults(Source):
    """A source whose class does not derive from ``Source``, as that of a plug-in need not: it gets the defaults."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getattribute__(self, name: str) -> Any:
        source = super().__getattribute__("_source")
        lacking = name in _OPTIONAL and not hasattr(source, name)
        return super().__getattribute__(name) if lacking else getattr(source, name)


def text_uid(title: str, content: str) -> str:
    """Return the uid of a document without one in a part of a dataset: a hash of its text."""
    text = "\x1f".join((title, content))
    return f"text-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


def source_facts(source: Source, folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file of a source, by its path in ``folder``."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in source.files
    }


@dataclass(frozen=True)
class Layout:
    """One public layout: its name, the files by which it is recognised, a description, and how to open a folder."""

    name: str
    signature: tuple[str, ...]
    """Patterns of names, with "|" between alternatives; each may also end in ``.gz``."""
    describe: str
    open: Callable[[Path, ReadOptions], Source]
    add_labels: Callable[[Path, pl.DataFrame, int], None] | None = None
    """Adds the last N rows of a table of labels (uid, title, content), which has all labels of the folder in their
    order before them, to the files in a folder; documents stay as they are. None for a layout without uids."""
    part: tuple[str, ...] = ()
    """The files by which a part of a dataset is recognised, which need not have every file; by default as a whole."""


LAYOUTS: Table[Layout] = Table("layout")


def find(folder: Path, *names: str) -> Path | None:
    """Return the path of the first of ``names`` (plain or with ``.gz``) that is in ``folder``; None if none is."""
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


def need(folder: Path, *names: str) -> Path:
    """Return the path of the first of ``names`` that is in ``folder``; raise MissingError if none is."""
    path = find(folder, *names)
    if path is None:
        raise MissingError(
            f"no {names[0]} in {folder}",
            expected=" or ".join(f"{n} or {n}.gz" for n in names),
            do="add the file, or pass the right folder",
        )
    return path


def open_source(folder: Path, layout: str, options: ReadOptions) -> tuple[Layout, Source]:
    """Open ``folder`` as ``layout``, a name or "auto"; return the layout and the source.

    Raises MissingError if the folder or a file is missing, DataError if the folder is ambiguous, unsafe or unreadable.
    """
    if not folder.is_dir():
        found = f"a file {folder}" if folder.exists() else f"no folder {folder}"
        raise MissingError(found, expected="a folder with a dataset", do="pass the folder that has the files")
    _refuse_unreadable(folder)
    refuse_outside_links(folder)
    chosen = detect(folder, part=options.part) if layout == "auto" else LAYOUTS[layout]
    source = chosen.open(folder, options)
    for path in source.files:
        _refuse_unreadable(path)
    return chosen, source if Source in type(source).__mro__ else _WithDefaults(source)  # type: ignore[abstract]


def _refuse_unreadable(path: Path) -> None:
    if not os.access(path, os.R_OK):
        raise DataError(
            "no permission to read it",
            expected="a folder and files that this user may read",
            do="change the permission (chmod), or copy the folder",
            where=str(path),
        )


def detect(folder: Path, *, part: bool) -> Layout:
    """Return the layout whose signature files are in ``folder``; ``part`` if some files of a dataset may be missing.

    Raises MissingError if no layout matches, DataError if several do.
    """
    matches = [LAYOUTS[name] for name in LAYOUTS if _matches(folder, LAYOUTS[name], part=part)]
    if not matches:
        names = sorted(f"{p.name!r}{'' if p.is_file() else ' (no file)'}" for p in folder.iterdir())
        raise MissingError(
            f"no known layout in {folder} (it holds {listed(names) or 'nothing'})",
            expected=_expected(folder),
            do="add or rename files to match a layout (docs/data-formats.md)",
        )
    if len(matches) > 1:
        raise DataError(
            f"files of {len(matches)} layouts in {folder}: {', '.join(x.name for x in matches)}",
            expected="one layout per folder",
            do="choose one with --layout; if it is data/NAME/raw, take the files of the others away",
        )
    return matches[0]


def _matches(folder: Path, layout: Layout, *, part: bool) -> bool:
    return not _missing_files(folder, (part and layout.part) or layout.signature)


def _missing_files(folder: Path, signature: tuple[str, ...]) -> list[str]:
    present = [path.name.removesuffix(".gz") for path in folder.iterdir() if path.is_file()]
    return [names for names in signature if not any(fnmatch.filter(present, name) for name in names.split("|"))]


def _expected(folder: Path) -> str:
    """Return what the folder lacks for the layout with most files present, or describe all layouts."""
    absent = {name: _missing_files(folder, LAYOUTS[name].signature) for name in LAYOUTS}
    closest = max(absent, key=lambda name: len(LAYOUTS[name].signature) - len(absent[name]))
    if len(absent[closest]) < len(LAYOUTS[closest].signature):
        return f"{' and '.join(absent[closest])} as well, for the layout {closest}: {LAYOUTS[closest].describe}"
    return "\n            ".join(f"{LAYOUTS[name].name}: {LAYOUTS[name].describe}" for name in LAYOUTS)


def refuse_outside_links(folder: Path) -> None:
    """Raise DataError if a symbolic link of ``folder`` points outside of it; files in inner folders are never read."""
    root = folder.resolve()
    for path in sorted(folder.iterdir()):
        target = Path(os.path.realpath(path))  # Path.resolve would raise on a link to itself
        if path.is_symlink() and not target.is_relative_to(root):
            raise DataError(
                f"a symbolic link {path.name!r} to {str(target)!r}",
                expected="links that stay inside the folder",
                do="copy the file into the folder",
                where=str(folder),
            )


def in_json(value: Any, limit: int = 60) -> str:
    """Return a value as JSON on one line, cut to ``limit`` characters."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        text = f"a {type(value).__name__} with too many levels"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
