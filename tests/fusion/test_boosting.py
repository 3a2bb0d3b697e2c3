"""Boosted trees: as good as scikit-learn's, the same together as one by one, fitted on whole documents."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingRegressor

from xc_core.fusion import Boosted, BoostedTrees, Fusion, Inputs, Pairs, RegressionTree, Tree
from xc_core.fusion.tree import SortedFeatures
from xc_core.shapes import F32, F64, I64


def world(size: int = 6000, seed: int = 0) -> tuple[F32, F64, I64]:
    """Return pairs, 20 per document, of two scores and a frequency; all three decide which pairs are positive."""
    random = np.random.default_rng(seed)
    features = np.stack([random.normal(size=size), random.normal(size=size), random.integers(0, 9, size)], 1)
    logit = 1.5 * features[:, 0] * (features[:, 2] > 4) + np.sin(2 * features[:, 1]) - 2
    return features.astype(np.float32), (random.random(size) < 1 / (1 + np.exp(-logit))) * 1.0, np.arange(size) // 20


WHOLE = {"rounds": 25, "shrinkage": 0.2, "depth": 3, "min_leaf": 20, "share": 1.0, "most": 10**9}


def test_squared_error_is_within_a_thousandth_of_scikit_learns() -> None:
    features, targets, docs = world()
    own = Boosted(**WHOLE).grow(features, targets, docs)  # type: ignore[arg-type]
    other = GradientBoostingRegressor(
        init="zero", learning_rate=0.2, n_estimators=25, max_depth=3, min_samples_leaf=20
    ).fit(features, targets)
    errors = [float(np.mean((targets - model.predict(features)) ** 2)) for model in (own, other)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert errors[0] < 0.9 * float(targets.var())


def test_many_small_trees_err_less_on_new_documents_than_one_deep_tree() -> None:
    features, targets, docs = world()
    new, truth, _ = world(seed=1)
    boosted = Boosted(rounds=30, shrinkage=0.15, depth=4, min_leaf=20).grow(features, targets, docs)
    single = RegressionTree.fit(features, targets, depth=7, min_leaf=20)
    errors = [float(np.mean((truth - model.predict(new)) ** 2)) for model in (boosted, single)]
    assert errors[0] < 0.97 * errors[1]


def test_the_sum_of_all_trees_is_the_sum_of_each_alone() -> None:
    features, targets, docs = world(9000)
    boosted = Boosted(rounds=7, shrinkage=0.3, depth=5, min_leaf=1).grow(features, targets, docs)
    np.testing.assert_allclose(boosted.predict(features), sum(t.predict(features) for t in boosted.trees), atol=1e-12)
    assert len(boosted.trees) == 7
    assert boosted.predict(features[:0]).shape == (0,)


def test_each_tree_is_fitted_to_the_residual_of_the_trees_before_it() -> None:
    features, targets, docs = world()
    two = Boosted(**{**WHOLE, "rounds": 2, "shrinkage": 1.0}).grow(features, targets, docs)  # type: ignore[arg-type]
    first = RegressionTree.fit(features, targets, depth=3, min_leaf=20)
    second = RegressionTree.fit(features, targets - first.predict(features), depth=3, min_leaf=20)
    np.testing.assert_allclose(two.predict(features), first.predict(features) + second.predict(features), atol=1e-12)


def test_each_tree_sees_its_own_sample_of_whole_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets, _ = world(2000)
    docs = np.sort(np.random.default_rng(5).integers(0, 150, 2000)) * 7
    marked = np.concatenate([features, docs[:, None].astype(np.float32)], 1)
    sizes = dict(zip(*np.unique(docs, return_counts=True), strict=True))
    seen: list[set[int]] = []
    grow = RegressionTree.grow

    def watched(own: SortedFeatures, targets: F64, **how: int) -> RegressionTree:
        found, counts = np.unique(own.value_FM[3].astype(int), return_counts=True)
        assert dict(zip(found, counts, strict=True)) == {doc: sizes[doc] for doc in found}
        seen.append({*found.tolist()})
        return grow(own, targets, **how)

    monkeypatch.setattr(RegressionTree, "grow", watched)
    Boosted(rounds=5, shrinkage=0.1, depth=2, min_leaf=1, share=0.5, most=40).grow(marked, targets, docs)
    assert [len(own) for own in seen] == [40] * 5
    assert len(set.union(*seen)) > 60
    Boosted(rounds=1, shrinkage=0.1, depth=2, min_leaf=1, share=0.5).grow(marked, targets, docs)
    assert len(seen[-1]) == round(0.5 * len(sizes))


def test_they_survive_json_bit_for_bit_and_the_same_seed_gives_the_same_trees() -> None:
    features, targets, docs = world()
    how = Boosted(rounds=4, shrinkage=0.1, depth=3, min_leaf=5)
    boosted = how.grow(features, targets, docs)
    again = BoostedTrees.from_dict(json.loads(json.dumps(boosted.to_dict())))
    assert np.array_equal(again.predict(features), boosted.predict(features))
    assert how.grow(features, targets, docs).to_dict() == boosted.to_dict()
    assert replace(how, seed=1).grow(features, targets, docs).to_dict() != boosted.to_dict()


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        Boosted(**WHOLE).grow(np.zeros((0, 2), np.float32), np.zeros(0), np.zeros(0, np.int64))  # type: ignore[arg-type]


def test_the_rule_adds_the_weighted_sum_to_the_value_of_the_trees() -> None:
    random = np.random.default_rng(2)
    inputs = Inputs(("label_text", "classifier", "frequency"), ("label_text", "classifier"))
    values = random.normal(size=(30, 8, 3)).astype(np.float32)
    positive, filled = random.random((30, 8)) < 0.3, random.random((30, 8)) < 0.9
    rule = Boosted(depth=2, rounds=3, weight=0.25, min_leaf=2)
    fitted = rule.fit(inputs, Pairs(values, positive.astype(np.float32), filled))
    assert fitted.tree is not None
    trees = fitted.tree.predict(values.reshape(-1, 3)).reshape(30, 8)
    np.testing.assert_allclose(fitted.scores(values), trees + 0.25 * (values[..., 0] + values[..., 1]), rtol=1e-5)


@pytest.mark.parametrize("rule", [Tree, Boosted])
def test_a_rare_positive_counts_more_and_the_total_stays_the_same(rule: type[Tree | Boosted]) -> None:
    positive = np.array([[True, False, True], [False, True, False]])
    weight = np.array([[1.0, 9.0, 16.0], [5.0, 81.0, 2.0]], np.float32)
    np.testing.assert_array_equal(rule(tail=0.0).target(positive, weight), positive.astype(np.float32))
    scale = 3 / (1 + 4 + 9)
    expected = [[scale, 0, 4 * scale], [0, 9 * scale, 0]]
    np.testing.assert_allclose(rule(tail=0.5).target(positive, weight), expected, rtol=1e-6)
    assert not rule(tail=0.5).target(np.zeros((2, 3), bool), weight).any()


@pytest.mark.parametrize("rule", [Tree, Boosted])
def test_with_a_tail_the_rarer_of_two_equal_candidates_comes_first(rule: type[Tree | Boosted]) -> None:
    """One score tells the two kinds of label apart; both are positive equally often."""
    random = np.random.default_rng(0)
    values = np.tile(np.array([0.0, 1.0], np.float32), (400, 1))[..., None]
    positive = random.random((400, 2)) < 0.3
    weight = np.tile(np.array([8.0, 1.0], np.float32), (400, 1))
    ahead = []
    for tail in (0.0, 0.5):
        settings: Fusion = rule(depth=1, tail=tail)
        pairs = Pairs(values, settings.target(positive, weight), np.ones((400, 2), bool))
        fitted = settings.fit(Inputs(("label_text",), ()), pairs)
        rare, common = fitted.scores(values)[0].tolist()
        ahead.append(rare / common)
    assert ahead[0] == pytest.approx(1.0, abs=0.25)
    assert ahead[1] == pytest.approx(8**0.5 * ahead[0], rel=0.05)
