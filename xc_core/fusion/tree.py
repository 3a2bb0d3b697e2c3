"""A regression tree over a few features of millions of pairs, fitted level by level without a sort per node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from xc_core.shapes import F32, F64, I64, Array, Bool

ROUNDING: Final = 1e-10
"""Share of the targets' total squared deviation: gains that differ by less are equal, and smaller gains are zero.

float64 sums over millions of pairs have smaller errors, so a tree does not depend on the order of its pairs."""


_BLOCK: Final = 1 << 14
"""Pairs that are predicted at a time, so that their features stay in the cache."""


@dataclass(frozen=True)
class RegressionTree:
    """A binary tree in arrays, root first. A pair goes left if feature <= threshold; leaves have feature -1."""

    feature: Array
    threshold: F64
    left: Array
    right: Array
    value: F64

    @classmethod
    def fit(cls, features_MF: F32, targets_M: F64, *, depth: int, min_leaf: int) -> RegressionTree:
        """Fit to M pairs by greedy reduction of squared error, level by level (CART for regression).

        Thresholds lie midway between neighbouring values of a feature. Ties go to the first feature and the lowest
        threshold; gains that differ only by rounding are ties. Raises ValueError for no pairs or unequal lengths.
        """
        return cls.grow(SortedFeatures.of(features_MF), targets_M, depth=depth, min_leaf=min_leaf)

    @classmethod
    def grow(cls, features: SortedFeatures, targets_M: F64, *, depth: int, min_leaf: int) -> RegressionTree:
        """Fit like ``fit``, on features that are already sorted."""
        size = features.value_FM.shape[1]
        if size == 0 or len(targets_M) != size:
            raise ValueError(f"{size} pairs with {len(targets_M)} targets")
        growth = _Growth(features, targets_M.astype(np.float64), min_leaf)
        for _ in range(depth):
            if not growth.split_level():
                break
        return growth.tree()

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return int((self.feature < 0).sum())

    def predict(self, features_MF: F32) -> F64:
        """Return the value of the leaf that each pair reaches (M)."""
        feature, child, depth = self._steps
        value_M = np.empty(len(features_MF))
        for start in range(0, len(value_M), _BLOCK):
            block_BF = np.ascontiguousarray(features_MF[start : start + _BLOCK])
            first_B = np.arange(len(block_BF)) * block_BF.shape[1]
            node_B = np.zeros(len(block_BF), np.int64)
            for _ in range(depth):
                goes_left = block_BF.ravel()[first_B + feature[node_B]] <= self.threshold[node_B]
                node_B = child[2 * node_B + goes_left]
            value_M[start : start + _BLOCK] = self.value[node_B]
        return value_M

    @cached_property
    def _steps(self) -> tuple[I64, I64, int]:
        """The feature that each node tests, its children (right, left), and the number of levels.

        A leaf tests the first feature and is its own child, so that all pairs take the same number of steps.
        """
        leaf, node = self.feature < 0, np.arange(len(self.feature))
        child = np.stack([np.where(leaf, node, self.right), np.where(leaf, node, self.left)], axis=1)
        depth, level = 0, node[:1]
        while len(split_nodes := level[~leaf[level]]):
            depth, level = depth + 1, child[split_nodes].ravel()
        return np.where(leaf, 0, self.feature), child.ravel(), depth

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the tree as plain lists."""
        names = ("feature", "threshold", "left", "right", "value")
        return {name: getattr(self, name).tolist() for name in names}

    @classmethod
    def from_dict(cls, lists: dict[str, list[Any]]) -> RegressionTree:
        """Return the tree from the lists of ``to_dict``."""
        integers = {name: np.array(lists[name], np.int64) for name in ("feature", "left", "right")}
        floats = {name: np.array(lists[name], np.float64) for name in ("threshold", "value")}
        return cls(integers["feature"], floats["threshold"], integers["left"], integers["right"], floats["value"])


@dataclass(frozen=True)
class SortedFeatures:
    """Features by column, and the pairs in ascending order of each; sorted once for many trees on subsets."""

    value_FM: F64
    pair_FS: I64
    """Pairs by value; equal values by pair."""

    @classmethod
    def of(cls, features_MF: F32) -> SortedFeatures:
        """Sort M pairs by each of F features."""
        value_FM = np.ascontiguousarray(features_MF.T, np.float64)
        return cls(value_FM, np.argsort(value_FM, axis=1, kind="stable"))

    def only(self, kept_M: Bool) -> SortedFeatures:
        """Return the features of the pairs that ``kept_M`` marks, without sorting again."""
        place_M = np.cumsum(kept_M) - 1
        pairs = [place_M[pair_S[kept_M[pair_S]]] for pair_S in self.pair_FS]
        return SortedFeatures(self.value_FM[:, kept_M], np.stack(pairs))


@dataclass(frozen=True)
class _Column:
    """A feature: its distinct values, each pair's value, and pairs, ranks and targets in ascending order of value.

    Ranks and targets are stored in that order because gathering them at each level would take most of the time.
    """

    values: F64
    value_M: F64
    pair_S: I64
    rank_S: I64
    target_S: F64

    @classmethod
    def of(cls, value_M: F64, pair_S: I64, target_M: F64) -> _Column:
        value_S = value_M[pair_S]
        is_new_S = np.append(False, value_S[1:] != value_S[:-1])
        values = np.append(value_S[:1], value_S[is_new_S])
        return cls(values, value_M, pair_S, np.cumsum(is_new_S), target_M[pair_S])

    def threshold(self, rank: int) -> float:
        """Return the midpoint between the value of ``rank`` and the next one."""
        return float((self.values[rank] + self.values[rank + 1]) / 2)


@dataclass(frozen=True)
class _Splits:
    """The best split of each of J nodes by one feature: gain, last rank on the left, and the two means (J x 2)."""

    gain_J: F64
    rank_J: I64
    means_J2: F64


class _Growth:
    """A tree during its fit. The splits of a level are found in one pass over all pairs in (node, value) order."""

    def __init__(self, features: SortedFeatures, targets_M: F64, min_leaf: int) -> None:
        self.mean, self.min_leaf = float(targets_M.mean()), max(min_leaf, 1)
        centred_M = targets_M - self.mean
        self.rounding = ROUNDING * float(centred_M @ centred_M)
        columns = zip(features.value_FM, features.pair_FS, strict=True)
        self.columns = [_Column.of(value_M, pair_S, centred_M) for value_M, pair_S in columns]
        self.node_M = np.zeros(len(targets_M), np.int64)
        self.feature, self.threshold, self.left, self.right = [-1], [0.0], [-1], [-1]
        self.value = [self.mean]
        self.level = [0]

    def split_level(self) -> bool:
        """Split each node of the deepest level for which a split has a gain; return False if there is none."""
        none = len(self.level)
        small = np.min_scalar_type(none)  # numpy sorts integers of 8 and 16 bits in linear time
        slot = np.full(len(self.feature), none, small)
        slot[self.level] = np.arange(none)
        slot_M = slot[self.node_M]
        splits = [self._best_splits(column, slot_M) for column in self.columns]
        gains_FJ = np.stack([split.gain_J for split in splits])
        best = np.argmax(gains_FJ >= gains_FJ.max(axis=0) - self.rounding, axis=0)
        children: list[int] = []
        for j, node in enumerate(self.level):
            f = int(best[j])
            if gains_FJ[f, j] > self.rounding:
                children += self._branch(node, f, int(splits[f].rank_J[j]), splits[f].means_J2[j])
        self._descend(np.flatnonzero(slot_M < none))
        self.level = children
        return bool(children)

    def _branch(self, node: int, feature: int, rank: int, means_2: F64) -> list[int]:
        """Turn a leaf into an inner node; return its two new leaves."""
        first = len(self.feature)
        self.feature[node], self.threshold[node] = feature, self.columns[feature].threshold(rank)
        self.left[node], self.right[node] = first, first + 1
        self.feature += [-1, -1]
        self.threshold += [0.0, 0.0]
        self.left += [-1, -1]
        self.right += [-1, -1]
        self.value += [float(mean) + self.mean for mean in means_2]
        return [first, first + 1]

    def _descend(self, rows: I64) -> None:
        """Move the pairs ``rows`` from split nodes into the new leaves."""
        feature, node = np.array(self.feature), self.node_M[rows]
        for f, column in enumerate(self.columns):
            moved = rows[feature[node] == f]
            split_node = self.node_M[moved]
            goes_left = column.value_M[moved] <= np.array(self.threshold)[split_node]
            self.node_M[moved] = np.where(goes_left, np.array(self.left)[split_node], np.array(self.right)[split_node])

    def _best_splits(self, column: _Column, slot_M: Array) -> _Splits:
        """Return the best split of each node.

        ``slot_M`` is each pair's node as a position in the level, or the number of nodes for a pair in none of them.
        """
        slot_S = slot_M[column.pair_S]
        order = np.argsort(slot_S, kind="stable")[: np.count_nonzero(slot_S < len(self.level))]
        slot, rank = slot_S[order], column.rank_S[order]
        last = np.flatnonzero(np.append((slot[1:] != slot[:-1]) | (rank[1:] != rank[:-1]), True))
        slot, rank, count = slot[last], rank[last], last + 1.0
        total = np.cumsum(column.target_S[order])[last]
        end = np.flatnonzero(np.append(slot[1:] != slot[:-1], True))
        start = np.concatenate([[0], end[:-1] + 1])
        count_all, total_all = (np.diff(running[end], prepend=0.0) for running in (count, total))
        count_left = count - (count[end] - count_all)[slot]
        total_left = total - (total[end] - total_all)[slot]
        count_right, total_right = count_all[slot] - count_left, total_all[slot] - total_left
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = total_left**2 / count_left + total_right**2 / count_right - (total_all**2 / count_all)[slot]
        gain[(count_left < self.min_leaf) | (count_right < self.min_leaf)] = -np.inf
        tied = np.flatnonzero(gain >= np.maximum.reduceat(gain, start)[slot] - self.rounding)
        best = tied[np.unique(slot[tied], return_index=True)[1]]
        totals = np.stack([total_left[best], total_right[best]], axis=1)
        counts = np.stack([count_left[best], count_right[best]], axis=1)
        return _Splits(gain[best], rank[best], totals / np.maximum(counts, 1))

    def tree(self) -> RegressionTree:
        """Return the fitted tree."""
        names = ("feature", "threshold", "left", "right", "value")
        return RegressionTree.from_dict({name: getattr(self, name) for name in names})
