"""Clusters of labels: those of the naive twin, groups that were planted, and none of one label."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize

from tests.naive import growing as naive
from xc_core.scores.trees.label_clusters import clusters_of
from xc_core.scores.trees.sparse_rows import SparseRows


def vectors(groups: int, each: int, noise: float = 0.4) -> csr_matrix:
    """Unit vectors of planted groups, which have four terms of their own and share ten."""
    rng = np.random.default_rng(0)
    dense = np.zeros((groups * each, 4 * groups + 10), np.float32)
    for row in range(len(dense)):
        group = row % groups
        dense[row, 4 * group : 4 * group + 4] = rng.random(4) + 0.5
        dense[row, 4 * groups :] = noise * rng.random(10)
    return normalize(csr_matrix(dense))


@pytest.mark.parametrize(("count", "tolerance"), [(2, 0.01), (5, 0.01), (12, 0.001), (20, 1e-6), (60, 0.01)])
def test_clusters_are_those_of_loops(count: int, tolerance: float) -> None:
    rows = vectors(6, 7, noise=2)
    starts = np.random.default_rng(5).choice(42, min(count, 42), replace=False)
    expected = naive.clusters(
        [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in rows], starts.tolist(), tolerance
    )
    found = clusters_of(SparseRows.of(rows), count, tolerance, np.random.default_rng(5))
    assert found.tolist() == expected


def test_planted_groups_are_never_mixed() -> None:
    found = clusters_of(SparseRows.of(vectors(5, 20)), 30, 0.001, np.random.default_rng(1))
    groups = [set((np.flatnonzero(found == cluster) % 5).tolist()) for cluster in range(found.max() + 1)]
    assert [len(group) for group in groups] == [1] * len(groups)
    assert len(groups) >= 5


@pytest.mark.parametrize("count", [3, 10, 40])
def test_no_cluster_has_one_label_and_numbers_have_no_gaps(count: int) -> None:
    found = clusters_of(SparseRows.of(vectors(4, 10)), count, 0.01, np.random.default_rng(2))
    assert np.bincount(found).min() >= 2
    assert set(found.tolist()) == set(range(found.max() + 1))


def test_equal_labels_are_one_cluster() -> None:
    same = normalize(csr_matrix(np.ones((12, 3), np.float32)))
    assert clusters_of(SparseRows.of(same), 4, 0.01, np.random.default_rng(0)).tolist() == [0] * 12


def test_a_vector_that_is_no_number_does_not_run_for_ever() -> None:
    broken = vectors(2, 5)
    broken.data[3] = np.nan
    assert len(clusters_of(SparseRows.of(broken), 3, 0.01, np.random.default_rng(0))) == 10
