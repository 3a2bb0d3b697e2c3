"""Slow twins of the losses on samples: loops over documents and labels in float64."""

from __future__ import annotations

import math

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
    """Is a label of the data or of the noise? Posterior odds p_model / (k p_n)."""
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
    scores: Matrix, chosen: Mask, weight: Matrix, normalisers: list[float], *, temperature: float
) -> float:
    """Ruiz et al.: the softmax bound at given normalisers; a chosen label is in its own sum once."""
    total = 0.0
    for i, row in enumerate(scores):
        sums = [1.0 if c else w for c, w in zip(chosen[i], weight[i], strict=True)]
        now = sum(w * math.exp(s / temperature) for s, w in zip(row, sums, strict=True))
        for p, positive in enumerate(row):
            if chosen[i][p]:
                total += -positive / temperature + math.log(normalisers[i]) + now / normalisers[i] - 1
    return total
