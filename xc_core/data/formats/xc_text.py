"""XC text: trn_X.txt, tst_X.txt, Y.txt (one text per line); trn_X_Y.txt, tst_X_Y.txt ("N L", then "label:value ...").

If counts differ, reading fails: rows are never padded or cut to fit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from xc_core.data.formats.aligned import Aligned, Rows
from xc_core.data.formats.base import LAYOUTS, Layout, ReadOptions
from xc_core.data.formats.lines import blocks, lines
from xc_core.errors import DataError, preview
from xc_core.shapes import F64
from xc_core.visible import counted

_PAIR = rb"\d+:[-+0-9.eE]+"
_LINE = rb"[ \t]*(?:" + _PAIR + rb"(?:[ \t]+" + _PAIR + rb")*[ \t]*)?\r?\n"
_ROW, _ROWS = re.compile(_LINE), re.compile(rb"(?:" + _LINE + rb")*+")
_HEADER = re.compile(r"(\d{1,18})[ \t]+(\d{1,18})\s*", re.ASCII)
_HEADER_BYTES = 1 << 12
"""Text read at a time while looking for the end of the header."""


class XCText(Aligned):
    """Source over ``{trn,tst}_X.txt``, ``Y.txt`` and ``{trn,tst}_X_Y.txt``."""

    text_file, matrix_file, label_file = "{}_X.txt", "{}_X_Y.txt", "Y.txt"
    filter_file = "{}_filter_labels.txt"
    row_place = ("line", 2)

    def stated(self, matrix: Path) -> tuple[int, str, str]:
        """Return the number of labels in the header."""
        return read_header(matrix, self.options)[1], "labels in the header", f"{matrix.name}, line 1"

    def rows(self, matrix: Path, texts: Path) -> Rows:
        """Yield the lines of the matrix."""
        return matrix_rows(matrix, self.options)


def read_header(path: Path, options: ReadOptions) -> tuple[int, int]:
    """Return (rows, labels) from the first line of a sparse label matrix; raise DataError if it is malformed."""
    _, first = next(lines(path, replace(options, block_bytes=_HEADER_BYTES)), (1, [""]))
    match = _HEADER.fullmatch(first[0])
    if match is None:
        raise DataError(
            f"the first line {preview(first[0])}",
            expected="two numbers, rows and labels, for instance '294805 131073'",
            do="add the header line, or correct it",
            where=f"{path.name}, line 1",
        )
    return int(match[1]), int(match[2])


def matrix_rows(path: Path, options: ReadOptions) -> Rows:
    """Yield (flat label ids, number of ids per row, relevance), block by block.

    Raises DataError for a malformed row, a label index beyond the header, or another number of rows than the header's.
    """
    rows, labels = read_header(path, options)
    rows_read = 0
    for number, raw in blocks(path, options):
        body = raw[raw.index(b"\n") + 1 :] if number == 1 else raw
        first = 2 if number == 1 else number
        if _ROWS.fullmatch(body) is None:
            _explain(body, path, first)
        rows_read += body.count(b"\n")
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
    if rows_read != rows:
        raise DataError(
            f"{counted(rows_read, 'row')} under a header of {counted(rows, 'row')}",
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


LAYOUTS.add(
    "xc-text",
    Layout(
        "xc-text",
        ("trn_X.txt", "tst_X.txt", "Y.txt", "trn_X_Y.txt", "tst_X_Y.txt"),
        "trn_X.txt, tst_X.txt, Y.txt, trn_X_Y.txt, tst_X_Y.txt",
        XCText,
    ),
)
