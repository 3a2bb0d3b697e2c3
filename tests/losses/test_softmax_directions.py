"""Softmax losses from labels to documents, and with a binary part: values and gradients equal loops in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.losses.test_triplet import batch
from tests.made import made
from tests.naive import sampled, softmax
from xc_core.losses import LOSSES, Bce, DecoupledSoftmax, Loss, Sampled, SupCon, WithBinary

NAMES = ("decoupled-softmax", "supcon")
Lists = list[list[float]]
Masks = list[list[bool]]
Softmax = DecoupledSoftmax | SupCon


def turned(rows: Lists) -> Lists:
    return [list(column) for column in zip(*rows, strict=True)]


def counting(chosen: Masks, known: Masks) -> list[int]:
    """Return the documents that have a chosen positive and a negative."""
    some = [any(own) for own in chosen]
    full = [
        all(a or b for a, b in zip(own, all_known, strict=True)) for own, all_known in zip(chosen, known, strict=True)
    ]
    return [i for i in range(len(chosen)) if some[i] and not full[i]]


def slow(scores: Lists, chosen: Masks, known: Masks, config: Softmax) -> tuple[float, int, np.ndarray]:
    """Return the weighted sum of both directions: value, number of documents that count, and gradient."""
    how = {"temperature": config.temperature, "decoupled": config.kind != "supcon"}
    there, count, gradient = softmax.softmax(scores, chosen, known, **how)
    back, _, turned_back = softmax.softmax(turned(scores), turned(chosen), turned(known), **how)
    total = config.forward * there + (1 - config.forward) * back
    return total, count, config.forward * np.array(gradient) + (1 - config.forward) * np.array(turned_back).T


def fast(parts: tuple[torch.Tensor, ...], config: Loss) -> tuple[float, int, np.ndarray]:
    own = parts[0].clone().requires_grad_(True)
    total, count = config.build()(own, *parts[1:])
    (gradient,) = torch.autograd.grad(total, own)
    return float(total.detach()), int(count), gradient.numpy()


@pytest.mark.parametrize(("name", "forward", "seed"), itertools.product(NAMES, (0.0, 0.25, 0.5), (0, 1)))
def test_both_directions_equal_the_slow_twin_on_a_batch_and_on_the_turned_one(
    name: str, forward: float, seed: int
) -> None:
    """Some documents and some labels have no positive or no negative, and some positives are not chosen."""
    config = made(LOSSES, name, temperature=0.3, forward=forward)
    parts = batch(seed)
    scores, chosen, known = (part.tolist() for part in parts)
    expected = slow(scores, chosen, known, config)
    found = fast(parts, config)
    assert found[:2] == (pytest.approx(expected[0], rel=1e-5), expected[1])
    np.testing.assert_allclose(found[2], expected[2], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_weights_count_from_labels_to_documents_too(name: str) -> None:
    """A backward loss is the loss of the turned batch; what a weight means there is tested in ``test_softmax``."""
    scores, chosen, known = batch(0)
    weight = torch.from_numpy(np.random.default_rng(0).integers(0, 4, scores.shape).astype(np.float32))
    weight[known | chosen] = 0.0
    back, ahead = (made(LOSSES, name, temperature=0.3, forward=forward).build() for forward in (0.0, 1.0))
    found = float(back(scores, chosen, known, Sampled(weight))[0])
    assert found == pytest.approx(float(ahead(scores.T, chosen.T, known.T, Sampled(weight.T))[0]), rel=1e-6)
    assert found != pytest.approx(float(back(scores, chosen, known, Sampled((weight > 0).float()))[0]), rel=1e-3)


def test_the_count_is_the_number_of_documents_for_any_share_of_the_backward_part() -> None:
    """The paper sums both sides over the batch alike."""
    scores, chosen, known = batch(2, docs=5, labels=40)
    documents = len(counting(chosen.tolist(), known.tolist()))
    labels = len(counting(turned(chosen.tolist()), turned(known.tolist())))  # type: ignore[arg-type]
    assert documents != labels
    for forward in (0.0, 0.5, 1.0):
        assert fast((scores, chosen, known), SupCon(forward=forward))[1] == documents


@pytest.mark.parametrize(("name", "forward", "weight"), itertools.product(NAMES, (0.5, 1.0), (0.1, 2.0)))
def test_the_binary_part_uses_only_documents_that_count(name: str, forward: float, weight: float) -> None:
    """Otherwise a document without a chosen positive would only be pushed away from all its negatives."""
    scores, chosen, known = batch(4)
    softmax_part = made(LOSSES, name, temperature=0.5, forward=forward)
    config = WithBinary(softmax=softmax_part, binary=Bce(temperature=0.5, bias=1.5), weight=weight)
    lists = scores.tolist(), chosen.tolist(), known.tolist()
    total, count, _ = slow(*lists, softmax_part)
    own = counting(*lists[1:])
    assert 0 < len(own) == count < len(scores)
    negative = (~(known | chosen)).float().tolist()
    binary = sampled.bce(
        *([part[i] for i in own] for part in (lists[0], lists[1], negative)), temperature=0.5, bias=1.5
    )
    found = fast((scores, chosen, known), config)
    assert found[:2] == (pytest.approx(total + weight * binary, rel=1e-5), count)


@pytest.mark.parametrize("name", NAMES)
def test_documents_that_do_not_count_get_no_gradient_of_the_binary_part(name: str) -> None:
    parts = batch(5)
    others = sorted(set(range(len(parts[0]))) - set(counting(parts[1].tolist(), parts[2].tolist())))
    assert len(others) >= 2
    config = WithBinary(softmax=made(LOSSES, name, temperature=0.5), binary=Bce(temperature=0.5), weight=1.0)
    gradient = fast(parts, config)[2]
    assert not gradient[others].any()
    assert gradient.any(1).sum() == len(gradient) - len(others)
