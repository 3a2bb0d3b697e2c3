"""Exact search by blocked matrix products: the reference for all other indexes, and the fastest up to 400,000 labels.

faiss multiplies and keeps the best. Which of several equal scores it keeps is undefined, so queries with a tie at the
last place are searched again, by sorting.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import faiss
import numpy as np
import torch

from xc_core.ann.base import INDEXES, Index, IndexPart, checked
from xc_core.shapes import F32, I32, Shortlist

faiss.cvar.distance_compute_blas_threshold = 2  # a matrix product is faster from 2 queries on; faiss's default is 20
_QUERIES: Final = 256
_LABELS: Final = 16_384
"""A block of scores has 256 x 16,384 x 4 bytes = 16 MB, about the size of a cache."""


class ExactIndex:
    """Keeps the vectors; every search compares with all of them."""

    def __init__(self, vectors_LD: F32) -> None:
        self.vectors_LD = vectors_LD
        self.size, self.width = vectors_LD.shape

    @property
    def part(self) -> IndexPart:
        """Exact search has no settings."""
        return Exact()

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
        """Return ids and scores of the k best, lower ids first among equal scores; k is below the number of labels."""
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
    """Return the columns of each row's k largest scores; of scores equal to the k-th, the first columns are kept.

    Which of these ``topk`` keeps is undefined.
    """
    width = scores_BU.shape[1]
    if k >= width:
        return torch.arange(width).expand(scores_BU.shape)
    values, ids = scores_BU.topk(k + 1, dim=1)
    tied = values[:, k - 1] == values[:, k]
    ids = ids[:, :k]
    if tied.any():
        edge, scores = values[tied, k - 1 : k], scores_BU[tied]
        above, equal = scores > edge, scores == edge
        missing = k - above.sum(1, keepdim=True)
        ids[tied] = (above | (equal & (equal.cumsum(1) <= missing))).nonzero()[:, 1].view(-1, k)
    return ids


@INDEXES.register("exact")
@dataclass(frozen=True, kw_only=True)
class Exact(IndexPart):
    """Exact search: every query is compared with all labels."""

    def _built(self, vectors_LD: F32) -> Index:
        return ExactIndex(vectors_LD)

    def load(self, folder: Path, width: int) -> Index:
        """Memory-map the vectors, copy-on-write because torch requires writable memory; nothing is written."""
        return ExactIndex(np.load(folder / "index.npy", mmap_mode="c", allow_pickle=False))
