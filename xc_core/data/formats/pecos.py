"""PECOS: X.{trn,tst}.txt (one text per line), Y.{trn,tst}.npz (scipy CSR, CSC or COO), output-items.txt (label texts).

Pickles are never opened.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xc_core.data.formats.aligned import Aligned, Rows
from xc_core.data.formats.base import LAYOUTS, Layout
from xc_core.data.formats.npz import columns_of, read_csr

_ROWS = 65_536
"""Rows of a matrix that are yielded at a time."""
_GZIP = 1032
"""Largest ratio of compression of gzip (https://zlib.net/zlib_tech.html)."""


class Pecos(Aligned):
    """Source over ``X.{trn,tst}.txt``, ``Y.{trn,tst}.npz`` and ``output-items.txt``.

    One label matrix at a time is held in memory (12 bytes per pair); texts are streamed.
    """

    text_file, matrix_file, label_file = "X.{}.txt", "Y.{}.npz", "output-items.txt"
    row_place = ("row", 1)

    def stated(self, matrix: Path) -> tuple[int, str, str]:
        """Return the number of columns."""
        return columns_of(matrix), "columns", matrix.name

    def rows(self, matrix: Path, texts: Path) -> Rows:
        """Yield the rows of the matrix, some at a time."""
        labels = read_csr(matrix, most_rows=_most_lines(texts), most_columns=_most_lines(self._labels))
        for start in range(0, labels.shape[0], _ROWS):
            block = labels[start : start + _ROWS]
            yield block.indices.astype(np.int64), np.diff(block.indptr).astype(np.int64), block.data.astype(np.float64)


def _most_lines(path: Path) -> int:
    """Return the largest number of lines that a text file can have, by its size."""
    return (path.stat().st_size + 1) * (_GZIP if path.suffix == ".gz" else 1)


LAYOUTS.add(
    "pecos",
    Layout(
        "pecos",
        ("X.trn.txt", "X.tst.txt", "Y.trn.npz", "Y.tst.npz", "output-items.txt"),
        "X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt",
        Pecos,
    ),
)
