"""Sparse rows, and products with dense matrices by scipy's kernels.

scipy's own methods make a matrix and check it, which takes longer than the work on a few rows. The kernels do not hold
the GIL.

Letters, used here as name suffixes: N rows, T columns, C columns of a dense matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xc_core.shapes import F32, I32, I64, Array

_SPARSE: Final = 20
"""Columns per entry from which sorting the entries is faster than a look at each column (a guess)."""


@dataclass(frozen=True, eq=False)
class SparseRows:
    """N rows with their entries, as in scipy's CSR format."""

    ends: Array
    """The first entry of each row, and the end of the last row's (N + 1); of the type of ``columns``."""
    columns: Array
    values: F32
    width: int
    """T."""

    @classmethod
    def of(cls, matrix: Any) -> SparseRows:
        """Return the rows of a matrix of scipy (CSR, float32), which is not copied."""
        return cls(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def take(self, rows: I64) -> SparseRows:
        """Return these rows, in this order."""
        kind = self.columns.dtype
        rows = rows.astype(kind)
        ends = np.zeros(len(rows) + 1, kind)
        np.cumsum(self.ends[rows + 1] - self.ends[rows], out=ends[1:])
        columns, values = np.empty(ends[-1], kind), np.empty(ends[-1], np.float32)
        _kernel("csr_row_index")(len(rows), rows, self.ends, self.columns, self.values, columns, values)
        return SparseRows(ends, columns, values, self.width)

    def compact(self) -> tuple[SparseRows, I32]:
        """Return the rows without empty columns, and the columns that are left, ascending."""
        if self.width > _SPARSE * len(self.columns):
            kept, place = np.unique(self.columns, return_inverse=True)
            columns = place.astype(self.columns.dtype)
            return SparseRows(self.ends, columns, self.values, len(kept)), kept.astype(np.int32)
        present = np.zeros(self.width, np.bool_)
        present[self.columns] = True
        kept = np.flatnonzero(present).astype(np.int32)
        place = np.zeros(self.width, self.columns.dtype)
        place[kept] = np.arange(len(kept))
        return SparseRows(self.ends, place[self.columns], self.values, len(kept)), kept

    def squares(self) -> F32:
        """Return the squared length of each row (N)."""
        row_of_each = np.repeat(np.arange(len(self)), np.diff(self.ends))
        return np.bincount(row_of_each, np.square(self.values), len(self)).astype(np.float32)

    def sums(self, group_N: I64, count: int) -> F32:
        """Return the sum of the rows of each group, as columns (T x ``count``)."""
        group_of_each = np.repeat(group_N.astype(self.columns.dtype), np.diff(self.ends))
        sums = np.zeros((self.width, count), np.float32)
        place = self.columns, group_of_each
        _kernel("coo_todense")(*sums.shape, len(self.columns), *place, self.values, sums.ravel(), 0)
        return sums

    def times(self, dense_TC: F32) -> F32:
        """Return the product with a dense matrix (N x C)."""
        product_NC = np.zeros((len(self), dense_TC.shape[1]), np.float32)
        shape, own = (len(self), self.width, dense_TC.shape[1]), (self.ends, self.columns, self.values)
        _kernel("csr_matvecs")(*shape, *own, dense_TC.ravel(), product_NC.ravel())
        return product_NC


def _kernel(name: str) -> Any:
    from scipy.sparse import _sparsetools

    return getattr(_sparsetools, name)
