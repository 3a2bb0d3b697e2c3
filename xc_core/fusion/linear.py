"""A linear model of the scores: one weight per score, fitted to the order of each document's candidates."""

from __future__ import annotations

from typing import Final

import numpy as np
import scipy  # its parts are imported when they are used

from xc_core.shapes import F32, F64, I64, Bool

HELD: Final = 6.5
"""Times the bytes of the candidates' values that a fit holds beside them (``tests/fusion/test_linear.py``)."""
_PENALTY: Final = 1e-3
"""Weight of the squared norm of the weights of standardised scores; it decides between scores that are the same."""


def fit_weights(values_NKF: F32, target_NK: F32, used_NK: Bool) -> F64:
    """Return the weight of each of F scores (F).

    They minimise the mean of log(1 + exp(m - s)) over positives, in proportion to their targets: s is the weighted sum
    of a positive's scores, m the log of the sum of exp of those of all negatives of its document. This is the decoupled
    softmax (DEXML; UniDEC, section 4.3) with the scores as features; in UniDEC each document counts the same, here each
    positive. A small penalty (``_PENALTY``) is added. The problem is convex. Documents without a positive or without a
    negative say nothing. A score that is the same for all used candidates has the weight 0. Used values must be finite.
    """
    values_MF = values_NKF[used_NK].astype(np.float64)
    spread_F = values_MF.std(axis=0)
    scale_F = np.divide(1.0, spread_F, out=np.zeros_like(spread_F), where=spread_F > 0)
    values_MF -= values_MF.mean(axis=0)
    values_MF *= scale_F
    doc_M, target_M = np.nonzero(used_NK)[0], target_NK[used_NK].astype(np.float64)
    kept_M = np.isin(doc_M, np.intersect1d(doc_M[target_M > 0], doc_M[target_M <= 0]))
    if not kept_M.any():
        return np.zeros(len(scale_F))
    doc_M[kept_M] = np.unique(doc_M[kept_M], return_inverse=True)[1]
    loss = _Loss(values_MF, target_M, doc_M, kept_M)
    del values_MF  # half of what is held while the weights are fitted
    result = scipy.optimize.minimize(loss, np.zeros(len(scale_F)), jac=True, method="L-BFGS-B")
    return np.asarray(result.x * scale_F, np.float64)


class _Loss:
    """The loss of the kept pairs and its gradient by the weights; pairs are in the order of their documents."""

    def __init__(self, values_MF: F64, target_M: F64, doc_M: I64, kept_M: Bool) -> None:
        positive_M, negative_M = kept_M & (target_M > 0), kept_M & (target_M <= 0)
        self._positive_PF, self._negative_MF = values_MF[positive_M], values_MF[negative_M]
        self._share_P = target_M[positive_M] / target_M[positive_M].sum()
        self._doc_P, self._doc_M = doc_M[positive_M], doc_M[negative_M]
        self._starts = np.searchsorted(self._doc_M, np.arange(self._doc_M[-1] + 1))

    def __call__(self, weights_F: F64) -> tuple[float, F64]:
        negative_M = self._negative_MF @ weights_F
        best_D = np.maximum.reduceat(negative_M, self._starts)
        raised_M = np.exp(negative_M - best_D[self._doc_M])
        total_D = np.add.reduceat(raised_M, self._starts)
        gap_P = (best_D + np.log(total_D))[self._doc_P] - self._positive_PF @ weights_F
        pull_P = self._share_P * scipy.special.expit(gap_P)
        pull_D = np.bincount(self._doc_P, weights=pull_P, minlength=len(total_D))
        push_M = raised_M * (pull_D / total_D)[self._doc_M]
        loss = self._share_P @ np.logaddexp(0, gap_P) + _PENALTY * weights_F @ weights_F
        gradient_F = self._negative_MF.T @ push_M - self._positive_PF.T @ pull_P + 2 * _PENALTY * weights_F
        return float(loss), gradient_F
