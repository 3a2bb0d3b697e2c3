"""Slow twins of the losses on samples: loops over documents and labels in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping

Matrix = list[list[float]]
Mask = list[list[bool]]


def _softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def bce(scores: Matrix, chosen: Mask, weight: Matrix, *, temperature: float, bias: float) -> float:
    """ASTRA, equation 2."""
    total = 0.0
    for i, row in enumerate(scores):
        for u, score in enumerate(row):
            z = score / temperature - bias
            total += _softplus(-z) if chosen[i][u] else 0.0
            total += weight[i][u] * _softplus(z)
    return total


def negative_sampling(
    scores: Matrix, chosen: Mask, weight: Matrix, noise: Matrix, *, temperature: float, regulariser: float
) -> float:
    """Bamler and Mandt, equation 6; equation 2 without a regulariser."""
    total = 0.0
    for i, row in enumerate(scores):
        for u, score in enumerate(row):
            z = score / temperature
            unbiased = (z + noise[i][u]) ** 2
            if chosen[i][u]:
                total += _softplus(-z) + regulariser * unbiased
            total += weight[i][u] * (_softplus(z) + regulariser * unbiased)
    return total


def nce(scores: Matrix, chosen: Mask, weight: Matrix, noise: Matrix, *, temperature: float, bias: float) -> float:
    """Binary classification of data against noise, with the posterior odds p_model / (k p_n)."""
    total = 0.0
    for i, row in enumerate(scores):
        k = sum(weight[i]) / sum(chosen[i])
        for u, score in enumerate(row):
            odds = math.exp(score / temperature - bias) / (k * math.exp(noise[i][u]))
            if chosen[i][u]:
                total -= math.log(odds / (1 + odds))
            total -= weight[i][u] * math.log(1 / (1 + odds))
    return total


def one_vs_each(scores: Matrix, chosen: Mask, weight: Matrix, *, temperature: float) -> float:
    """Titsias: pairwise comparisons of a positive with each drawn label, averaged over the draws."""
    total = 0.0
    for i, row in enumerate(scores):
        for p, positive in enumerate(row):
            if chosen[i][p]:
                pairs = [w * _softplus((s - positive) / temperature) for s, w in zip(row, weight[i], strict=True)]
                total += sum(pairs) / sum(weight[i])
    return total


def augment_reduce(
    scores: Matrix, chosen: Mask, weight: Matrix, etas: Mapping[tuple[int, int], float], *, temperature: float
) -> float:
    """Ruiz et al.: for each pair the bound of log(1 + sum of exp(z_k - z_l)) at a given eta; other positives count."""
    total = 0.0
    for i, row in enumerate(scores):
        for p, positive in enumerate(row):
            if chosen[i][p]:
                terms = (
                    (1.0 if chosen[i][k] else weight[i][k]) * math.exp((score - positive) / temperature)
                    for k, score in enumerate(row)
                    if k != p
                )
                eta = etas[i, p]
                total += math.log(1 + eta) + (sum(terms) - eta) / (1 + eta)
    return total
