"""Exact search by blocked matrix products: the reference for all other indexes, and the fastest for many queries.

The scores of a block of labels are computed into a buffer that is used again, in bf16 first where that is faster
(``rounded``). On a card whole blocks are ranked, on a copy of the vectors there; blocks are copied in turn if the card
cannot keep all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np
import torch
from torch import Tensor

from xc_core.ann import rounded
from xc_core.ann.base import INDEXES, HasExactly, HasExtended, Index, IndexPart, checked
from xc_core.ann.blocks import LABELS, QUERIES, score_buffer, updated
from xc_core.devices import Device, put
from xc_core.shapes import F32, Computed, Shortlist, Vectors, spans

_FAISS: Final[Any] = faiss  # its type hints miss what is used here
_ONE_BY_FAISS: Final = 20_000
"""Largest number of labels that faiss compares with one query. It uses one thread; above, torch uses all it has."""
_CARD_QUERIES: Final = 4096
_CARD_LABELS: Final = 1 << 17
"""A block of scores on a card has 4,096 x 131,072 x 4 bytes = 2 GiB (a guess): few launches, and it always fits."""
_CARD_GROUP: Final = 32
"""The same on a card: 16 to 32 were fastest there."""
_CARD_GROUPS: Final = 4
"""Groups per label that is searched, at least, on a card (a guess): with few groups ``topk`` is as fast."""


class ExactIndex(HasExactly, HasExtended):
    """Keeps the vectors; every search compares with all of them, on ``device``."""

    vectors_LD: Vectors

    def __init__(self, vectors_LD: Vectors, device: Device | None = None) -> None:
        self.vectors_LD = vectors_LD
        self.device = device or Device.chosen()
        self.size, self.width = vectors_LD.shape

    @property
    def part(self) -> IndexPart:
        """Exact search has no settings."""
        return Exact()

    def search(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query; equal scores by rising label id."""
        query_BD = checked(queries_BD, self.width, k)
        if len(query_BD) == 1 and self.device.is_cpu:
            return self._search_one(query_BD, min(k, self.size)).top(k)
        if not len(query_BD):
            return Shortlist.nothing(0).top(k)
        if not self.device.is_cpu:
            return self._search_on_card(query_BD, k)
        with torch.inference_mode():
            return self._search_many(query_BD, min(k, self.size)).top(k)

    def _search_many(self, query_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query; k is at most the number of labels."""
        if not rounded.pays(self.vectors_LD, len(query_BD), k, self.device):
            return self._search_products(query_BD, k)
        found, certain_B = rounded.search(self.vectors_LD, query_BD, k)
        if not certain_B.all():
            better = self._search_products(query_BD[~certain_B], k).top(k)  # infinite scores may leave fewer
            found.ids_NK[~certain_B], found.scores_NK[~certain_B] = better.ids_NK, better.scores_NK
        return found

    def _search_products(self, query_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query by products in fp32."""
        queries = torch.from_numpy(query_BD)
        rows_at_once = len(queries) if isinstance(self.vectors_LD, Computed) else QUERIES
        parts = [self._search_blocks(queries[rows], k) for rows in spans(len(queries), rows_at_once)]
        return Shortlist.stack(list(chain.from_iterable(parts)))

    def _search_one(self, query_1D: F32, k: int) -> Shortlist:
        """Return the k best labels of one query. faiss compares as fast as the memory is read, so one call is best.

        It leaves equal scores in any order: a search for one label more shows if that matters.
        """
        if self.size > _ONE_BY_FAISS:
            return self._rank_all_scores(query_1D[0], k)
        scores, ids = _FAISS.knn(query_1D, self.vectors_LD[:], min(k + 1, self.size), metric=faiss.METRIC_INNER_PRODUCT)
        equal = scores[0, 1:] == scores[0, :-1]
        if not equal.any():
            return Shortlist(ids[:, :k].astype(np.int32), scores[:, :k])
        return self._rank_all_scores(query_1D[0], k) if equal[k - 1 :].any() else Shortlist.ranked(ids, scores).top(k)

    def _rank_all_scores(self, query_D: F32, k: int) -> Shortlist:
        """Return the k best labels of one query by all scores, with as many threads as torch has."""
        step = LABELS if isinstance(self.vectors_LD, Computed) else self.size
        blocks = (torch.from_numpy(self.vectors_LD[labels]) for labels in spans(self.size, step))
        scores_L = torch.cat([torch.mv(block_UD, torch.from_numpy(query_D)) for block_UD in blocks]).numpy()
        ids_M = np.flatnonzero(scores_L >= np.partition(scores_L, -k)[-k])
        best_K = np.argsort(-scores_L[ids_M], kind="stable")[:k]
        return Shortlist(ids_M[None, best_K].astype(np.int32), scores_L[None, ids_M[best_K]])

    def _search_blocks(self, queries_BD: Tensor, k: int) -> list[Shortlist]:
        """Return the k best labels of each block of queries; k is at most the number of labels.

        A block of labels is read once for all of these queries.
        """
        blocks = torch.split(queries_BD, QUERIES)
        best = [Shortlist.nothing(len(block)) for block in blocks]
        scores = score_buffer(len(blocks[0]), min(LABELS, self.size), torch.float32)
        for labels in spans(self.size, LABELS):
            block_UD = torch.from_numpy(self.vectors_LD[labels])
            best = [
                updated(own, block, block_UD, labels.start, k, scores) for own, block in zip(best, blocks, strict=True)
            ]
        return best

    @cached_property
    def _device_vectors(self) -> Tensor:
        """The vectors on the device; in the memory of the processor if a card cannot keep them."""
        vectors_LD = np.asarray(self.vectors_LD)
        fits = self.device.keeps(vectors_LD.nbytes)
        return put(vectors_LD, self.device.torch) if fits else torch.from_numpy(vectors_LD)

    def _search_on_card(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the k best labels of each query, in blocks that a card's memory holds.

        Queries and blocks of labels are copied once. The best labels are kept by rising id, so that of equal scores the
        first labels stay.
        """
        limit, device = min(k, self.size), self.device.torch
        queries = torch.split(put(queries_BD, device), _CARD_QUERIES)
        best = [_no_labels(len(query_BD), device) for query_BD in queries]
        for start in range(0, self.size, _CARD_LABELS):
            block_UD = self._device_vectors[start : start + _CARD_LABELS].to(device)
            for number, query_BD in enumerate(queries):
                best[number] = _update_best(best[number], query_BD @ block_UD.T, start, limit)
        scores_BK, ids_BK = (torch.cat(parts).cpu().numpy() for parts in zip(*best, strict=True))
        return Shortlist.ranked(ids_BK, scores_BK).top(k)

    def exactly(self, queries_BD: F32, k: int) -> Shortlist:
        """Return the same as ``search``."""
        return self.search(queries_BD, k)

    def extended(self, vectors_ND: F32) -> ExactIndex:
        """Return an index over these vectors and ``vectors_ND``."""
        return type(self)(np.concatenate([np.asarray(self.vectors_LD), vectors_ND]), self.device)

    def save(self, folder: Path) -> None:
        """Write the vectors."""
        np.save(folder / "index.npy", np.asarray(self.vectors_LD))


def _no_labels(queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scores and ids of no label for each query (B x 0)."""
    return torch.zeros((queries, 0), device=device), torch.zeros((queries, 0), dtype=torch.long, device=device)


def _update_best(best: tuple[Tensor, Tensor], scores_BU: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """Return scores and ids of each query's k best labels (both B x K), by rising id.

    They are chosen among the labels of ``best``, by rising id too, and those of the block that begins at ``start``.
    """
    column_BK = _top_columns(scores_BU, k).sort(dim=1).values
    scores_BM = torch.cat([best[0], scores_BU.gather(1, column_BK)], 1)
    ids_BM = torch.cat([best[1], column_BK + start], 1)
    column_BK = _top_columns(scores_BM, k).sort(dim=1).values
    return scores_BM.gather(1, column_BK), ids_BM.gather(1, column_BK)


def _top_columns(scores_BU: Tensor, k: int) -> Tensor:
    """Return the columns of each row's k largest scores; of scores equal to the k-th, the first columns are kept.

    Which of these ``topk`` keeps is undefined.
    """
    width = scores_BU.shape[1]
    if k >= width:
        return torch.arange(width, device=scores_BU.device).expand(scores_BU.shape)
    values, ids = _grouped_topk(scores_BU, k + 1)
    tied = values[:, k - 1] == values[:, k]
    ids = ids[:, :k]
    if tied.any():
        edge, scores = values[tied, k - 1 : k], scores_BU[tied]
        above, equal = scores > edge, scores == edge
        missing = k - above.sum(1, keepdim=True)
        ids[tied] = (above | (equal & (equal.cumsum(1, dtype=torch.int32) <= missing))).nonzero()[:, 1].view(-1, k)
    return ids


def _grouped_topk(scores_BU: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and columns of each row's k largest scores (both B x k), as ``topk`` does, if k is much smaller.

    The k groups with the largest maxima have k scores as large as any other. With G groups, a group has every G-th
    column. For 100 of 131,072 scores that takes a quarter of the time of ``topk``
    (docs/lab-notes/2026-11-27-first-day-on-a-card.md).
    """
    groups, remainder = divmod(scores_BU.shape[1], _CARD_GROUP)
    if remainder or groups < _CARD_GROUPS * k:
        values, ids = scores_BU.topk(k, dim=1)
        return values, ids
    groups_BWG = scores_BU.view(len(scores_BU), _CARD_GROUP, groups)
    chosen_BK = groups_BWG.amax(1).topk(k, dim=1).indices
    inside_BWK = groups_BWG.gather(2, chosen_BK.unsqueeze(1).expand(-1, _CARD_GROUP, -1))
    values, position_BK = inside_BWK.flatten(1).topk(k, dim=1)
    return values, position_BK // k * groups + chosen_BK.gather(1, position_BK % k)


@INDEXES.register("exact")
@dataclass(frozen=True, kw_only=True)
class Exact(IndexPart):
    """Exact search: every query is compared with all labels."""

    in_parts = True

    def _built(self, vectors_LD: Vectors) -> Index:
        return ExactIndex(vectors_LD)

    def load(self, folder: Path, width: int) -> ExactIndex:
        """Memory-map the vectors, copy-on-write because torch requires writable memory; nothing is written."""
        return ExactIndex(np.load(folder / "index.npy", mmap_mode="c", allow_pickle=False))
