"""All that is said of a model's shortlists: metrics, intervals, and the same by label frequency.

Takes: Shortlist, LabelMatrix, label frequencies.  Gives: plain dictionaries.
May import: seeds, shapes, data.labels, metrics.*. Never: files, plots.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.metrics.ranking import PerDocument, columns, hits, per_document, percent, resamples
from xc_core.seeds import generator
from xc_core.shapes import F64, I32, I64, Bool, Shortlist

BINS: Final = (("tail", 0, 3), ("torso", 4, 20), ("head", 21, None))
"""Labels by train frequency: tail has at most 3 documents, torso 4 to 20, head more."""
BOOTSTRAPS: Final = 1000
"""Resamples of the test documents behind an interval."""


def report(
    shortlist: Shortlist, truth: LabelMatrix, inverse_propensity_L: F64, frequency_L: I64, *, seed: int = 0
) -> dict[str, Any]:
    """Return metrics in percent, 95 % bootstrap intervals, and contributions by frequency bin and decile."""
    figures = per_document(shortlist, truth, inverse_propensity_L)
    found = places(shortlist, truth)
    edges = decile_edges(frequency_L, truth)
    return {
        "metrics": figures.total(),
        "intervals": intervals(figures, seed=seed),
        "bins": {
            name: by_frequency(found, truth, (frequency_L >= low) & (frequency_L <= (high or np.iinfo(np.int64).max)))
            for name, low, high in BINS
        },
        "deciles": [
            {
                "from": int(low),
                "to": int(high),
                **by_frequency(found, truth, (frequency_L >= low) & (frequency_L <= high)),
            }
            for low, high in edges
        ],
        "documents": len(truth),
        "positives": len(truth.indices),
    }


def intervals(figures: PerDocument, *, seed: int, level: float = 0.95) -> dict[str, tuple[float, float]]:
    """Return a percentile bootstrap interval of each metric over documents; ratios of sums are resampled as such.

    Resamples of which nothing can be said are left out; (nan, nan) where that is all of them.
    """
    names = list(figures.num)
    table = columns(figures, names)
    means = np.empty((BOOTSTRAPS, len(names)))
    for i, weights in enumerate(resamples(generator(seed, "bootstrap"), len(table), BOOTSTRAPS)):
        means[i] = percent(weights @ table)
    ends = np.full((2, len(names)), np.nan)
    known = np.isfinite(means).any(axis=0)
    ends[:, known] = np.nanquantile(means[:, known], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {name: (float(ends[0, i]), float(ends[1, i])) for i, name in enumerate(names)}


def places(shortlist: Shortlist, truth: LabelMatrix) -> tuple[I64, I32]:
    """Return (rank, label) of every hit among the first ten, ranks from 0: few next to the shortlist they are of."""
    top = shortlist.top(10)
    docs, ranks = np.nonzero(hits(top, truth))
    return ranks, top.ids_NK[docs, ranks]


def by_frequency(found: tuple[I64, I32], truth: LabelMatrix, chosen_L: Bool) -> dict[str, float]:
    """Return what the labels ``chosen_L`` give: share of P@5 points, and recall of their own positives at 1, 5, 10.

    ``found`` is what ``places`` returns.
    """
    ranks, labels = found
    own = ranks[chosen_L[labels]]
    positives = float(chosen_L[truth.indices].sum())
    points = 5 * len(truth)
    out = {"labels": float(np.sum(chosen_L)), "positives": positives}
    out["P_at_5_points"] = 100 * float((own < 5).sum()) / points if points else float("nan")
    for k in (1, 5, 10):
        out[f"recall_at_{k}"] = 100 * float((own < k).sum()) / positives if positives else float("nan")
    return out


def decile_edges(frequency_L: I64, truth: LabelMatrix) -> list[tuple[int, int]]:
    """Return up to ten inclusive ranges of train frequency that hold about a tenth of the true positives each."""
    of_positive = np.sort(frequency_L[truth.indices])
    if not len(of_positive):
        return []
    cuts = of_positive[np.minimum((np.arange(1, 10) * len(of_positive)) // 10, len(of_positive) - 1)]
    uppers = np.unique(np.concatenate([cuts, [max(int(frequency_L.max()), int(of_positive[-1]))]]))
    lowers = np.concatenate([[0], uppers[:-1] + 1])
    return [(int(low), int(high)) for low, high in zip(lowers, uppers, strict=True)]
