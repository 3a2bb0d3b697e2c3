"""Tables (Parquet, CSV, TSV, JSON lines): train.* with columns text (or title, content) and labels; validation.*,
test.* and labels.* are optional, and so are the columns uid, group and time.

``labels`` is a list of strings or indices (Parquet, JSON lines), or a text of labels between separators. Without a
labels file the labels are the distinct names in the tables of documents, sorted; a label's text is its name. Without a
test file a share ``test_fraction`` of the rows is the test set: chosen by a hash of the uid or group, or the last ones
by the column time. Types are never guessed from rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from xc_core.artifacts import remove, replacing
from xc_core.data.formats import columns as column
from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, Source, find, text_uid
from xc_core.data.formats.csv_rows import LONGEST
from xc_core.data.formats.split_off import SplitOff, rows_of
from xc_core.data.formats.tables import ENDINGS, KNOWN, Batch, batches, column_names, first_row, is_lines
from xc_core.data.splits import TEST, TRAIN, VALIDATION
from xc_core.errors import DataError, MissingError, nearest, preview, previews
from xc_core.progress import report
from xc_core.visible import listed

_ROWS = 8192
"""Labels in a block, if their names are in the column of the documents."""
_FILTERS = "filter_labels_{}.txt"
_SHARD = re.compile(
    rf"\w+-(?P<number>\d+)-of-(?P<total>\d+)(-\w+)?(?P<ending>{'|'.join(map(re.escape, ENDINGS))})", re.ASCII
)
"""The name of a shard; Hugging Face may put a hash behind the number of shards."""
_TRAIN = "train.parquet, or train.csv, .tsv, .jsonl, .ndjson or .json, each also as .gz"


class Tabular(Source):
    """Source over ``train``, ``validation``, ``test`` and ``labels`` tables."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._train, self._validation, self._test = (_shards(folder, stem) for stem in ("train", "validation", "test"))
        self._names = _table(folder, "labels")
        if not self._train and not (options.part and (self._validation or self._test or self._names)):
            raise MissingError(f"no train table in {folder}", expected=_TRAIN, do="add the table")
        self.splits = (TRAIN, VALIDATION, TEST) if self._validation else (TRAIN, TEST)
        filters = [path for split in self.splits if (path := find(folder, _FILTERS.format(split)))]
        self._documents = [*self._train, *self._validation, *self._test]
        self._tables = [*self._documents, *([self._names] if self._names else [])]
        self.files = [*self._tables, *filters]
        self._ids: dict[str, int] | None = None
        self.splits_off = not self._test

    @property
    def has_uids(self) -> bool:
        """True if every table has a column uid; one without columns has no rows that could lack it."""
        return all("uid" in names for path in self._tables if (names := column_names(path)))

    @property
    def names_labels(self) -> bool:
        """True unless there is a labels table without a column uid."""
        return self._names is None or "uid" in _label_columns(self._names)

    @property
    def documents_stay(self) -> bool:
        """True if documents have names of labels; what a number means depends on the table of labels."""
        return all(map(column.are_names, self._documents))

    def labels(self) -> Iterator[Block]:
        """Yield the rows of the labels table, or the distinct label names; report unused columns."""
        if self._names is None:
            self._vocabulary()  # an error about columns comes before the report about ignored ones
        for path in self._tables:
            _report_unused(path)
        if self._names is not None:
            _label_columns(self._names)  # an error for a file without lines, which would have no block
            for block, _ in table_rows(self._names, self.options, with_labels=False):
                yield block
            return
        names = sorted(self._vocabulary())
        column.report_separator(names, self.options, cut=any(map(column.are_cut, self._documents)))
        for start in range(0, len(names), _ROWS):
            block_names = names[start : start + _ROWS]
            yield Block("labels column", start + 1, block_names, block_names, [""] * len(block_names), unit="label")

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the rows of the split's table, or of its shards in turn."""
        paths = {VALIDATION: self._validation, TEST: self._test}.get(split) or self._train
        ids = self._vocabulary()
        for block, cells in (row for path in paths for row in table_rows(path, self.options, with_labels=True)):
            _number(block, cells, ids, self._names, lambda: self._numbers_are_rows)
            if paths == self._train and not self._test:
                block = rows_of(block, self._tests.are_in(block) == (split == TEST))
            if len(block):
                yield block

    @cached_property
    def _tests(self) -> SplitOff:
        """The rows of the train table that are the test set; to find the last ones, the table is read once more."""
        rows = (block for path in self._train for block, _ in table_rows(path, self.options, with_labels=True))
        return SplitOff(self.options, rows)

    @cached_property
    def _numbers_are_rows(self) -> bool:
        """What ``are_rows`` says, which may read the labels table: once, for all splits."""
        return self._names is not None and column.are_rows(self._names, self._vocabulary())

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt; None if there is none. Raises DataError for one without a test table."""
        path = find(self.folder, _FILTERS.format(split))
        if path is not None and not self._test:
            raise DataError(
                "no test table, so test rows are split off the train table",
                expected="a test table: a filter file numbers the documents within train and within test",
                do="add a test table, or pass --filters generate (by uid) or --filters none", where=path.name,
            )  # fmt: skip
        return path

    def _vocabulary(self) -> dict[str, int]:
        """Return label name -> id; memory grows with the number of labels, not of rows."""
        if self._ids is None:
            if self._names is not None:
                uids = [
                    uid for block, _ in table_rows(self._names, self.options, with_labels=False) for uid in block.uids
                ]
                self._ids = {uid: i for i, uid in reversed(list(enumerate(uids)))}
            else:
                cells = (c for path in self._documents for _, c in table_rows(path, self.options, with_labels=True))
                names = {str(name) for block in cells for cell in block for name in cell}
                self._ids = {name: i for i, name in enumerate(sorted(names))}
        return self._ids


def _files(stem: str) -> list[str]:
    return [f"{stem}{ending}" for ending in ENDINGS]


def _patterns(stem: str) -> str:
    """Return the names that the files of a table may have, as in a layout's signature."""
    return "|".join([*_files(stem), f"{stem}-*-of-*"])


def _table(folder: Path, stem: str) -> Path | None:
    found = [path for name in _files(stem) if (path := folder / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{' and '.join(path.name for path in found)}",
            expected=f"one table named {stem}",
            do="delete or move the others",
            where=str(folder),
        )
    return found[0] if found else None


def _shards(folder: Path, stem: str) -> list[Path]:
    """Return the file of a table, or its shards as Hugging Face names them; none if there is none."""
    single = [table] if (table := _table(folder, stem)) else []
    names = ((path, _SHARD.fullmatch(path.name)) for path in folder.glob(f"{stem}-*-of-*"))
    found = sorted((int(name["number"]), name["total"], name["ending"], path) for path, name in names if name)
    if not found:
        return single
    (_, total, ending, first), last = found[0], found[-1][-1]
    expected = [(number, total, ending) for number in range(len(found))]
    if single or int(total) != len(found) or expected != [shard[:3] for shard in found]:
        raise DataError(
            f"{' and '.join(path.name for path in (*single, first, last))}, {len(found)} shards",
            expected=f"one table named {stem}: {int(total):,} files {ending}, numbered from 0",
            do="add the files that are missing, and delete or move others",
            where=str(folder),
        )
    return [shard[-1] for shard in found]


def table_rows(path: Path, options: ReadOptions, *, with_labels: bool) -> Iterator[tuple[Block, list[list[Any]]]]:
    """Yield blocks of a table, each with the label cells of its rows."""
    first = first_row(path)
    for batch in batches(path, options):
        block = _block(batch, path, first, with_labels=with_labels, by_text=with_labels and options.part)
        yield block, column.cells(batch, block, options) if with_labels else []
        first += len(block)


def _block(batch: Batch, path: Path, first: int, *, with_labels: bool, by_text: bool) -> Block:
    names = column.names(batch)
    columns = _columns(names, path, with_labels=with_labels)
    size = column.size(batch)
    block = Block(path.name, first, [], [], [], unit="line" if is_lines(path) else "row")
    block.titles = column.texts(batch, columns["title"], block) if columns["title"] else [""] * size
    block.contents = column.texts(batch, columns["content"], block) if columns["content"] else [""] * size
    if columns["uid"]:
        block.uids = column.uids(batch, columns["uid"], block)
    elif by_text:
        block.uids = list(map(text_uid, block.titles, block.contents))
    else:
        block.uids = [f"{path.name.split('.')[0]}-{first + i}" for i in range(size)]
    if with_labels and "group" in names:
        block.groups = column.groups(batch, block)
    if with_labels and "time" in names:
        block.times = column.times(batch)
    return block


def _report_unused(path: Path) -> None:
    unused = [name for name in column_names(path) if name not in KNOWN]
    if unused:
        report(f"{path.name}: ignored columns: {previews(unused)}")


def _columns(present: list[str], path: Path, *, with_labels: bool) -> dict[str, str | None]:
    """Return the columns of title, content and uid; raise DataError if columns are missing or ambiguous."""
    by_name, lacks_labels = {name: name for name in present}, with_labels and "labels" not in present
    body = [name for name in KNOWN[1:4] if name in by_name] or ([] if with_labels else ["uid"])
    if by_name.keys() & set(body) and len(body) <= 2 and len(by_name) == len(present) and not lacks_labels:
        return {"title": body[0], "content": body[1] if len(body) > 1 else None, "uid": by_name.get("uid")}
    names = [*present, *(name for name in column_names(path) if name not in present)]
    found, close = f"the columns {previews(names)}", _close(names)
    missing = {"labels"} if lacks_labels else set()
    if not by_name.keys() & set(body):
        missing |= {*KNOWN[1:4]} if with_labels else {*KNOWN[:4]}
        found += "" if close.keys() & {*KNOWN[1:4]} else nearest("text", names)
        expected = "a column text, or title and content" + "; and labels" * lacks_labels
    elif lacks_labels:
        found, expected = f"{found}{'' if 'labels' in close else nearest('labels', names)}", "a column labels"
    else:
        expected = "title and content, or one of them with text, each column once"
    renamed = [f"{preview(name)} to {known!r}" for known, name in close.items()] if close.keys() & missing else []
    do = f"rename {listed(renamed) or 'the columns'}; in CSV and TSV the first line names them"
    raise DataError(found, expected=expected, do=do, where=path.name)


def _close(names: list[str]) -> dict[str, str]:
    """Return the known columns that are not there but for case and spaces at the ends of a name, with that name."""
    lower = {name.strip().lower(): name for name in names}
    return {known: lower[known] for known in KNOWN if known in lower and known not in names}


def _number(
    block: Block, cells: list[list[Any]], ids: dict[str, int], table: Path | None, numbers_are_rows: Callable[[], bool]
) -> None:
    """Set the label ids of a block from names, or from row numbers of the labels table."""
    flat: list[int] = []
    block.label_name = lambda number: next(name for name, label_id in ids.items() if label_id == number)
    for row, cell in enumerate(cells):
        for name in cell:
            if isinstance(name, int) and numbers_are_rows():
                flat.append(name)
                block.label_name = None
            elif str(name) in ids:
                flat.append(ids[str(name)])
            else:
                raise _no_label(name, ids, table, block.where(row))
    block.label_ids = np.array(flat, np.int64)
    block.label_counts = np.array([len(cell) for cell in cells], np.int64)


def _no_label(name: object, ids: dict[str, int], table: Path | None, where: str) -> DataError:
    """Return the error for a label that is not in the labels table."""
    found = f"the label {preview(str(name))}{nearest(str(name), list(ids)[:10000])}"
    if table is not None and "uid" not in _label_columns(table):
        expected, do = f"a column uid in {table.name}, with the names of the labels", "add the column"
    else:
        expected = f"a name in the column uid of {table.name if table else 'the table'}"
        pieces = re.findall(r"[^\s,;|'\"\[\]]+", str(name))
        do = "add the label there, or fix the name"
        if pieces and ids.keys() >= set(pieces):  # another separator, or a list that was written as text
            do += "; if it is several labels, write ';' between them and no brackets, or pass another --label-separator"
    return DataError(found, expected=expected, do=do, where=where)


def _label_columns(path: Path) -> list[str]:
    """Return the columns of a table of labels; raise DataError if it has none."""
    if names := column_names(path):
        return names
    raise DataError("no line", expected="a label per line, with its uid", do="write the file again", where=path.name)


def label_rows(path: Path, options: ReadOptions) -> Iterator[Block]:
    """Yield the rows of a table of labels; raise DataError for one without uids."""
    names = _label_columns(path)
    if "uid" not in names:
        raise DataError(
            f"the columns {previews(names)}{nearest('uid', names)}",
            expected="the column uid, and text or title and content",
            do="add the column uid",
            where=path.name,
        )
    for block, _ in table_rows(path, options, with_labels=False):
        yield block


def add_labels(folder: Path, labels: pl.DataFrame, new: int) -> None:
    """Write all labels as labels.parquet, in place of the table of labels if there is one."""
    old = _table(folder, "labels")
    if old is not None and "uid" not in _label_columns(old):
        raise DataError(
            f"{old.name} without the column uid", expected="labels with uids", do="add the column", where=str(folder)
        )
    if old is not None:
        labels, name = column.numbered_as(labels, old)
        if name is not None and _have_numbers(folder):
            raise DataError(
                f"the uid {preview(name)} beside uids of labels that are whole numbers, by which documents name them",
                expected="a whole number as the uid of a label of this dataset; nothing has changed",
                do="give the new label a whole number that no other label has",
            )
        remove(old)
    with replacing(folder / "labels.parquet") as work:
        labels.write_parquet(work)


def _have_numbers(folder: Path) -> bool:
    """Return True if documents of a folder name labels by whole numbers."""
    source = Tabular(folder, ReadOptions(max_line_bytes=LONGEST))
    tables = (path for path in source._documents if not column.are_names(path))
    cells = (cell for path in tables for _, rows in table_rows(path, source.options, with_labels=True) for cell in rows)
    return any(isinstance(name, int) for cell in cells for name in cell)


LAYOUTS.add(
    "tabular",
    Layout(
        "tabular",
        (_patterns("train"),),
        f"{_TRAIN} (columns text, labels), optionally validation.*, test.*, labels.*",
        Tabular,
        add_labels,
        ("|".join(map(_patterns, ("train", "validation", "test", "labels"))),),
    ),
)
