"""Triplet loss: values and gradients equal those of a float64 triple loop, and the public code's bug is absent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.naive import triplet as naive
from xc_core.errors import ConfigError
from xc_core.losses import Triplet
from xc_core.params import changed

GRID = list(itertools.product((0.0, 0.3), (1, 2, 50), (1, 3, 50), (0.0, 0.05, 1.0)))
"""margin, positives, hardest, temperature."""


def batch(seed: int, docs: int = 9, labels: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores without ties; the last rows have no chosen positive, no known positive, and no negative."""
    random = np.random.default_rng(seed)
    known = random.random((docs, labels)) < 0.3
    chosen = known & (random.random((docs, labels)) < 0.6)
    chosen[-3:], known[-2] = False, False
    chosen[-1], known[-1] = random.random(labels) < 0.3, True
    scores = random.uniform(-1, 1, (docs, labels)).astype(np.float32)
    return torch.from_numpy(scores), torch.from_numpy(chosen), torch.from_numpy(known)


def run(scores: torch.Tensor, chosen: torch.Tensor, known: torch.Tensor, **settings: float) -> naive.Result:
    """Return the loss in the form of the slow twin."""
    own = scores.clone().requires_grad_(True)
    total, count = Triplet(**settings).build()(own, chosen, known)  # type: ignore[arg-type]
    total.backward()
    assert own.grad is not None
    return naive.Result(float(total.detach()), int(count), own.grad.tolist())


@pytest.mark.parametrize(("margin", "positives", "hardest", "temperature"), GRID)
def test_value_count_and_gradient_equal_the_slow_twin(
    margin: float, positives: int, hardest: int, temperature: float
) -> None:
    settings = {"margin": margin, "positives": positives, "temperature": temperature}
    for seed in range(4):
        parts = batch(seed)
        slow = naive.triplet(*(part.tolist() for part in parts), **settings, negatives=hardest)  # type: ignore[arg-type]
        fast = run(*parts, **settings, hardest=hardest)
        assert slow.count == fast.count > 0
        assert fast.total == pytest.approx(slow.total, rel=1e-5)
        np.testing.assert_allclose(fast.gradient, slow.gradient, atol=2e-6)


def one_document(*negatives: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A document with one positive of score 0.5, the rest negatives."""
    scores = torch.tensor([[0.5, *negatives]])
    chosen = torch.zeros(scores.shape, dtype=torch.bool)
    chosen[0, 0] = True
    return scores, chosen, chosen.clone()


def test_the_only_active_negative_has_weight_one_and_an_inactive_one_exactly_none() -> None:
    found = run(*one_document(0.4, 0.1, -0.9), margin=0.3, hardest=3, temperature=0.1)
    assert found.gradient == [[-1.0, 1.0, 0.0, 0.0]]
    assert found.total == pytest.approx(0.2)


def test_the_public_code_that_masks_by_multiplying_gives_another_number() -> None:
    parts = one_document(0.4, 0.1, -0.9)
    found = run(*parts, margin=0.3, hardest=3, temperature=0.1).total
    wrong = naive.leaking_total(parts[0][0].tolist(), 0, [1, 2, 3], 0.3, 0.1)
    assert wrong < 0.98 * found
    everything_active = one_document(0.4, 0.35, 0.3)
    alike = naive.leaking_total(everything_active[0][0].tolist(), 0, [1, 2, 3], 0.3, 0.1)
    assert run(*everything_active, margin=0.3, hardest=3, temperature=0.1).total == pytest.approx(alike)


def test_the_weights_carry_no_gradient() -> None:
    scores, chosen, known = one_document(0.4, 0.3)
    found = run(scores, chosen, known, margin=0.3, temperature=0.5)
    weights = torch.softmax(scores[0, 1:] / 0.5, 0)
    assert found.gradient[0] == pytest.approx([-1.0, *weights.tolist()])
    own = scores.double().requires_grad_(True)
    through = (torch.softmax(own[0, 1:] / 0.5, 0) * (own[0, 1:] - own[0, 0] + 0.3)).sum()
    (leaky,) = torch.autograd.grad(through, own)
    assert (leaky[0, 1:] - torch.tensor(found.gradient[0][1:])).abs().max() > 0.01


def test_with_everything_counted_and_no_temperature_it_is_the_papers_sum_per_negative() -> None:
    scores, chosen, known = batch(7)
    found = run(scores, chosen, known, margin=0.3, positives=12, hardest=12, temperature=0.0)
    expected = 0.0
    for row, positive, held in zip(scores.double(), chosen, known, strict=True):
        others = row[~(positive | held)]
        gaps = (others[None, :] - row[positive][:, None] + 0.3).clamp(min=0)
        expected += float(gaps.sum()) / max(len(others), 1)
    assert found.total == pytest.approx(expected, rel=1e-5)


def test_a_known_positive_that_is_not_chosen_is_neither_pulled_nor_pushed() -> None:
    scores, chosen, known = one_document(0.45, 0.4)
    known[0, 1] = True
    found = run(scores, chosen, known, margin=0.3)
    assert found.gradient == [[-1.0, 0.0, 1.0]]


def test_the_hardest_positive_is_the_one_with_the_lowest_score() -> None:
    scores, chosen, known = one_document(0.2, 0.1)
    chosen[0, 1] = known[0, 1] = True
    found = run(scores, chosen, known, margin=0.3, positives=1)
    assert found.gradient == [[0.0, -1.0, 1.0]]
    assert run(scores, chosen, known, margin=0.3, positives=2).count == 2


def test_a_negative_exactly_at_the_margin_is_inactive() -> None:
    found = run(*one_document(0.25), margin=0.25)
    assert (found.total, found.gradient) == (0.0, [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("tripplet", "nearest: 'triplet'"),
        ({"bias": 1.0}, "a setting of the loss 'triplet': margin, hardest, positives, temperature"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(Triplet(), changes, "encoder.loss")
