"""The weights of the linear model: compared with a naive loss, at its minimum, and on worlds where they are known."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy

from xc_core.fusion import Inputs, LightGBM, Pairs
from xc_core.fusion.linear import _PENALTY, HELD, _Loss, fit_weights
from xc_core.shapes import F32, F64, Bool


def world(documents: int = 80, scores: int = 3, seed: int = 0) -> tuple[F32, F32, Bool]:
    """Return values, targets and used candidates; targets are not all 1, and every tenth candidate is not used."""
    random = np.random.default_rng(seed)
    values = (random.normal(size=(documents, 9, scores)) * [0.1, 1.0, 40.0][:scores] + 3).astype(np.float32)
    wanted = values[..., 0] / 0.1 + values[..., 1] + random.normal(size=values.shape[:2])
    target = np.where(wanted > np.quantile(wanted, 0.8), 0.5 + random.random(wanted.shape), 0).astype(np.float32)
    return values, target, random.random(wanted.shape) < 0.9


def naive(weights_F: F64, values_NKF: F32, target_NK: F32, used_NK: Bool) -> float:
    """The loss of the docstring, pair by pair."""
    scale_F = values_NKF[used_NK].astype(np.float64).std(axis=0)
    total, share = 0.0, 0.0
    for values_KF, target_K, used_K in zip(values_NKF.astype(np.float64), target_NK.tolist(), used_NK, strict=True):
        scores = (values_KF @ weights_F).tolist()
        positives = [place for place in np.flatnonzero(used_K) if target_K[place] > 0]
        negatives = [scores[place] for place in np.flatnonzero(used_K) if target_K[place] <= 0]
        if not negatives:
            continue
        for place in positives:
            gap = math.log(sum(math.exp(other - scores[place]) for other in negatives))
            total += target_K[place] * math.log1p(math.exp(gap))
            share += target_K[place]
    return total / share + _PENALTY * float(((weights_F * scale_F) ** 2).sum())


@pytest.mark.parametrize("seed", range(3))
def test_the_weights_are_the_minimum_of_the_naive_loss(seed: int) -> None:
    values, target, used = world(seed=seed)
    found = fit_weights(values, target, used)
    best = scipy.optimize.minimize(naive, np.zeros(3), args=(values, target, used), tol=1e-10)
    spread = values[used].std(axis=0)
    np.testing.assert_allclose(found * spread, best.x * spread, atol=2e-3)
    assert naive(found, values, target, used) < naive(np.zeros(3), values, target, used) - 0.3


def test_a_score_that_says_nothing_gets_little_weight_and_a_copy_shares() -> None:
    values, target, used = world(400)
    spread = values[used].std(axis=0)
    first, second, noise = (fit_weights(values, target, used) * spread).tolist()
    assert first > second > 0.5
    assert abs(noise) < 0.15
    twice = fit_weights(np.concatenate([values, values[..., :1]], axis=2), target, used)
    assert twice[0] == pytest.approx(twice[3])
    assert 2 * twice[0] * spread[0] == pytest.approx(first, rel=0.05)


def test_a_constant_score_and_documents_without_a_positive_or_a_negative_change_nothing() -> None:
    values, target, used = world()
    own = fit_weights(values, target, used)
    with_constant = np.concatenate([values, np.full((*target.shape, 1), 7, np.float32)], axis=2)
    np.testing.assert_allclose(fit_weights(with_constant, target, used), [*own, 0.0], rtol=1e-6)
    more = np.concatenate([values, values[:2]])
    silent = np.concatenate([target, np.zeros_like(target[:1]), np.ones_like(target[:1])])
    both = fit_weights(more, silent, np.concatenate([used, used[:2]]))
    np.testing.assert_allclose(both, own, rtol=0.05)  # the scale is that of all used candidates


def test_candidates_that_are_not_used_are_not_read() -> None:
    values, target, used = world()
    own = fit_weights(values, target, used)
    values[~used], target[~used] = np.nan, 1.0
    np.testing.assert_array_equal(fit_weights(values, target, used), own)


def test_nothing_to_learn_from_gives_no_weights() -> None:
    values, target, used = world()
    assert fit_weights(values, np.zeros_like(target), used).tolist() == [0.0, 0.0, 0.0]
    assert fit_weights(values, np.ones_like(target), used).tolist() == [0.0, 0.0, 0.0]


def test_positives_count_in_proportion_to_their_targets() -> None:
    """Documents of one kind prefer the first score, those of the other the second; the heavier kind decides."""
    values = np.zeros((40, 2, 2), np.float32)
    values[:20, 0, 0] = values[20:, 0, 1] = 1.0
    values[:20, 1, 1] = values[20:, 1, 0] = 1.0
    target = np.zeros((40, 2), np.float32)
    target[:20, 0], target[20:, 0] = 3.0, 1.0
    first, second = fit_weights(values, target, np.ones((40, 2), bool)).tolist()
    assert first > 0.3
    assert second == pytest.approx(-first)


def test_the_fit_holds_at_most_what_a_plan_counts() -> None:
    """Beside the values; ``tracemalloc`` counts the arrays of numpy."""
    random = np.random.default_rng(0)
    values = random.normal(size=(250, 500, 8)).astype(np.float32)
    target = (values[..., 0] > 2).astype(np.float32)
    pairs, names = Pairs(values, target, np.ones(target.shape, bool)), tuple("abcdefgh")
    rule, inputs = LightGBM(linear=True, rounds=1), Inputs(names, names)
    rule.fit(inputs, replace(pairs, values_NKF=values[:9], target_NK=target[:9], filled_NK=pairs.filled_NK[:9]))
    tracemalloc.start()  # all packages are imported
    try:
        rule.fit(inputs, pairs)
        held = tracemalloc.get_traced_memory()[1] / values.nbytes
    finally:
        tracemalloc.stop()
    assert 0.7 * HELD < held < HELD


def test_a_score_that_makes_no_mistake_gets_a_weight_that_few_documents_bound() -> None:
    """Without the penalty any higher weight has a lower loss; one wrong document could not be outvoted."""
    target = np.tile(np.arange(10) < 2, (30, 1)).astype(np.float32)
    (weight,) = fit_weights(target[..., None], target, np.ones(target.shape, bool)) * target.std()
    assert 2.8 < weight < 3.6


@pytest.mark.parametrize("factor", [1e3, -1e3])
def test_a_long_step_of_the_search_overflows_nothing(factor: float) -> None:
    """The loss is then the gap from a positive to the best negative; the gradient is that of the gap."""
    values = np.array([[2.0], [1.0], [-1.0], [0.5], [3.0]])
    target, doc = np.array([1.0, 0, 0, 1, 0]), np.array([0, 0, 0, 1, 1])
    loss, (gradient,) = _Loss(values, target, doc, np.ones(5, bool))(np.array([factor]))
    gaps = np.array([1.0 - 2.0 if factor > 0 else -1.0 - 2.0, 3.0 - 0.5]) * factor
    assert loss == pytest.approx(np.maximum(gaps, 0).mean() + _PENALTY * factor**2)
    assert gradient == pytest.approx((gaps[gaps > 0] / factor).sum() / 2 + 2 * _PENALTY * factor)
