"""A file of documents with labels, as ``xc acceptance --given`` takes it: text, labels (a list of uids), maybe uid.

A document without a uid is named by the file and its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from xc_core.data.checks import Allowed, check_block, clean_block
from xc_core.data.formats import Block, ReadOptions
from xc_core.data.formats.base import in_json
from xc_core.data.formats.lines import blocks
from xc_core.data.formats.tabular import table_rows
from xc_core.data.formats.xc_json import object_of
from xc_core.data.label_file import TABLES, check_once, check_type
from xc_core.errors import DataError, nearest, preview

Rows = Iterator[tuple[Block, list[list[Any]]]]
"""Blocks of documents, each with the labels of its rows."""
MOST_DOCUMENTS: Final = 100_000
"""Documents of a file: the gate has an hour to measure a model on them."""
MOST_BYTES: Final = 256 << 20
"""Bytes of a file, and characters of its texts, which are all in memory."""
_FORM: Final = '{"text": "a dog", "labels": ["n02084071"]}'


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
    characters, known, allowed = 0, list(ids), replace(allowed, empty_text=False, empty_labels=False)
    for block, cells in _reader(path)(path, options):
        block = _checked(block, cells, allowed, ids)
        for row, uid in enumerate(block.uids):
            check_once(uid, places, block.where(row))
        columns = {"title": block.titles, "content": block.contents}
        parts = zip(*(columns[name] for name in fields), strict=True)
        joined = [" ".join(part for part in row if part) for row in parts]
        texts = [text or title or content for text, title, content in zip(joined, *columns.values(), strict=True)]
        ends = np.cumsum(block.label_counts).tolist()
        labels = [known[label] for label in block.label_ids.tolist()]
        rows += zip(block.uids, texts, [labels[a:b] for a, b in zip([0, *ends], ends, strict=False)], strict=True)
        characters += sum(map(len, texts))
        if len(rows) > MOST_DOCUMENTS or characters > MOST_BYTES:
            raise _too_large(f"{len(rows):,} documents of {characters:,} characters, or more", path)
    if not rows:
        raise DataError("no rows", expected="at least one document", do="add documents", where=path.name)
    return pl.DataFrame(rows, {"uid": pl.String, "text": pl.String, "labels": pl.List(pl.String)}, orient="row")


def _reader(path: Path) -> Any:
    """Return the function that reads a file; raise the errors of one that cannot be read at all."""
    check_type(path, "documents")
    if path.stat().st_size > MOST_BYTES:
        raise _too_large(f"{path.stat().st_size:,} bytes", path)
    return partial(table_rows, with_labels=True) if path.name.endswith(TABLES) else _of_lines


def _too_large(found: str, path: Path) -> DataError:
    limits = f"at most {MOST_DOCUMENTS:,} documents and {MOST_BYTES:,} bytes or characters"
    return DataError(found, expected=limits, do="give a sample of the documents", where=path.name)


def _checked(block: Block, cells: list[list[Any]], allowed: Allowed, ids: Mapping[str, int]) -> Block:
    """Return a block with the ids of its labels, after the checks of an ingest; its messages name no option of it."""
    names = [[str(name) for name in cell] for cell in cells]
    for row, cell in enumerate(names):
        before: set[str] = set()
        for name in cell:
            if name not in ids:
                raise DataError(
                    f"the label {preview(name)}{nearest(name, list(ids)[:10_000])}",
                    expected="the uid of a label of the dataset",
                    do="fix the uid or delete it",
                    where=block.where(row),
                )
            if name in before and not allowed.repeated_labels:
                raise DataError(
                    f"the label {preview(name)} twice",
                    expected="each label once per document",
                    do="delete the repetition",
                    where=block.where(row),
                )
            before.add(name)
    block.label_ids = np.array([ids[name] for cell in names for name in cell], np.int64)
    block.label_counts = np.array([len(cell) for cell in names], np.int64)
    block = clean_block(block, allowed)
    try:
        check_block(block, allowed, num_labels=len(ids))
    except DataError as error:
        do = error.do.partition(", or pass --allow")[0]
        raise DataError(error.found, expected=error.expected, do=do, where=error.where) from error
    return block


def _of_lines(path: Path, options: ReadOptions) -> Rows:
    """Yield the rows of a file of JSON lines: a uid in each row or in none."""
    with_uids, stem = None, path.name.split(".")[0]
    for number, raw in blocks(path, options):
        uids: list[str] = []
        titles: list[str] = []
        block, cells = Block(path.name, number, uids, titles, []), []
        for row, line in enumerate(raw.decode().split("\n")[:-1]):
            found = object_of(line)
            if isinstance(found, tuple):
                raise _wrong(*found, block.where(row))
            with_uids = "uid" in found if with_uids is None else with_uids
            if problem := _problem(found, with_uids=with_uids):
                raise _wrong(*problem, block.where(row))
            uids.append(str(found["uid"]) if with_uids else f"{stem}-{number + row}")
            titles.append(found["text"])
            cells.append(found["labels"])
        block.contents = [""] * len(block)
        yield block, cells


def _wrong(found: str, expected: str, where: str) -> DataError:
    return DataError(found, expected=expected, do="fix or delete the line", where=where)


def _problem(row: dict[str, Any], *, with_uids: bool) -> tuple[str, str] | None:
    """Return what was found in a wrong line, and what was expected."""
    for key, kind in (("text", str), ("labels", list)):
        if not isinstance(row.get(key), kind):
            found = f"{key} {in_json(row[key])}" if key in row else f"no {key}{nearest(key, row)}"
            return found, f"the fields text and labels (a list of uids), as in {_FORM}"
    for label in row["labels"]:
        if isinstance(label, bool) or not isinstance(label, str | int):
            return f"the label {in_json(label)}", f"uids of labels, as in {_FORM}"
    if with_uids != ("uid" in row):
        return "no uid" if with_uids else "a uid, but none in the first line", "a uid in each line, or in none"
    if with_uids and (isinstance(row["uid"], bool) or not isinstance(row["uid"], str | int)):
        return f"the uid {in_json(row['uid'])}", "a string or a whole number, or no uid in any line"
    return None
