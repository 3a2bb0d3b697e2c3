"""A search that is spread over processes: each searches its own labels, and the best of all are merged.

Process r of W has the labels l with l mod W = r, as in the label table of M4.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from xc_core.ann.base import IndexPart, Search
from xc_core.distributed import World
from xc_core.shapes import F32, PAD_ID, Shortlist

_QUERIES: Final = 1024
"""Queries whose answers are exchanged at once: with 1,000 labels each, 8 MB per process."""


def spread(part: IndexPart, vectors_LD: F32, world: World) -> Search:
    """Return an index with the settings ``part``: whole in one process, else this process's part of it.

    ``vectors_LD`` may be memory-mapped; of several processes each copies its own rows. Raises ConfigError as
    ``IndexPart.build`` does.
    """
    return part.build(vectors_LD) if world.size == 1 else ShardedIndex(part, vectors_LD, world)


class ShardedIndex:
    """The labels of one process, behind the search of all: every process gets the whole answer.

    All processes search for the same queries in the same order. The answers are those of one index if the search is
    exact; graphs of fewer labels each find other labels than one graph of all.
    """

    def __init__(self, part: IndexPart, vectors_LD: F32, world: World) -> None:
        self.world = world
        self.size, self.width = vectors_LD.shape
        shard_UD = vectors_LD[world.rank :: world.size]
        self._shard = part.build(shard_UD) if len(shard_UD) else None

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query; equal scores by rising label id.

        Raises ConfigError for a k below 1 or queries of another shape, UnavailableError if a process has ended.
        """
        starts = range(0, max(len(queries_BD), 1), _QUERIES)
        return Shortlist.stack([self._merge(queries_BD[start : start + _QUERIES], k) for start in starts])

    def _merge(self, queries_BD: F32, k: int) -> Shortlist:
        """Exchange the best labels of each process, as many as any of them may have, and keep the k best."""
        local = self._search_shard(queries_BD, min(k, -(-self.size // self.world.size)))
        ids_WBK = self.world.stacked(torch.from_numpy(np.ascontiguousarray(local.ids_NK))).numpy()
        scores_WBK = self.world.stacked(torch.from_numpy(np.ascontiguousarray(local.scores_NK))).numpy()
        return Shortlist.ranked(np.concatenate([*ids_WBK], axis=1), np.concatenate([*scores_WBK], axis=1)).top(k)

    def _search_shard(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of this process, by their ids among all labels."""
        if self._shard is None:
            return Shortlist.nothing(len(queries_BD)).top(k)
        found = self._shard.search(queries_BD, k)
        labels_BK = np.where(found.filled_NK, found.ids_NK * self.world.size + self.world.rank, PAD_ID)
        return Shortlist(labels_BK.astype(np.int32), found.scores_NK)
