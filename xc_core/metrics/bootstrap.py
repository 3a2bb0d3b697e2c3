"""Intervals of metrics over documents: a bootstrap, and other intervals where resamples say too little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import F64, I64, Bool

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


def interval(drawn_RM: F64, tables: Sequence[F64]) -> F64:
    """Return the ends of the intervals of M metrics (2 x M): quantiles over R resamples.

    Resamples in which a metric is nan are left out; its ends are nan if none remains. Metrics of which a bootstrap says
    too little have other ends: those of few documents (``of_few``), and those of which all resamples are the same
    (``of_same``). ``tables`` are those of ``of_few``.
    """
    ends = np.full((2, drawn_RM.shape[1]), np.nan)
    known = np.isfinite(drawn_RM).any(axis=0)
    ends[:, known] = np.nanquantile(drawn_RM[:, known], ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0)
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
