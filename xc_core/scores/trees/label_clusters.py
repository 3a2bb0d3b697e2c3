"""Clusters of labels of any size: spherical k-means on sparse unit vectors.

Clusters start at vectors drawn at random, and the search ends when the mean cosine of a vector and its centroid gains
less than ``tolerance``. A cluster of one is disbanded: its label goes to the nearest of the others.

Letters, used here as name suffixes: N vectors, T terms, K clusters.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.scores.trees.sparse_rows import SparseRows
from xc_core.shapes import F32, I64

_SMALLEST: Final = 2
"""Vectors of a cluster, at least."""


def clusters_of(vectors: SparseRows, count: int, tolerance: float, random: np.random.Generator) -> I64:
    """Return the cluster of each vector (N), numbered from 0 without gaps; at most ``count`` clusters."""
    vectors, _ = vectors.compact()
    chosen = random.choice(len(vectors), min(count, len(vectors)), replace=False)
    centroids_TK = vectors.take(chosen).sums(np.arange(len(chosen)), len(chosen))
    before = -np.inf
    while True:
        cosines_NK = vectors.times(centroids_TK)
        del centroids_TK  # as large as the next ones
        cluster_N = cosines_NK.argmax(axis=1)
        mean = float(cosines_NK.max(axis=1).mean(dtype=np.float64))
        if not mean - before >= tolerance:  # also if a number is NaN
            break
        before = mean
        centroids_TK = vectors.sums(cluster_N, len(chosen))
        lengths_K = np.sqrt(np.einsum("tk,tk->k", centroids_TK, centroids_TK))
        centroids_TK /= np.maximum(lengths_K, np.finfo(np.float32).tiny)
    return _without_small(cluster_N, cosines_NK)


def _without_small(cluster_N: I64, cosines_NK: F32) -> I64:
    """Disband clusters of one vector, the first of them first; number those that are left."""
    sizes_K = np.bincount(cluster_N, minlength=cosines_NK.shape[1])
    while np.count_nonzero(sizes_K) > 1 and (small := np.flatnonzero((sizes_K > 0) & (sizes_K < _SMALLEST))).size:
        cosines_NK[:, small[0]] = -np.inf
        moved = np.flatnonzero(cluster_N == small[0])
        cluster_N[moved] = np.where(sizes_K > 0, cosines_NK[moved], -np.inf).argmax(axis=1)
        sizes_K = np.bincount(cluster_N, minlength=cosines_NK.shape[1])
    return np.asarray(np.unique(cluster_N, return_inverse=True)[1], np.int64)
