"""The fusion ``lightgbm``: trees that LightGBM fits, stored in the project's own arrays.

LightGBM is needed for fitting only. A saved fusion is read and evaluated without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np

from xc_core.errors import ConfigError, MissingError
from xc_core.fusion.base import FUSIONS, FittedFusion
from xc_core.fusion.boosting import BoostedTrees
from xc_core.fusion.inputs import Inputs, Pairs, Trees
from xc_core.fusion.leaves import MAX_LEAVES
from xc_core.fusion.linear import HELD, fit_weights
from xc_core.fusion.rules import WithTrees
from xc_core.fusion.tree import RegressionTree
from xc_core.params import MAX_ROUNDS, at_least, later, within
from xc_core.shapes import F32, F64, I64, Bool

_MOST_GAINS: Final = 30
"""LightGBM's relevance levels are 0 to 30."""
_MOST_CANDIDATES: Final = 10_000
"""LightGBM ranks at most as many candidates of a document."""


class Objective(StrEnum):
    """What the trees minimise."""

    LAMBDARANK = "lambdarank"
    """Wrong orders of two candidates of a document, weighted by what they cost in nDCG (Burges, 2010)."""
    BINARY = "binary"
    """Log loss of each pair."""
    REGRESSION = "regression"
    """Squared error of each pair."""


@FUSIONS.register("lightgbm")
@dataclass(frozen=True, kw_only=True)
class LightGBM(WithTrees):
    """Boosted trees by LightGBM (Ke et al., NeurIPS 2017), fitted on the candidates that scores proposed.

    A positive that no score proposed is left out: it has no rank among the candidates, and the served model never sees
    one. With ``tail`` the gain, weight or target of a positive is its inverse propensity to that power.
    """

    weight: float = 0.0
    objective: Objective = Objective.LAMBDARANK
    linear: bool = later(False, was=False)
    """Start from a linear model of the scores (``xc_core/fusion/linear.py``), which the trees then correct.

    It reads the scores that the trees read; ``add`` then only names those that the fusion is compared with."""
    log_probabilities: bool = later(False, was=False)
    """The linear model reads the logarithm of a score that is a probability; of this project's, ``lexical`` and
    ``characters`` are. Without ``linear`` it changes nothing, because the order of values is all that trees see."""
    derived: bool = False
    """Also read ranks, gaps and statistics of the document (``xc_core/fusion/derived.py``)."""
    rounds: int = 50
    """Number of trees."""
    leaves: int = 7
    """Maximum number of leaves of a tree."""
    shrinkage: float = 0.1
    """Factor of each tree's values (the learning rate)."""
    penalty: float = later(0.0, was=0.0)
    """Weight of the squared values of leaves (lambda_l2)."""
    truncation: int = 10
    """Number of top candidates whose orders count (lambdarank)."""
    seed: int = 0
    """Root seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, penalty=0, truncation=1)
        within(self, rounds=(1, MAX_ROUNDS), leaves=(2, MAX_LEAVES), shrinkage=(1e-6, 1))
        if self.linear and (self.weight or self.objective is not Objective.LAMBDARANK):
            raise ConfigError(
                f"linear=true with weight={self.weight:g} and objective={self.objective}",
                expected=f"weight=0 and objective={Objective.LAMBDARANK}: the linear model ranks, in place of the sum",
                do="change the other setting, or set linear=false",
            )

    def any_level(self) -> bool:
        """Return True for an objective of order."""
        return self.objective is Objective.LAMBDARANK

    def require(self) -> None:
        """Raise MissingError if LightGBM is not installed."""
        _lightgbm()

    def fit_bytes(self, values: float) -> float:
        """Return the bytes that the fit of the linear model holds, if there is one."""
        return HELD * values if self.linear else 0.0

    def fit(self, inputs: Inputs, pairs: Pairs) -> FittedFusion:
        """Fit the trees on the found candidates.

        Raises MissingError if LightGBM is not installed, ValueError if no candidate was found, ConfigError if a
        document has more candidates than LightGBM can rank or the linear model reads a value that is not finite.
        """
        used_NK = pairs.found_NK
        if not used_NK.any():
            raise ValueError("no found candidates to fit trees on")
        fitted, start_M = replace(self.without_trees(inputs), derived=self.derived), None
        if self.linear:
            reads = fitted.features
            logs = tuple(name for name in reads if self.log_probabilities and name in inputs.probabilities)
            fitted = replace(fitted, add=reads, weights=(), logarithms=logs, baselines=fitted.add)
            fitted = replace(fitted, weights=_linear_weights(fitted, pairs, used_NK))
            start_M = fitted.scores(pairs.values_NKF)[used_NK]
        features_MG = fitted.features_of(pairs.values_NKF, used_NK)
        targets_M = pairs.target_NK[used_NK].astype(np.float64)
        return replace(fitted, tree=self._fit_trees(features_MG, targets_M, used_NK.sum(1), start_M))

    def trees(self, content: dict[str, list[Any]]) -> Trees:
        """Return the trees from their plain lists."""
        return BoostedTrees.from_dict(content)

    def _fit_trees(self, features_MG: F32, targets_M: F64, count_N: I64, start_M: F32 | None) -> BoostedTrees:
        """Return the trees for M pairs, given document by document; ``count_N`` is the number of pairs of each.

        With ``start_M`` they are fitted to be added to it.
        """
        lightgbm = _lightgbm()
        self._check_count(int(count_N.max()))
        target_M, weight_M, extra = self._relevance(targets_M)
        group = count_N[count_N > 0] if self.objective is Objective.LAMBDARANK else None
        data = lightgbm.Dataset(features_MG, target_M, weight=weight_M, group=group, init_score=start_M)
        return converted(lightgbm.train({**self._parameters(), **extra}, data, self.rounds))

    def _check_count(self, largest: int) -> None:
        """Raise ConfigError if a document has more candidates than LightGBM can rank."""
        if self.objective is Objective.LAMBDARANK and largest > _MOST_CANDIDATES:
            raise ConfigError(
                f"{largest:,} candidates of a document, all scores together, for lambdarank",
                expected=f"at most {_MOST_CANDIDATES:,}",
                do="lower fusion.candidates, or set fusion.rule.objective=binary",
            )

    def _relevance(self, targets_M: F64) -> tuple[F64, F64 | None, dict[str, Any]]:
        """Return each pair's target and weight, and further parameters, in the form that the objective needs."""
        if self.objective is Objective.LAMBDARANK:
            level_M, gains = _levels(targets_M)
            return level_M.astype(np.float64), None, {"label_gain": gains}
        if self.objective is Objective.BINARY:
            positive_M = targets_M > 0
            return positive_M.astype(np.float64), np.where(positive_M, targets_M, 1.0), {}
        return targets_M, None, {}

    def _parameters(self) -> dict[str, Any]:
        """Return LightGBM's parameters; with these, two fits on the same pairs are the same trees."""
        return {
            "objective": str(self.objective),
            "num_leaves": self.leaves,
            "learning_rate": self.shrinkage,
            "min_data_in_leaf": self.min_leaf,
            "lambda_l2": self.penalty,
            "lambdarank_truncation_level": self.truncation,
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbose": -1,
        }


def _linear_weights(fitted: FittedFusion, pairs: Pairs, used_NK: Bool) -> tuple[float, ...]:
    """Return the weight of each score that ``fitted`` adds; raise ConfigError if a used value is not finite."""
    columns = [fitted.names.index(name) for name in fitted.add]
    finite_F = np.isfinite(pairs.values_NKF[used_NK][:, columns]).all(axis=0)
    if not finite_F.all():
        raise ConfigError(
            f"values of the score {fitted.add[int(finite_F.argmin())]!r} that are not finite",
            expected="finite values of every score that the linear model reads",
            do="leave the score out with fusion.rule.features, or set fusion.rule.linear=false",
        )
    read_NKF = np.stack([fitted.read_by_sum(name, pairs.values_NKF) for name in fitted.add], axis=-1)
    return tuple(fit_weights(read_NKF, pairs.target_NK, used_NK).tolist())


def converted(booster: Any) -> BoostedTrees:
    """Return the trees of a LightGBM booster without categories and missing values; the sum of leaves is its raw score.

    A pair goes left if its value, as a double, is at most the threshold, as in ``RegressionTree``.
    """
    return BoostedTrees(tuple(_converted_tree(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]))


def _converted_tree(root: dict[str, Any]) -> RegressionTree:
    """Return one tree; its nodes are numbered level by level, so children come after their parents."""
    nodes, lists = [root], _no_nodes()
    for node in nodes:  # grows while it is read
        is_split = "split_feature" in node
        lists["feature"].append(node["split_feature"] if is_split else -1)
        lists["threshold"].append(node["threshold"] if is_split else 0.0)
        lists["left"].append(len(nodes) if is_split else -1)
        lists["right"].append(len(nodes) + 1 if is_split else -1)
        lists["value"].append(node["internal_value"] if is_split else node["leaf_value"])
        nodes += [node["left_child"], node["right_child"]] if is_split else []
    return RegressionTree.from_dict(lists)


def _no_nodes() -> dict[str, list[Any]]:
    return {name: [] for name in ("feature", "threshold", "left", "right", "value")}


def _levels(targets_M: F64) -> tuple[I64, list[float]]:
    """Return the relevance level of each pair, 0 for a negative, and the gain of each level.

    Targets of positives are grouped into at most 30 levels of about equal size; a level's gain is its mean target.
    """
    positive_M: Bool = targets_M > 0
    targets_P = targets_M[positive_M]
    distinct = np.unique(targets_P)
    if len(distinct) > _MOST_GAINS:
        distinct = np.unique(np.quantile(targets_P, np.linspace(0, 1, _MOST_GAINS, endpoint=False)))
    level_P = np.searchsorted(distinct, targets_P, side="right")
    total, count = (np.bincount(level_P, weights=w, minlength=len(distinct) + 1) for w in (targets_P, None))
    level_M = np.zeros(len(targets_M), np.int64)
    level_M[positive_M] = level_P
    return level_M, [0.0, *(total[1:] / np.maximum(count[1:], 1)).tolist()]


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise MissingError(
            "no installed package lightgbm",
            expected="the package of the extra lightgbm, which the fusion rule lightgbm needs for fitting",
            do="pip install -c constraints.txt lightgbm, or choose another rule: --set fusion.rule=boosted",
        ) from error
    return lightgbm
