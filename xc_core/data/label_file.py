"""A file of labels alone, as ``xc add-labels`` takes it: uid, and text or title and content."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from xc_core.data.checks import Allowed, check_block, clean_block
from xc_core.data.formats import ReadOptions
from xc_core.data.formats.tables import ENDINGS, has_ending
from xc_core.data.formats.tabular import label_rows
from xc_core.errors import DataError, MissingError, UsageError, preview

MOST_LABELS: Final = 1_000_000
"""Labels of a file."""
MOST_BYTES: Final = 64 << 20
"""Bytes of a file as it is stored, and characters of its rows, which are all in memory."""


def read_labels(path: Path, options: ReadOptions, allowed: Allowed) -> pl.DataFrame:
    """Return the labels of a file as columns uid, title and content; each row is checked as in an ingest.

    Raises MissingError if there is no file, UsageError for another type of file, DataError for the first wrong row or a
    file that is too large.
    """
    check_type(path, "labels")
    if path.stat().st_size > MOST_BYTES:
        raise _too_large(f"{path.stat().st_size:,} bytes", path)
    rows: list[tuple[str, str, str]] = []
    places: dict[str, str] = {}
    characters = 0
    for block in label_rows(path, options):
        block = clean_block(block, allowed)
        check_block(block, allowed, num_labels=None)
        for row, uid in enumerate(block.uids):
            check_once(uid, places, block.where(row))
        rows += zip(block.uids, block.titles, block.contents, strict=True)
        characters += sum(len(text) for column in (block.uids, block.titles, block.contents) for text in column)
        if len(rows) > MOST_LABELS or characters > MOST_BYTES:
            raise _too_large(f"{len(rows):,} labels of {characters:,} characters, or more", path)
    if not rows:
        raise DataError("no rows", expected="at least one label", do="add labels", where=path.name)
    return pl.DataFrame(rows, schema=dict.fromkeys(("uid", "title", "content"), pl.String), orient="row")


def _too_large(found: str, path: Path) -> DataError:
    limits = f"at most {MOST_LABELS:,} labels, and {MOST_BYTES:,} bytes or characters"
    return DataError(found, expected=limits, do="give the labels in several files, in turn", where=path.name)


def check_type(path: Path, kind: str) -> None:
    """Raise MissingError if there is no file, UsageError if its name is not that of a table.

    ``kind`` names the rows, "labels" or "documents".
    """
    if not path.is_file():  # nor a folder or a named pipe, which would be waited for
        raise MissingError(not_a_file(path), expected=f"a file of {kind}", do="fix the name")
    if not has_ending(path):
        raise UsageError(path.name, expected=f"a name that ends in {', '.join(ENDINGS)}", do="rename it")


def not_a_file(path: Path) -> str:
    """Return what was found in place of a file."""
    return f"{path}, which is a folder, a named pipe or a device" if path.exists() else f"no file {path}"


def check_once(uid: str, places: dict[str, str], where: str) -> None:
    """Put the place of a uid into ``places``; raise DataError if it has one already."""
    if uid in places:
        raise DataError(
            f"the uid {preview(uid)} again, which is also the uid of {places[uid]}",
            expected="every uid once",
            do="rename or drop one of the two",
            where=where,
        )
    places[uid] = where
