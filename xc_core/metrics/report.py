"""The report on a model's shortlists: metrics, bootstrap intervals, and contributions by label frequency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from xc_core.data.labels import LabelMatrix
from xc_core.metrics.bootstrap import columns, grouped, interval, percent, resamples
from xc_core.metrics.names import BINS, KS
from xc_core.metrics.ranking import PerDocument, hits, per_document
from xc_core.seeds import generator
from xc_core.shapes import F64, I32, I64, Bool, Shortlist

BOOTSTRAPS: Final = 1000
"""Bootstrap resamples per interval."""


def report(
    shortlist: Shortlist,
    truth: LabelMatrix,
    inverse_propensity_L: F64,
    frequency_L: I64,
    *,
    seed: int = 0,
    most: int | None = None,
) -> dict[str, Any]:
    """Return metrics in percent, 95 % bootstrap intervals, and contributions by frequency bin and decile.

    ``most``: the largest number of labels of a document, of any split, if it is known. Raises ValueError if shortlist
    and truth have different numbers of documents.
    """
    figures = per_document(shortlist, truth, inverse_propensity_L)
    hit_places = ranks_and_labels(shortlist, truth)
    edges = decile_edges(frequency_L, truth)
    return {
        "metrics": figures.total(),
        "intervals": possible(intervals(figures, seed=seed), most),
        "bins": {name: by_frequency(hit_places, truth, chosen_L) for name, chosen_L in in_bins(frequency_L)},
        "deciles": [
            {
                "from": int(low),
                "to": int(high),
                **by_frequency(hit_places, truth, (frequency_L >= low) & (frequency_L <= high)),
            }
            for low, high in edges
        ],
        "documents": len(truth),
        "positives": len(truth.indices),
    }


def in_bins(frequency_L: I64) -> Iterator[tuple[str, Bool]]:
    """Yield the name of each bin, and which labels are in it (L)."""
    for name, low, high in BINS:
        yield name, (frequency_L >= low) & (high is None or frequency_L <= high)


def intervals(figures: PerDocument, *, seed: int) -> dict[str, tuple[float, float]]:
    """Return the percentile bootstrap interval of each metric over documents; ratios of sums are resampled as such.

    Above ``GROUPS`` documents, random groups of documents are drawn. Resamples in which a metric is undefined are left
    out; the interval is (nan, nan) if none remains. A metric of fewer than ``FEW`` documents, or with the same figure
    for all documents, has another interval (``interval``).
    """
    names, random = list(figures.num), generator(seed, "bootstrap")
    all_columns = columns(figures, names)
    table = grouped(all_columns, random)
    drawn = percent(np.stack([weights @ table for weights in resamples(random, len(table), BOOTSTRAPS)]))
    ends = interval(drawn, [all_columns])
    return {name: (float(ends[0, i]), float(ends[1, i])) for i, name in enumerate(names)}


def possible(ends: dict[str, tuple[float, float]], most: int | None) -> dict[str, tuple[float, float]]:
    """Cut the intervals of P@k at m / k if no document has more than m = ``most`` labels, and m is smaller than k.

    Only ``of_few`` and ``of_same`` exceed it, which count documents with any figure.
    """
    limits = {f"P_at_{k}": 100 * most / k for k in KS if most is not None and most < k}
    return {name: (low, min(high, limits.get(name, high))) for name, (low, high) in ends.items()}


def ranks_and_labels(shortlist: Shortlist, truth: LabelMatrix) -> tuple[I64, I32]:
    """Return rank, from 0, and label of each hit among the first ten."""
    top = shortlist.top(10)
    docs, ranks = np.nonzero(hits(top, truth))
    return ranks, top.ids_NK[docs, ranks]


def by_frequency(found: tuple[I64, I32], truth: LabelMatrix, chosen_L: Bool) -> dict[str, float]:
    """Return the contribution of the labels ``chosen_L``: points of P@5, and recall of their positives at 1, 5 and 10.

    ``found`` is the result of ``places``.
    """
    ranks, labels = found
    chosen_ranks = ranks[chosen_L[labels]]
    positives = float(chosen_L[truth.indices].sum())
    points = 5 * len(truth)
    out = {"labels": float(np.sum(chosen_L)), "positives": positives}
    out["P_at_5_points"] = 100 * float((chosen_ranks < 5).sum()) / points if points else float("nan")
    for k in (1, 5, 10):
        out[f"recall_at_{k}"] = 100 * float((chosen_ranks < k).sum()) / positives if positives else float("nan")
    return out


def decile_edges(frequency_L: I64, truth: LabelMatrix) -> list[tuple[int, int]]:
    """Return up to ten inclusive ranges of label frequency, each with about a tenth of the true positives."""
    of_positive = np.sort(frequency_L[truth.indices])
    if not len(of_positive):
        return []
    cuts = of_positive[np.minimum((np.arange(1, 10) * len(of_positive)) // 10, len(of_positive) - 1)]
    uppers = np.unique(np.concatenate([cuts, [max(int(frequency_L.max()), int(of_positive[-1]))]]))
    lowers = np.concatenate([[0], uppers[:-1] + 1])
    return [(int(low), int(high)) for low, high in zip(lowers, uppers, strict=True)]
