"""Slow twin of metrics: the definitions of the Extreme Classification Repository, a plain loop per document and rank.

``ranked`` holds each document's labels, best first, without holes; ``truth`` its positives; ``weight`` the inverse
propensity of each label.
"""

from __future__ import annotations

import math

KS = (1, 3, 5)
RECALL_KS = (10, 100)


def inverse_propensity(frequency: list[int], documents: int, a: float, b: float) -> list[float]:
    """1 / p_l with p_l = 1 / (1 + C exp(-A ln(n_l + B))); C never below 0."""
    c = (math.log(documents) - 1) * (b + 1) ** a
    return [1 / (1 / (1 + max(c, 0.0) * math.exp(-a * math.log(n + b)))) for n in frequency]


def discount(rank: int) -> float:
    """1 / log2(rank + 1) for ranks from 1."""
    return 1 / math.log2(rank + 1)


def metrics(ranked: list[list[int]], truth: list[set[int]], weight: list[float]) -> dict[str, float]:
    """Every metric in percent; nan if its denominator is 0."""
    out = {}
    labelled = [i for i in range(len(truth)) if truth[i]]
    for k in KS:
        out[f"P_at_{k}"] = _mean([_hits(ranked[i], truth[i], k) / k for i in range(len(truth))])
        out[f"nDCG_at_{k}"] = _mean([_dcg(ranked[i], truth[i], k) / _best_dcg(truth[i], k) for i in labelled])
        won = [[weight[x] if x in y else 0.0 for x in r[:k]] for r, y in zip(ranked, truth, strict=True)]
        best = [sorted((weight[x] for x in y), reverse=True)[:k] for y in truth]
        out[f"PSP_at_{k}"] = _ratio(sum(map(sum, won)), sum(map(sum, best)))
        out[f"PSnDCG_at_{k}"] = _ratio(sum(map(_discounted, won)), sum(map(_discounted, best)))
    for k in RECALL_KS:
        out[f"R_at_{k}"] = _mean([_hits(ranked[i], truth[i], k) / len(truth[i]) for i in labelled])
    return out


def filtered(ranked: list[list[int]], filters: list[set[int]]) -> list[list[int]]:
    """Drop filtered labels from each document's list."""
    return [[x for x in row if x not in gone] for row, gone in zip(ranked, filters, strict=True)]


def by_frequency(ranked: list[list[int]], truth: list[set[int]], chosen: set[int]) -> dict[str, float]:
    """Figures of the labels ``chosen``: their points of P@5, and recall of their own positives."""
    pairs = sum(len(y & chosen) for y in truth)
    out: dict[str, float] = {"positives": pairs}
    own = [y & chosen for y in truth]
    points = sum(_hits(r, y, 5) for r, y in zip(ranked, own, strict=True))
    out["P_at_5_points"] = _ratio(points, 5 * len(truth))
    for k in (1, 5, 10):
        out[f"recall_at_{k}"] = _ratio(sum(_hits(r, y, k) for r, y in zip(ranked, own, strict=True)), pairs)
    return out


def _hits(row: list[int], positives: set[int], k: int) -> int:
    return sum(1 for x in row[:k] if x in positives)


def _dcg(row: list[int], positives: set[int], k: int) -> float:
    return sum(discount(rank) for rank, x in enumerate(row[:k], start=1) if x in positives)


def _best_dcg(positives: set[int], k: int) -> float:
    return sum(discount(rank) for rank in range(1, min(k, len(positives)) + 1))


def _discounted(gains: list[float]) -> float:
    return sum(gain * discount(rank) for rank, gain in enumerate(gains, start=1))


def _mean(values: list[float]) -> float:
    return 100 * sum(values) / len(values) if values else math.nan


def _ratio(top: float, bottom: float) -> float:
    return 100 * top / bottom if bottom else math.nan
