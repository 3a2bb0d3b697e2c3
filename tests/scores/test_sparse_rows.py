"""Sparse rows give what dense arrays give."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from xc_core.scores.trees import sparse_rows
from xc_core.scores.trees.sparse_rows import SparseRows


@pytest.fixture(params=[np.int32, np.int64])
def matrix(request: pytest.FixtureRequest) -> csr_matrix:
    rows = csr_matrix(random_array((9, 13), density=0.3, rng=np.random.default_rng(0)).toarray().astype(np.float32))
    rows = csr_matrix(np.where(np.arange(13) % 5 == 1, 0, rows.toarray()))  # two empty columns
    rows.indices, rows.indptr = rows.indices.astype(request.param), rows.indptr.astype(request.param)
    return rows


def dense(rows: SparseRows) -> np.ndarray:
    return csr_matrix((rows.values, rows.columns, rows.ends), (len(rows), rows.width)).toarray()


def test_rows_are_taken_in_the_order_asked_for(matrix: csr_matrix) -> None:
    wanted = np.array([4, 4, 0, 8])
    np.testing.assert_array_equal(dense(SparseRows.of(matrix).take(wanted)), matrix.toarray()[wanted])
    assert len(SparseRows.of(matrix).take(wanted[:0])) == 0
    taken = SparseRows.of(matrix).take(wanted)
    assert taken.ends.dtype == taken.columns.dtype == matrix.indices.dtype, "a kernel takes indices of one type"


@pytest.mark.parametrize("sparse", [0, 1000])
def test_empty_columns_are_left_out(matrix: csr_matrix, sparse: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_rows, "_SPARSE", sparse)
    rows, kept = SparseRows.of(matrix).compact()
    assert kept.tolist() == np.flatnonzero(matrix.toarray().any(axis=0)).tolist()
    assert rows.width == len(kept) < 13
    np.testing.assert_array_equal(dense(rows), matrix.toarray()[:, kept])


def test_products_and_sums_are_those_of_dense_arrays(matrix: csr_matrix) -> None:
    rows, other = SparseRows.of(matrix), np.random.default_rng(1).random((13, 4), np.float32)
    np.testing.assert_allclose(rows.times(other), matrix.toarray() @ other, rtol=1e-5)
    group = np.array([0, 2, 2, 0, 2, 0, 0, 0, 2])
    sums = np.stack([matrix.toarray()[group == one].sum(axis=0) for one in range(3)], axis=1)
    np.testing.assert_allclose(rows.sums(group, 3), sums, rtol=1e-6)
    np.testing.assert_allclose(rows.squares(), np.square(matrix.toarray()).sum(axis=1), rtol=1e-6)
