"""What every layout gives: blocks of rows, in order, that know the file and line they came from.

Takes: a folder.                    Gives: Source, Block; the table of layouts.
May import: errors, plugins, shapes.  Never: holds more than a block of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from xc_core.errors import DataError, MissingError
from xc_core.plugins import Table
from xc_core.shapes import F64, I64


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files are read."""

    max_line_bytes: int = 1_000_000
    """A longer line (bytes, newline included) is an error: it is nearly always a lost line break."""
    block_bytes: int = 4 << 20
    """Text read at a time, bytes; memory use is a small multiple of it."""
    label_separator: str = ";"
    """Between the labels of a CSV cell."""
    test_fraction: float = 0.2
    """Share of rows cut off as test where a tabular folder has no test file."""


@dataclass
class Block:
    """Rows of one file: texts, and for documents their labels as (flat ids, number of ids of each row)."""

    file: str
    first_line: int
    uids: list[str]
    titles: list[str]
    contents: list[str]
    label_ids: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    label_counts: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    relevance: F64 | None = None
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.uids)

    def where(self, row: int) -> str:
        """Return "file, line n" of the block's row ``row``."""
        return f"{self.file}, {self.unit} {self.first_line + row}"


class Source(Protocol):
    """An opened folder of one layout."""

    files: list[Path]
    """Every file that is read."""

    def labels(self) -> Iterator[Block]:
        """Yield all labels in the order of their ids."""

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the documents of ``split`` ("train" or "test") in file order."""

    def filters(self, split: str) -> Path | None:
        """Return the file of "document label" pairs that evaluation leaves out, None where there is none."""


@dataclass(frozen=True)
class Layout:
    """One public layout: its name, the files that give it away, and how to open it."""

    name: str
    signature: tuple[str, ...]
    describe: str
    open: Callable[[Path, ReadOptions], Source]


LAYOUTS: Table[Layout] = Table("layout")


def find(folder: Path, *names: str) -> Path | None:
    """Return the first of ``names`` (plain or with ``.gz``) that is in ``folder``."""
    for name in names:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.exists():
                return candidate
    return None


def need(folder: Path, *names: str) -> Path:
    """Return the first of ``names`` in ``folder``; raise MissingError where there is none."""
    path = find(folder, *names)
    if path is None:
        raise MissingError(
            f"no {names[0]} in {folder}",
            expected=" or ".join(f"{n} or {n}.gz" for n in names),
            do="put the file there, or point at the right folder",
        )
    return path


def detect(folder: Path) -> Layout:
    """Return the layout whose signature files are in ``folder``.

    Raises MissingError where the folder is absent or of no known layout, DataError where it is ambiguous or unsafe.
    """
    if not folder.is_dir():
        raise MissingError(f"no folder {folder}", expected="a folder with a dataset", do="check the path")
    refuse_outside_links(folder)
    found = [LAYOUTS[name] for name in LAYOUTS if _matches(folder, LAYOUTS[name])]
    if not found:
        names = sorted(p.name for p in folder.iterdir())[:8]
        raise MissingError(
            f"no known layout in {folder} (files: {', '.join(names) or 'none'})",
            expected="; ".join(f"{LAYOUTS[n].name}: {LAYOUTS[n].describe}" for n in LAYOUTS),
            do="rename the files as one of these layouts has them (docs/data-formats.md)",
        )
    if len(found) > 1:
        raise DataError(
            f"files of {len(found)} layouts in {folder}: {', '.join(x.name for x in found)}",
            expected="one layout a folder",
            do="choose one with --layout",
        )
    return found[0]


def _matches(folder: Path, layout: Layout) -> bool:
    return all(find(folder, *alternatives.split("|")) is not None for alternatives in layout.signature)


def refuse_outside_links(folder: Path) -> None:
    """Raise DataError where a symbolic link in ``folder`` leads out of it."""
    root = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise DataError(
                f"a symbolic link {path.name} to {path.resolve()}",
                expected="links that stay inside the folder",
                do="copy the file into the folder",
                where=str(folder),
            )
