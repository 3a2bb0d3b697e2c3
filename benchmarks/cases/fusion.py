"""Comparisons: the trees that fuse scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.tree import DecisionTreeRegressor

from benchmarks.cases.table import case
from benchmarks.harness import Row, compare
from benchmarks.world import World
from xc_core.data.splits import TRAIN, VALIDATION
from xc_core.fusion.boosting import BoostedTrees, Boosting
from xc_core.fusion.tree import RegressionTree
from xc_core.infer.score import candidates, values
from xc_core.scores import Classifier, Frequency, LabelText, Query, ScoreData
from xc_core.shapes import F32, F64, I64


@case
def tree(world: World) -> list[Row]:
    """The fusion tree against scikit-learn's exact one, on the validation documents' candidates."""
    features, targets, _ = _candidates(world)
    what = f"{len(targets):,} pairs, depth 7"

    def ours() -> RegressionTree:
        return RegressionTree.fit(features, targets, depth=7, min_leaf=1)

    def theirs() -> DecisionTreeRegressor:
        return DecisionTreeRegressor(max_depth=7, random_state=0).fit(features, targets)

    return _fitted_and_asked(what, ours, theirs, features, targets)


@case
def boosting(world: World) -> list[Row]:
    """The boosted trees of house against scikit-learn's, which samples pairs; ours sample documents."""
    features, targets, docs = _candidates(world)
    what = f"{len(targets):,} pairs, 30 trees of depth 4"
    settings = Boosting(rounds=30, shrinkage=0.15, depth=4, min_leaf=20)
    share = settings.most / len(np.unique(docs))

    def ours() -> BoostedTrees:
        return settings.fit(features, targets, docs)

    def theirs() -> GradientBoostingRegressor:
        made = GradientBoostingRegressor(
            n_estimators=30, learning_rate=0.15, max_depth=4, min_samples_leaf=20, subsample=share, random_state=0
        )
        return made.fit(features, targets)

    return _fitted_and_asked(what, ours, theirs, features, targets)


def _fitted_and_asked(what: str, ours: Callable[[], Any], theirs: Callable[[], Any], x: F32, y: F64) -> list[Row]:
    """Compare the times of fitting and predicting, and the squared errors, of two models."""
    own, other = ours(), theirs()
    errors = [float(np.mean((model.predict(x) - y) ** 2)) for model in (own, other)]
    note = f"squared error {errors[0]:.6f} and {errors[1]:.6f}"
    return [
        compare(f"fit, {what}", ours, "scikit-learn", theirs, rounds=3, note=note),
        compare(f"predict, {what}", lambda: own.predict(x), "scikit-learn", lambda: other.predict(x)),
    ]


def _candidates(world: World) -> tuple[F32, F64, I64]:
    """Return the scores' values, target and document of each pair of a validation document and a candidate."""
    rows, truth = world.split(VALIDATION)
    data = ScoreData(world.split(TRAIN)[1], label_vectors=lambda: world.label_LD, rows=lambda: world.rows_LD)
    parts = {"label_text": LabelText(), "classifier": Classifier(), "frequency": Frequency()}
    scores = {name: part.fit(data) for name, part in parts.items()}
    query = Query(np.ascontiguousarray(world.doc_ND[rows]))
    ids = candidates(scores, query, 100)
    filled = ids != -1
    features = values(scores, query, ids)[filled]
    own = np.arange(len(rows))[:, None]
    return features, truth.contains(own, ids)[filled].astype(np.float64), np.broadcast_to(own, ids.shape)[filled]
