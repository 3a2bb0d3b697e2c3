"""The contract of a loss, for every loss in the table: it returns (sum, count) of independent documents."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.card import CARD
from xc_core.devices import put
from xc_core.losses import LOSSES, BatchLoss, Sampled, Stateless

pytestmark = pytest.mark.parametrize("loss", [LOSSES[name]().build() for name in LOSSES], ids=LOSSES.names())

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def batch(docs: int = 8, labels: int = 15, seed: int = 0) -> Batch:
    """Two positives a document, one of them chosen; random scores without ties."""
    random = np.random.default_rng(seed)
    places = random.random((docs, labels)).argsort(1)[:, :2]
    chosen, known = np.zeros((2, docs, labels), bool)
    np.put_along_axis(chosen, places[:, :1], True, 1)
    np.put_along_axis(known, places, True, 1)
    scores = torch.from_numpy(random.uniform(-1, 1, (docs, labels)).astype(np.float32))
    return scores, torch.from_numpy(chosen), torch.from_numpy(known)


def gradient(loss: BatchLoss, parts: Batch) -> torch.Tensor:
    own = parts[0].clone().requires_grad_(True)
    (found,) = torch.autograd.grad(loss(own, *parts[1:])[0], own)
    return found


def test_a_loss_is_a_finite_sum_and_a_count_and_leaves_its_arguments_alone(loss: BatchLoss) -> None:
    parts = batch()
    before = [part.clone() for part in parts]
    total, count = loss(*parts)
    assert total.shape == count.shape == ()
    assert torch.isfinite(total)
    assert float(total) > 0
    assert int(count) > 0
    assert all(torch.equal(part, old) for part, old in zip(parts, before, strict=True))


def test_documents_are_independent_so_batches_add_up(loss: BatchLoss) -> None:
    """A step on many pairs relies on it."""
    if isinstance(loss, Stateless) and not loss.independent:
        pytest.skip("such a loss compares documents with each other, and gets the whole batch")
    parts = batch()
    whole = loss(*parts)
    singles = [loss(*(part[i : i + 1] for part in parts)) for i in range(8)]
    assert float(whole[0]) == pytest.approx(sum(float(total) for total, _ in singles), rel=1e-5)
    assert int(whole[1]) == sum(int(count) for _, count in singles)


def test_the_order_of_documents_and_labels_does_not_matter(loss: BatchLoss) -> None:
    parts = batch()
    random = torch.Generator().manual_seed(0)
    rows, columns = torch.randperm(8, generator=random), torch.randperm(15, generator=random)
    total, count = loss(*(part[rows][:, columns] for part in parts))
    assert float(total) == pytest.approx(float(loss(*parts)[0]), rel=1e-5)
    assert int(count) == int(loss(*parts)[1])


def test_the_gradient_pulls_the_chosen_pushes_negatives_and_leaves_other_positives_alone(loss: BatchLoss) -> None:
    parts = batch()
    _, chosen, known = parts
    found = gradient(loss, parts)
    assert (found[chosen] <= 0).all()
    assert (found[chosen] < 0).any()
    assert (found[~known] >= 0).all()
    assert (found[~known] > 0).any()
    assert (found[known & ~chosen] == 0).all()


def test_the_gradient_is_that_of_the_value_downhill(loss: BatchLoss) -> None:
    parts = batch()
    better = (parts[0] - 0.05 * gradient(loss, parts), *parts[1:])
    assert float(loss(*better)[0]) < float(loss(*parts)[0])


def test_right_scores_cost_less_than_random_ones_and_those_less_than_wrong_ones(loss: BatchLoss) -> None:
    scores, chosen, known = batch()
    right = torch.where(known, 1.0, -1.0)
    costs = [float(loss(values, chosen, known)[0]) for values in (right, scores, -right)]
    assert costs[0] < 0.5 * costs[1]
    assert costs[1] < costs[2]


def test_documents_without_a_chosen_positive_or_a_negative_add_nothing(loss: BatchLoss) -> None:
    if loss.separable:
        pytest.skip("a separable loss does not see all labels of a document; its own contract is below")
    scores, chosen, known = batch()
    chosen[0], known[0], known[1] = False, False, True
    parts = (scores, chosen, known)
    total, count = loss(*parts)
    rest = loss(*(part[2:] for part in parts))
    assert (float(total), int(count)) == (pytest.approx(float(rest[0])), int(rest[1]))
    assert (gradient(loss, parts)[:2] == 0).all()


@pytest.mark.parametrize("docs", [0, 3])
def test_a_batch_in_which_nothing_counts_costs_nothing(loss: BatchLoss, docs: int) -> None:
    if loss.separable and docs:
        pytest.skip("a separable loss does not see all labels of a document; its own contract is below")
    scores = torch.zeros(docs, 4, requires_grad=True)
    none = torch.zeros(docs, 4, dtype=torch.bool)
    total, count = loss(scores, none, none)
    (found,) = torch.autograd.grad(total, scores)
    assert (float(total.detach()), int(count), float(found.abs().sum())) == (0.0, 0, 0.0)


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("weight", [None, 0.5])
def test_on_a_card_a_loss_is_what_it_is_on_a_cpu(loss: BatchLoss, weight: float | None) -> None:
    scores, chosen, known = batch()
    chosen[0], known[0], known[1] = False, False, True  # documents that do not count, if the loss sees all labels
    results = []
    for device in (torch.device("cpu"), CARD.torch):
        own, *masks = (put(part.numpy(), device) for part in (scores.clone(), chosen, known))
        weighted = None if weight is None else put(weight * (~(known | chosen)).float().numpy(), device)
        own.requires_grad_()
        total, count = copy.deepcopy(loss)(own, masks[0], masks[1], Sampled(weight_BU=weighted))
        (found,) = torch.autograd.grad(total, own)
        results.append((total.detach().cpu(), count.cpu(), found.cpu()))
    for cpu, card in zip(*results, strict=True):
        torch.testing.assert_close(card, cpu)


@pytest.mark.parametrize("docs", [0, 2])
def test_the_losses_of_single_documents_are_floats_and_their_counts_whole_numbers(loss: BatchLoss, docs: int) -> None:
    if not isinstance(loss, Stateless) or not loss.independent:
        pytest.skip("such a loss is a sum over documents that depend on each other")
    totals, counts = loss.each(*(part[:docs] for part in batch()))
    assert (totals.dtype, counts.dtype, totals.shape, counts.shape) == (torch.float32, torch.int64, (docs,), (docs,))


def test_half_precision_scores_are_summed_in_full_precision(loss: BatchLoss) -> None:
    scores, chosen, known = batch()
    total, _ = loss(scores.bfloat16(), chosen, known)
    assert total.dtype == torch.float32
    assert float(total) == pytest.approx(float(loss(scores.bfloat16().float(), chosen, known)[0]))


def test_scores_that_are_no_numbers_are_not_hidden(loss: BatchLoss) -> None:
    scores, chosen, known = batch()
    scores[3] = torch.nan
    assert torch.isnan(loss(scores, chosen, known)[0])


def test_a_separable_loss_on_blocks_of_labels_adds_up_to_the_whole_and_counts_all_documents(loss: BatchLoss) -> None:
    parts = batch()
    cut = [loss(*(part[:, block] for part in parts)) for block in (slice(0, 4), slice(4, 5), slice(5, 15))]
    whole = float(loss(*parts)[0])
    if loss.separable:
        assert sum(float(total) for total, _ in cut) == pytest.approx(whole, rel=1e-5)
        assert [int(count) for _, count in cut] == [8, 8, 8]
    else:
        assert abs(sum(float(total) for total, _ in cut) - whole) > 0.01 * whole


def test_weights_of_one_for_every_negative_are_no_weights(loss: BatchLoss) -> None:
    scores, chosen, known = batch()
    sampled = Sampled(weight_BU=(~(known | chosen)).float())
    assert float(loss(scores, chosen, known, sampled)[0]) == pytest.approx(float(loss(scores, chosen, known)[0]))


def test_state_that_is_saved_and_loaded_changes_nothing(loss: BatchLoss) -> None:
    parts, sampled = batch(), Sampled(docs_B=torch.arange(8), labels_U=torch.arange(15))
    ours, other = (copy.deepcopy(loss) for _ in range(2))
    for scale in (2, 3):  # pairs that come again
        ours(scale * parts[0], *parts[1:], sampled)
    other.load(ours.tensors())
    assert float(ours(*parts, sampled)[0]) == float(other(*parts, sampled)[0])
