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
from xc_core.fusion import Boosted, Inputs, Pairs
from xc_core.fusion.boosting import BoostedTrees
from xc_core.fusion.tree import RegressionTree
from xc_core.infer.ranker import candidates, values
from xc_core.recipes import find_recipe
from xc_core.scores import Classifier, Frequency, LabelText, Query, ScoreData
from xc_core.shapes import F32, F64, I32, I64, PAD_ID, Bool

_SCORES = {"label_text": LabelText(), "classifier": Classifier(), "frequency": Frequency()}


@case
def tree(world: World) -> list[Row]:
    """The fusion tree against scikit-learn's exact one, on the validation documents' candidates."""
    features, targets, _ = _candidates(world)
    what = f"{len(targets):,} pairs, depth 7"

    def ours() -> RegressionTree:
        return RegressionTree.fit(features, targets, depth=7, min_leaf=1)

    def theirs() -> DecisionTreeRegressor:
        return DecisionTreeRegressor(max_depth=7, random_state=0).fit(features, targets)

    return _compare_models(what, ours, theirs, features, targets)


@case
def boosting(world: World) -> list[Row]:
    """The boosted trees of house against scikit-learn's, which samples pairs; ours sample documents."""
    features, targets, docs = _candidates(world)
    what = f"{len(targets):,} pairs, 30 trees of depth 4"
    settings = Boosted(rounds=30, shrinkage=0.15, depth=4, min_leaf=20)
    size = len(np.unique(docs))
    share = settings.sample(size) / size  # trees of as many pairs

    def ours() -> BoostedTrees:
        return settings.grow(features, targets, docs)

    def theirs() -> GradientBoostingRegressor:
        model = GradientBoostingRegressor(
            n_estimators=30, learning_rate=0.15, max_depth=4, min_samples_leaf=20, subsample=share, random_state=0
        )
        return model.fit(features, targets)

    return _compare_models(what, ours, theirs, features, targets)


@case
def ranker(world: World) -> list[Row]:
    """The rule of the recipe house against the rule boosted: a fit, the ranking of many texts, of one."""
    ids, scores, positive = _values(world)
    inputs = Inputs(tuple(_SCORES), ("label_text", "classifier"))
    pairs = Pairs(scores, positive.astype(np.float32), ids != PAD_ID)
    boosted, house = Boosted(depth=4, weight=0.1), find_recipe("house").fusion.rule
    fitted, fitted_boosted = house.fit(inputs, pairs), boosted.fit(inputs, pairs)
    first, many = slice(0, 1), slice(0, 512)
    what = f"{pairs.filled_NK.sum():,} pairs"
    text = f"one text, {pairs.filled_NK[0].sum():,} candidates"
    return [
        compare(
            f"fit, {what}", lambda: house.fit(inputs, pairs), "boosted", lambda: boosted.fit(inputs, pairs), rounds=3
        ),
        compare(
            "rank, 512 texts",
            lambda: fitted.rank(ids[many], scores[many]),
            "boosted",
            lambda: fitted_boosted.rank(ids[many], scores[many]),
        ),
        compare(
            f"rank, {text}",
            lambda: fitted.rank(ids[first], scores[first]),
            "boosted",
            lambda: fitted_boosted.rank(ids[first], scores[first]),
        ),
    ]


def _compare_models(what: str, ours: Callable[[], Any], theirs: Callable[[], Any], x: F32, y: F64) -> list[Row]:
    """Compare the times of fitting and predicting, and the squared errors, of two models."""
    our_model, their_model = ours(), theirs()
    errors = [float(np.mean((model.predict(x) - y) ** 2)) for model in (our_model, their_model)]
    note = f"squared error {errors[0]:.6f} and {errors[1]:.6f}"
    return [
        compare(f"fit, {what}", ours, "scikit-learn", theirs, rounds=3, note=note),
        compare(f"predict, {what}", lambda: our_model.predict(x), "scikit-learn", lambda: their_model.predict(x)),
    ]


def _candidates(world: World) -> tuple[F32, F64, I64]:
    """Return the scores' values, target and document of each pair of a validation document and a candidate."""
    ids, scores, positive = _values(world)
    filled = ids != PAD_ID
    docs = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    return scores[filled], positive[filled].astype(np.float64), docs[filled]


def _values(world: World) -> tuple[I32, F32, Bool]:
    """Return the candidates of the validation documents, their scores' values, and which are positive."""
    rows, truth = world.split(VALIDATION)
    data = ScoreData(world.split(TRAIN)[1], label_vectors=lambda: world.label_LD, rows=lambda: world.rows_LD)
    scores = {name: part.fit(data) for name, part in _SCORES.items()}
    query = Query(np.ascontiguousarray(world.doc_ND[rows]))
    ids = candidates(scores, query, 100)
    return ids, values(scores, query, ids), truth.contains(np.arange(len(rows))[:, None], ids)
