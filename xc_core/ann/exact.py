"""Exact search by blocked matrix products: the reference for all other indexes, and the fastest for many queries.

The scores of a block of labels are computed into a buffer that is used again. Only the maximum of each 8 scores is
compared with the k-th best score so far; the 8 are read only if it is larger. On a card whole blocks are ranked, on a
copy of the vectors there; blocks are copied in turn if the card cannot keep all.
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

from xc_core.ann.base import INDEXES, HasExactly, HasExtended, Index, IndexPart, checked
from xc_core.devices import Device, put
from xc_core.shapes import F32, I64, Computed, Shortlist, Vectors, spans

_FAISS: Final[Any] = faiss  # its type hints miss what is used here
_ONE_BY_FAISS: Final = 20_000
"""Largest number of labels that faiss compares with one query. It uses one thread; above, torch uses all it has."""
_QUERIES: Final = 256
_LABELS: Final = 16_384
"""A block of scores has 256 x 16,384 x 4 bytes = 16 MB, about the size of a cache."""
_CARD_QUERIES: Final = 4096
_CARD_LABELS: Final = 1 << 17
"""A block of scores on a card has 4,096 x 131,072 x 4 bytes = 2 GiB (a guess): few launches, and it always fits."""
_GROUP: Final = 8
"""Scores of which one maximum is kept (docs/lab-notes/2026-11-23-exact-search-of-few-labels.md)."""
_CARD_GROUP: Final = 32
"""The same on a card: 16 to 32 were fastest there."""
_CARD_GROUPS: Final = 4
"""Groups per label that is searched, at least, on a card (a guess): with few groups ``topk`` is as fast."""
_SMALLEST: Final = np.finfo(np.float32).min
_Hits = tuple[I64, I64, F32]
"""Query, column and score of M scores in a block."""


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
        queries = torch.from_numpy(query_BD)
        with torch.inference_mode():
            rows_at_once = len(queries) if isinstance(self.vectors_LD, Computed) else _QUERIES
            parts = [
                self._search_blocks(queries[rows], min(k, self.size)) for rows in spans(len(queries), rows_at_once)
            ]
        return Shortlist.stack(list(chain.from_iterable(parts))).top(k)

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
        step = _LABELS if isinstance(self.vectors_LD, Computed) else self.size
        blocks = (torch.from_numpy(self.vectors_LD[labels]) for labels in spans(self.size, step))
        scores_L = torch.cat([torch.mv(block_UD, torch.from_numpy(query_D)) for block_UD in blocks]).numpy()
        ids_M = np.flatnonzero(scores_L >= np.partition(scores_L, -k)[-k])
        best_K = np.argsort(-scores_L[ids_M], kind="stable")[:k]
        return Shortlist(ids_M[None, best_K].astype(np.int32), scores_L[None, ids_M[best_K]])

    def _search_blocks(self, queries_BD: Tensor, k: int) -> list[Shortlist]:
        """Return the k best labels of each block of queries; k is at most the number of labels.

        A block of labels is read once for all of these queries.
        """
        blocks = torch.split(queries_BD, _QUERIES)
        best_by_block = [Shortlist.nothing(len(block)) for block in blocks]
        buffer = torch.empty(len(blocks[0]), -(-min(_LABELS, self.size) // _GROUP) * _GROUP)
        for labels in spans(self.size, _LABELS):
            block_UD = torch.from_numpy(self.vectors_LD[labels])
            for number, (query_BD, best) in enumerate(zip(blocks, best_by_block, strict=True)):
                scores_BU = buffer[: len(query_BD)]
                torch.mm(query_BD, block_UD.T, out=scores_BU[:, : len(block_UD)])
                scores_BU[:, len(block_UD) :] = -torch.inf
                limit_B = best.scores_NK[:, k - 1] if best.k == k else None
                best_by_block[number] = _merge(best, _candidates(scores_BU, k, limit_B), labels.start, k)
        return best_by_block

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


def _candidates(scores_BU: Tensor, k: int, limit_B: F32 | None) -> _Hits:
    """Return query (rising), column and score of all scores above ``limit_B``, the k-th best score of each query.

    Without a limit: all scores that may be among the k best of the block. The k-th largest group maximum is a bound for
    them, because k groups reach it. With G groups, a group has every G-th column.
    """
    groups_BWG = scores_BU.view(len(scores_BU), _GROUP, -1)
    maxima_BG = groups_BWG.amax(1).numpy()
    if limit_B is None:
        limit_B = np.full(len(scores_BU), _SMALLEST)
        if maxima_BG.shape[1] >= k:
            least_B = np.partition(maxima_BG, -k, axis=1)[:, -k]
            limit_B = np.maximum(np.nextafter(least_B, np.float32(-np.inf)), limit_B)
    query_M, group_M = np.divmod(np.flatnonzero(maxima_BG > limit_B[:, None]), maxima_BG.shape[1])
    values_MW = groups_BWG.numpy()[query_M, :, group_M]
    above_M = np.flatnonzero(values_MW > limit_B[query_M, None])
    row_M, offset_M = np.divmod(above_M, _GROUP)
    return query_M[row_M], group_M[row_M] + offset_M * maxima_BG.shape[1], values_MW.ravel()[above_M]


def _merge(best: Shortlist, hits: _Hits, start: int, k: int) -> Shortlist:
    """Return the k best of ``best`` and of the scores found in the block of labels that begins at ``start``."""
    query_M, column_M, value_M = hits
    if not len(query_M):
        return best
    count_B = np.bincount(query_M, minlength=len(best))
    place_M = best.k + np.arange(len(query_M)) - np.repeat(np.cumsum(count_B) - count_B, count_B)
    padded = best.top(best.k + int(count_B.max()))
    ids, scores = padded.ids_NK.copy(), padded.scores_NK.copy()
    ids[query_M, place_M], scores[query_M, place_M] = column_M + start, value_M
    merged = Shortlist.ranked(ids, scores)
    return merged.top(min(k, merged.k))


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
