"""P@k, nDCG@k, PSP@k, PSnDCG@k and R@k of a shortlist, as defined by the Extreme Classification Repository.

P@k divides by k even if a document has fewer than k positives. nDCG@k is normalised by the ideal ranking of
min(k, positives). PSP@k and PSnDCG@k are ratios of sums over the corpus, not means of ratios. Documents without
positives count as 0 in P@k and are left out of nDCG@k and R@k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.metrics.names import KS, RECALL, RECALL_KS
from xc_core.shapes import F64, I32, I64, Bool, Shortlist, spans

LEVEL: Final = 0.95
"""Share of intervals that are meant to have the true figure."""
GROUPS: Final = 8192
"""Groups of documents that a bootstrap draws from if there are more documents."""
FEW: Final = 50
"""Documents of a metric, that is with a denominator, of fewer than which its interval is not a bootstrap: resamples of
few documents that are all right, or nearly all, hardly differ."""
_RIGHT: Final = np.array([[1.0, 1, 0, 0], [1, 0, 1, 0]])
"""Which of the four documents that ``of_few`` adds are right, by model."""
_SAME: Final = 1e-9
"""Width of an interval, in percent, below which all resamples are the same but for rounding."""
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
        num, den = ({name: own[rows] for name, own in side.items()} for side in (self.num, self.den))
        return PerDocument(num, den)

    @classmethod
    def joined(cls, parts: Sequence[PerDocument]) -> PerDocument:
        """Return the figures of all documents of ``parts``, one part after the other."""
        num = {name: np.concatenate([part.num[name] for part in parts]) for name in parts[0].num}
        return cls(num, {name: np.concatenate([part.den[name] for part in parts]) for name in parts[0].den})


def columns(figures: PerDocument, names: list[str]) -> F64:
    """Return the numerators of M metrics, then their denominators, as columns (N x 2M), which can be summed."""
    return np.stack([figures.num[n] for n in names] + [figures.den[n] for n in names], axis=1).astype(np.float64)


def percent(sums: F64) -> F64:
    """Return 100 * numerator / denominator of summed ``columns`` (... x 2M) as (... x M); nan if a denominator is 0."""
    num, den = np.split(sums, 2, axis=-1)
    return np.asarray(100 * np.divide(num, den, out=np.full(num.shape, np.nan), where=den > 0))


def grouped(table_NM: F64, random: np.random.Generator) -> F64:
    """Return the columns summed over ``GROUPS`` random groups of documents; the table itself if it has fewer rows.

    A bootstrap that draws groups instead of documents has the same expected variance, and a cost that does not grow
    with N.
    """
    size = len(table_NM)
    if size <= GROUPS:
        return table_NM
    starts = np.arange(GROUPS) * size // GROUPS
    return np.asarray(np.add.reduceat(table_NM[random.permutation(size)], starts, axis=0))


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


def widened(ends: F64, tables: Sequence[F64]) -> F64:
    """Return the ends of bootstrap intervals (2 x M), or others for metrics of which a bootstrap says too little.

    Those are metrics of few documents (``of_few``), and metrics of which all resamples are the same (``of_same``).
    """
    few, few_M = of_few(tables)
    same_M = ~few_M & (ends[1] - ends[0] < _SAME)  # False for nan
    return np.where(few_M, few, np.where(same_M, of_same(tables), ends))


def of_same(tables: Sequence[F64]) -> F64:
    """Return the ends of an interval of M metrics (2 x M) if all n documents have the same figure.

    A share of at least q = (1 - LEVEL)^(1/n) of all documents has that figure: with a smaller share, n documents that
    have it are drawn with a probability below 1 - LEVEL. The others may have any figure. If all n are right, this is
    the rule of three of Hanley and Lippman-Hand (1983): at most about 3/n are wrong. ``tables`` are those of
    ``of_few``; n is the effective number of documents.
    """
    figure_M = percent(tables[0].sum(0)) - (percent(tables[1].sum(0)) if len(tables) > 1 else 0)
    same_M = (1 - LEVEL) ** (1 / np.maximum(_effective(tables[0]), 1))
    lowest = 0.0 if len(tables) == 1 else -100.0
    return figure_M * same_M + np.outer([lowest, 100.0], 1 - same_M)


def _effective(table_NM: F64) -> F64:
    """Return the effective number of documents of each metric: (sum d)^2 / sum d^2 of denominators d."""
    den_NM = np.split(table_NM, 2, axis=1)[1]
    return np.asarray(np.square(den_NM.sum(0)) / np.maximum(np.square(den_NM).sum(0), np.finfo(np.float64).tiny))


def of_few(tables: Sequence[F64]) -> tuple[F64, Bool]:
    """Return the ends of an interval of M metrics (2 x M), and which metrics have fewer than ``FEW`` documents (M).

    ``tables`` are ``columns`` of one model, or of two whose difference it is. Four documents of mean denominator are
    added, two of them right: for two models all four combinations. The interval is that of Student's t around the new
    figure, cut at the ends of the scale; its degrees of freedom are the effective number of documents less one. The
    documents added are those of Agresti and Coull (1998) for a share, and of Agresti and Min (2005), who add two, for a
    difference of paired shares. nan without a denominator, and for other metrics.
    """
    count_M = np.count_nonzero(np.split(tables[0], 2, axis=1)[1], axis=0)
    few_M, ends = count_M < FEW, np.full((2, len(count_M)), np.nan)
    if few_M.any():
        ends[:, few_M] = _of_few([table[:, np.tile(few_M, 2)] for table in tables], count_M[few_M])
    return ends, few_M


def _of_few(tables: Sequence[F64], count_M: I64) -> F64:
    """Return the ends for metrics of which ``count_M`` documents have a denominator."""
    from scipy.special import stdtrit  # takes 0.1 s

    known_M = (count_M > 0) & np.all([percent(table.sum(0)) >= 0 for table in tables], axis=0)
    centre_M, point_M, spread_NM = np.zeros(len(count_M)), np.zeros(len(count_M)), 0.0
    for sign, right, table in zip((1, -1), _RIGHT, tables, strict=False):
        num_NM, den_NM = np.split(table, 2, axis=1)
        mean_M = den_NM.sum(0) / np.maximum(count_M, 1)
        num_NM = np.concatenate([num_NM, right[:, None] * mean_M])
        den_NM = np.concatenate([den_NM, np.tile(mean_M, (4, 1))])
        total_M = np.where(known_M, den_NM.sum(0), 1.0)
        ratio_M = num_NM.sum(0) / total_M
        centre_M += sign * ratio_M
        point_M += sign * percent(table.sum(0)) / 100
        spread_NM = spread_NM + sign * (num_NM - ratio_M * den_NM) / total_M
    width_M = stdtrit(np.maximum(_effective(tables[0]) - 1, 1), (1 + LEVEL) / 2) * np.sqrt(np.square(spread_NM).sum(0))
    ends = np.stack([np.minimum(centre_M - width_M, point_M), np.maximum(centre_M + width_M, point_M)])
    return np.where(known_M, 100 * np.clip(ends, 0.0 if len(tables) == 1 else -1.0, 1.0), np.nan)


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
    return {name: PerDocument(_numerators(own, truth, weights_L, bins or {}), den) for name, own in shortlists.items()}


def _numerators(shortlist: Shortlist, truth: LabelMatrix, weights_L: F64, bins: Mapping[str, Bool]) -> dict[str, F64]:
    short = shortlist.top(min(shortlist.k, max(RECALL_KS)))
    docs, ranks = np.divmod(np.flatnonzero(hits(short, truth)), max(short.k, 1))
    reach_N = np.minimum(truth.counts_N, max(KS))
    won_NK, gains_NK = np.zeros((2, len(truth), max(KS)))
    top = docs[ranks < max(KS)], ranks[ranks < max(KS)]
    won_NK[top] = 1
    gains_NK[top] = weights_L[short.ids_NK[top]]
    won_KN, gains_KN = (_running_sums(values_NK) for values_NK in (won_NK, gains_NK))
    num: dict[str, F64] = {}
    for k in KS:
        discount = _DISCOUNTS[:k]
        best_N = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(reach_N, k)]
        num[f"P_at_{k}"] = won_KN[k - 1] / k
        num[f"nDCG_at_{k}"] = np.divide(won_NK[:, :k] @ discount, best_N, out=np.zeros(len(truth)), where=best_N > 0)
        num[f"PSP_at_{k}"] = gains_KN[k - 1]
        num[f"PSnDCG_at_{k}"] = gains_NK[:, :k] @ discount
    positives_N = truth.counts_N.astype(np.float64)
    for k in RECALL_KS:
        found_N = np.bincount(docs[ranks < k], minlength=len(truth))
        num[f"R_at_{k}"] = np.divide(found_N, positives_N, out=np.zeros(len(truth)), where=positives_N > 0)
    for name, chosen_L in bins.items():
        num[RECALL[name]] = np.bincount(top[0], chosen_L[short.ids_NK[top]], len(truth)).astype(np.float64)
    return num


def _denominators(truth: LabelMatrix, weights_L: F64, bins: Mapping[str, Bool]) -> dict[str, F64]:
    some_N = (truth.counts_N > 0).astype(np.float64)
    ideal_NK = _ideal_gains(truth, weights_L, max(KS))
    ideal_KN = _running_sums(ideal_NK)
    den: dict[str, F64] = {}
    for k in KS:
        den[f"P_at_{k}"] = np.ones(len(truth))
        den[f"nDCG_at_{k}"] = some_N
        den[f"PSP_at_{k}"] = ideal_KN[k - 1]
        den[f"PSnDCG_at_{k}"] = ideal_NK[:, :k] @ _DISCOUNTS[:k]
    den |= {f"R_at_{k}": some_N for k in RECALL_KS}
    if bins:
        owners, labels = truth.pairs()
        den |= {
            RECALL[n]: np.bincount(owners, own_L[labels], len(truth)).astype(np.float64) for n, own_L in bins.items()
        }
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
            found = truth.rows(rows[:many]).contains(np.arange(many)[:, None], shortlist.ids_NK[rows[:many]])
            hits_NK[rows[:many]] = found
        hits_NK[rows[many:]] = _compared(shortlist.ids_NK[rows[many:]], truth, rows[many:])
    return hits_NK


def _most_first(counts_B: I64) -> I64:
    """Return the documents with most positives first; those of more than ``MANY`` come in any order before the others.

    numpy sorts numbers of 8 bits by counting them.
    """
    return np.argsort((MANY - np.minimum(counts_B, MANY + 1)).astype(np.int8), kind="stable")


def _compared(ids_BK: I32, truth: LabelMatrix, rows_B: I64) -> Bool:
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
    others = np.flatnonzero(counts_N <= MANY)
    for block in spans(len(others), _INSERTED):
        rows = others[block][_most_first(counts_N[others[block]])]
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
