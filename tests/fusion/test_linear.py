"""The weights of the linear model: compared with a naive loss, at its minimum, and on worlds where they are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from xc_core.fusion.linear import _PENALTY, fit_weights
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
