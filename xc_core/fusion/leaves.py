"""The leaves that pairs reach in many small trees at once, by bit masks (QuickScorer, Lucchese et al., SIGIR 2015).

Each leaf is a bit; the lowest bit is the leftmost leaf. A failed test excludes the leaves on its left, and the leftmost
leaf that no failed test excludes is the one that a walk from the root reaches, NaN included. Which tests on a feature
fail depends only on where the pair's value lies among their thresholds, so the masks are computed once per position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xc_core.fusion.tree import RegressionTree
from xc_core.shapes import F32, F64, I64, Array

MAX_LEAVES: Final = 64
"""Maximum number of leaves of a tree: the bits of a machine word."""


@dataclass(frozen=True)
class LeafMasks:
    """The masks of T trees with at most V leaves each."""

    tests: dict[int, tuple[F64, Array]]
    """By feature: its R thresholds in ascending order, and the leaves that remain if the first r fail ((R + 1) x T)."""
    value_TV: F64
    """The values of each tree's leaves from left to right, padded with 0."""

    @classmethod
    def of(cls, trees: Sequence[RegressionTree]) -> LeafMasks:
        """Compute the masks; raise ValueError for a tree of more than ``MAX_LEAVES`` leaves."""
        width = max((tree.leaves for tree in trees), default=1)
        if width > MAX_LEAVES:
            raise ValueError(f"a tree of {width} leaves, at most {MAX_LEAVES} expected")
        value_TV = np.zeros((len(trees), width))
        tests_by_feature: dict[int, list[tuple[float, int, int]]] = {}
        for number, tree in enumerate(trees):
            first, count = _leaves_below(tree)
            leaves = tree.feature < 0
            value_TV[number, first[leaves]] = tree.value[leaves]
            for node in np.flatnonzero(~leaves):
                size = int(count[tree.left[node]])
                on_left = ((1 << size) - 1) << int(first[node])
                test = (float(tree.threshold[node]), number, on_left)
                tests_by_feature.setdefault(int(tree.feature[node]), []).append(test)
        word = _word(width)
        by_feature = sorted(tests_by_feature.items())
        return cls({feature: _masks(tests, len(trees), word) for feature, tests in by_feature}, value_TV)

    def values(self, features_PF: F32) -> F64:
        """Return the value of the leaf that each pair reaches in each tree (P x T)."""
        trees, width = self.value_TV.shape
        remaining_PT = np.full((len(features_PF), trees), np.iinfo(_word(width)).max, _word(width))
        for feature, (thresholds, masks) in self.tests.items():
            remaining_PT &= masks[np.searchsorted(thresholds, features_PF[:, feature].astype(np.float64))]
        one = remaining_PT.dtype.type(1)
        lower_PT = ~remaining_PT & (remaining_PT - one)  # one bit for each leaf on the left of the lowest bit
        position_PT = np.bitwise_count(lower_PT) + np.arange(0, trees * width, width)
        value_PT: F64 = np.take(self.value_TV, position_PT)
        return value_PT


def _word(leaves: int) -> np.dtype[Any]:
    """Return an unsigned integer type with a bit for each leaf."""
    return np.dtype(np.uint16 if leaves <= 16 else np.uint64)


def _leaves_below(tree: RegressionTree) -> tuple[I64, I64]:
    """Return the position of the leftmost leaf below each node, and the number of leaves below it.

    Children must come after their parents.
    """
    size = len(tree.feature)
    first, count = np.zeros(size, np.int64), np.ones(size, np.int64)
    inner_nodes = np.flatnonzero(tree.feature >= 0)
    for node in inner_nodes[::-1]:
        count[node] = count[tree.left[node]] + count[tree.right[node]]
    for node in inner_nodes:
        first[tree.left[node]] = first[node]
        first[tree.right[node]] = first[node] + count[tree.left[node]]
    return first, count


def _masks(tests: list[tuple[float, int, int]], trees: int, word: np.dtype[Any]) -> tuple[F64, Array]:
    """Return thresholds in ascending order, and the leaves that remain if the first r tests fail."""
    tests = sorted(tests)
    masks = np.full((len(tests) + 1, trees), np.iinfo(word).max, word)
    for position, (_, tree, on_left) in enumerate(tests):
        masks[position + 1] = masks[position]
        masks[position + 1, tree] &= ~word.type(on_left)
    return np.array([threshold for threshold, _, _ in tests]), masks
