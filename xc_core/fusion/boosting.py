"""Boosted regression trees: a sum of small trees, each fitted to what those before it left.

Takes: features_MF, targets_M, the document of each pair.  Gives: BoostedTrees.
May import: params, seeds, shapes, fusion.tree, .leaves.   Never: a pair of a document without its others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from xc_core.fusion.leaves import MOST, LeafMasks
from xc_core.fusion.tree import RegressionTree, SortedFeatures
from xc_core.params import at_least, below
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I64

_PAIRS_AT_ONCE: Final = 4096
"""Pairs whose leaves in all trees are found together: 4,096 x 30 values are a megabyte."""


@dataclass(frozen=True)
class BoostedTrees:
    """Regression trees whose values are added; the values are already shrunk."""

    trees: tuple[RegressionTree, ...]

    def predict(self, features_MF: F32) -> F64:
        """Return the sum of the values of each pair's leaves."""
        if self._masks is None:
            return sum((tree.predict(features_MF) for tree in self.trees), np.zeros(len(features_MF)))
        out = np.empty(len(features_MF))
        for start in range(0, len(features_MF), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            out[part] = self._masks.values(features_MF[part]).sum(axis=1)
        return out

    @cached_property
    def _masks(self) -> LeafMasks | None:
        """All trees as masks; None where one is too large for them."""
        return LeafMasks.of(self.trees) if all(tree.leaves <= MOST for tree in self.trees) else None

    def to_dict(self) -> dict[str, list[Any]]:
        """Return plain lists."""
        return {"trees": [tree.to_dict() for tree in self.trees]}

    @classmethod
    def from_dict(cls, lists: dict[str, list[Any]]) -> BoostedTrees:
        """Build from plain lists."""
        return cls(tuple(RegressionTree.from_dict(own) for own in lists["trees"]))


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """Least-squares boosting, each tree on a random share of the documents (Friedman, 2001 and 2002).

    F_0 = 0, F_t = F_{t-1} + shrinkage * h_t, where the tree h_t is fitted to y - F_{t-1} on documents of its own draw.
    """

    trees: int
    shrinkage: float
    depth: int
    min_leaf: int
    share: float = 0.7
    """Documents that a tree sees, of all."""
    most: int = 1000
    """Documents that a tree sees, at most."""
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(self, trees=1, shrinkage=1e-6, depth=1, min_leaf=1, most=1)
        below(self, shrinkage=1 + 1e-9, share=1 + 1e-9)

    def fit(self, features_MF: F32, targets_M: F64, docs_M: I64) -> BoostedTrees:
        """Fit to M pairs (features M x F) of the documents ``docs_M``; raise ValueError for no pairs."""
        if not len(features_MF):
            raise ValueError("no pairs to fit trees on")
        documents, doc_M = np.unique(docs_M, return_inverse=True)
        size = max(min(round(self.share * len(documents)), self.most), 1)
        features = SortedFeatures.of(features_MF)
        grown: list[RegressionTree] = []
        left_M = targets_M.astype(np.float64)
        for number in range(self.trees):
            random = generator(self.seed, "boosting", number)
            drawn = np.isin(np.arange(len(documents)), random.choice(len(documents), size, replace=False))
            seen_M = drawn[doc_M]
            own = features.only(seen_M)
            tree = RegressionTree.grow(own, left_M[seen_M], depth=self.depth, min_leaf=self.min_leaf)
            grown.append(replace(tree, value=self.shrinkage * tree.value))
            left_M -= grown[-1].predict(features_MF)
        return BoostedTrees(tuple(grown))
