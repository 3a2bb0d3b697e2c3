"""Exact search by blocked matrix products: the truth for all other indexes, and the fastest up to some 400,000 labels.

Takes: vectors_LD.                   Gives: Index.
May import: shapes, ann.base.        Never: a score matrix larger than one block.

faiss multiplies and keeps the best; which of equal scores it keeps is left open, so that queries with a tie at the last
place are answered again, by sorting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import faiss
import numpy as np
import torch

from xc_core.ann.base import INDEXES, IndexConfig, checked
from xc_core.shapes import F32, I32, Shortlist

faiss.cvar.distance_compute_blas_threshold = 2  # from 2 queries on a matrix product is faster; faiss waits for 20
_QUERIES: Final = 256
_LABELS: Final = 16_384
"""A block of scores, 256 x 16,384 x 4 bytes = 16 MB, stays near the cache."""


class ExactIndex:
    """Keeps the vectors; every search compares with all of them."""

    def __init__(self, vectors_LD: F32) -> None:
        self.vectors_LD = vectors_LD
        self.size, self.width = vectors_LD.shape

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query; equal scores by rising label id."""
        queries = checked(queries_BD, self.width, k)
        if not len(queries):
            return Shortlist(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
        scores, found = faiss.knn(queries, self.vectors_LD, min(k + 1, self.size), metric=faiss.METRIC_INNER_PRODUCT)
        equal = scores[:, :-1] == scores[:, 1:]
        scores, ids = scores[:, :k], np.asarray(found[:, :k], np.int32)
        at_edge = np.flatnonzero(equal[:, -1]) if k < self.size else np.zeros(0, np.int64)
        for rows in (at_edge[start : start + _QUERIES] for start in range(0, len(at_edge), _QUERIES)):
            ids[rows], scores[rows] = self._sorted(queries[rows], k)
        inside = np.flatnonzero(equal.any(1))
        ordered = Shortlist.ranked(ids[inside], scores[inside])
        ids[inside], scores[inside] = ordered.ids_NK, ordered.scores_NK
        return Shortlist(ids, scores).top(k)

    def _sorted(self, queries_BD: F32, k: int) -> tuple[I32, F32]:
        """Return ids and scores of the k best, the first of equal ones; k is below the number of labels."""
        queries, vectors = torch.from_numpy(queries_BD), torch.from_numpy(self.vectors_LD)
        scores_list, ids_list = [], []
        for start in range(0, self.size, _LABELS):
            scores = queries @ vectors[start : start + _LABELS].T
            ids = _best(scores, k)
            scores_list.append(scores.gather(1, ids))
            ids_list.append(ids + start)
        scores, ids = torch.cat(scores_list, 1), torch.cat(ids_list, 1)
        best = Shortlist.ranked(ids.numpy(), scores.numpy()).top(k)
        return best.ids_NK, best.scores_NK

    def save(self, folder: Path) -> None:
        """Write the vectors."""
        np.save(folder / "index.npy", self.vectors_LD)


def _best(scores_BU: torch.Tensor, k: int) -> torch.Tensor:
    """Return the columns of each row's k largest scores, the first of equal ones at the edge (topk takes any)."""
    width = scores_BU.shape[1]
    if k >= width:
        return torch.arange(width).expand(scores_BU.shape)
    values, ids = scores_BU.topk(k + 1, dim=1)
    tied = values[:, k - 1] == values[:, k]
    ids = ids[:, :k]
    if tied.any():
        edge, own = values[tied, k - 1 : k], scores_BU[tied]
        above, level = own > edge, own == edge
        room = k - above.sum(1, keepdim=True)
        ids[tied] = (above | (level & (level.cumsum(1) <= room))).nonzero()[:, 1].view(-1, k)
    return ids


class Exact:
    """The family of exact indexes."""

    @staticmethod
    def build(vectors_LD: F32, config: IndexConfig) -> ExactIndex:
        """Keep the vectors."""
        return ExactIndex(vectors_LD)

    @staticmethod
    def load(folder: Path, config: IndexConfig, width: int) -> ExactIndex:
        """Map the vectors copy-on-write (torch wants writable memory; nothing is ever written)."""
        return ExactIndex(np.load(folder / "index.npy", mmap_mode="c", allow_pickle=False))


INDEXES.add("exact", Exact)
