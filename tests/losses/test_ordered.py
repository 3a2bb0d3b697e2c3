"""Ordered SGD: values and gradients equal those of a loop that sorts the documents by their own losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.card import CARD
from xc_core.devices import put
from xc_core.errors import ConfigError
from xc_core.losses import AugmentReduce, Bce, DecoupledSoftmax, Loss, Ordered, Sampled, Stateless, SupCon, Triplet
from xc_core.params import changed

LOSSES = {
    "triplet": Triplet(positives=2, hardest=3),
    "equal weights": Triplet(positives=3, hardest=4, temperature=0.0),
    "softmax": DecoupledSoftmax(temperature=0.3),
    "supcon": SupCon(temperature=0.3),
    "bce": Bce(temperature=0.3, bias=1.0),
}
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def batch(seed: int, docs: int = 9, labels: int = 12) -> Batch:
    """Scores without ties; the last document has no chosen positive, the one before it no negative."""
    random = np.random.default_rng(seed)
    known = random.random((docs, labels)) < 0.3
    known[:, 0] = True
    chosen = known & (random.random((docs, labels)) < 0.6)
    chosen[:, 0] = True
    chosen[-1], known[-2] = False, True
    scores = random.uniform(-1, 1, (docs, labels)).astype(np.float32)
    return torch.from_numpy(scores), torch.from_numpy(chosen), torch.from_numpy(known)


def gradient(loss: Any, parts: Batch) -> tuple[float, int, torch.Tensor]:
    own = parts[0].clone().requires_grad_(True)
    total, count = loss(own, *parts[1:])
    (found,) = torch.autograd.grad(total, own)
    return float(total.detach()), int(count), found


def by_hand(loss: Loss, parts: Batch, q: int) -> tuple[float, int, torch.Tensor]:
    """Each document is a batch of its own; the q with the highest mean losses are added up."""
    found = torch.zeros_like(parts[0])
    means = []
    for i in range(len(parts[0])):
        total, count, own = gradient(loss, tuple(part[i : i + 1] for part in parts))  # type: ignore[arg-type]
        if count:
            means.append((total / count, i, own[0] / count))
    chosen = sorted(means, key=lambda mean: -mean[0])[:q]
    for _, i, own in chosen:
        found[i] = own
    return sum(mean for mean, _, _ in chosen), len(chosen), found


@pytest.mark.parametrize("q", [1, 3, 7, 50])
@pytest.mark.parametrize("name", LOSSES)
def test_value_count_and_gradient_equal_the_slow_twin(name: str, q: int) -> None:
    for seed in range(3):
        parts = batch(seed)
        total, count, found = gradient(Ordered(loss=LOSSES[name], q=q), parts)
        slow_total, slow_count, slow = by_hand(LOSSES[name], parts, q)
        assert (total, count) == (pytest.approx(slow_total, rel=1e-5), slow_count)
        torch.testing.assert_close(found, slow, atol=2e-6, rtol=1e-5)
        if q == 3:
            assert int((found != 0).any(1).sum()) == 3, "the other documents learn nothing"


@pytest.mark.parametrize("name", ["triplet", "equal weights"])
def test_the_fast_way_to_each_documents_loss_equals_one_call_per_document(name: str) -> None:
    loss = LOSSES[name]
    assert isinstance(loss, Stateless)
    assert type(loss).each is not Stateless.each
    for ours, slow in zip(loss.each(*batch(0)), Stateless.each(loss, *batch(0)), strict=True):
        torch.testing.assert_close(ours, slow)
    assert [len(part) for part in Stateless.each(loss, *(part[:0] for part in batch(0)))] == [0, 0]


def test_weights_of_the_sample_are_those_of_the_selected_documents() -> None:
    scores, chosen, known = batch(1)
    weight = torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)) * ~known
    whole = Bce(temperature=0.3).each(scores, chosen, known, Sampled(weight_BU=weight))[0]
    total, _ = Ordered(loss=Bce(temperature=0.3), q=2)(scores, chosen, known, Sampled(weight_BU=weight))
    assert float(total) == pytest.approx(float(whole.sort(descending=True).values[:2].sum()))


def test_it_selects_documents_and_not_negatives() -> None:
    """The hardest negative of every document (``hardest`` 1) is another method: every document learns from it."""
    parts = batch(2)
    every = gradient(Triplet(hardest=1, margin=2.0), parts)[2]
    selected = gradient(Ordered(loss=Triplet(hardest=10, margin=2.0), q=2), parts)[2]
    assert int((every != 0).any(1).sum()) == 7
    assert int((selected != 0).any(1).sum()) == 2


@pytest.mark.parametrize(
    "loss", [AugmentReduce(), DecoupledSoftmax(forward=0.5), Ordered()], ids=["state", "both directions", "itself"]
)
def test_a_loss_that_is_no_sum_over_documents_is_refused(loss: Loss) -> None:
    with pytest.raises(ConfigError, match="not a sum over documents"):
        Ordered(loss=loss)


def test_the_wrapped_loss_can_be_set_and_gives_the_divisor() -> None:
    own = changed(Ordered(), {"loss": {"kind": "supcon", "temperature": 0.2}, "q": 5}, "encoder.loss")
    assert own == Ordered(loss=SupCon(temperature=0.2), q=5)
    assert own.divisor == 0.2
    with pytest.raises(ConfigError, match="q 0"):
        changed(own, {"q": 0}, "encoder.loss")


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("q", [3, 50])
def test_a_card_ranks_documents_by_the_mean_of_their_losses_too(q: int) -> None:
    loss, parts = Ordered(loss=Triplet(positives=2, hardest=3), q=q), batch(0)
    found = loss(*(put(part.numpy(), CARD.torch) for part in parts))
    assert [float(own.cpu()) for own in found] == [pytest.approx(float(own)) for own in loss(*parts)]
