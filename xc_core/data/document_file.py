"""A file of documents with labels, as ``xc acceptance --given`` takes it: text, labels (a list of uids), maybe uid.

A document without a uid is named by the file and its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from xc_core.data.checks import Allowed, check_block, clean_block
from xc_core.data.formats import Block, ReadOptions
from xc_core.data.formats.tabular import table_rows
from xc_core.data.label_file import check_once, check_type
from xc_core.errors import DataError, nearest, preview

MOST_DOCUMENTS: Final = 100_000
"""Documents of a file: the gate has an hour to measure a model on them."""
MOST_BYTES: Final = 256 << 20
"""Bytes of a file, and characters of its texts, which are all in memory."""


def read_documents(
    path: Path,
    options: ReadOptions,
    allowed: Allowed,
    ids: Mapping[str, int],
    fields: tuple[str, ...] = ("title", "content"),
) -> pl.DataFrame:
    """Return the documents of a file as columns uid, text and labels (uids); each row is checked as in an ingest.

    ``ids`` are the labels of the dataset by uid; ``fields`` are the columns that form a text, of a document that has
    them. A document needs a text and a label, whatever is ``allowed``. Raises MissingError if there is no file,
    UsageError for another type of file, DataError for the first wrong row or a file that is too large.
    """
    rows: list[tuple[str, str, list[str]]] = []
    places: dict[str, str] = {}
    characters, label_uids, allowed = 0, list(ids), replace(allowed, empty_text=False, empty_labels=False)
    check_type(path, "documents")
    if path.stat().st_size > MOST_BYTES:
        raise _too_large(f"{path.stat().st_size:,} bytes", path)
    for block, cells in table_rows(path, options, with_labels=True):
        block = _checked(block, cells, allowed, ids)
        for row, uid in enumerate(block.uids):
            check_once(uid, places, block.where(row))
        columns = {"title": block.titles, "content": block.contents}
        selected = zip(*(columns[name] for name in fields), strict=True)
        joined = [" ".join(part for part in row if part) for row in selected]
        texts = [text or title or content for text, title, content in zip(joined, *columns.values(), strict=True)]
        ends = np.cumsum(block.label_counts).tolist()
        labels = [label_uids[label] for label in block.label_ids.tolist()]
        rows += zip(block.uids, texts, [labels[a:b] for a, b in zip([0, *ends], ends, strict=False)], strict=True)
        characters += sum(map(len, texts))
        if len(rows) > MOST_DOCUMENTS or characters > MOST_BYTES:
            raise _too_large(f"{len(rows):,} documents of {characters:,} characters, or more", path)
    if not rows:
        raise DataError("no rows", expected="at least one document", do="add documents", where=path.name)
    return pl.DataFrame(rows, {"uid": pl.String, "text": pl.String, "labels": pl.List(pl.String)}, orient="row")


def _too_large(found: str, path: Path) -> DataError:
    limits = f"at most {MOST_DOCUMENTS:,} documents and {MOST_BYTES:,} bytes or characters"
    return DataError(found, expected=limits, do="give a sample of the documents", where=path.name)


def _checked(block: Block, cells: list[list[Any]], allowed: Allowed, ids: Mapping[str, int]) -> Block:
    """Return a block with the ids of its labels, after the checks of an ingest; its messages name no option of it."""
    names = [[str(name) for name in cell] for cell in cells]
    for row, cell in enumerate(names):
        seen: set[str] = set()
        for name in cell:
            if name not in ids:
                raise DataError(
                    f"the label {preview(name)}{nearest(name, list(ids)[:10_000])}",
                    expected="the uid of a label of the dataset",
                    do="fix the uid or delete it",
                    where=block.where(row),
                )
            if name in seen and not allowed.repeated_labels:
                raise DataError(
                    f"the label {preview(name)} twice",
                    expected="each label once per document",
                    do="delete the repetition",
                    where=block.where(row),
                )
            seen.add(name)
    block.label_ids = np.array([ids[name] for cell in names for name in cell], np.int64)
    block.label_counts = np.array([len(cell) for cell in names], np.int64)
    block = clean_block(block, allowed)
    try:
        check_block(block, allowed, num_labels=len(ids))
    except DataError as error:
        do = error.do.partition(", or pass --allow")[0]
        raise DataError(error.found, expected=error.expected, do=do, where=error.where) from error
    return block
