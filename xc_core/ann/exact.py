"""Exact search by blocked matrix products: the truth for all other indexes, and the fastest up to some 400,000 labels.

Takes: vectors_LD.                   Gives: Index.
May import: errors, shapes, ann.base.  Never: a score matrix larger than one block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import torch

from xc_core.ann.base import INDEXES, IndexConfig
from xc_core.errors import ConfigError
from xc_core.shapes import F32, I64, Shortlist

_QUERIES: Final = 256
_LABELS: Final = 16_384
"""A block of scores, 256 x 16,384 x 4 bytes = 16 MB, stays near the cache."""


class ExactIndex:
    """Keeps the vectors; every search compares with all of them."""

    def __init__(self, vectors_LD: F32) -> None:
        self.vectors = torch.from_numpy(vectors_LD)
        self.size, self.width = vectors_LD.shape

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query; equal scores by rising label id."""
        if queries_BD.ndim != 2 or queries_BD.shape[1] != self.vectors.shape[1]:
            raise ConfigError(
                f"queries of shape {queries_BD.shape}",
                expected=f"B x {self.vectors.shape[1]}",
                do="use one encoder",
            )
        if k < 1:
            raise ConfigError(f"k {k}", expected="at least 1", do="raise it")
        queries = torch.from_numpy(np.ascontiguousarray(queries_BD, np.float32))
        parts = [self._block(queries[start : start + _QUERIES], k) for start in range(0, len(queries), _QUERIES)]
        empty = Shortlist(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))
        return Shortlist.stack(parts) if parts else empty

    def _block(self, queries: torch.Tensor, k: int) -> Shortlist:
        scores_list, ids_list = [], []
        for start in range(0, self.size, _LABELS):
            scores = queries @ self.vectors[start : start + _LABELS].T
            best = scores.topk(min(k, scores.shape[1]), dim=1)
            scores_list.append(best.values)
            ids_list.append(best.indices + start)
        scores, ids = torch.cat(scores_list, 1), torch.cat(ids_list, 1)
        return Shortlist.ranked(ids.numpy(), scores.numpy()).top(k)

    def scores_of(self, queries_BD: F32, ids_BK: I64) -> F32:
        """Return the inner products of each query with its own labels ``ids_BK`` (any id for a hole)."""
        own = self.vectors[torch.from_numpy(np.maximum(ids_BK, 0).astype(np.int64))]
        return torch.einsum("bkd,bd->bk", own, torch.from_numpy(np.ascontiguousarray(queries_BD))).numpy()

    def save(self, folder: Path) -> None:
        """Write the vectors."""
        np.save(folder / "index.npy", self.vectors.numpy())


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
