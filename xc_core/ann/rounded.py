"""Exact search of many queries by products in bf16, for processors that multiply these several times as fast as fp32.

Scores of rounded vectors choose more labels than are asked for, and scores in fp32 rank these. A bound of the rounding
says for which queries a label that was left out could be one of the k best; such a query is searched in fp32 instead.

With ^ for rounded vectors, and e for the error of a product of these, which is summed in fp32:
    |q l - q^ l^| <= |q| |l - l^| + |q - q^| |l^| + e.
If at least k labels have a rounded score of s or more, the k-th best score is not below s minus that bound, and a label
that has this score has a rounded score not below s minus twice the bound.
"""

from __future__ import annotations

from typing import Any, Final

import faiss
import numpy as np
import torch
from torch import Tensor

from xc_core.ann.blocks import LABELS, QUERIES, score_buffer, updated
from xc_core.devices import Device
from xc_core.shapes import F32, I32, Bool, Computed, Shortlist, Vectors, spans

_FAISS: Final[Any] = faiss  # its type hints miss what is used here
_LEAST_QUERIES: Final = 64
"""Fewer are searched in fp32: labels are rounded once for all queries, which takes as long as the product with 40."""
_LABELS_PER_KEPT: Final = 24
"""With fewer labels for each that is kept, fp32 is as fast (docs/lab-notes/2026-11-29-exact-search-in-bf16.md)."""
_TOGETHER: Final = 16_384
"""Queries for which labels are rounded once."""
_ROUNDED_TOGETHER: Final = 1024
"""Labels whose vectors fit a cache."""
_PAIRS: Final = 4096
"""Pairs of a query and a label whose vectors are gathered together."""
_EXTRA: Final = 32
"""Labels that are kept beside the k best, at least; k if that is more."""
_HALF_ULP: Final = 2.0**-8
"""The largest relative error of a number in bf16."""
_F32_ERROR: Final = 2.0**-24
_NO_SQUARE: Final = 2.0**-63
"""Squares of smaller numbers are below the smallest normal float32."""


def pays(vectors_LD: Vectors, queries: int, k: int, device: Device) -> bool:
    """Return True if products in bf16 make the search faster: many queries and labels, rows that faiss can read."""
    if queries < _LEAST_QUERIES or len(vectors_LD) < _LABELS_PER_KEPT * _kept(k):
        return False
    return (isinstance(vectors_LD, Computed) or vectors_LD.flags.c_contiguous) and device.multiplies_bf16()


def _kept(k: int) -> int:
    """Return the number of labels that rounded scores choose: more of them make fewer queries uncertain."""
    return k + max(k, _EXTRA)


def search(vectors_LD: Vectors, queries_BD: F32, k: int) -> tuple[Shortlist, Bool]:
    """Return the k best labels of each query by scores in fp32, and for each query whether they are certain (B)."""
    found = [_search(vectors_LD, queries_BD[rows], k) for rows in spans(len(queries_BD), _TOGETHER)]
    return Shortlist.stack([part for part, _ in found]), np.concatenate([certain for _, certain in found])


def _search(vectors_LD: Vectors, queries_BD: F32, k: int) -> tuple[Shortlist, Bool]:
    queries = torch.from_numpy(queries_BD)
    rounded_BD = queries.bfloat16()
    blocks = torch.split(rounded_BD, QUERIES)
    best = [Shortlist.nothing(len(block)) for block in blocks]
    kept, most = _kept(k), min(LABELS, len(vectors_LD))
    block_BU = score_buffer(len(blocks[0]), most, torch.bfloat16)
    rounded_UD = torch.empty(most, vectors_LD.shape[1], dtype=torch.bfloat16)
    norm = error = 0.0
    for labels in spans(len(vectors_LD), LABELS):
        block_UD = rounded_UD[: labels.stop - labels.start]
        norms = _round_into(block_UD, torch.from_numpy(vectors_LD[labels]))
        norm, error = max(norm, norms[0]), max(error, norms[1])
        best = [
            updated(own, block, block_UD, labels.start, kept, block_BU) for own, block in zip(best, blocks, strict=True)
        ]
    chosen = Shortlist.stack(best).top(kept)  # scores that bf16 cannot hold are not among the best
    bound_B = _bound(queries, rounded_BD, norm, error).numpy()
    scores_BK = _scores(vectors_LD, queries_BD, chosen.ids_NK)
    return Shortlist.ranked(chosen.ids_NK, scores_BK).top(k), _certain(chosen.scores_NK, k, bound_B)


def _round_into(rounded_UD: Tensor, block_UD: Tensor) -> tuple[float, float]:
    """Round vectors to bf16; return the largest norm of a rounded one, and of what rounding took away."""
    norm = error = 0.0
    for rows in spans(len(block_UD), _ROUNDED_TOGETHER):
        rounded_UD[rows] = block_UD[rows]
        plain_UD = rounded_UD[rows].float()
        norm = max(norm, _norms(plain_UD).max().item())
        error = max(error, _norms(plain_UD.sub_(block_UD[rows])).max().item())
    return norm, error


def _norms(vectors_ND: Tensor) -> Tensor:
    """Return norms that are not too small: numbers below 2^-63, whose squares fp32 cannot hold, may count as 0 (N)."""
    norms_N: Tensor = torch.linalg.vector_norm(vectors_ND, dim=1) + vectors_ND.shape[1] ** 0.5 * _NO_SQUARE
    return norms_N


def _bound(queries_BD: Tensor, rounded_BD: Tensor, norm: float, error: float) -> Tensor:
    """Return the largest difference of a score and its rounded score, before this is stored in bf16 (B).

    Sums of D products in fp32 differ from the true ones by D x 2^-24 of the norms; three are compared: the rounded
    score, the score that ranks, and the one that a search in fp32 has.
    """
    size_B = _norms(queries_BD)
    in_fp32 = 3 * queries_BD.shape[1] * _F32_ERROR * size_B * (norm + error)
    return size_B * error + _norms(queries_BD - rounded_BD.float()) * norm + in_fp32


def _certain(scores_BK: F32, k: int, bound_B: F32) -> Bool:
    """Return True for each query for which no label that was left out can be one of the k best."""
    kth_B, last_B = scores_BK[:, k - 1], scores_BK[:, -1]
    stored_B = 1.01 * _HALF_ULP * (np.abs(kth_B) + np.abs(last_B))
    with np.errstate(invalid="ignore"):  # numbers that bf16 cannot hold are infinite, and nothing is certain then
        return np.asarray(last_B < kth_B - 2 * bound_B - stored_B)


def _scores(vectors_LD: Vectors, queries_BD: F32, ids_BK: I32) -> F32:
    """Return the scores of labels in fp32 (B x K): the same whichever queries are searched together."""
    if not isinstance(vectors_LD, Computed):
        return _products(queries_BD, vectors_LD, ids_BK)
    ids_M, scores_M = ids_BK.ravel(), np.full(ids_BK.size, -np.inf, np.float32)
    order_M = np.argsort(ids_M, kind="stable")
    bounds = np.searchsorted(ids_M[order_M], range(0, len(vectors_LD) + LABELS, LABELS))
    for labels, first, last in zip(spans(len(vectors_LD), LABELS), bounds, bounds[1:], strict=False):
        if first == last:
            continue
        block_UD = np.ascontiguousarray(vectors_LD[labels])
        for part in spans(last - first, _PAIRS):
            pairs = order_M[first:last][part]
            places_M1 = ids_M[pairs, None] - labels.start
            scores_M[pairs] = _products(queries_BD[pairs // ids_BK.shape[1]], block_UD, places_M1)[:, 0]
    return scores_M.reshape(ids_BK.shape)


def _products(queries_BD: F32, vectors_LD: F32, ids_BK: I32) -> F32:
    """Return the inner products of queries with vectors at ``ids_BK`` (B x K)."""
    ids, products_BK = np.ascontiguousarray(ids_BK, np.int64), np.empty(ids_BK.shape, np.float32)
    point, (rows, columns), width = _FAISS.swig_ptr, ids.shape, queries_BD.shape[1]
    _FAISS.fvec_inner_products_by_idx(
        point(products_BK), point(queries_BD), point(vectors_LD), point(ids), width, rows, columns
    )
    return products_BK
