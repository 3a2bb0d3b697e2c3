"""XC text: trn_X.txt, tst_X.txt, Y.txt (one text a line) with trn_X_Y.txt, tst_X_Y.txt ("N L", then "label:value ...").

Takes: a folder.                     Gives: Source; readers of raw text and of a sparse label matrix.
May import: errors, data.formats.base and .lines.  Never: pads or trims rows to make counts fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find, need
from xc_core.data.formats.lines import blocks, lines
from xc_core.errors import DataError, preview
from xc_core.shapes import F64, I64

_STEM = {"train": "trn", "test": "tst"}
_ROW = re.compile(r"(?:\d+:[-+0-9.eE]+)?(?: \d+:[-+0-9.eE]+)*\s*")
_ROWS = re.compile(rb"(?:(?:\d+:[-+0-9.eE]+)?(?: \d+:[-+0-9.eE]+)* *\r?\n)*")
_HEADER = re.compile(r"(\d+) (\d+)\s*")


class XCText:
    """Source over ``{trn,tst}_X.txt``, ``Y.txt`` and ``{trn,tst}_X_Y.txt``."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._texts = {split: need(folder, f"{stem}_X.txt") for split, stem in _STEM.items()}
        self._targets = {split: need(folder, f"{stem}_X_Y.txt") for split, stem in _STEM.items()}
        self._labels = need(folder, "Y.txt")
        filters = [path for split in _STEM if (path := self.filters(split))]
        self.files = [*self._texts.values(), *self._targets.values(), self._labels, *filters]

    def labels(self) -> Iterator[Block]:
        """Yield the lines of Y.txt; check their count against the headers."""
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
                    do="fetch both files again; a text with an inner line break shifts all lines after it",
                    where=f"{path.name}, line 1",
                )

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the lines of the texts with the rows of the matrix."""
        texts = text_rows(self._texts[split], f"{split}-", self.options)
        yield from zip_rows(texts, self._matrix(split), self._texts[split].name, self._targets[split].name)

    def filters(self, split: str) -> Path | None:
        """Return the filter file under either of its two names, None where there is none."""
        return find(self.folder, f"filter_labels_{split}.txt", f"{_STEM[split]}_filter_labels.txt")

    def _matrix(self, split: str) -> Iterator[tuple[I64, I64, F64]]:
        yield from matrix_rows(self._targets[split], self.options)


def text_rows(path: Path, prefix: str, options: ReadOptions) -> Iterator[Block]:
    """Yield a raw text file as blocks; the uid of a row is ``prefix`` and its 0-based row number."""
    for number, rows in lines(path, options):
        uids = [f"{prefix}{number - 1 + i}" for i in range(len(rows))]
        yield Block(path.name, number, uids, rows, [""] * len(rows))


def read_header(path: Path, options: ReadOptions) -> tuple[int, int]:
    """Return (rows, labels) of the first line of a sparse label matrix."""
    _, first = next(lines(path, options), (1, [""]))
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
    """Yield (flat label ids, number of ids of each row, relevance), block by block; check the count of rows."""
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
        ids = numbers[0::2].astype(np.int64)
        if len(ids) and ids.max() >= labels:
            at = int(np.searchsorted(np.cumsum(counts), int(np.argmax(ids >= labels)), side="right"))
            raise DataError(
                f"the label index {int(ids.max())}",
                expected=f"indices from 0 to {labels - 1}, as the header says",
                do="mend the line or the header",
                where=f"{path.name}, line {first + at}",
            )
        yield ids, counts, numbers[1::2]
    if seen != rows:
        raise DataError(
            f"{seen} rows",
            expected=f"{rows}, as the header says",
            do="fetch the file again; a document without labels is an empty line, not a missing one",
            where=path.name,
        )


def _numbers(body: bytes, path: Path, first: int) -> F64:
    try:
        return np.array(body.replace(b":", b" ").split(), np.float64)
    except ValueError:
        _explain(body, path, first)
        raise


def _explain(body: bytes, path: Path, first: int) -> None:
    """Raise DataError for the first row that is not "label:value label:value ..."."""
    for offset, line in enumerate(body.decode().split("\n")[:-1]):
        try:
            fits = _ROW.fullmatch(line) is not None and all(
                np.isfinite(float(pair.split(":")[1])) for pair in line.split()
            )
        except ValueError:
            fits = False
        if not fits:
            raise DataError(
                f"the row {preview(line)}",
                expected="'label:value label:value ...', indices from 0, single spaces, or an empty line",
                do="mend the line",
                where=f"{path.name}, line {first + offset}",
            )


def zip_rows(
    texts: Iterator[Block], targets: Iterator[tuple[I64, I64, F64]], text_file: str, target_file: str
) -> Iterator[Block]:
    """Join blocks of texts with blocks of targets of other sizes, row by row.

    Raises DataError where one side ends before the other.
    """
    ids, counts, values = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64)
    done = 0
    for block in texts:
        while len(counts) < len(block):
            more = next(targets, None)
            if more is None:
                _uneven(f"over {done + len(counts)} texts", f"{done + len(counts)} rows", text_file, target_file)
            ids, counts = np.concatenate([ids, more[0]]), np.concatenate([counts, more[1]])
            values = np.concatenate([values, more[2]])
        cut = int(counts[: len(block)].sum())
        block.label_ids, block.label_counts, block.relevance = ids[:cut], counts[: len(block)], values[:cut]
        ids, counts, values = ids[cut:], counts[len(block) :], values[cut:]
        done += len(block)
        yield block
    left = len(counts) + sum(len(more[1]) for more in targets)
    if left:
        _uneven(f"{done} texts", f"{done + left} rows", text_file, target_file)


def _uneven(texts: str, rows: str, text_file: str, target_file: str) -> NoReturn:
    raise DataError(
        f"{texts} in {text_file} and {rows} in {target_file}",
        expected="as many texts as rows",
        do="look for a text with an inner line break, or fetch both files again",
        where=text_file,
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
