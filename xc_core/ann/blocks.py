"""The best labels of each query, found block by block: what exact search on a CPU does with the products of a block.

Only the maximum of each 8 scores is compared with the k-th best score so far; the 8 are read only if it is larger.
Scores are compared by their bits, read as integers, because a maximum of these takes a fifth of the time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xc_core.shapes import F32, I64, Shortlist, in_order

QUERIES: Final = 256
LABELS: Final = 16_384
"""A block of scores has 256 x 16,384 x 4 bytes = 16 MB, about the size of a cache."""
_GROUP: Final = 8
"""Scores of which one maximum is kept (docs/lab-notes/2026-11-23-exact-search-of-few-labels.md)."""
_INTEGER: Final = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
_SMALLEST: Final = np.array([np.finfo(np.float32).min])
_Keys = npt.NDArray[Any]
"""Numbers as integers in the same order: int32 for fp32, int16 for bf16."""
_Hits = tuple[I64, I64, F32]
"""Query, column and score of M scores in a block."""


def score_buffer(queries: int, labels: int, kind: torch.dtype) -> Tensor:
    """Return memory for the scores of at most so many queries and labels, in fp32 or bf16."""
    return torch.empty(queries, -(-labels // _GROUP) * _GROUP, dtype=kind)


def updated(best: Shortlist, queries_BD: Tensor, block_UD: Tensor, start: int, k: int, buffer: Tensor) -> Shortlist:
    """Return the k best labels of ``best`` and of a block of labels with these vectors, whose first id is ``start``.

    Queries and vectors are of the kind of ``buffer``, in which the scores are computed.
    """
    scores_BU = buffer[: len(queries_BD)]
    torch.mm(queries_BD, block_UD.T, out=scores_BU[:, : len(block_UD)])
    scores_BU[:, len(block_UD) :] = -torch.inf
    limit_B = best.scores_NK[:, k - 1] if best.k == k else None
    return _merge(best, _candidates(scores_BU, k, limit_B), start, k)


def _candidates(scores_BU: Tensor, k: int, limit_B: F32 | None) -> _Hits:
    """Return query (rising), column and score of all scores above ``limit_B``, the k-th best score of each query.

    Without a limit: all scores that may be among the k best of the block. The k-th largest group maximum is a bound for
    them, because k groups reach it. With G groups, a group has every G-th column.

    Bits of numbers that are not negative have their order, so they are keys as they are while no bound is negative.
    """
    bits_BU = scores_BU.view(_INTEGER[scores_BU.dtype])
    keys_BWG, maxima_BG, bound_B = _bounded(bits_BU, k, None if limit_B is None else _bits(limit_B, bits_BU.dtype))
    if bound_B.min() < 0:
        limit = None if limit_B is None else in_order(_bits(limit_B, bits_BU.dtype))
        keys_BWG, maxima_BG, bound_B = _bounded(in_order(bits_BU), k, limit)
    groups = maxima_BG.shape[1]
    query_M, group_M = np.divmod(np.flatnonzero(maxima_BG > bound_B[:, None]), groups)
    above_M = np.flatnonzero(keys_BWG[query_M, :, group_M] > bound_B[query_M, None])
    row_M, offset_M = np.divmod(above_M, _GROUP)
    query_M, column_M = query_M[row_M], group_M[row_M] + offset_M * groups
    return query_M, column_M, _numbers(bits_BU.numpy()[query_M, column_M])


def _bounded(keys_BU: Tensor, k: int, limit_B: _Keys | None) -> tuple[_Keys, _Keys, _Keys]:
    """Return the keys in groups (B x W x G), the largest of each group (B x G), and a bound for each query."""
    keys_BWG = keys_BU.view(len(keys_BU), _GROUP, -1)
    maxima_BG = keys_BWG.amax(1).numpy()
    if limit_B is None:
        limit_B = np.full(len(maxima_BG), in_order(_bits(_SMALLEST, keys_BU.dtype))[0])
        if maxima_BG.shape[1] >= k:
            limit_B = np.maximum(np.partition(maxima_BG, -k, axis=1)[:, -k], limit_B + 1) - 1
    return keys_BWG.numpy(), maxima_BG, limit_B


def _bits(numbers_M: F32, kind: torch.dtype) -> _Keys:
    """Return the bits of numbers, which bf16 can hold if these are to be int16."""
    bits_M = np.ascontiguousarray(numbers_M).view(np.int32)
    return (bits_M >> 16).astype(np.int16) if kind == torch.int16 else bits_M


def _numbers(bits_M: _Keys) -> F32:
    """Return numbers as float32 from their bits."""
    bits_M = bits_M.astype(np.int32) << 16 if bits_M.dtype == np.int16 else bits_M
    return bits_M.view(np.float32)


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
