"""XC text: trn_X.txt, tst_X.txt, Y.txt (one text per line); trn_X_Y.txt, tst_X_Y.txt ("N L", then "label:value ...").

If counts differ, reading fails: rows are never padded or cut to fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find, need
from xc_core.data.formats.lines import blocks, lines
from xc_core.errors import DataError, preview
from xc_core.shapes import F64, I64

_STEM = {"train": "trn", "test": "tst"}
_PAIR = rb"\d+:[-+0-9.eE]+"
_LINE = rb"[ \t]*(?:" + _PAIR + rb"(?:[ \t]+" + _PAIR + rb")*[ \t]*)?\r?\n"
_ROW, _ROWS = re.compile(_LINE), re.compile(rb"(?:" + _LINE + rb")*+")
_HEADER = re.compile(r"(\d{1,18})[ \t]+(\d{1,18})\s*", re.ASCII)
_HEADER_BYTES = 1 << 12
"""Text read at a time while looking for the end of the header."""


class XCText:
    """Source over ``{trn,tst}_X.txt``, ``Y.txt`` and ``{trn,tst}_X_Y.txt``."""

    has_uids = False

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._texts = {split: need(folder, f"{stem}_X.txt") for split, stem in _STEM.items()}
        self._targets = {split: need(folder, f"{stem}_X_Y.txt") for split, stem in _STEM.items()}
        self._labels = need(folder, "Y.txt")
        filters = [path for split in _STEM if (path := self.filters(split))]
        self.files = [*self._texts.values(), *self._targets.values(), self._labels, *filters]

    def labels(self) -> Iterator[Block]:
        """Yield the lines of Y.txt; compare their number with the headers of the matrices."""
        total = 0
        for block in text_rows(self._labels, "", self.options):
            total += len(block)
            yield block
        for path in self._targets.values():
            _, columns = read_header(path, self.options)
            if columns != total:
                raise DataError(
                    f"{columns} labels in the header",
                    expected=f"{total}, the number of lines of {self._labels.name}",
                    do="download both files again; a line break inside a text shifts all lines after it",
                    where=f"{path.name}, line 1",
                )

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the lines of the texts with the rows of the matrix."""
        matrix = self._targets[split]
        texts = text_rows(self._texts[split], f"{split}-", self.options)
        yield from zip_rows(texts, matrix_rows(matrix, self.options), self._texts[split].name, (matrix.name, "line", 2))

    def filters(self, split: str) -> Path | None:
        """Return the filter file under either of its two names; None if there is none."""
        return find(self.folder, f"filter_labels_{split}.txt", f"{_STEM[split]}_filter_labels.txt")


def text_rows(path: Path, prefix: str, options: ReadOptions) -> Iterator[Block]:
    """Yield a text file as blocks; the uid of a row is ``prefix`` and its 0-based row number."""
    for number, rows in lines(path, options):
        uids = [f"{prefix}{number - 1 + i}" for i in range(len(rows))]
        yield Block(path.name, number, uids, rows, [""] * len(rows))


def read_header(path: Path, options: ReadOptions) -> tuple[int, int]:
    """Return (rows, labels) from the first line of a sparse label matrix; raise DataError if it is malformed."""
    _, first = next(lines(path, replace(options, block_bytes=_HEADER_BYTES)), (1, [""]))
    match = _HEADER.fullmatch(first[0])
    if match is None:
        raise DataError(
            f"the first line {preview(first[0])}",
            expected="two numbers, rows and labels, for instance '294805 131073'",
            do="add the header line",
            where=f"{path.name}, line 1",
        )
    return int(match[1]), int(match[2])


def matrix_rows(path: Path, options: ReadOptions) -> Iterator[tuple[I64, I64, F64]]:
    """Yield (flat label ids, number of ids per row, relevance), block by block.

    Raises DataError for a malformed row, a label index beyond the header, or another number of rows than the header's.
    """
    rows, labels = read_header(path, options)
    seen = 0
    for number, raw in blocks(path, options):
        body = raw[raw.index(b"\n") + 1 :] if number == 1 else raw
        first = 2 if number == 1 else number
        if _ROWS.fullmatch(body) is None:
            _explain(body, path, first)
        seen += body.count(b"\n")
        counts = np.array([line.count(b":") for line in body.split(b"\n")[:-1]], np.int64)
        numbers = _numbers(body, path, first)
        outside = np.flatnonzero(numbers[0::2] >= labels)
        if len(outside):
            row = int(np.searchsorted(np.cumsum(counts), outside[0], side="right"))
            raise DataError(
                f"the label index {numbers[2 * outside[0]]:.0f}",
                expected=f"indices from 0 to {labels - 1}, as the header says",
                do="fix the line or the header; indices count from 0",
                where=f"{path.name}, line {first + row}",
            )
        yield numbers[0::2].astype(np.int64), counts, numbers[1::2]
    if seen != rows:
        raise DataError(
            f"{seen} rows under a header of {rows} rows",
            expected="as many rows as the header states",
            do="download the file again; a document without labels is an empty line, not a missing one",
            where=f"{path.name}, line 1",
        )


def _numbers(body: bytes, path: Path, first: int) -> F64:
    try:
        return np.array(body.replace(b":", b" ").split(), np.float64)
    except ValueError:
        _explain(body, path, first)
        raise


def _explain(body: bytes, path: Path, first: int) -> None:
    """Raise DataError for the first row that is not "label:value label:value ..."."""
    for offset, line in enumerate(body.split(b"\n")[:-1]):
        if not _is_row(line + b"\n"):
            raise DataError(
                f"the row {preview(line.rstrip())}",
                expected="'label:value label:value ...', labels by their index from 0, or an empty line",
                do="fix the line",
                where=f"{path.name}, line {first + offset}",
            )


def _is_row(line: bytes) -> bool:
    if _ROW.fullmatch(line) is None:
        return False
    try:
        for pair in line.split():
            float(pair.partition(b":")[2])
    except ValueError:
        return False
    return True


def zip_rows(
    texts: Iterator[Block],
    targets: Iterator[tuple[I64, I64, F64]],
    text_file: str,
    target_place: tuple[str, str, int],
) -> Iterator[Block]:
    """Join blocks of texts with blocks of targets of other sizes, row by row.

    ``target_place`` is the file of the targets, the unit of its rows, and the number of the first row. Raises DataError
    if one side ends before the other.
    """
    ids, counts, values = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64)
    done = 0
    target_file, unit, first = target_place
    for block in texts:
        while len(counts) < len(block):
            more = next(targets, None)
            if more is None:
                rows = done + len(counts)
                _uneven(f"more than {rows} texts", f"{rows} rows in {target_file}", f"{text_file}, line {rows + 1}")
            ids, counts = np.concatenate([ids, more[0]]), np.concatenate([counts, more[1]])
            values = np.concatenate([values, more[2]])
        cut = int(counts[: len(block)].sum())
        block.label_ids, block.label_counts, block.relevance = ids[:cut], counts[: len(block)], values[:cut]
        block.label_place = target_file, unit, first + done
        ids, counts, values = ids[cut:], counts[len(block) :], values[cut:]
        done += len(block)
        yield block
    left = len(counts) + sum(len(more[1]) for more in targets)
    if left:
        _uneven(f"{done} texts", f"{done + left} rows in {target_file}", f"{text_file}, after line {done}")


def _uneven(texts: str, rows: str, where: str) -> NoReturn:
    raise DataError(
        f"{texts} and {rows}",
        expected="as many texts as rows",
        do="look for a text with an inner line break, or download both files again",
        where=where,
    )


LAYOUTS.add(
    "xc-text",
    Layout(
        "xc-text",
        ("trn_X.txt", "tst_X.txt", "Y.txt", "trn_X_Y.txt", "tst_X_Y.txt"),
        "trn_X.txt, tst_X.txt, Y.txt, trn_X_Y.txt, tst_X_Y.txt",
        XCText,
    ),
)
