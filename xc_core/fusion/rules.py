"""The fusions: NGAME's regression tree and the plain sum; the settings that fusions with trees share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xc_core.errors import ConfigError
from xc_core.fusion.base import FUSIONS, FittedFusion, Fusion, chosen
from xc_core.fusion.inputs import Inputs, Pairs, Trees
from xc_core.fusion.tree import RegressionTree
from xc_core.params import MAX_DEPTH, at_least, within
from xc_core.shapes import F32, F64, I64, Bool


@FUSIONS.register("sum")
@dataclass(frozen=True, kw_only=True)
class Sum(Fusion):
    """The plain sum of scores."""

    learns = False

    def check(self, inputs: Inputs) -> None:
        """Raise ConfigError if ``add`` names an unknown score, or if there is nothing to add."""
        summed(self, inputs)

    def fit(self, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        """Return the sum; it needs no data."""
        return summed(self, inputs)


def summed(rule: Fusion, inputs: Inputs) -> FittedFusion:
    """Return the plain sum of the scores that ``rule`` adds; raise ConfigError if there are none."""
    add = rule.summed(inputs)
    if not add:
        raise ConfigError(
            "a fusion with nothing to add",
            expected="a score that ranks labels by itself",
            do="add one to the recipe's scores, or name one in fusion.rule.add",
        )
    return FittedFusion(Sum(add=add), inputs.names, add)


@dataclass(frozen=True, kw_only=True)
class WithTrees(Fusion):
    """Settings that the fusions with trees share."""

    features: tuple[str, ...] = ()
    """Scores that the trees read; if empty, all scores."""
    weight: float = 1.0
    """Weight of the sum of scores, to which the trees' value is added.

    With squared error and ``tail`` 0 that value is about the share of positives, 0 to 1; if not, its scale differs."""
    min_leaf: int = 20
    """Minimum number of pairs in a leaf."""
    tail: float = 0.0
    """Exponent of a positive's inverse propensity in its target; targets are scaled to sum to the number of positives.

    With 0 each positive counts 1, as in NGAME. Higher values rank rare labels higher and lower P@1."""

    def __post_init__(self) -> None:
        at_least(self, weight=0, min_leaf=1)
        within(self, tail=(0, 10))

    def target(self, positive_NK: Bool, weight_NK: F32) -> F32:
        """Return positive * weight^tail, scaled to sum to the number of positives; weights must be above 0."""
        weighted_NK = positive_NK * weight_NK**self.tail
        total = float(weighted_NK.sum())
        return np.asarray(weighted_NK * (positive_NK.sum() / total if total else 1.0), np.float32)

    def check(self, inputs: Inputs) -> None:
        """Raise ConfigError if the settings name a score that is not among the inputs, or if there are no inputs."""
        super().check(inputs)
        if not (chosen(self.features, inputs.names, "features") or inputs.names):
            raise ConfigError("a fusion without scores", expected="at least one score", do="add one to the recipe")

    def fit(self, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        """Fit the trees on all candidates, holes left out."""
        fitted = self.without_trees(inputs)
        features_MF = fitted.features_of(pairs.values_NKF, pairs.filled_NK)
        targets_M = pairs.target_NK[pairs.filled_NK].astype(np.float64)
        return replace(fitted, tree=self.grow(features_MF, targets_M, pairs.docs_M))

    def without_trees(self, inputs: Inputs) -> FittedFusion:
        """Return the fusion before its trees are fitted."""
        add = self.summed(inputs)
        return FittedFusion(self, inputs.names, add, (self.weight,) * len(add), self.features or inputs.names)

    def grow(self, features_MF: F32, targets_M: F64, docs_M: I64) -> Trees:
        """Return trees that are fitted to M pairs with features (M x F), targets and documents."""
        raise NotImplementedError


@FUSIONS.register("tree")
@dataclass(frozen=True, kw_only=True)
class Tree(WithTrees):
    """A regression tree plus the sum of scores (NGAME, appendix C, "Inference (Score Fusion)")."""

    depth: int = 7
    """Maximum depth of the tree."""

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, depth=(1, MAX_DEPTH))

    def grow(self, features_MF: F32, targets_M: F64, docs_M: I64) -> Trees:
        """Return one tree."""
        return RegressionTree.fit(features_MF, targets_M, depth=self.depth, min_leaf=self.min_leaf)

    def trees(self, content: dict[str, list[Any]]) -> Trees:
        """Return the tree from its plain lists."""
        return RegressionTree.from_dict(content)
