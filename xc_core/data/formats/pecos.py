"""PECOS: X.{trn,tst}.txt (one text per line), Y.{trn,tst}.npz (scipy CSR, CSC or COO), output-items.txt (label texts).

Pickles are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find, need
from xc_core.data.formats.npz import columns_of, read_csr
from xc_core.data.formats.xc_text import text_rows, zip_rows
from xc_core.errors import DataError
from xc_core.shapes import F64, I64

_STEM = {"train": "trn", "test": "tst"}
_ROWS = 65_536
"""Rows of a matrix that are yielded at a time."""
_GZIP = 1032
"""Largest ratio of compression of gzip (https://zlib.net/zlib_tech.html)."""


class Pecos:
    """Source over ``X.{trn,tst}.txt``, ``Y.{trn,tst}.npz`` and ``output-items.txt``.

    One label matrix at a time is held in memory (12 bytes per pair); texts are streamed.
    """

    has_uids = False

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._texts = {split: need(folder, f"X.{stem}.txt") for split, stem in _STEM.items()}
        self._targets = {split: need(folder, f"Y.{stem}.npz") for split, stem in _STEM.items()}
        self._labels = need(folder, "output-items.txt")
        filters = [path for split in _STEM if (path := self.filters(split))]
        self.files = [*self._texts.values(), *self._targets.values(), self._labels, *filters]

    def labels(self) -> Iterator[Block]:
        """Yield the lines of output-items.txt; compare their number with the columns of the matrices."""
        total = 0
        for block in text_rows(self._labels, "", self.options):
            total += len(block)
            yield block
        for path in self._targets.values():
            columns = columns_of(path)
            if columns != total:
                raise DataError(
                    f"{columns} columns",
                    expected=f"{total}, the number of lines of {self._labels.name}",
                    do="write both files again; a line break inside a text shifts all lines after it",
                    where=path.name,
                )

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the texts with the rows of the matrix."""
        texts, targets = self._texts[split], self._targets[split]
        rows = text_rows(texts, f"{split}-", self.options)
        yield from zip_rows(rows, _matrix_rows(targets, texts, self._labels), texts.name, (targets.name, "row", 1))

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt; None if there is none."""
        return find(self.folder, f"filter_labels_{split}.txt")


def _matrix_rows(path: Path, texts: Path, labels: Path) -> Iterator[tuple[I64, I64, F64]]:
    """Yield (flat label ids, number of ids per row, relevance), some rows at a time."""
    matrix = read_csr(path, most_rows=_most_lines(texts), most_columns=_most_lines(labels))
    for start in range(0, matrix.shape[0], _ROWS):
        part = matrix[start : start + _ROWS]
        yield part.indices.astype(np.int64), np.diff(part.indptr).astype(np.int64), part.data.astype(np.float64)


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
