"""The leaves found by masks are those of a walk from the root, for every tree and every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.fusion import BoostedTrees, RegressionTree
from xc_core.fusion.leaves import LeafMasks
from xc_core.shapes import F32

VALUES = [-np.inf, -3.0, 0.0, 0.25, 0.5, 1.0, 7.0, np.inf, np.nan]


def walked(trees: tuple[RegressionTree, ...], features_PF: F32) -> list[list[float]]:
    """Return the leaf values by walking from each root, one pair after another."""
    out = []
    for row in features_PF.tolist():
        found = []
        for tree in trees:
            node = 0
            while tree.feature[node] >= 0:
                below = tree.left if row[tree.feature[node]] <= tree.threshold[node] else tree.right
                node = int(below[node])
            found.append(float(tree.value[node]))
        out.append(found)
    return out


def grown(random: np.random.Generator, depth: int, features: int) -> RegressionTree:
    """Return a tree of random shape with thresholds from ``VALUES``; children come after their parents."""
    lists: dict[str, list[float]] = {"feature": [-1], "threshold": [0.0], "left": [-1], "right": [-1], "value": [0.0]}
    level = [0]
    for _ in range(depth):
        below = []
        for node in level:
            if random.random() < 0.7:
                first = len(lists["feature"])
                lists["feature"][node] = int(random.integers(features))
                lists["threshold"][node] = float(random.choice(VALUES[1:-2]))
                lists["left"][node], lists["right"][node] = first, first + 1
                for name, fill in (("feature", -1), ("threshold", 0.0), ("left", -1), ("right", -1)):
                    lists[name] += [fill, fill]
                lists["value"] += random.random(2).tolist()
                below += [first, first + 1]
        level = below
    return RegressionTree.from_dict(lists)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_each_leaf_is_that_of_a_walk(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    trees = tuple(grown(random, data.draw(st.integers(0, 6)), 3) for _ in range(data.draw(st.integers(1, 5))))
    features = random.choice(VALUES, (data.draw(st.integers(0, 30)), 3)).astype(np.float32)
    found = LeafMasks.of(trees).values(features)
    assert found.shape == (len(features), len(trees))
    assert found.tolist() == walked(trees, features)


@pytest.mark.parametrize(("depth", "leaves"), [(4, 16), (6, 64)])
def test_a_full_tree_uses_every_bit_of_its_word(depth: int, leaves: int) -> None:
    features = np.arange(leaves, dtype=np.float32)[:, None]
    tree = RegressionTree.fit(features, np.arange(float(leaves)), depth=depth, min_leaf=1)
    assert LeafMasks.of([tree]).values(features)[:, 0].tolist() == list(range(leaves))


def test_trees_that_are_too_large_for_a_word_are_walked() -> None:
    features = np.arange(100, dtype=np.float32)[:, None]
    large = RegressionTree.fit(features, np.arange(100.0), depth=7, min_leaf=1)
    with pytest.raises(ValueError, match="a tree of 100 leaves, at most 64"):
        LeafMasks.of([large])
    assert BoostedTrees((large, large)).predict(features).tolist() == (2 * np.arange(100.0)).tolist()
