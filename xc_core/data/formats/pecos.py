"""PECOS: X.trn.txt, X.tst.txt (one text per line), Y.trn.npz, Y.tst.npz (scipy CSR), output-items.txt (label texts).

Pickles are never opened.
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find, need
from xc_core.data.formats.xc_text import text_rows, zip_rows
from xc_core.errors import DataError
from xc_core.shapes import F64, I64

_STEM = {"train": "trn", "test": "tst"}
_ROWS = 65_536
"""Rows of a matrix that are yielded at a time."""


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
            columns = _columns(path)
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
        yield from zip_rows(rows, _matrix_rows(targets), texts.name, (targets.name, "row", 1))

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt; None if there is none."""
        return find(self.folder, f"filter_labels_{split}.txt")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; turn the errors of numpy and scipy for an unreadable file into a DataError."""
    try:
        with path.open("rb") as stream:
            yield stream
    except (ValueError, TypeError, OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"a file that scipy cannot read ({error})",
            expected="a sparse matrix written by scipy.sparse.save_npz; pickles are not opened",
            do="download or write the file again",
            where=path.name,
        ) from error


def _columns(path: Path) -> int:
    with _opened(path) as stream, np.load(stream, allow_pickle=False) as arrays:
        return int(arrays["shape"][1])


def _matrix_rows(path: Path) -> Iterator[tuple[I64, I64, F64]]:
    """Yield (flat label ids, number of ids per row, relevance), some rows at a time."""
    with _opened(path) as stream:
        matrix = scipy.sparse.load_npz(stream).tocsr()
        matrix.check_format(full_check=True)
    for start in range(0, matrix.shape[0], _ROWS):
        part = matrix[start : start + _ROWS]
        yield part.indices.astype(np.int64), np.diff(part.indptr).astype(np.int64), part.data.astype(np.float64)


LAYOUTS.add(
    "pecos",
    Layout(
        "pecos",
        ("X.trn.txt", "X.tst.txt", "Y.trn.npz", "Y.tst.npz", "output-items.txt"),
        "X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt",
        Pecos,
    ),
)
