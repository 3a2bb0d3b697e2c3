"""The tree of balanced hierarchical 2-means, for every device: sizes of clusters, and the nodes of each level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from xc_core.errors import ConfigError
from xc_core.shapes import I64

SEEN: Final = 1 << 15
"""Points of a node, at most, that 2-means uses: many times the width of a vector, so the direction is accurate."""
ROUNDS: Final = 16
"""Rounds of 2-means, at most; on title embeddings small nodes need 3, those above 256 points 10 to 12."""


def cluster_sizes(num_points: int, target: int) -> I64:
    """Return the sizes of ceil(N / C) clusters; each is the mean size, rounded down or up."""
    count = -(-num_points // target)
    return np.full(count, num_points // count, np.int64) + (np.arange(count) < num_points % count)


def levels(sizes: I64) -> Iterator[tuple[I64, I64, I64]]:
    """Yield (begin, middle, end) of the nodes of each level, as positions in the order of the points.

    A node is split at ``middle`` into halves of as many clusters, or one cluster more on the right.
    """
    edges = np.concatenate([[0], np.cumsum(sizes)])
    first, last = np.array([0]), np.array([len(sizes)])
    while len(first):
        middle = first + (last - first) // 2
        yield edges[first], edges[middle], edges[last]
        first, last = np.stack([first, middle], 1).ravel(), np.stack([middle, last], 1).ravel()
        unfinished = last - first > 1
        first, last = first[unfinished], last[unfinished]


def not_finite() -> ConfigError:
    """Return the error of vectors with nan or infinity."""
    return ConfigError("vectors that are not finite", expected="finite numbers", do="check the training run")
