"""Parquet or CSV: train.{parquet,csv} with columns text (or title, content) and labels; test.* and labels.* optional.

Takes: a folder.                     Gives: Source.
May import: errors, data.formats.base.  Never: infers a column's type from its first rows.

``labels`` is a list of strings or indices (Parquet), or a cell with the labels between separators (CSV).
Without a labels file the labels are the distinct names in train and test, sorted, each its own text. Without a test
file the last ``test_fraction`` of the rows, in the order of a hash of the uid, is the test set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find
from xc_core.errors import DataError, MissingError, nearest, preview

_ROWS = 8192
"""Rows read at a time."""


class Tabular:
    """Source over ``train``, ``test`` and ``labels`` tables in Parquet or CSV."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._train, self._test = _table(folder, "train"), _table(folder, "test")
        self._names = _table(folder, "labels")
        if self._train is None:
            raise MissingError(f"no train.parquet or train.csv in {folder}", expected="one of them", do="add it")
        filters = [path for split in ("train", "test") if (path := self.filters(split))]
        self.files = [path for path in (self._train, self._test, self._names) if path is not None] + filters
        self._ids: dict[str, int] | None = None

    def labels(self) -> Iterator[Block]:
        """Yield the rows of the labels table, or the distinct label names."""
        if self._names is not None:
            for block, _ in _read(self._names, self.options, with_labels=False):
                yield block
            return
        names = sorted(self._vocabulary())
        for start in range(0, len(names), _ROWS):
            part = names[start : start + _ROWS]
            yield Block("labels column", start + 1, part, part, [""] * len(part), unit="label")

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the rows of the split's table."""
        path = self._train if split == "train" or self._test is None else self._test
        assert path is not None
        ids = self._vocabulary()
        for block, cells in _read(path, self.options, with_labels=True):
            _number(block, cells, ids, named=self._names is not None)
            if self._test is None:
                block = _part(block, split, self.options.test_fraction)
            if len(block):
                yield block

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt, None where there is none."""
        return find(self.folder, f"filter_labels_{split}.txt")

    def _vocabulary(self) -> dict[str, int]:
        """Return label name -> id; memory grows with the number of labels, not of rows."""
        if self._ids is None:
            if self._names is not None:
                uids = [uid for block, _ in _read(self._names, self.options, with_labels=False) for uid in block.uids]
                self._ids = {uid: i for i, uid in reversed(list(enumerate(uids)))}
            else:
                paths = [path for path in (self._train, self._test) if path is not None]
                cells = (c for path in paths for _, c in _read(path, self.options, with_labels=True))
                names = {str(name) for block in cells for cell in block for name in cell}
                self._ids = {name: i for i, name in enumerate(sorted(names))}
        return self._ids


def _table(folder: Path, stem: str) -> Path | None:
    found = [folder / f"{stem}{end}" for end in (".parquet", ".csv") if (folder / f"{stem}{end}").exists()]
    if len(found) > 1:
        raise DataError(
            f"both {found[0].name} and {found[1].name}",
            expected="one of the two",
            do="delete or move one",
            where=str(folder),
        )
    return found[0] if found else None


def _read(path: Path, options: ReadOptions, *, with_labels: bool) -> Iterator[tuple[Block, list[list[Any]]]]:
    """Yield blocks of a table with the label cells of their rows."""
    first = 2 if path.suffix == ".csv" else 1
    stem = path.stem
    try:
        for batch in _batches(path, options):
            columns = _columns(batch.schema.names, path, with_labels=with_labels)
            size = batch.num_rows
            title = _texts(batch, columns["title"], path, first) if columns["title"] else [""] * size
            content = _texts(batch, columns["content"], path, first) if columns["content"] else [""] * size
            uids = (
                [str(uid) for uid in batch[columns["uid"]].to_pylist()]
                if columns["uid"]
                else [f"{stem}-{first + i}" for i in range(size)]
            )
            block = Block(path.name, first, uids, title, content, unit="row")
            yield block, _cells(batch, block, options) if with_labels else []
            first += size
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"a table that cannot be read ({str(error).splitlines()[0]})",
            expected="a whole Parquet file, or CSV in UTF-8 with a header line",
            do="write the file again",
            where=f"{path.name}, {'near row' if first > 2 else 'row'} {first}",
        ) from error


def _batches(path: Path, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(_ROWS)
        return
    with path.open(encoding="utf-8", errors="strict") as stream:
        try:
            header = stream.readline()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"the header line is no UTF-8: {error}") from error
    names = [name.strip().strip('"') for name in header.rstrip("\r\n").split(",")]
    convert = pa_csv.ConvertOptions(column_types={name: pa.string() for name in names}, strings_can_be_null=False)
    parse = pa_csv.ParseOptions(newlines_in_values=True)
    read = pa_csv.ReadOptions(block_size=options.block_bytes, use_threads=False)
    with pa_csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert) as reader:
        yield from reader


def _columns(names: list[str], path: Path, *, with_labels: bool) -> dict[str, str | None]:
    have = {name: name for name in names}
    title = have.get("title") or have.get("text") or (have.get("uid") if not with_labels else None)
    if title is None and "content" not in have:
        raise DataError(
            f"the columns {', '.join(names)}{nearest('text', names)}",
            expected="a column text, or title and content",
            do="rename the column",
            where=path.name,
        )
    if with_labels and "labels" not in have:
        raise DataError(
            f"the columns {', '.join(names)}{nearest('labels', names)}",
            expected="a column labels",
            do="rename the column",
            where=path.name,
        )
    return {"title": title, "content": have.get("content"), "uid": have.get("uid")}


def _texts(batch: pa.RecordBatch, column: str, path: Path, first: int) -> list[str]:
    values = batch[column].to_pylist()
    for offset, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            raise DataError(
                f"{column} {preview(repr(value))}",
                expected="text",
                do="write the column as strings",
                where=f"{path.name}, row {first + offset}",
            )
    return [value or "" for value in values]


def _cells(batch: pa.RecordBatch, block: Block, options: ReadOptions) -> list[list[Any]]:
    cells = []
    for row, cell in enumerate(batch["labels"].to_pylist()):
        if isinstance(cell, str):
            cells.append([name.strip() for name in cell.split(options.label_separator) if name.strip()])
        elif isinstance(cell, list) and all(isinstance(n, str | int) and not isinstance(n, bool) for n in cell):
            cells.append(cell)
        elif cell is None:
            cells.append([])
        else:
            raise DataError(
                f"the labels {preview(repr(cell))}",
                expected=f"a list of names or indices, or text with {options.label_separator!r} between names",
                do="write the column so",
                where=block.where(row),
            )
    return cells


def _number(block: Block, cells: list[list[Any]], ids: dict[str, int], *, named: bool) -> None:
    """Turn label names into ids; whole numbers are ids already where a labels table gives the order."""
    flat: list[int] = []
    for row, cell in enumerate(cells):
        for name in cell:
            if named and isinstance(name, int):
                flat.append(name)
            elif str(name) in ids:
                flat.append(ids[str(name)])
            else:
                raise DataError(
                    f"the label {preview(str(name))}{nearest(str(name), list(ids)[:10000])}",
                    expected="a uid of the labels table",
                    do="add the label there, or mend the name",
                    where=block.where(row),
                )
    block.label_ids = np.array(flat, np.int64)
    block.label_counts = np.array([len(cell) for cell in cells], np.int64)


def _part(block: Block, split: str, fraction: float) -> Block:
    """Keep the rows of ``split`` of a table that holds both; where a row goes depends on its uid alone."""
    digests = [hashlib.blake2b(f"test/{uid}".encode(), digest_size=8).digest() for uid in block.uids]
    is_test = np.array([int.from_bytes(d, "big") / 2**64 < fraction for d in digests], bool)
    keep = np.flatnonzero(is_test == (split == "test"))
    starts = np.concatenate([[0], np.cumsum(block.label_counts)])
    flat = [block.label_ids[starts[i] : starts[i + 1]] for i in keep]
    return Block(
        block.file,
        block.first_line,
        [block.uids[i] for i in keep],
        [block.titles[i] for i in keep],
        [block.contents[i] for i in keep],
        np.concatenate(flat) if flat else np.zeros(0, np.int64),
        block.label_counts[keep],
        unit="row, about",
    )


LAYOUTS.add(
    "tabular",
    Layout(
        "tabular",
        ("train.parquet|train.csv",),
        "train.parquet or train.csv (columns text, labels), optionally test.* and labels.*",
        Tabular,
    ),
)
