"""Features that compare the values of a document's candidates with each other.

The fit and the served model call the same function, so both see the same features.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from xc_core.shapes import F32, I32, Bool

_DOCS_AT_ONCE: Final = 256
"""Documents whose features are computed at a time: 256 x 500 candidates x 33 features x 4 bytes = 17 MB."""
_NEAR_TOP: Final = 5
"""Ranks below this count as near the top."""


def derived(values_NKF: F32, found_NK: Bool) -> F32:
    """Return the features of the M found candidates, document by document (M x 7F + 5).

    Per score: its value; its rank, the number of candidates with a higher value; the gap to the best value; the
    distance to the mean in standard deviations. The same for all candidates of a document: each score's best value,
    standard deviation and lead of the best over the second; the number of candidates; the number of different
    candidates that scores rank first. From the ranks by all scores: the mean of 1 / (1 + rank), and the numbers of
    scores that rank the candidate first and below 5.
    """
    starts = range(0, max(len(values_NKF), 1), _DOCS_AT_ONCE)
    blocks = [slice(start, start + _DOCS_AT_ONCE) for start in starts]
    return np.concatenate([_block_features(values_NKF[rows], found_NK[rows])[found_NK[rows]] for rows in blocks])


def _block_features(values_NKF: F32, found_NK: Bool) -> F32:
    """Return the features of all candidates (N x K x 7F + 5); those of holes have no meaning."""
    is_label_NK1 = found_NK[..., None]
    count_N11 = np.maximum(found_NK.sum(1), 1).astype(np.float32)[:, None, None]
    rank_NKF, best_NF, second_NF = _ranks(np.where(is_label_NK1, values_NKF, -np.inf))
    mean_NF = np.where(is_label_NK1, values_NKF, 0).sum(1, dtype=np.float64, keepdims=True) / count_N11
    deviation_NKF = values_NKF - mean_NF
    spread_NF = np.sqrt(np.where(is_label_NK1, deviation_NKF**2, 0).sum(1, keepdims=True) / count_N11)
    z_NKF = np.divide(deviation_NKF, spread_NF, out=np.zeros_like(deviation_NKF), where=spread_NF > 0)
    document = [best_NF, spread_NF, best_NF - second_NF, count_N11, _leaders(rank_NKF)]
    size = values_NKF.shape[:2]
    columns = [
        *(values_NKF, rank_NKF, values_NKF - best_NF, z_NKF),
        *(np.broadcast_to(values, (*size, values.shape[-1])) for values in document),
        (1 / (1 + rank_NKF.astype(np.float64))).mean(2, keepdims=True),
        *((rank_NKF < top).sum(2, keepdims=True) for top in (1, _NEAR_TOP)),
    ]
    return np.concatenate([np.asarray(values, np.float32) for values in columns], axis=2)


def _ranks(values_NKF: F32) -> tuple[I32, F32, F32]:
    """Return the number of candidates with a higher value (N x K x F), and the best and second value (N x 1 x F).

    Holes have the value -inf. A document without candidates has 0 as its best value, one with a single candidate has
    it as its second value.
    """
    order = np.argsort(-values_NKF, axis=1, kind="stable")
    sorted_NKF = np.take_along_axis(values_NKF, order, axis=1)
    place_NKF = np.zeros(values_NKF.shape, np.int32)
    place_NKF[:, 1:] = np.arange(1, values_NKF.shape[1])[:, None] * (sorted_NKF[:, 1:] < sorted_NKF[:, :-1])
    rank_NKF = np.empty_like(place_NKF)
    np.put_along_axis(rank_NKF, order, np.maximum.accumulate(place_NKF, axis=1), axis=1)
    best_NF, second_NF = sorted_NKF[:, :1], sorted_NKF[:, 1:2] if values_NKF.shape[1] > 1 else sorted_NKF[:, :1]
    best_NF = np.where(np.isfinite(best_NF), best_NF, 0)
    return rank_NKF, best_NF, np.where(np.isfinite(second_NF), second_NF, best_NF)


def _leaders(rank_NKF: I32) -> I32:
    """Return the number of candidates that at least one score ranks first (N x 1 x 1)."""
    return np.asarray((rank_NKF == 0).any(2).sum(1, dtype=np.int32)[:, None, None])
