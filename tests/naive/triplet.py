"""Slow twin of the triplet loss: a loop over documents, positives and negatives, with the gradient worked out by hand.

``leaking_total`` is wrong on purpose: it multiplies logits by the mask instead of leaving inactive negatives out (the
public code's bug).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Result:
    """The loss, what it counts, and its gradient for every score."""

    total: float
    count: int
    gradient: list[list[float]]


def triplet(
    scores: list[list[float]],
    chosen: list[list[bool]],
    known: list[list[bool]],
    *,
    margin: float,
    positives: int,
    negatives: int,
    temperature: float,
) -> Result:
    """sum_i sum_l sum_k w_ilk [s_ik - s_il + margin]_+ with the weights held constant."""
    total, count = 0.0, 0
    gradient = [[0.0] * len(row) for row in scores]
    for i, row in enumerate(scores):
        columns = range(len(row))
        hardest = sorted((u for u in columns if chosen[i][u]), key=lambda u: row[u])[:positives]
        others = sorted((u for u in columns if not chosen[i][u] and not known[i][u]), key=lambda u: -row[u])[:negatives]
        if not others:
            continue
        for pos in hardest:
            count += 1
            active = [u for u in others if row[u] - row[pos] + margin > 0]
            for neg, weight in zip(active, weights(row, active, len(others), temperature), strict=True):
                total += weight * (row[neg] - row[pos] + margin)
                gradient[i][neg] += weight
                gradient[i][pos] -= weight
    return Result(total, count, gradient)


def weights(row: list[float], active: list[int], considered: int, temperature: float) -> list[float]:
    """Softmax of the active negatives' scores over the temperature; 1 / |N_i| each if the temperature is 0."""
    if temperature == 0:
        return [1 / considered] * len(active)
    powers = [math.exp((row[u] - max(row[v] for v in active)) / temperature) for u in active]
    return [power / sum(powers) for power in powers]


def leaking_total(row: list[float], positive: int, others: list[int], margin: float, temperature: float) -> float:
    """WRONG on purpose: inactive negatives keep a logit of 0, so they get a share of the weight."""
    gaps = [row[u] - row[positive] + margin for u in others]
    powers = [math.exp(row[u] * (gap > 0) / temperature) for u, gap in zip(others, gaps, strict=True)]
    return sum(power / sum(powers) * max(gap, 0.0) for power, gap in zip(powers, gaps, strict=True))
