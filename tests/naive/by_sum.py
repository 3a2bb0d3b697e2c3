"""The least fused score of labels without train documents, by definitions that loop over everything."""

from __future__ import annotations

from collections.abc import Sequence


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the rising values that are nearest by weighted squares, by the max-min formula."""

    def mean(first: int, last: int) -> float:
        span = range(first, last + 1)
        return sum(values[i] * weights[i] for i in span) / sum(weights[i] for i in span)

    places = range(len(values))
    return [max(min(mean(a, b) for b in places[i:]) for a in range(i + 1)) for i in places]


def knots(sums: Sequence[float], fused: Sequence[float]) -> list[tuple[float, float]]:
    """Return mean sum and mean fused score of each run of candidates that get the same isotonic value."""
    distinct = sorted(set(sums))
    groups = [[score for own, score in zip(sums, fused, strict=True) if own == value] for value in distinct]
    levels = isotonic([sum(group) / len(group) for group in groups], [len(group) for group in groups])
    runs: dict[float, list[tuple[float, float]]] = {}
    for value, group, level in zip(distinct, groups, levels, strict=True):
        runs.setdefault(round(level, 9), []).extend((value, score) for score in group)
    return [
        (sum(value for value, _ in run) / len(run), sum(score for _, score in run) / len(run)) for run in runs.values()
    ]


def least(found: Sequence[tuple[float, float]], value: float) -> float:
    """Return the line through the knots at ``value``; beyond them it goes on with the mean slope."""
    (first, low), (last, high) = found[0], found[-1]
    slope = (high - low) / (last - first)
    if value <= first:
        return low - slope * (first - value)
    if value >= last:
        return high + slope * (value - last)
    place = next(i for i in range(len(found)) if found[i + 1][0] >= value)
    (left, below), (right, above) = found[place], found[place + 1]
    return below + (above - below) * (value - left) / (right - left)
