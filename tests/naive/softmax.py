"""Slow twin of the softmax losses: a loop over documents and positives in float64, with the gradient by hand."""

from __future__ import annotations

import math

Matrix = list[list[float]]
Mask = list[list[bool]]


def softmax(
    scores: Matrix, chosen: Mask, known: Mask, *, temperature: float, decoupled: bool
) -> tuple[float, int, Matrix]:
    """Return the loss, how many documents count, and the gradient for every score."""
    total, count = 0.0, 0
    gradient = [[0.0] * len(row) for row in scores]
    for i, row in enumerate(scores):
        positives = [u for u in range(len(row)) if chosen[i][u]]
        negatives = [u for u in range(len(row)) if not chosen[i][u] and not known[i][u]]
        if not positives or not negatives:
            continue
        count += 1
        for pos in positives:
            against = [*negatives, pos] if decoupled else [*negatives, *positives]
            parts = {u: math.exp(row[u] / temperature) for u in against}
            whole = sum(parts.values())
            total -= math.log(parts[pos] / whole) / len(positives)
            for u in against:
                gradient[i][u] += (parts[u] / whole - (u == pos)) / temperature / len(positives)
    return total, count, gradient
