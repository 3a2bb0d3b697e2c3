"""Slow twins of sampling: pools, hard negatives and their audit by sets, one document at a time."""

from __future__ import annotations

import math


def masks(labels: list[int], positives: list[set[int]]) -> list[list[bool]]:
    """True where a pooled label is among a document's positives."""
    return [[label in own for label in labels] for own in positives]


def hard_negatives(ranked: list[list[int]], truth: list[set[int]], k: int) -> list[list[int]]:
    """The first k labels of each list that are not positives."""
    return [[x for x in row if x not in own][:k] for row, own in zip(ranked, truth, strict=True)]


def audit(negatives: list[list[int]], docs: list[int], truth: list[set[int]], batches: list[list[int]]) -> float:
    """The share of hard negatives that some document of the same batch has as a positive."""
    held = wanted = 0
    for doc, row in zip(docs, negatives, strict=True):
        (batch,) = (rows for rows in batches if doc in rows)
        pool = set().union(*(truth[mate] for mate in batch))
        wanted += len(row)
        held += sum(label in pool for label in row)
    return held / wanted if wanted else math.nan
