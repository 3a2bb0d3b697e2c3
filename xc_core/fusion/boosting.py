"""The fusion ``boosted``: a sum of small regression trees, each fitted to the residual of the trees before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from xc_core.fusion.base import FUSIONS
from xc_core.fusion.inputs import Trees
from xc_core.fusion.leaves import MAX_LEAVES, LeafMasks
from xc_core.fusion.rules import WithTrees
from xc_core.fusion.tree import RegressionTree, SortedFeatures
from xc_core.params import MAX_DEPTH, MAX_ROUNDS, at_least, within
from xc_core.seeds import generator
from xc_core.shapes import F32, F64, I64, spans

_PAIRS_AT_ONCE: Final = 4096
"""Pairs whose leaves are looked up at a time: 4,096 pairs x 30 trees x 8 bytes = 1 MB stay in the CPU cache."""


@dataclass(frozen=True)
class BoostedTrees:
    """Regression trees whose values are added. Leaf values include the shrinkage."""

    trees: tuple[RegressionTree, ...]

    def predict(self, features_MF: F32) -> F64:
        """Return the sum over the trees of the value of each pair's leaf (M)."""
        if self._masks is None:
            return sum((tree.predict(features_MF) for tree in self.trees), np.zeros(len(features_MF)))
        out = np.empty(len(features_MF))
        for rows in spans(len(features_MF), _PAIRS_AT_ONCE):
            out[rows] = self._masks.values(features_MF[rows]).sum(axis=1)
        return out

    @cached_property
    def _masks(self) -> LeafMasks | None:
        """All trees as bit masks; None if a tree has too many leaves for them."""
        return LeafMasks.of(self.trees) if all(tree.leaves <= MAX_LEAVES for tree in self.trees) else None

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the trees as plain lists."""
        return {"trees": [tree.to_dict() for tree in self.trees]}

    @classmethod
    def from_dict(cls, lists: dict[str, list[Any]]) -> BoostedTrees:
        """Return the trees from the lists of ``to_dict``."""
        return cls(tuple(RegressionTree.from_dict(tree) for tree in lists["trees"]))


@FUSIONS.register("boosted")
@dataclass(frozen=True, kw_only=True)
class Boosted(WithTrees):
    """Boosted trees plus the sum of scores; more accurate than one tree if there are few validation documents.

    Least-squares boosting, each tree on a random sample of the documents (Friedman, 2001 and 2002): F_0 = 0, F_t =
    F_{t-1} + shrinkage * h_t, where the tree h_t is fitted to y - F_{t-1} on its own sample.
    """

    rounds: int = 30
    """Number of trees."""
    depth: int = 4
    """Maximum depth of a tree."""
    shrinkage: float = 0.15
    """Factor of each tree's values (the learning rate)."""
    share: float = 0.7
    """Share of the documents that each tree is fitted on."""
    most: int = 1000
    """Maximum number of documents that each tree is fitted on."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, most=1)
        within(self, rounds=(1, MAX_ROUNDS), depth=(1, MAX_DEPTH), shrinkage=(1e-6, 1), share=(1e-6, 1))

    def trees(self, content: dict[str, list[Any]]) -> Trees:
        """Return the trees from their plain lists."""
        return BoostedTrees.from_dict(content)

    def sample(self, documents: int) -> int:
        """Return the number of documents that each tree is fitted on."""
        return max(min(round(self.share * documents), self.most), 1)

    def grow(self, features_MF: F32, targets_M: F64, docs_M: I64) -> BoostedTrees:
        """Return the fitted trees; raise ValueError if there are no pairs."""
        if not len(features_MF):
            raise ValueError("no pairs to fit trees on")
        documents, doc_M = np.unique(docs_M, return_inverse=True)
        size = self.sample(len(documents))
        features = SortedFeatures.of(features_MF)
        trees: list[RegressionTree] = []
        residual_M = targets_M.astype(np.float64)
        for number in range(self.rounds):
            random = generator(self.seed, "boosting", number)
            in_sample = np.isin(np.arange(len(documents)), random.choice(len(documents), size, replace=False))
            in_sample_M = in_sample[doc_M]
            sample = features.only(in_sample_M)
            tree = RegressionTree.grow(sample, residual_M[in_sample_M], depth=self.depth, min_leaf=self.min_leaf)
            trees.append(replace(tree, value=self.shrinkage * tree.value))
            residual_M -= BoostedTrees((trees[-1],)).predict(features_MF)  # by masks, faster than a walk
        return BoostedTrees(tuple(trees))
