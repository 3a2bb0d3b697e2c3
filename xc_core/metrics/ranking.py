"""P@k, nDCG@k, PSP@k, PSnDCG@k and R@k of a shortlist, as defined by the Extreme Classification Repository.

P@k divides by k even if a document has fewer than k positives. nDCG@k is normalised by the ideal ranking of
min(k, positives). PSP@k and PSnDCG@k are ratios of sums over the corpus, not means of ratios. Documents without
positives count as 0 in P@k and are left out of nDCG@k and R@k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.metrics.names import KS, RECALL, RECALL_KS
from xc_core.shapes import F64, I32, I64, Bool, Shortlist, spans

_DISCOUNTS: Final = 1 / np.log2(np.arange(2, max(KS) + 2))
"""Weights of the ranks in nDCG."""
MANY: Final = 48
"""Positives of a document from which a binary search per label is faster than a comparison per positive."""
_COMPARED: Final = 1 << 18
"""Labels that are compared at a time: with the results, 1.5 MB that stay in the cache."""
_INSERTED: Final = 1 << 13
"""Documents whose ideal gains are found at a time: 0.3 MB for five each."""


@dataclass(frozen=True)
class PerDocument:
    """Numerators and denominators of each metric for each of N documents; ``total`` aggregates any set of documents.

    ``num[name]`` and ``den[name]`` are float64 of length N; a metric is 100 * sum(num) / sum(den).
    """

    num: dict[str, F64]
    den: dict[str, F64]

    def __len__(self) -> int:
        return len(next(iter(self.num.values()), ()))

    def total(self, rows: I64 | slice = slice(None)) -> dict[str, float]:
        """Return each metric, in percent, over ``rows``; nan if its denominator is 0."""
        out = {}
        for name, num in self.num.items():
            den = float(self.den[name][rows].sum())
            out[name] = 100 * float(num[rows].sum()) / den if den else float("nan")
        return out

    def rows(self, rows: I64) -> PerDocument:
        """Return the figures of the documents ``rows``, in their order."""
        num, den = ({name: values[rows] for name, values in side.items()} for side in (self.num, self.den))
        return PerDocument(num, den)

    def only(self, names: Sequence[str]) -> PerDocument:
        """Return the figures of the metrics ``names``."""
        return PerDocument({name: self.num[name] for name in names}, {name: self.den[name] for name in names})

    @classmethod
    def mean(cls, several: Sequence[PerDocument]) -> PerDocument:
        """Return the mean of several figures of the same documents, which share their denominators."""
        num = {name: np.mean([figures.num[name] for figures in several], axis=0) for name in several[0].num}
        return cls(num, several[0].den)

    @classmethod
    def joined(cls, parts: Sequence[PerDocument]) -> PerDocument:
        """Return the figures of all documents of ``parts``, one part after the other."""
        num = {name: np.concatenate([part.num[name] for part in parts]) for name in parts[0].num}
        return cls(num, {name: np.concatenate([part.den[name] for part in parts]) for name in parts[0].den})


def per_document(
    shortlist: Shortlist, truth: LabelMatrix, inverse_propensity_L: F64, bins: Mapping[str, Bool] | None = None
) -> PerDocument:
    """Return the figures of all metrics for each document of ``shortlist`` (N x K, best first).

    With ``bins`` (``report.in_bins``) there is also the recall@5 of the labels of each bin (``names.RECALL``).
    If a shortlist is shorter than k, the missing ranks count as misses. No label may be twice in a row: it would count
    twice. ``Shortlist.of`` checks that of another program's labels. Raises ValueError if shortlist and truth have
    different numbers of documents.
    """
    return of_each({"": shortlist}, truth, inverse_propensity_L, bins)[""]


def of_each(
    shortlists: Mapping[str, Shortlist], truth: LabelMatrix, weights_L: F64, bins: Mapping[str, Bool] | None = None
) -> dict[str, PerDocument]:
    """Return ``per_document`` of each of several rankings of the same documents, which share their denominators."""
    den = _denominators(truth, weights_L, bins or {})
    numerators = {name: _numerators(short, truth, weights_L, bins or {}) for name, short in shortlists.items()}
    return {name: PerDocument(num, den) for name, num in numerators.items()}


def _numerators(shortlist: Shortlist, truth: LabelMatrix, weights_L: F64, bins: Mapping[str, Bool]) -> dict[str, F64]:
    short = shortlist.top(min(shortlist.k, max(RECALL_KS)))
    docs, ranks = np.divmod(np.flatnonzero(hits(short, truth)), max(short.k, 1))
    reach_N = np.minimum(truth.counts_N, max(KS))
    hit_NK, gains_NK = np.zeros((2, len(truth), max(KS)))
    top = docs[ranks < max(KS)], ranks[ranks < max(KS)]
    hit_NK[top] = 1
    gains_NK[top] = weights_L[short.ids_NK[top]]
    hit_KN, gains_KN = (_running_sums(values_NK) for values_NK in (hit_NK, gains_NK))
    num: dict[str, F64] = {}
    for k in KS:
        discount = _DISCOUNTS[:k]
        best_N = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(reach_N, k)]
        num[f"P_at_{k}"] = hit_KN[k - 1] / k
        num[f"nDCG_at_{k}"] = np.divide(hit_NK[:, :k] @ discount, best_N, out=np.zeros(len(truth)), where=best_N > 0)
        num[f"PSP_at_{k}"] = gains_KN[k - 1]
        num[f"PSnDCG_at_{k}"] = gains_NK[:, :k] @ discount
    positives_N = truth.counts_N.astype(np.float64)
    for k in RECALL_KS:
        recalled_N = np.bincount(docs[ranks < k], minlength=len(truth))
        num[f"R_at_{k}"] = np.divide(recalled_N, positives_N, out=np.zeros(len(truth)), where=positives_N > 0)
    for name, chosen_L in bins.items():
        num[RECALL[name]] = np.bincount(top[0], chosen_L[short.ids_NK[top]], len(truth)).astype(np.float64)
    return num


def _denominators(truth: LabelMatrix, weights_L: F64, bins: Mapping[str, Bool]) -> dict[str, F64]:
    has_positives_N = (truth.counts_N > 0).astype(np.float64)
    ideal_NK = _ideal_gains(truth, weights_L, max(KS))
    ideal_KN = _running_sums(ideal_NK)
    den: dict[str, F64] = {}
    for k in KS:
        den[f"P_at_{k}"] = np.ones(len(truth))
        den[f"nDCG_at_{k}"] = has_positives_N
        den[f"PSP_at_{k}"] = ideal_KN[k - 1]
        den[f"PSnDCG_at_{k}"] = ideal_NK[:, :k] @ _DISCOUNTS[:k]
    den |= {f"R_at_{k}": has_positives_N for k in RECALL_KS}
    if bins:
        owners, labels = truth.pairs()
        for name, in_bin_L in bins.items():
            den[RECALL[name]] = np.bincount(owners, in_bin_L[labels], len(truth)).astype(np.float64)
    return den


def hits(shortlist: Shortlist, truth: LabelMatrix) -> Bool:
    """Return True for each label that is positive (N x K).

    A shortlist is compared with one positive after the other: the first positives of a block of documents, then the
    second ones, and so on. Beyond ``MANY`` positives a binary search takes less time. Raises ValueError if shortlist
    and truth have different numbers of documents.
    """
    if len(shortlist) != len(truth):
        raise ValueError(f"{len(shortlist)} shortlists for {len(truth)} documents")
    hits_NK, counts_N = np.zeros(shortlist.ids_NK.shape, bool), truth.counts_N
    step = max(_COMPARED // max(shortlist.k, 1), 1)
    for start in range(0, len(truth), step):
        rows = np.arange(start, min(start + step, len(truth)))
        rows = rows[_most_first(counts_N[rows])]
        many = int((counts_N[rows] > MANY).sum())
        if many:
            positive_MK = truth.rows(rows[:many]).contains(np.arange(many)[:, None], shortlist.ids_NK[rows[:many]])
            hits_NK[rows[:many]] = positive_MK
        hits_NK[rows[many:]] = _hits_by_comparison(shortlist.ids_NK[rows[many:]], truth, rows[many:])
    return hits_NK


def _most_first(counts_B: I64) -> I64:
    """Return the documents with most positives first; those of more than ``MANY`` come in any order before the others.

    numpy sorts numbers of 8 bits by counting them.
    """
    return np.argsort((MANY - np.minimum(counts_B, MANY + 1)).astype(np.int8), kind="stable")


def _hits_by_comparison(ids_BK: I32, truth: LabelMatrix, rows_B: I64) -> Bool:
    """Return True for each label that is positive (B x K); the rows with most positives come first."""
    hits_BK, equal_BK = np.zeros(ids_BK.shape, bool), np.empty(ids_BK.shape, bool)
    first_B, counts_B = truth.indptr[rows_B], truth.indptr[rows_B + 1] - truth.indptr[rows_B]
    for place in range(int(counts_B.max(initial=0))):
        size = int(np.searchsorted(-counts_B, -place))
        positive_B1 = truth.indices[first_B[:size] + place, None]
        hits_BK[:size] |= np.equal(ids_BK[:size], positive_B1, out=equal_BK[:size])
    return hits_BK


def _running_sums(values_NK: F64) -> F64:
    """Return the sums of the first 1, 2, ... columns (K x N); ``np.cumsum`` takes longer."""
    sums_KN = np.array(values_NK.T, order="C")
    for before_N, sum_N in pairwise(sums_KN):
        sum_N += before_N
    return sums_KN


def _ideal_gains(truth: LabelMatrix, inverse_propensity_L: F64, k: int) -> F64:
    """Return the k largest inverse propensities of each document's positives in descending order (N x k).

    The first positives of a block of documents are inserted into the ordered ones that they have so far, then the
    second ones, and so on. Documents of more than ``MANY`` positives are sorted instead.
    """
    out_NK, counts_N = np.empty((len(truth), k)), truth.counts_N
    if (many := np.flatnonzero(counts_N > MANY)).size:
        out_NK[many] = _sorted_gains(truth.rows(many), inverse_propensity_L, k)
    few = np.flatnonzero(counts_N <= MANY)
    for block in spans(len(few), _INSERTED):
        rows = few[block][_most_first(counts_N[few[block]])]
        out_NK[rows] = _inserted_gains(truth, inverse_propensity_L, k, rows)
    return out_NK


def _inserted_gains(truth: LabelMatrix, inverse_propensity_L: F64, k: int, rows_B: I64) -> F64:
    """Return the ideal gains of documents (B x k); those with most positives come first."""
    first_B, counts_B = truth.indptr[rows_B], truth.indptr[rows_B + 1] - truth.indptr[rows_B]
    best_KB = np.full((k, len(rows_B)), -np.inf)
    for place in range(int(counts_B.max(initial=0))):
        size = int(np.searchsorted(-counts_B, -place))
        rest_B = inverse_propensity_L[truth.indices[first_B[:size] + place]]
        for best_B in best_KB[: place + 1, :size]:
            lower_B = np.minimum(best_B, rest_B)
            np.maximum(best_B, rest_B, out=best_B)
            rest_B = lower_B
    best_KB[np.arange(k)[:, None] >= counts_B] = 0
    return best_KB.T


def _sorted_gains(truth: LabelMatrix, inverse_propensity_L: F64, k: int) -> F64:
    """Return the ideal gains of all documents (N x k).

    The positives are sorted as numbers that hold the document and the place of the label by inverse propensity.
    """
    by_gain_L = np.argsort(-inverse_propensity_L)
    place_L = np.empty(len(by_gain_L), np.int64)
    place_L[by_gain_L] = np.arange(len(by_gain_L))
    docs, labels = truth.pairs()
    first = docs * np.int64(truth.num_labels)
    places = np.sort(first + place_L[labels]) - first
    rank = truth.places()
    keep = rank < k
    out = np.zeros((len(truth), k))
    out[docs[keep], rank[keep]] = inverse_propensity_L[by_gain_L[places[keep]]]
    return out


def without(shortlist: Shortlist, filters: LabelMatrix) -> Shortlist:
    """Return the shortlist without filtered pairs, gaps closed. The truth keeps them, as in NGAME."""
    drop_NK = hits(shortlist, filters)
    return shortlist.without(drop_NK) if drop_NK.any() else shortlist
