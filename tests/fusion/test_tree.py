"""The regression tree: the exact greedy tree for few distinct values, as good as scikit-learn's for many."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from tests.naive import tree as naive
from xc_core.fusion import RegressionTree
from xc_core.fusion import tree as module
from xc_core.fusion.tree import SortedFeatures


def same(tree: RegressionTree, slow: naive.Node, node: int = 0) -> None:
    """Compare two trees node by node: features, thresholds, leaf values."""
    if isinstance(slow, tuple):
        feature, threshold, left, right = slow
        assert (int(tree.feature[node]), float(tree.threshold[node])) == (feature, threshold)
        same(tree, left, int(tree.left[node]))
        same(tree, right, int(tree.right[node]))
    else:
        assert tree.feature[node] == -1
        assert tree.value[node] == pytest.approx(float(slow), abs=1e-12)


def leaves(tree: RegressionTree) -> list[tuple[int, int]]:
    """Return (node, depth) of every leaf that a walk from the root reaches."""
    found, waiting = [], [(0, 0)]
    while waiting:
        node, depth = waiting.pop()
        if tree.feature[node] < 0:
            found.append((node, depth))
        else:
            waiting += [(int(tree.left[node]), depth + 1), (int(tree.right[node]), depth + 1)]
    return found


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_tree_is_the_exact_greedy_one_for_few_values(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    size, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    features = random.choice([-1.0, 0.1, 0.25, 3.0, 7.0], (size, width)).astype(np.float32)
    targets = random.choice(data.draw(st.sampled_from([[0.0, 1.0], [-2.0, 0.5, 3.0], [7.0]])), size)
    depth, min_leaf = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 6))
    fast = RegressionTree.fit(features, targets, depth=depth, min_leaf=min_leaf)
    rows = features.astype(float).tolist()
    slow = naive.fit(rows, targets.tolist(), depth, min_leaf)
    same(fast, slow)
    assert fast.predict(features) == pytest.approx([naive.predict(slow, row) for row in rows], abs=1e-12)


@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
def test_a_tree_on_a_subset_is_the_same_whether_it_was_sorted_alone_or_with_the_rest(kept: float) -> None:
    random = np.random.default_rng(1)
    features = random.integers(0, 20, (500, 3)).astype(np.float32)
    features[:, 2] += random.random(500, np.float32)
    kept_M, targets = random.random(500) < kept, random.random(500)
    kept_M[7] = True
    some = SortedFeatures.of(features).only(kept_M)
    tree = RegressionTree.grow(some, targets[kept_M], depth=4, min_leaf=3)
    assert tree.to_dict() == RegressionTree.fit(features[kept_M], targets[kept_M], depth=4, min_leaf=3).to_dict()


def test_ties_go_to_the_first_feature_and_the_lowest_threshold() -> None:
    column = np.array([0.0, 1.0, 2.0, 3.0])
    features = np.stack([column, column, -column], axis=1).astype(np.float32)
    tree = RegressionTree.fit(features, np.array([0.0, 1.0, 1.0, 0.0]), depth=1, min_leaf=1)
    assert (tree.feature[0], tree.threshold[0]) == (0, 0.5)


def test_the_order_of_the_pairs_does_not_matter() -> None:
    random = np.random.default_rng(0)
    features = random.integers(0, 30, (5000, 3)).astype(np.float32)
    targets = (random.random(5000) < 0.1 + 0.02 * features[:, 0]) * 0.1
    first = RegressionTree.fit(features, targets, depth=6, min_leaf=1)
    turned = random.permutation(5000)
    second = RegressionTree.fit(features[turned], targets[turned], depth=6, min_leaf=1)
    assert np.array_equal(first.feature, second.feature)
    assert np.array_equal(first.threshold, second.threshold)
    np.testing.assert_allclose(first.value, second.value, atol=1e-14)


def worlds(name: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    features = np.stack([random.normal(size=20_000), random.uniform(-1, 1, 20_000), random.lognormal(1, 2, 20_000)], 1)
    logit = 2 * features[:, 0] + 3 * features[:, 1] ** 2 + np.log(features[:, 2]) - 3
    if name == "clicks":
        targets = (random.random(20_000) < 1 / (1 + np.exp(-logit))).astype(float)
    elif name == "rare":
        targets = (random.random(20_000) < 0.1 / (1 + np.exp(-logit))).astype(float)
    else:
        targets = np.sin(3 * features[:, 0]) + features[:, 1] * (features[:, 2] > 3) + random.normal(size=20_000)
    return features.astype(np.float32), targets


@pytest.mark.parametrize("name", ["clicks", "rare", "waves"])
@pytest.mark.parametrize(("depth", "min_leaf"), [(7, 20), (3, 1)])
def test_squared_error_is_within_a_thousandth_of_scikit_learns(name: str, depth: int, min_leaf: int) -> None:
    features, targets = worlds(name)
    tree = RegressionTree.fit(features, targets, depth=depth, min_leaf=min_leaf)
    other = DecisionTreeRegressor(max_depth=depth, min_samples_leaf=min_leaf, random_state=0).fit(features, targets)
    own, theirs = (float(np.mean((targets - model.predict(features)) ** 2)) for model in (tree, other))
    assert own <= 1.001 * theirs
    assert own < 0.99 * float(targets.var()), "it must have learnt something"


@pytest.mark.parametrize(("depth", "min_leaf", "reached"), [(1, 1, 1), (3, 5, 3), (7, 20, 7), (30, 100, 7)])
def test_depth_and_leaf_size_are_kept(depth: int, min_leaf: int, reached: int) -> None:
    features, targets = worlds("waves")
    tree = RegressionTree.fit(features[:3000], targets[:3000], depth=depth, min_leaf=min_leaf)
    found = leaves(tree)
    assert max(level for _, level in found) == reached
    node = np.zeros(3000, np.int64)
    for _ in range(depth):
        inner = tree.feature[node] >= 0
        left = features[np.arange(3000), tree.feature[node]] <= tree.threshold[node]
        node = np.where(inner, np.where(left, tree.left[node], tree.right[node]), node)
    held = np.bincount(node, minlength=len(tree.feature))
    assert sorted(np.flatnonzero(held)) == sorted(leaf for leaf, _ in found)
    assert held[held > 0].min() >= min_leaf
    for leaf, _ in found:
        assert tree.value[leaf] == pytest.approx(targets[:3000][node == leaf].mean())


def test_a_tree_survives_json_bit_for_bit() -> None:
    features, targets = worlds("waves")
    tree = RegressionTree.fit(features, targets, depth=7, min_leaf=20)
    again = RegressionTree.from_dict(json.loads(json.dumps(tree.to_dict())))
    assert np.array_equal(tree.predict(features), again.predict(features))
    assert json.dumps(again.to_dict()) == json.dumps(tree.to_dict())


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1, -1e-9])
def test_a_constant_target_gives_one_leaf(value: float) -> None:
    features, _ = worlds("waves")
    tree = RegressionTree.fit(features, np.full(20_000, value), depth=7, min_leaf=1)
    assert tree.feature.tolist() == [-1]
    assert tree.predict(features[:3]) == pytest.approx([value] * 3)


@pytest.mark.parametrize(("scale", "offset"), [(1e-9, 0.0), (1.0, 1e6), (1e6, -1e6)])
def test_the_scale_of_the_targets_does_not_matter(scale: float, offset: float) -> None:
    features, targets = worlds("clicks")
    plain, moved = (RegressionTree.fit(features, t, depth=4, min_leaf=1) for t in (targets, targets * scale + offset))
    assert np.array_equal(plain.feature, moved.feature)
    assert np.array_equal(plain.threshold, moved.threshold)
    assert moved.predict(features) == pytest.approx(plain.predict(features) * scale + offset, rel=1e-6)


def test_a_level_may_have_more_nodes_than_16_bits_count() -> None:
    bits = (np.arange(1 << 16)[:, None] >> np.arange(16)) & 1
    targets = bits @ 0.79 ** np.arange(16)  # so that each level splits off one bit: 65,536 nodes are level 16
    features = np.stack([bits[:, f::3] @ 0.5 ** np.arange(len(range(f, 16, 3))) for f in range(3)], axis=1)
    tree = RegressionTree.fit(features.astype(np.float32), targets, depth=17, min_leaf=1)
    assert tree.leaves == 1 << 16
    np.testing.assert_allclose(tree.predict(features.astype(np.float32)), targets, atol=1e-10)


def test_a_level_has_one_split_per_node_and_none_for_the_pairs_of_finished_leaves() -> None:
    features = SortedFeatures.of(np.arange(4, dtype=np.float32)[:, None])
    growth = module._Growth(features, np.array([0.0, 0.0, 1.0, 3.0]), min_leaf=1)
    assert growth.split_level()
    assert growth.level == [1, 2]
    growth.level = [2]
    (column,) = growth.columns
    assert len(growth._best_splits(column, np.where(growth.node_M == 2, 0, 1)).gain_J) == 1


def test_constant_features_give_one_leaf() -> None:
    tree = RegressionTree.fit(np.ones((10, 2), np.float32), np.arange(10.0), depth=3, min_leaf=1)
    assert tree.feature.tolist() == [-1]
    assert tree.value.tolist() == [4.5]


@pytest.mark.parametrize(("size", "targets"), [(0, 0), (3, 2)])
def test_no_pairs_or_unequal_lengths_are_refused(size: int, targets: int) -> None:
    with pytest.raises(ValueError, match=f"{size} pairs with {targets} targets"):
        RegressionTree.fit(np.zeros((size, 2), np.float32), np.zeros(targets), depth=7, min_leaf=1)


def test_predicting_nothing_gives_nothing() -> None:
    tree = RegressionTree.fit(np.zeros((2, 1), np.float32), np.array([0.0, 1.0]), depth=7, min_leaf=1)
    assert tree.predict(np.zeros((0, 1), np.float32)).shape == (0,)
    assert math.isclose(tree.predict(np.zeros((1, 1), np.float32))[0], 0.5)


@pytest.mark.parametrize("block", [1, 7, 299, 300, 301])
def test_a_pair_reaches_the_leaf_that_a_walk_from_the_root_reaches(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    random = np.random.default_rng(1)
    features = random.standard_normal((300, 4)).astype(np.float32)
    tree = RegressionTree.fit(
        features, np.where(features[:, 0] > 1, features[:, 1] ** 2, random.standard_normal(300)), depth=7, min_leaf=1
    )
    features[random.random(features.shape) < 0.1] = np.nan
    features[0], features[1] = np.inf, -np.inf

    def walk(row: np.ndarray) -> float:
        node = 0
        while tree.feature[node] >= 0:
            side = tree.left if row[tree.feature[node]] <= tree.threshold[node] else tree.right
            node = side[node]
        return float(tree.value[node])

    assert tree.predict(features).tolist() == [walk(row) for row in features]
    assert tree.predict(np.asfortranarray(features)).tolist() == tree.predict(features).tolist()
