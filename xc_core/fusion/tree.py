"""A regression tree over a few features of millions of pairs, fitted level by level on histograms.

Takes: features_MF, targets_M.  Gives: RegressionTree.
May import: shapes.             Never: recursion; a sort per node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from xc_core.shapes import F32, F64, I64, Array

BINS: Final = 256
"""Values a feature is cut into, at its quantiles; 256 cost under 0.1 % of squared error against exact splits."""


@dataclass(frozen=True)
class RegressionTree:
    """A binary tree in arrays, root first. A pair goes left where feature <= threshold; leaves have feature -1."""

    feature: Array
    threshold: F64
    left: Array
    right: Array
    value: F64

    @classmethod
    def fit(cls, features_MF: F32, targets_M: F64, *, depth: int = 7, min_leaf: int = 1) -> RegressionTree:
        """Fit by greedy reduction of squared error, level by level (CART for regression).

        Candidate thresholds lie between neighbouring quantile bins of a feature; where a feature has at most 256
        distinct values, they are all the thresholds there are, and the tree is the exact greedy tree. Ties go to the
        first feature and the lowest threshold. Raises ValueError for no pairs or unequal lengths.
        """
        size, width = features_MF.shape
        if size == 0 or len(targets_M) != size:
            raise ValueError(f"{size} pairs with {len(targets_M)} targets")
        cuts = [_cuts(features_MF[:, f]) for f in range(width)]
        codes = np.stack([np.searchsorted(cuts[f], features_MF[:, f], side="left") for f in range(width)], axis=1)
        grown = _Growth(codes.astype(np.int64), targets_M.astype(np.float64), cuts, min_leaf)
        for _ in range(depth):
            if not grown.split_level():
                break
        return grown.tree()

    def predict(self, features_MF: F32) -> F64:
        """Return the value of each pair's leaf."""
        node = np.zeros(len(features_MF), np.int64)
        while True:
            feature = self.feature[node]
            inner = np.flatnonzero(feature >= 0)
            if not len(inner):
                return self.value[node]
            at = node[inner]
            goes_left = features_MF[inner, feature[inner]] <= self.threshold[at]
            node[inner] = np.where(goes_left, self.left[at], self.right[at])

    def to_dict(self) -> dict[str, list[Any]]:
        """Return plain lists."""
        names = ("feature", "threshold", "left", "right", "value")
        return {name: getattr(self, name).tolist() for name in names}

    @classmethod
    def from_dict(cls, lists: dict[str, list[Any]]) -> RegressionTree:
        """Build from plain lists."""
        whole = {name: np.array(lists[name], np.int64) for name in ("feature", "left", "right")}
        real = {name: np.array(lists[name], np.float64) for name in ("threshold", "value")}
        return cls(whole["feature"], real["threshold"], whole["left"], whole["right"], real["value"])


def _cuts(column_M: F32) -> F64:
    """Return rising thresholds: midway between neighbouring values, at most BINS - 1 of them, at quantiles."""
    values, counts = np.unique(column_M.astype(np.float64), return_counts=True)
    if len(values) > BINS:
        cumulative = np.cumsum(counts) / counts.sum()
        picks = np.unique(np.searchsorted(cumulative, np.arange(1, BINS) / BINS))
        picks = picks[picks < len(values) - 1]
    else:
        picks = np.arange(len(values) - 1)
    return np.asarray((values[picks] + values[picks + 1]) / 2)


class _Growth:
    """A tree in the making: every split of a level is found by one histogram over all pairs."""

    def __init__(self, codes_MF: I64, targets_M: F64, cuts: list[F64], min_leaf: int) -> None:
        self.codes_MF, self.targets_M, self.cuts, self.min_leaf = codes_MF, targets_M, cuts, min_leaf
        self.node_M = np.zeros(len(targets_M), np.int64)
        self.feature, self.threshold, self.left, self.right = [-1], [0.0], [-1], [-1]
        self.value = [float(targets_M.mean())]
        self.level = [0]

    def split_level(self) -> bool:
        """Split every node of the deepest level that gains from it; False where none does."""
        slot = np.full(len(self.feature), -1, np.int64)
        slot[self.level] = np.arange(len(self.level))
        live = np.flatnonzero(slot[self.node_M] >= 0)
        at = slot[self.node_M[live]]
        gains, codes, leaves = zip(*(self._best(f, live, at) for f in range(len(self.cuts))), strict=True)
        best = np.argmax(np.stack(gains), axis=0)
        below: list[int] = []
        moved = np.full((len(self.feature), 3), -1, np.int64)
        for j, node in enumerate(self.level):
            f = int(best[j])
            if gains[f][j] <= 1e-12:
                continue
            self.feature[node], self.threshold[node] = f, float(self.cuts[f][codes[f][j]])
            self.left[node], self.right[node] = len(self.feature), len(self.feature) + 1
            moved[node] = f, codes[f][j], len(self.feature)
            for value in leaves[f][j]:
                below.append(len(self.feature))
                for column, fill in ((self.feature, -1), (self.left, -1), (self.right, -1)):
                    column.append(fill)
                self.threshold.append(0.0)
                self.value.append(float(value))
        rows = live[moved[self.node_M[live], 0] >= 0]
        f, code, first = moved[self.node_M[rows]].T
        self.node_M[rows] = first + (self.codes_MF[rows, f] > code)
        self.level = below
        return bool(below)

    def _best(self, f: int, live: I64, at: I64) -> tuple[F64, I64, F64]:
        """Return, for each node of the level, the best gain of feature ``f``, its code and the two means below it."""
        nodes, bins = len(self.level), len(self.cuts[f]) + 1
        key = at * bins + self.codes_MF[live, f]
        count = np.bincount(key, minlength=nodes * bins).reshape(nodes, bins).astype(np.float64)
        total = np.bincount(key, self.targets_M[live], nodes * bins).reshape(nodes, bins)
        count_left, total_left = count.cumsum(1)[:, :-1], total.cumsum(1)[:, :-1]
        count_all, total_all = count.sum(1, keepdims=True), total.sum(1, keepdims=True)
        count_right, total_right = count_all - count_left, total_all - total_left
        allowed = (count_left >= max(self.min_leaf, 1)) & (count_right >= max(self.min_leaf, 1))
        if not allowed.shape[1]:
            return np.full(nodes, -np.inf), np.zeros(nodes, np.int64), np.zeros((nodes, 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = total_left**2 / count_left + total_right**2 / count_right - total_all**2 / count_all
        gain = np.where(allowed, gain, -np.inf)
        code = gain.argmax(1)
        own = np.arange(nodes)
        below = np.stack([total_left[own, code], total_right[own, code]], 1)
        sizes = np.stack([count_left[own, code], count_right[own, code]], 1)
        return gain[own, code], code, below / np.maximum(sizes, 1)

    def tree(self) -> RegressionTree:
        """Return what has grown."""
        return RegressionTree.from_dict(
            {
                "feature": self.feature,
                "threshold": self.threshold,
                "left": self.left,
                "right": self.right,
                "value": self.value,
            }
        )
