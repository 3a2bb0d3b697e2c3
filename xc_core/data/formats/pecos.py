"""PECOS: X.trn.txt, X.tst.txt (one text a line), Y.trn.npz, Y.tst.npz (scipy CSR), output-items.txt (label texts).

Takes: a folder.                     Gives: Source.
May import: errors, data.formats.base, .lines and .xc_text.  Never: unpickles.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse

from xc_core.data.formats.base import LAYOUTS, Block, Layout, ReadOptions, find, need
from xc_core.data.formats.xc_text import text_rows, zip_rows
from xc_core.errors import DataError
from xc_core.shapes import F64, I64

_STEM = {"train": "trn", "test": "tst"}


class Pecos:
    """Source over ``X.{trn,tst}.txt``, ``Y.{trn,tst}.npz`` and ``output-items.txt``.

    The two label matrices are held in memory (12 bytes a pair); texts are streamed.
    """

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self.folder, self.options = folder, options
        self._texts = {split: need(folder, f"X.{stem}.txt") for split, stem in _STEM.items()}
        self._targets = {split: need(folder, f"Y.{stem}.npz") for split, stem in _STEM.items()}
        self._labels = need(folder, "output-items.txt")
        filters = [path for split in _STEM if (path := self.filters(split))]
        self.files = [*self._texts.values(), *self._targets.values(), self._labels, *filters]

    def labels(self) -> Iterator[Block]:
        """Yield the lines of output-items.txt."""
        yield from text_rows(self._labels, "", self.options)

    def documents(self, split: str) -> Iterator[Block]:
        """Yield the texts with the rows of the matrix."""
        texts, targets = self._texts[split], self._targets[split]
        rows = iter([_load(targets)])
        yield from zip_rows(text_rows(texts, f"{split}-", self.options), rows, texts.name, targets.name)

    def filters(self, split: str) -> Path | None:
        """Return filter_labels_{split}.txt, None where there is none."""
        return find(self.folder, f"filter_labels_{split}.txt")


def _load(path: Path) -> tuple[I64, I64, F64]:
    try:
        matrix = scipy.sparse.load_npz(path).tocsr()
    except (ValueError, OSError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            f"a file that scipy cannot read ({error})",
            expected="a sparse matrix written by scipy.sparse.save_npz",
            do="fetch or write the file again",
            where=path.name,
        ) from error
    return (
        matrix.indices.astype(np.int64),
        np.diff(matrix.indptr).astype(np.int64),
        matrix.data.astype(np.float64),
    )


LAYOUTS.add(
    "pecos",
    Layout(
        "pecos",
        ("X.trn.txt", "X.tst.txt", "Y.trn.npz", "Y.tst.npz", "output-items.txt"),
        "X.trn.txt, X.tst.txt, Y.trn.npz, Y.tst.npz, output-items.txt",
        Pecos,
    ),
)
