"""Softmax losses: values and gradients equal those of a float64 loop; known forms agree, wrong ones do not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.losses.test_triplet import batch
from tests.made import made
from tests.naive import softmax as naive
from xc_core.errors import ConfigError
from xc_core.losses import LOSSES, Sampled, SupCon, WithBinary
from xc_core.params import changed

NAMES = ("decoupled-softmax", "supcon")
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def run(parts: Batch, name: str, **settings: float) -> tuple[float, int, list[list[float]]]:
    own = parts[0].clone().requires_grad_(True)
    total, count = LOSSES[name](**settings).build()(own, *parts[1:])
    (gradient,) = torch.autograd.grad(total, own)
    return float(total.detach()), int(count), gradient.tolist()


@pytest.mark.parametrize(("name", "temperature"), itertools.product(NAMES, (0.03, 0.1, 1.0)))
def test_value_count_and_gradient_equal_the_slow_twin(name: str, temperature: float) -> None:
    for seed in range(4):
        parts = batch(seed)
        fast = run(parts, name=name, temperature=temperature)
        plain = (part.tolist() for part in parts)
        slow = naive.softmax(*plain, temperature=temperature, decoupled=name != "supcon")
        assert slow[1] == fast[1] > 0
        assert fast[0] == pytest.approx(slow[0], rel=1e-5)
        np.testing.assert_allclose(fast[2], slow[2], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_counts_a_negative_as_often_as_it_says(name: str) -> None:
    scores, chosen, known = batch(2)
    weight = torch.from_numpy(np.random.default_rng(0).integers(0, 4, scores.shape).astype(np.float32))
    weight[known | chosen] = 0.0
    own = scores.clone().requires_grad_(True)
    total, count = made(LOSSES, name, temperature=0.3).build()(own, chosen, known, Sampled(weight))
    (gradient,) = torch.autograd.grad(total, own)
    copies = [torch.repeat_interleave(torch.arange(scores.shape[1]), weight[i].long()) for i in range(len(scores))]
    expected, counted = 0.0, 0
    for i, again in enumerate(copies):
        places = torch.cat([chosen[i].nonzero()[:, 0], again])
        first = int(chosen[i].sum())
        is_chosen = (torch.arange(len(places)) < first)[None].tolist()
        slow = naive.softmax(
            scores[i][places][None].tolist(), is_chosen, is_chosen, temperature=0.3, decoupled=name != "supcon"
        )
        expected, counted = expected + slow[0], counted + slow[1]
        gradient[i].index_add_(0, places, -torch.tensor(slow[2][0] if slow[2] else [], dtype=torch.float32))
    assert int(count) == counted > 0
    assert float(total.detach()) == pytest.approx(expected, rel=1e-5)
    assert gradient.abs().max() < 1e-4


def test_the_other_form_gives_another_number() -> None:
    found = [run(batch(0), name=name, temperature=0.1)[0] for name in NAMES]
    assert found[0] < 0.95 * found[1]


@pytest.mark.parametrize("name", NAMES)
def test_with_one_positive_per_document_it_is_the_cross_entropy(name: str) -> None:
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 3, 8, 8, 1, 4])
    chosen = torch.nn.functional.one_hot(targets, 9).bool()
    expected = torch.nn.functional.cross_entropy(scores / 0.5, targets, reduction="sum")
    assert run((scores, chosen, chosen), name=name, temperature=0.5)[0] == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_large_scores_neither_overflow_nor_lose_their_gradient(name: str) -> None:
    scores = torch.tensor([[300.0, -300.0, 299.0]])
    chosen = torch.tensor([[False, True, False]])
    total, _, gradient = run((scores, chosen, chosen), name=name, temperature=0.01)
    assert total == pytest.approx(60_000, rel=1e-6)
    assert gradient[0] == pytest.approx([100.0, -100.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"forward": 1.1}, {"forward": -0.1}])
def test_settings_that_mean_nothing_are_refused(changes: dict[str, float]) -> None:
    ((name, value),) = changes.items()
    expected = "0.001 to 100" if name == "temperature" else "0 to 1"
    with pytest.raises(ConfigError, match=f"found {name} {value}\n  expected: {expected}"):
        SupCon(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"softmax": "triplet"}, "softmax 'triplet'\n  expected: decoupled-softmax or supcon"),
        ({"softmax": "softmax-and-bce"}, "softmax 'softmax-and-bce'"),
        ({"binary": "supcon"}, "binary 'supcon'\n  expected: bce"),
        ({"weight": -0.1}, "weight -0.1"),
    ],
)
def test_only_a_softmax_and_a_binary_cross_entropy_can_be_added_up(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(WithBinary(), changes, "encoder.loss")
