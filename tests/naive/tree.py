"""Slow twin of the regression tree: exact greedy CART by recursion, in whole fractions, so that a tie is a tie."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

Rows = list[int]
Node = Fraction | tuple[int, float, "Node", "Node"]
"""A leaf's value, or (feature, threshold, left, right)."""


def fit(features: list[list[float]], targets: list[float], depth: int, min_leaf: int) -> Node:
    """Split where squared error falls most; ties to the first feature, then to the lowest threshold."""
    columns = [sorted(set(column)) for column in zip(*features, strict=True)]
    cuts = [[(a + b) / 2 for a, b in pairwise(values)] for values in columns]
    exact = [Fraction(t) for t in targets]
    return _grow(features, exact, cuts, list(range(len(targets))), depth, min_leaf)


def _grow(
    features: list[list[float]], targets: list[Fraction], cuts: list[list[float]], rows: Rows, depth: int, min_leaf: int
) -> Node:
    own = [targets[i] for i in rows]
    best: tuple[Fraction, int, float] | None = None
    for f, thresholds in enumerate(cuts if depth else []):
        for threshold in thresholds:
            left = [targets[i] for i in rows if features[i][f] <= threshold]
            right = [targets[i] for i in rows if features[i][f] > threshold]
            if min(len(left), len(right)) < max(min_leaf, 1):
                continue
            gain = _error(own) - _error(left) - _error(right)
            if gain > 0 and (best is None or gain > best[0]):
                best = gain, f, threshold
    if best is None:
        return sum(own, Fraction(0)) / len(own)
    _, f, threshold = best
    sides = ([i for i in rows if (features[i][f] <= threshold) == left] for left in (True, False))
    below = [_grow(features, targets, cuts, side, depth - 1, min_leaf) for side in sides]
    return f, threshold, below[0], below[1]


def _error(targets: list[Fraction]) -> Fraction:
    """Sum of squared deviations from the mean."""
    mean = sum(targets, Fraction(0)) / len(targets)
    return sum(((t - mean) ** 2 for t in targets), Fraction(0))


def predict(node: Node, row: list[float]) -> float:
    """Walk down from the root."""
    while isinstance(node, tuple):
        feature, threshold, left, right = node
        node = left if row[feature] <= threshold else right
    return float(node)
