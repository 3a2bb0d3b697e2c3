"""P@k, nDCG@k, PSP@k, PSnDCG@k and R@k of a shortlist, as defined by the Extreme Classification Repository.

P@k divides by k even if a document has fewer than k positives. nDCG@k is normalised by the ideal ranking of
min(k, positives). PSP@k and PSnDCG@k are ratios of sums over the corpus, not means of ratios. Documents without
positives count as 0 in P@k and are left out of nDCG@k and R@k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.shapes import F32, F64, I64, Array, Bool, Shortlist

KS: Final = (1, 3, 5)
RECALL_KS: Final = (10, 100)


@dataclass(frozen=True)
class PerDocument:
    """Numerators and denominators of each metric for each of N documents; ``total`` aggregates any set of documents.

    ``num[name]`` and ``den[name]`` are float64 of length N; a metric is 100 * sum(num) / sum(den).
    """

    num: dict[str, F64]
    den: dict[str, F64]

    def total(self, rows: I64 | slice = slice(None)) -> dict[str, float]:
        """Return each metric, in percent, over ``rows``; nan if its denominator is 0."""
        out = {}
        for name, num in self.num.items():
            den = float(self.den[name][rows].sum())
            out[name] = 100 * float(num[rows].sum()) / den if den else float("nan")
        return out


def columns(figures: PerDocument, names: list[str]) -> F64:
    """Return the numerators of M metrics, then their denominators, as columns (N x 2M), which can be summed."""
    return np.stack([figures.num[n] for n in names] + [figures.den[n] for n in names], axis=1).astype(np.float64)


def percent(sums: F64) -> F64:
    """Return 100 * numerator / denominator of summed ``columns`` (M); nan if the denominator is 0."""
    num, den = np.split(sums, 2)
    return np.asarray(100 * np.divide(num, den, out=np.full(len(num), np.nan), where=den > 0))


def resamples(random: np.random.Generator, size: int, count: int) -> Iterator[F64]:
    """Yield ``count`` bootstrap resamples of ``size`` documents, each as the number of times a document is drawn."""
    for _ in range(count):
        yield np.bincount(random.integers(0, max(size, 1), size), minlength=size).astype(np.float64)


def quantiles(drawn_RM: F64, shares: tuple[float, float]) -> F64:
    """Return two quantiles of M metrics over R resamples (2 x M).

    Resamples in which a metric is nan are left out; its quantiles are nan if none remains.
    """
    ends = np.full((2, drawn_RM.shape[1]), np.nan)
    known = np.isfinite(drawn_RM).any(axis=0)
    ends[:, known] = np.nanquantile(drawn_RM[:, known], shares, axis=0)
    return ends


def packed(figures: dict[str, PerDocument], names: list[str]) -> dict[str, F32]:
    """Return the figures of several scores as flat arrays named ``score/side/metric``, for saving."""
    return {
        f"{score}/{side}/{name}": getattr(own, side)[name].astype(np.float32)
        for score, own in figures.items()
        for side in ("num", "den")
        for name in names
    }


def unpacked(arrays: Mapping[str, Array], score: str) -> PerDocument | None:
    """Return the figures of ``score`` from the arrays of ``packed``; None if there are none."""
    num, den = (
        {
            name.rpartition("/")[2]: arrays[name].astype(np.float64)
            for name in arrays
            if name.startswith(f"{score}/{side}/")
        }
        for side in ("num", "den")
    )
    return PerDocument(num, den) if num else None


def per_document(shortlist: Shortlist, truth: LabelMatrix, inverse_propensity_L: F64) -> PerDocument:
    """Return the figures of all metrics for each document of ``shortlist`` (N x K, best first).

    If a shortlist is shorter than k, the missing ranks count as misses. Raises ValueError if shortlist and truth have
    different numbers of documents.
    """
    hits_NK = hits(shortlist.top(min(shortlist.k, max(RECALL_KS))), truth)
    gains_NK = np.where(hits_NK[:, : max(KS)], inverse_propensity_L[shortlist.ids_NK[:, : max(KS)]], 0.0)
    ideal_NK = _ideal_gains(truth, inverse_propensity_L, max(KS))
    positives_N = truth.counts_N.astype(np.float64)
    some_N = (positives_N > 0).astype(np.float64)
    num: dict[str, F64] = {}
    den: dict[str, F64] = {}
    for k in KS:
        discount = 1 / np.log2(np.arange(2, k + 2))
        reach = np.minimum(positives_N, k).astype(np.int64)
        best = np.concatenate([[0.0], np.cumsum(discount)])[reach]
        num[f"P_at_{k}"] = _first(hits_NK, k).sum(1) / k
        den[f"P_at_{k}"] = np.ones(len(truth))
        num[f"nDCG_at_{k}"] = np.divide(_first(hits_NK, k) @ discount, best, out=np.zeros(len(truth)), where=best > 0)
        den[f"nDCG_at_{k}"] = some_N
        num[f"PSP_at_{k}"] = _first(gains_NK, k).sum(1)
        den[f"PSP_at_{k}"] = _first(ideal_NK, k).sum(1)
        num[f"PSnDCG_at_{k}"] = _first(gains_NK, k) @ discount
        den[f"PSnDCG_at_{k}"] = _first(ideal_NK, k) @ discount
    for k in RECALL_KS:
        found = hits_NK[:, :k].sum(1)
        num[f"R_at_{k}"] = np.divide(found, positives_N, out=np.zeros(len(truth)), where=positives_N > 0)
        den[f"R_at_{k}"] = some_N
    return PerDocument(num, den)


def hits(shortlist: Shortlist, truth: LabelMatrix) -> Bool:
    """Return True for each label that is positive (N x K).

    Raises ValueError if shortlist and truth have different numbers of documents.
    """
    if len(shortlist) != len(truth):
        raise ValueError(f"{len(shortlist)} shortlists for {len(truth)} documents")
    return truth.contains(np.arange(len(truth))[:, None], shortlist.ids_NK)


def _first(values_NK: F64 | Bool, k: int) -> F64:
    """Return the first k columns as float64, padded with zeros if there are fewer."""
    part = values_NK[:, :k].astype(np.float64)
    return np.pad(part, ((0, 0), (0, k - part.shape[1])))


def _ideal_gains(truth: LabelMatrix, inverse_propensity_L: F64, k: int) -> F64:
    """Return the k largest inverse propensities of each document's positives in descending order (N x k)."""
    docs, labels = truth.pairs()
    gains = inverse_propensity_L[labels]
    order = np.lexsort((-gains, docs))
    rank = np.arange(len(docs)) - truth.indptr[docs]
    keep = rank < k
    out = np.zeros((len(truth), k))
    out[docs[keep], rank[keep]] = gains[order][keep]
    return out


def without(shortlist: Shortlist, filters: LabelMatrix) -> Shortlist:
    """Return the shortlist without filtered pairs, gaps closed. The truth keeps them, as in NGAME."""
    drop_NK = hits(shortlist, filters)
    if not drop_NK.any():
        return shortlist
    order = np.argsort(drop_NK, axis=1, kind="stable")
    ids = np.where(drop_NK, -1, shortlist.ids_NK)
    scores = np.where(drop_NK, -np.inf, shortlist.scores_NK).astype(np.float32)
    return Shortlist(np.take_along_axis(ids, order, 1), np.take_along_axis(scores, order, 1))
