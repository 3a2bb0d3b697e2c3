"""The leaves that pairs reach in many small trees at once, by masks of bits instead of walks (Lucchese et al., 2015).

Takes: regression trees; features_PF.  Gives: the value of each pair's leaf in each tree.
May import: shapes, fusion.tree.       Never: an answer other than that of a walk from the root, NaN included.

A bit is a leaf, the lowest the leftmost. A test that fails takes away the leaves on its left; of what all failed tests
of a tree leave, the leftmost is the leaf that a walk reaches. Which tests fail is a matter of the pair's place among
the thresholds of each feature, so their masks are made beforehand, for every place (QuickScorer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xc_core.fusion.tree import RegressionTree
from xc_core.shapes import F32, F64, I64, Array

MOST: Final = 64
"""Leaves of a tree, at most: the bits of a machine word."""


@dataclass(frozen=True)
class LeafMasks:
    """For each feature that T trees read: its R thresholds, rising, and what is left at each of R + 1 places."""

    tests: dict[int, tuple[F64, Array]]
    """By feature: thresholds (R), masks ((R + 1) x T)."""
    value_TV: F64
    """The values of each tree's leaves from left to right; 0 where it has fewer."""

    @classmethod
    def of(cls, trees: Sequence[RegressionTree]) -> LeafMasks:
        """Make the masks; raise ValueError for a tree of more than ``MOST`` leaves."""
        most = max((tree.leaves for tree in trees), default=1)
        if most > MOST:
            raise ValueError(f"a tree of {most} leaves, at most {MOST} expected")
        value_TV = np.zeros((len(trees), most))
        found: dict[int, list[tuple[float, int, int]]] = {}
        for number, tree in enumerate(trees):
            first, count = _leaves_below(tree)
            leaves = tree.feature < 0
            value_TV[number, first[leaves]] = tree.value[leaves]
            for node in np.flatnonzero(~leaves):
                size = int(count[tree.left[node]])
                on_left = ((1 << size) - 1) << int(first[node])
                found.setdefault(int(tree.feature[node]), []).append((float(tree.threshold[node]), number, on_left))
        return cls({feature: _masks(own, len(trees), _word(most)) for feature, own in sorted(found.items())}, value_TV)

    def values(self, features_PF: F32) -> F64:
        """Return the value of the leaf that each pair reaches in each tree (P x T)."""
        trees, width = self.value_TV.shape
        left_PT = np.full((len(features_PF), trees), np.iinfo(_word(width)).max, _word(width))
        for feature, (thresholds, masks) in self.tests.items():
            left_PT &= masks[np.searchsorted(thresholds, features_PF[:, feature].astype(np.float64))]
        lower_PT = ~left_PT & (left_PT - left_PT.dtype.type(1))  # as many bits as there are leaves on its left
        at_PT = np.bitwise_count(lower_PT) + np.arange(0, trees * width, width)
        value_PT: F64 = np.take(self.value_TV, at_PT)
        return value_PT


def _word(leaves: int) -> np.dtype[Any]:
    """Return the unsigned whole numbers that have a bit for each of so many leaves."""
    return np.dtype(np.uint16 if leaves <= 16 else np.uint64)


def _leaves_below(tree: RegressionTree) -> tuple[I64, I64]:
    """Return the place of the leftmost leaf below every node and how many there are; children follow parents."""
    size = len(tree.feature)
    first, count = np.zeros(size, np.int64), np.ones(size, np.int64)
    inner = np.flatnonzero(tree.feature >= 0)
    for node in inner[::-1]:
        count[node] = count[tree.left[node]] + count[tree.right[node]]
    for node in inner:
        first[tree.left[node]] = first[node]
        first[tree.right[node]] = first[node] + count[tree.left[node]]
    return first, count


def _masks(tests: list[tuple[float, int, int]], trees: int, word: np.dtype[Any]) -> tuple[F64, Array]:
    """Return thresholds in rising order, and the leaves that are left where the first r of the tests fail."""
    tests = sorted(tests)
    masks = np.full((len(tests) + 1, trees), np.iinfo(word).max, word)
    for place, (_, tree, on_left) in enumerate(tests):
        masks[place + 1] = masks[place]
        masks[place + 1, tree] &= ~word.type(on_left)
    return np.array([threshold for threshold, _, _ in tests]), masks
