"""The adversarial label tree equals its slow twin, is a distribution for any L, and its objective never falls."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from tests.naive import label_tree as naive
from tests.sampling.tree_worlds import every, positives, slow, train_likelihood, world
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.sampling import label_tree, tree_growth
from xc_core.sampling.label_tree import LabelTree
from xc_core.shapes import F32, I64, PAD_ID

SIZES = [1, 2, 3, 5, 16, 37]


def drawn(tree: LabelTree, vectors: F32, random: np.random.Generator, count: int = 1) -> I64:
    """Return labels drawn for each document (B x count)."""
    return tree.walk(tree.features(vectors), random, count)


@pytest.mark.parametrize("labels", SIZES)
@pytest.mark.parametrize(("width", "regulariser", "seed"), [(3, 0.1, 0), (6, 1.0, 1)])
def test_splits_and_probabilities_are_those_of_the_slow_twin(
    labels: int, width: int, regulariser: float, seed: int
) -> None:
    vectors, truth = world(labels, seed=seed)
    tree = LabelTree.fit(vectors, truth, width=width, regulariser=regulariser, seed=0)
    twin = slow(vectors, truth, width, regulariser)
    assert [x for x in tree.label_M.tolist() if x != PAD_ID] == naive.leaves(twin)
    mean, directions = naive.pca(vectors, width)
    points = (vectors[:9] - mean) @ directions
    expected = [[naive.log_prob(twin, x, y) for y in range(labels)] for x in points]
    np.testing.assert_allclose(tree.log_prob(vectors[:9], every(labels, 9)), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("labels", [2, 5, 16, 37])
def test_the_history_is_the_twins_objective_turn_by_turn(labels: int) -> None:
    vectors, truth = world(labels)
    tree = LabelTree.fit(vectors, truth, width=4, seed=0, regulariser=0.1)
    rows = naive.levels(slow(vectors, truth, 4, 0.1))
    assert len(tree.history_HT) == tree.depth == len(rows)
    for row, nodes in zip(tree.history_HT, rows, strict=True):
        expected = [sum(n.values[min(t, len(n.values) - 1)] for n in nodes) for t in range(len(row))]
        np.testing.assert_allclose(row, expected, rtol=1e-8)


def test_splitting_with_the_first_weights_only_is_another_and_worse_tree() -> None:
    vectors, truth = world(16, seed=3)
    tree = LabelTree.fit(vectors, truth, width=4, seed=0, regulariser=0.1)
    wrong = slow(vectors, truth, 4, 0.1, resplit=False)
    assert isinstance(wrong, naive.Node)
    assert tree.label_M.tolist() != naive.leaves(wrong)
    assert tree.history_HT[0, -1] > wrong.values[-1] + 0.1
    mean, directions = naive.pca(vectors, 4)
    docs, labels = truth.pairs()
    points = (vectors - mean) @ directions
    theirs = np.mean([naive.log_prob(wrong, points[i], int(y)) for i, y in zip(docs, labels, strict=True)])
    assert train_likelihood(tree, vectors, truth) > theirs + 0.01


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_probabilities_sum_to_one_and_the_objective_never_falls(labels: int, docs: int, width: int, seed: int) -> None:
    vectors, truth = world(labels, docs=docs, width=width, seed=seed)
    tree = LabelTree.fit(vectors, truth, width=3, seed=seed, regulariser=0.1)
    found = tree.log_prob(vectors, every(labels, docs))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.exp(found).sum(1), 1.0, rtol=1e-12)
    falls = np.diff(tree.history_HT, axis=1)
    assert (falls >= -1e-9 * (1 + np.abs(tree.history_HT[:, 1:]))).all()
    assert sorted(tree.label_M[tree.label_M != PAD_ID].tolist()) == list(range(labels))
    assert tree.label_M[tree.leaf_L].tolist() == list(range(labels))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_gradient_is_zero_at_every_node_and_no_label_gains_by_moving(scale: float) -> None:
    vectors, truth = world(16, docs=200)
    tree = LabelTree.fit(scale * vectors, truth, width=4, seed=0, regulariser=0.1)
    mean, directions = naive.pca(scale * vectors, 4)
    points = np.column_stack([(scale * vectors - mean) @ directions, np.ones(200)])
    docs = [[i for i, own in enumerate(positives(truth)) if y in own] for y in range(16)]
    fitted = naive.World(points, docs, 0.1, True)
    for node in range(15):
        level = (node + 1).bit_length() - 1
        below = tree.label_M.reshape(1 << level, -1)[node + 1 - (1 << level)].tolist()
        weight = np.array([*tree.weight_VQ[node], tree.bias_V[node]])
        right = set(below[len(below) // 2 :])
        slope = naive.gradient(fitted, below, right, weight)
        assert np.abs(slope).max() < 1e-7 * max(scale, 1)
        deltas = {y: sum(float(weight @ points[i]) for i in docs[y]) for y in below}
        assert min(deltas[y] for y in right) >= max(deltas[y] for y in below if y not in right)


@pytest.mark.parametrize("start", [-30.0, 0.0, 30.0])
def test_weights_from_which_a_whole_newton_step_goes_too_far_reach_the_optimum_too(start: float) -> None:
    """Whole steps jump between two far weights for ever: three positives and a negative at the same point."""
    points = tree_growth._Points.of(np.ones((4, 1)), np.arange(4, dtype=np.int32)[None])
    regression = tree_growth._Regression(points, np.array([[1, 1, 1, -1]]), 0.01)
    weight_JQ = np.array([[start]])
    found, value_J = regression.climb(weight_JQ, regression.objective(weight_JQ))
    weight = found[0, 0]
    assert 3 / (1 + math.exp(weight)) - 1 / (1 + math.exp(-weight)) == pytest.approx(0.02 * weight, abs=1e-9)
    expected = -3 * math.log1p(math.exp(-weight)) - math.log1p(math.exp(weight)) - 0.01 * weight**2
    assert value_J == pytest.approx(expected)


@pytest.mark.parametrize("labels", [2, 5, 16])
def test_the_likeliest_labels_of_each_document_are_those_of_all_probabilities(labels: int) -> None:
    vectors, truth = world(labels)
    tree = LabelTree.fit(vectors, truth, width=4, seed=0, regulariser=0.1)
    ranked = np.argsort(-tree.log_prob(vectors[:9], every(labels, 9)), axis=1, kind="stable")
    assert len({tuple(row) for row in ranked.tolist()}) > 1, "documents differ"
    np.testing.assert_array_equal(tree.likely(vectors[:9], labels), ranked)


def statistic(labels: I64, expected: np.ndarray) -> tuple[float, int]:
    """Return Pearson's chi-square of the labels drawn, with the cells below 5 merged, and the number of cells."""
    wanted = expected * labels.size
    counts = np.bincount(labels.ravel(), minlength=len(expected)).astype(float)
    small = wanted < 5
    wanted, counts = (np.append(x[~small], x[small].sum()) for x in (wanted, counts))
    kept = wanted > 1e-6 * labels.size
    return float(((counts - wanted)[kept] ** 2 / wanted[kept]).sum()), int(kept.sum())


@pytest.mark.parametrize("labels", [2, 3, 5, 16, 37])
def test_draws_follow_the_twins_probabilities(labels: int) -> None:
    vectors, truth = world(labels)
    tree = LabelTree.fit(vectors, truth, width=4, seed=0, regulariser=0.1)
    twin = slow(vectors, truth, 4, 0.1)
    mean, directions = naive.pca(vectors, 4)
    random = np.random.default_rng(7)
    alone = drawn(tree, np.repeat(vectors[1:2], 20_000, axis=0), random)
    beside = drawn(tree, vectors[:3], random, 20_000)
    assert (alone.shape, beside.shape) == ((20_000, 1), (3, 20_000))
    for row, found_K in ((1, alone), (0, beside[0]), (2, beside[2])):
        expected = np.array(naive.distribution(twin, (vectors[row] - mean) @ directions, labels))
        found, cells = statistic(found_K, expected)
        assert found < chi2.ppf(0.999, max(cells - 1, 1))
    uniform, cells = statistic(alone, np.full(labels, 1 / labels))
    assert uniform > chi2.ppf(0.999, cells - 1), "a sampler that ignores the document would fail"


@pytest.mark.parametrize("labels", SIZES)
def test_padding_is_never_drawn_and_has_no_probability(labels: int) -> None:
    vectors, truth = world(labels)
    tree = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    found = drawn(tree, 100 * vectors, np.random.default_rng(0), 500)
    assert found.min() >= 0
    assert found.max() < labels
    assert len(tree.label_M) - labels == (tree.label_M == PAD_ID).sum() < max(labels, 1)


def test_one_label_is_certain_and_needs_no_decision() -> None:
    vectors, truth = world(1)
    tree = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    assert (tree.depth, tree.bias_V.shape, tree.history_HT.shape) == (0, (0,), (0, 0))
    assert tree.log_prob(vectors, np.zeros((60, 2), np.int64)).tolist() == [[0.0, 0.0]] * 60
    assert not drawn(tree, vectors, np.random.default_rng(0), 3).any()


def test_separable_labels_are_nearly_certain_far_above_the_uniform() -> None:
    vectors, truth = world(16, docs=640, width=8, noise=0.02, most=1)
    tree = LabelTree.fit(vectors, truth, width=8, seed=0, regulariser=0.1)
    own = train_likelihood(tree, vectors, truth)
    assert own > -0.5 > math.log(1 / 16) + 2
    fewer = LabelTree.fit(vectors, truth, width=1, seed=0, regulariser=0.1)
    assert math.log(1 / 16) < train_likelihood(fewer, vectors, truth) < own


def test_labels_without_documents_get_some_probability() -> None:
    vectors, _ = world(3)
    some = LabelMatrix.from_pairs(np.arange(60), np.arange(60) % 2, (60, 8))
    tree = LabelTree.fit(vectors, some, seed=0, width=16, regulariser=0.1)
    found = np.exp(tree.log_prob(vectors, every(8, 60)))
    assert found.min() > 0
    assert found[:, :2].sum(1).min() > 0.9
    none = LabelMatrix(np.zeros(61, np.int64), np.zeros(0, np.int32), 8)
    np.testing.assert_allclose(
        LabelTree.fit(vectors, none, seed=0, width=16, regulariser=0.1).log_prob(vectors, every(8, 60)), -math.log(8)
    )


def test_documents_that_are_all_equal_leave_the_frequencies() -> None:
    truth = LabelMatrix.from_pairs(np.arange(4000), np.repeat([0, 1, 2, 3], [400, 800, 1600, 1200]), (4000, 4))
    tree = LabelTree.fit(np.ones((4000, 3), np.float32), truth, seed=0, width=16, regulariser=0.1)
    found = np.exp(tree.log_prob(np.ones((1, 3), np.float32), every(4, 1)))
    np.testing.assert_allclose(found, [[0.1, 0.2, 0.4, 0.3]], atol=1e-3)


def test_far_documents_have_finite_log_probabilities() -> None:
    vectors, truth = world(37)
    tree = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    far = np.float32(1e6) * vectors
    assert np.isfinite(tree.log_prob(far, every(37, 60))).all()


def test_a_hole_of_a_shortlist_has_log_probability_minus_infinity() -> None:
    vectors, truth = world(5)
    found = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1).log_prob(
        vectors[:1], np.array([[2, PAD_ID]])
    )
    assert np.isfinite(found).tolist() == [[True, False]]


def test_a_saved_tree_is_the_same_without_pickle() -> None:
    vectors, truth = world(37)
    tree = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    file = io.BytesIO()
    np.savez(file, **tree.arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        again = LabelTree.from_arrays(dict(saved))
    found, expected = (
        (each.log_prob(vectors, every(37, 60)), drawn(each, vectors, np.random.default_rng(1)))
        for each in (again, tree)
    )
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [f.name for f in dataclasses.fields(LabelTree)] == list(tree.arrays())


def test_the_same_seed_gives_the_same_tree_and_the_arguments_are_left_alone() -> None:
    vectors, truth = world(37)
    before = vectors.copy()
    first, again = (LabelTree.fit(vectors, truth, seed=5, width=16, regulariser=0.1).arrays() for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert np.array_equal(vectors, before)


def test_pca_on_a_sample_depends_on_the_seed_and_is_nearly_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, truth = world(16, docs=800, width=12)
    whole = LabelTree.fit(vectors, truth, width=6, seed=0, regulariser=0.1)
    monkeypatch.setattr(label_tree, "SEEN", 300)
    trees = [LabelTree.fit(vectors, truth, width=6, seed=seed, regulariser=0.1) for seed in (0, 0, 1)]
    assert np.array_equal(trees[0].mean_D, trees[1].mean_D)
    assert not np.array_equal(trees[0].mean_D, trees[2].mean_D)
    assert train_likelihood(trees[0], vectors, truth) > train_likelihood(whole, vectors, truth) - 0.2


@pytest.mark.parametrize("together", [1, 50, 10**6])
def test_how_many_nodes_are_fitted_together_does_not_matter(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, truth = world(37, docs=120)
    expected = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    monkeypatch.setattr(label_tree, "_TOGETHER", together)
    monkeypatch.setattr(tree_growth, "_TOGETHER", together)
    found = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    assert np.array_equal(found.label_M, expected.label_M)
    first, second = (tree.log_prob(vectors, every(37, 120)) for tree in (found, expected))
    np.testing.assert_allclose(first, second, rtol=1e-8, atol=1e-8)


def test_nodes_are_fitted_together_up_to_a_number_of_pairs() -> None:
    groups = tree_growth._node_groups(np.array([3, 20_000, 16_384, 5, 8_000, 8_000]))
    assert [group.tolist() for group in groups] == [[1], [2], [4, 5], [3, 0]]


def broken(value: float) -> F32:
    vectors = world(5)[0].copy()
    vectors[3, 2] = value
    return vectors


@pytest.mark.parametrize(
    ("vectors", "rows", "labels", "changes"),
    [
        (np.zeros((0, 6), np.float32), 0, 5, {}),
        (np.zeros((60, 0), np.float32), 60, 5, {}),
        (np.zeros(60, np.float32), 60, 5, {}),
        (broken(0.0), 59, 5, {}),
        (broken(0.0), 60, 0, {}),
        (broken(math.nan), 60, 5, {}),
        (broken(math.inf), 60, 5, {}),
        (broken(0.0), 60, 5, {"width": 0}),
        (broken(0.0), 60, 5, {"regulariser": 0.0}),
        (broken(0.0), 60, 5, {"regulariser": math.nan}),
    ],
)
def test_a_fit_that_means_nothing_is_refused(vectors: F32, rows: int, labels: int, changes: dict[str, float]) -> None:
    truth = LabelMatrix(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), labels)
    with pytest.raises(ConfigError, match="expected: "):
        LabelTree.fit(vectors, truth, seed=0, **{"width": 16, "regulariser": 0.1, **changes})  # type: ignore[arg-type]


def test_documents_labels_and_counts_that_mean_nothing_are_refused() -> None:
    vectors, truth = world(5)
    tree = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    one = np.zeros((60, 1), np.int64)
    for docs, labels in ((vectors, one + 5), (vectors, one - 2), (vectors, one[1:]), (vectors[:, 1:], one)):
        with pytest.raises(ConfigError):
            tree.log_prob(docs, labels)
    for docs in (broken(math.nan), broken(-math.inf), vectors[0]):
        with pytest.raises(ConfigError):
            tree.features(docs)
    with pytest.raises(ConfigError):
        drawn(tree, vectors, np.random.default_rng(0), -1)


def test_no_documents_and_no_draws_give_nothing() -> None:
    vectors, truth = world(5)
    tree = LabelTree.fit(vectors, truth, seed=0, width=16, regulariser=0.1)
    assert tree.log_prob(vectors[:0], np.zeros((0, 3), np.int64)).shape == (0, 3)
    assert drawn(tree, vectors, np.random.default_rng(0), 0).shape == (60, 0)
