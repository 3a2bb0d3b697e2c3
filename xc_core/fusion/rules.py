"""Ways to make one score of several: the tree of NGAME, boosted trees, the plain sum, one score alone.

Takes: features of candidates, what they are worth.                               Gives: Fusion.
May import: errors, params, plugins, shapes, fusion.features, .tree, .boosting.
Never: is fitted on rows it is judged on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xc_core.errors import ConfigError, MissingError
from xc_core.fusion.boosting import BoostedTrees, Boosting
from xc_core.fusion.features import FEATURES
from xc_core.fusion.tree import RegressionTree
from xc_core.params import at_least
from xc_core.plugins import Table
from xc_core.shapes import F32, F64, I32, Bool, Shortlist


@dataclass(frozen=True, kw_only=True)
class FusionConfig:
    """How scores become one."""

    kind: str = "tree"
    """"tree": a regression tree plus the scores in ``add`` (NGAME); "boosted": a sum of small ones instead; "sum": the
    scores in ``add`` alone."""
    features: tuple[str, ...] = ("label_text", "classifier", "frequency")
    """Features of the trees, by name."""
    add: tuple[str, ...] = ("label_text", "classifier")
    """Features whose plain sum is added (NGAME adds both scores to the tree's)."""
    weight: float = 1.0
    """tree, boosted: what that sum is multiplied with; a tree's value is a share of positives, between 0 and 1."""
    depth: int = 7
    """tree, boosted: levels of splits."""
    min_leaf: int = 20
    """tree, boosted: pairs of a leaf at least."""
    trees: int = 30
    """boosted: trees."""
    shrinkage: float = 0.15
    """boosted: share of what is left that a tree takes away."""
    tail: float = 0.0
    """tree, boosted: a positive is worth its label's inverse propensity to this power, all together as much as without;
    0: all alike, as NGAME has it. Rare labels rise with it, and P@1 falls."""
    rows: int = 10_000
    """Validation documents used, at most."""
    candidates: int = 100
    """Labels taken from each search (by classifier row, by label text) as candidates of a document."""

    def __post_init__(self) -> None:
        FUSIONS[self.kind]
        for name in (*self.features, *self.add):
            FEATURES[name]
        at_least(self, depth=1, min_leaf=1, rows=1, candidates=1, weight=0, tail=0)
        _ = self.boosting  # checks what it is made of
        if self.fitted and not self.features:
            raise ConfigError("a tree without features", expected="at least one in features", do="name one")
        if self.kind == "sum" and not self.add:
            raise ConfigError("nothing to add", expected="at least one score in add", do="name one")

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of all features to compute, each once, in a fixed order."""
        own = self.features if self.fitted else ()
        return tuple(dict.fromkeys((*own, *self.add)))

    @property
    def fitted(self) -> bool:
        """True where the rule learns from documents."""
        return self.kind != "sum"

    @property
    def boosting(self) -> Boosting:
        """How boosted trees are fitted."""
        return Boosting(trees=self.trees, shrinkage=self.shrinkage, depth=self.depth, min_leaf=self.min_leaf)


@dataclass(frozen=True)
class Fusion:
    """A fitted rule: features in, one score out."""

    config: FusionConfig
    tree: RegressionTree | BoostedTrees | None = None

    def scores(self, features_NKF: F32) -> F32:
        """Return the fused score of every candidate; the last axis is in the order of ``config.needed``."""
        at = {name: i for i, name in enumerate(self.config.needed)}
        added = sum((features_NKF[..., at[name]] for name in self.config.add), np.float32(0.0))
        total = np.broadcast_to(np.asarray(added, np.float32), features_NKF.shape[:2]).copy()
        if self.tree is not None:
            total *= np.float32(self.config.weight)
            columns = [at[name] for name in self.config.features]
            flat = features_NKF[..., columns].reshape(-1, len(columns))
            total += self.tree.predict(flat).reshape(total.shape).astype(np.float32)
        return total

    def own(self, features_NKF: F32, names: tuple[str, ...]) -> F32:
        """Return the features this rule needs out of those called ``names``, in its order."""
        return features_NKF[..., [names.index(name) for name in self.config.needed]]

    def rank(self, ids_NK: I32, features_NKF: F32) -> Shortlist:
        """Return the candidates by falling fused score."""
        return Shortlist.ranked(ids_NK, self.scores(features_NKF))

    def save(self, path: Path) -> None:
        """Write as JSON."""
        content = {"config": asdict(self.config), "tree": self.tree.to_dict() if self.tree else None}
        path.write_text(json.dumps(content, sort_keys=True) + "\n", "utf-8")


def fit_tree(config: FusionConfig, features_NKF: F32, worth_NK: F32, filled_NK: Bool) -> Fusion:
    """Fit NGAME's tree on all candidates that are labels (``filled_NK``), 0 for one that is no positive.

    Source: NGAME, appendix C, "Inference (Score Fusion)".
    """
    features_MF, targets_M = _pairs(config, features_NKF, worth_NK, filled_NK)
    return Fusion(config, RegressionTree.fit(features_MF, targets_M, depth=config.depth, min_leaf=config.min_leaf))


def fit_boosted(config: FusionConfig, features_NKF: F32, worth_NK: F32, filled_NK: Bool) -> Fusion:
    """Fit boosted trees on the same pairs: many small trees err less than one where validation documents are few."""
    features_MF, targets_M = _pairs(config, features_NKF, worth_NK, filled_NK)
    return Fusion(config, config.boosting.fit(features_MF, targets_M, np.nonzero(filled_NK)[0]))


def _pairs(config: FusionConfig, features_NKF: F32, worth_NK: F32, filled_NK: Bool) -> tuple[F32, F64]:
    """Return the trees' features of all candidates that are labels, and what each is worth."""
    columns = [config.needed.index(name) for name in config.features]
    return features_NKF[filled_NK][:, columns], worth_NK[filled_NK].astype(np.float64)


def no_fit(config: FusionConfig, features_NKF: F32, worth_NK: F32, filled_NK: Bool) -> Fusion:
    """A rule without parameters needs no data."""
    return Fusion(config)


def parts_of(config: FusionConfig) -> dict[str, Fusion]:
    """Return each added score alone and, where there are several, their plain sum: what a fusion is compared with."""
    alone = {name: Fusion(replace(config, kind="sum", add=(name,))) for name in config.add}
    return alone | ({"sum": Fusion(replace(config, kind="sum"))} if len(config.add) > 1 else {})


def load_fusion(path: Path) -> Fusion:
    """Load what ``Fusion.save`` wrote."""
    if not path.is_file():
        raise MissingError(f"no {path}", expected="a saved fusion", do="run the stage fusion")
    content = json.loads(path.read_text("utf-8"))
    config: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content["config"].items()}
    trees = BoostedTrees if config["kind"] == "boosted" else RegressionTree
    return Fusion(FusionConfig(**config), trees.from_dict(content["tree"]) if content["tree"] else None)


def worth(positive_NK: Bool, weight_NK: F32, tail: float) -> F32:
    """Return positive * weight^tail, scaled so that it sums to the number of positives; weights are above 0."""
    raised_NK = positive_NK * weight_NK**tail
    total = float(raised_NK.sum())
    return np.asarray(raised_NK * (positive_NK.sum() / total if total else 1.0), np.float32)


FUSIONS: Table[Callable[[FusionConfig, F32, F32, Bool], Fusion]] = Table("fusion")
"""How a rule is fitted: to features of candidates, what each is worth, and which places hold a label."""
FUSIONS.add("tree", fit_tree)
FUSIONS.add("boosted", fit_boosted)
FUSIONS.add("sum", no_fit)
