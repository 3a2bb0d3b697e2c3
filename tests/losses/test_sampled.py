"""Losses on samples: values and gradients equal those of float64 loops, and properties that their papers prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.made import made
from tests.naive import sampled as naive
from xc_core.losses import (
    LOSSES,
    AugmentReduce,
    Bce,
    Loss,
    NegativeSampling,
    NoiseContrastive,
    OnHost,
    Ordered,
    Sampled,
    SupCon,
    Triplet,
    WithBinary,
)
from xc_core.losses.negative_sampling import AugmentReduceLoss

DOCS, LABELS = 5, 9


def parts(seed: int) -> dict[str, torch.Tensor]:
    """Return one or two chosen positives per document; each label is drawn 0 to 2 times, sometimes a positive."""
    random = np.random.default_rng(seed)
    chosen = np.zeros((DOCS, LABELS), bool)
    for i in range(DOCS):
        chosen[i, random.choice(LABELS, 1 + i % 2, replace=False)] = True
    weight = random.integers(0, 3, (DOCS, LABELS)).astype(np.float32)
    weight[:, 0] = 1.0
    return {
        "scores": torch.from_numpy(random.uniform(-1, 1, (DOCS, LABELS)).astype(np.float32)),
        "chosen": torch.from_numpy(chosen),
        "weight": torch.from_numpy(weight),
        "noise": torch.from_numpy(np.log(random.dirichlet(np.ones(LABELS), DOCS)).astype(np.float32)),
    }


def slow_gradient(value: Callable[[list[list[float]]], float], scores: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the central differences of a slow twin."""
    base = scores.double().numpy()
    found = np.zeros_like(base)
    for place in np.ndindex(*base.shape):
        up, down = base.copy(), base.copy()
        up[place] += 1e-5
        down[place] -= 1e-5
        found[place] = (value(up.tolist()) - value(down.tolist())) / 2e-5
    return found


def twin(name: str, given: dict[str, torch.Tensor], settings: dict[str, float]) -> Callable[[list[list[float]]], float]:
    chosen, weight, noise = (given[key].tolist() for key in ("chosen", "weight", "noise"))
    calls: dict[str, Callable[[list[list[float]]], float]] = {
        "bce": lambda s: naive.bce(s, chosen, weight, **settings),
        "negative-sampling": lambda s: naive.negative_sampling(s, chosen, weight, noise, **settings),
        "nce": lambda s: naive.nce(s, chosen, weight, noise, **settings),
        "one-vs-each": lambda s: naive.one_vs_each(s, chosen, weight, **settings),
    }
    return calls[name]


CASES = [
    ("bce", {"temperature": 0.5, "bias": 2.0}),
    ("negative-sampling", {"temperature": 0.5, "regulariser": 0.0}),
    ("negative-sampling", {"temperature": 1.0, "regulariser": 0.3}),
    ("nce", {"temperature": 0.5, "bias": 0.0}),
    ("nce", {"temperature": 0.5, "bias": 2.0}),
    ("one-vs-each", {"temperature": 0.5}),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_value_and_gradient_equal_the_slow_twin(name: str, settings: dict[str, float]) -> None:
    for seed in range(3):
        given = parts(seed)
        slow = twin(name, given, settings)
        scores = given["scores"].clone().requires_grad_(True)
        sampled = Sampled(weight_BU=given["weight"], noise_BU=given["noise"])
        total, count = LOSSES[name](**settings).build()(scores, given["chosen"], given["chosen"], sampled)
        (gradient,) = torch.autograd.grad(total, scores)
        assert float(total.detach()) == pytest.approx(slow(given["scores"].double().tolist()), rel=1e-5)
        np.testing.assert_allclose(gradient.numpy(), slow_gradient(slow, given["scores"]), rtol=1e-4, atol=1e-5)
        assert int(count) == (DOCS if name == "bce" else int(given["chosen"].sum()))


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_drawing_a_label_once_more_costs_more(name: str, settings: dict[str, float]) -> None:
    given = parts(0)
    loss = LOSSES[name](**settings).build()
    more = given["weight"].clone()
    more[:, given["scores"].sum(0).argmax()] += 3
    values = [
        float(loss(given["scores"], given["chosen"], given["chosen"], Sampled(weight, given["noise"]))[0])
        for weight in (given["weight"], more)
    ]
    assert values[1] > 1.001 * values[0]


def pair_sums(given: dict[str, torch.Tensor], temperature: float) -> dict[tuple[int, int], float]:
    """Return S of each chosen pair, by its position in the batch."""
    z, chosen, weight = given["scores"].double() / temperature, given["chosen"], given["weight"].double()
    found = {}
    for i, own in chosen.nonzero().tolist():
        others = [k for k in range(LABELS) if k != own]
        found[i, own] = sum(
            (1.0 if chosen[i, k] else float(weight[i, k])) * math.exp(z[i, k] - z[i, own]) for k in others
        )
    return found


def test_augment_and_reduce_equals_its_twin_and_its_estimates_follow_the_decay() -> None:
    docs, labels = torch.tensor([7, 0, 3, 4, 2])[:DOCS], torch.arange(LABELS) + 100
    loss = AugmentReduce(temperature=0.5, decay=0.7).build()
    remembered: dict[tuple[int, int], float] = {}
    for visit in range(3):
        given = parts(1) | {"scores": parts(visit)["scores"], "weight": parts(visit)["weight"]}
        share = (visit + 1) ** -0.7
        now = pair_sums(given, 0.5)
        remembered = {pair: (1 - share) * remembered.get(pair, 0.0) + share * now[pair] for pair in now}
        scores = given["scores"].clone().requires_grad_(True)
        sampled = Sampled(given["weight"], docs_B=docs, labels_U=labels)
        total, count = loss(scores, given["chosen"], given["chosen"], sampled)
        (gradient,) = torch.autograd.grad(total, scores)

        def slow(values: list[list[float]], given: Any = given, etas: Any = remembered) -> float:
            return naive.augment_reduce(
                values, given["chosen"].tolist(), given["weight"].tolist(), etas, temperature=0.5
            )

        assert float(total.detach()) == pytest.approx(slow(given["scores"].double().tolist()), rel=1e-5)
        np.testing.assert_allclose(gradient.numpy(), slow_gradient(slow, given["scores"]), rtol=1e-3, atol=1e-4)
        assert int(count) == int(given["chosen"].sum())


def test_a_positive_that_is_all_that_was_drawn_takes_no_gradient_away_from_other_documents() -> None:
    """Its sum over other labels is 0, and so is its loss; later it learns from other draws, as its twin does."""
    loss = AugmentReduce(temperature=0.5, decay=0.7).build()
    chosen = torch.eye(2, 3, dtype=torch.bool)
    scores = torch.tensor([[0.3, -0.2, 0.1], [0.4, 0.2, -0.5]], requires_grad=True)
    etas = {(0, 0): 0.0}
    for visit, drawn in enumerate(([2.0, 0.0, 0.0], [0.0, 0.0, 1.0])):
        weight, share = torch.tensor([drawn, [0.0, 0.0, 1.0]]), (visit + 1) ** -0.7
        where = Sampled(weight, docs_B=torch.arange(2), labels_U=torch.arange(3))
        total, count = loss(scores, chosen, chosen, where)
        (gradient,) = torch.autograd.grad(total, scores)
        etas[0, 0] += share * drawn[2] * math.exp((0.1 - 0.3) / 0.5)
        etas[1, 1] = math.exp((-0.5 - 0.2) / 0.5)

        def slow(values: list[list[float]], weight: Any = weight) -> float:
            return naive.augment_reduce(values, chosen.tolist(), weight.tolist(), etas, temperature=0.5)

        assert float(total.detach()) == pytest.approx(slow(scores.tolist()), rel=1e-5)
        np.testing.assert_allclose(gradient.numpy(), slow_gradient(slow, scores.detach()), rtol=1e-3, atol=1e-4)
        assert int(count) == 2


def test_estimates_of_augment_and_reduce_belong_to_pairs_in_any_order_and_survive_saving() -> None:
    def build() -> Any:
        return AugmentReduce(temperature=1.0).build()

    scores = torch.randn(3, 6, generator=torch.Generator().manual_seed(2))
    chosen = torch.nn.functional.one_hot(torch.tensor([1, 1, 4]), 6).bool()
    straight, turned, loaded = build(), build(), build()
    where = Sampled(docs_B=torch.arange(3), labels_U=torch.arange(6))
    for visit in (1, -1):  # the weight of the next estimate depends on how many there were
        for loss in (straight, turned):
            loss(visit * scores, chosen, chosen, where)
    loaded.load(straight.tensors())
    docs, labels = torch.tensor([2, 0, 1]), torch.tensor([5, 4, 3, 2, 1, 0])
    other = Sampled(docs_B=docs, labels_U=labels)
    later = [float(loss(2 * scores, chosen, chosen, where)[0]) for loss in (straight, loaded)]
    later.append(float(turned(2 * scores[docs][:, labels], *[chosen[docs][:, labels]] * 2, other)[0]))
    assert later[1:] == pytest.approx([later[0]] * 2, rel=1e-6)
    fresh = float(build()(2 * scores, chosen, chosen, where)[0])
    assert later[0] > 1.0001 * fresh, "stale estimates make the bound loose"


def test_augment_and_reduce_never_pushes_a_positive_down_however_stale_its_estimates() -> None:
    loss = AugmentReduce(temperature=1.0).build()
    where = {"docs_B": torch.arange(1), "labels_U": torch.arange(50)}
    chosen = torch.nn.functional.one_hot(torch.tensor([3]), 50).bool()
    loss(torch.zeros(1, 50), chosen, chosen, Sampled(**where))
    for high in (0.0, 4.0, 8.0):
        scores = (high * chosen.float()).requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(scores, chosen, chosen, Sampled(**where))[0], scores)
        assert gradient[0, 3] < 0
        assert float(gradient.sum()) == pytest.approx(0.0, abs=1e-6)


def test_augment_and_reduce_is_the_softmax_at_the_right_eta_and_above_it_at_any_other() -> None:
    scores = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 3, 8, 8, 1, 4])
    chosen = torch.nn.functional.one_hot(targets, 9).bool()
    softmax = float(torch.nn.functional.cross_entropy(scores, targets, reduction="sum"))
    where = Sampled(docs_B=torch.arange(6), labels_U=torch.arange(9))
    right = AugmentReduce(temperature=1.0).build()
    assert float(right(scores, chosen, chosen, where)[0]) == pytest.approx(softmax, rel=1e-5)
    for other in (0.5, 2.0):
        stale = AugmentReduceLoss(temperature=1.0, decay=30.0)
        stale(other * scores, chosen, chosen, where)
        assert float(stale(scores, chosen, chosen, where)[0]) > softmax + 0.01


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", ["negative-sampling", "nce", "one-vs-each", "augment-reduce"])
def test_a_selection_on_the_processor_changes_no_digit(name: str, weighted: bool) -> None:
    """The first document has no chosen positive, the second no negative; then some documents are taken out."""
    given = parts(1)
    scores, chosen, noise = given["scores"], given["chosen"].clone(), given["noise"]
    known, weight = chosen.clone(), given["weight"].clone() if weighted else None
    chosen[0], known[1] = False, True
    if weight is not None:
        weight[1] = 0.0
    docs, labels = torch.tensor([7, 0, 3, 4, 2]), torch.arange(LABELS) + 100
    without = Sampled(weight, noise, docs, labels)
    host = OnHost(
        chosen.numpy(), known.numpy(), None if weight is None else weight.numpy(), docs.numpy(), labels.numpy()
    )
    beside = replace(without, host=lambda: host)
    kept = torch.tensor([True, True, False, True, True])
    for rows in (slice(None), kept, slice(3, 4)):
        masks = scores[rows], chosen[rows], known[rows]
        values = [
            [float(x) for x in LOSSES[name]().build()(*masks, sampled.documents(rows))] for sampled in (without, beside)
        ]
        assert values[0] == values[1]
        assert values[0][1] == chosen[rows][~known[rows].all(1)].sum() > 0


@pytest.mark.parametrize("name", ["decoupled-softmax", "supcon"])
def test_a_softmax_with_bce_is_the_sum_of_both(name: str) -> None:
    given = parts(3)
    softmax, binary = made(LOSSES, name, temperature=0.5), Bce(temperature=0.5, bias=1.0)
    losses = [config.build() for config in (WithBinary(softmax=softmax, binary=binary, weight=0.2), softmax, binary)]
    both, one, other = (float(loss(given["scores"], given["chosen"], given["chosen"])[0]) for loss in losses)
    assert both == pytest.approx(one + 0.2 * other, rel=1e-6)


@pytest.mark.parametrize("name", ["decoupled-softmax", "supcon"])
def test_both_parts_of_a_softmax_with_bce_read_the_weights(name: str) -> None:
    """A document all of whose negatives have weight 0 does not count in either part."""
    given = parts(3)
    weight = given["weight"].clone()
    weight[0] = 0.0
    sample = Sampled(weight_BU=weight)
    softmax, binary = made(LOSSES, name, temperature=0.5), Bce(temperature=0.5, bias=1.0)
    masks = given["scores"], given["chosen"], given["chosen"]
    own = given["chosen"].any(1) & (weight > 0).any(1)
    assert not own[0] and own.any()
    one = float(softmax.build()(*masks, sample)[0])
    cut = masks[0][own], masks[1][own], masks[2][own]
    other = float(binary.build()(*cut, sample.documents(own))[0])
    both = float(WithBinary(softmax=softmax, binary=binary, weight=0.2).build()(*masks, sample)[0])
    assert both == pytest.approx(one + 0.2 * other, rel=1e-6)
    plain = float(binary.build()(*cut)[0])
    assert other != pytest.approx(plain, rel=1e-3)


def at(name: str, temperature: float) -> Loss:
    """Return the loss with this temperature; the two parts of a sum have the same."""
    if name == WithBinary.kind:
        return WithBinary(softmax=SupCon(temperature=temperature), binary=Bce(temperature=temperature))
    if name == Ordered.kind:
        return Ordered(loss=SupCon(temperature=temperature))
    return made(LOSSES, name, temperature=temperature)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "triplet"])
def test_scores_are_divided_by_the_divisor(name: str) -> None:
    given, values = parts(4), []
    for temperature in (0.5, 0.25):
        config = at(name, temperature)
        assert config.divisor == temperature
        total, _ = config.build()(temperature * given["scores"], given["chosen"], given["chosen"])
        values.append(float(total))
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_rows_trained_with_a_softmax_and_bce_are_divided_by_the_temperature_of_the_softmax() -> None:
    assert WithBinary(softmax=SupCon(temperature=0.25), binary=Bce(temperature=0.5)).divisor == 0.25


def test_the_temperature_of_the_triplet_loss_is_that_of_its_weights_and_divides_no_score() -> None:
    assert Triplet(temperature=0.5).divisor == 1.0


def test_weighted_uniform_draws_give_the_full_binary_loss_in_expectation() -> None:
    """20,000 draws; the interval of the mean is so narrow that a bias of 2 % would fall outside."""
    random = np.random.default_rng(0)
    labels, hard, draws = 60, 6, 10
    scores = torch.from_numpy(random.normal(0, 1, (1, labels)).astype(np.float32))
    chosen = torch.zeros(1, labels, dtype=torch.bool)
    chosen[0, :3] = True
    loss = Bce(temperature=1.0).build()
    full = float(loss(scores, chosen, chosen)[0])
    hardest = (scores.masked_fill(chosen, -torch.inf)).topk(hard).indices[0]
    values = []
    for _ in range(20):
        drawn = torch.from_numpy(random.random((1000, labels)).argsort(1)[:, :draws])
        weight = torch.zeros(1000, labels).scatter_(1, drawn, labels / draws)
        weight[:, hardest] = 1.0
        weight[:, chosen[0]] = 0.0
        for part in weight.split(100):  # the mean of a hundred draws at a time
            many, mask = scores.expand(100, -1), chosen.expand(100, -1)
            values.append(float(loss(many, mask, mask, Sampled(weight_BU=part))[0]) / 100)
    error = np.std(values) / math.sqrt(len(values))
    assert 3.3 * error < 0.02 * full
    assert abs(np.mean(values) - full) < 3.3 * error


@pytest.mark.parametrize("settings", [NegativeSampling(temperature=1.0), NoiseContrastive(temperature=1.0)])
def test_bias_removal_brings_the_optimum_to_the_softmax_optimum_if_the_loss_needs_it(settings: Loss) -> None:
    """Six labels, three documents, free scores: the logistic optimum plus log p_n is log p up to a constant.

    The loss in expectation: positives weighted by p, draws by p_n, both as numbers of copies of a document. The optimum
    of an unbiased loss is log p itself.
    """
    p = torch.tensor(
        [[0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.1, 0.1, 0.2, 0.2, 0.2, 0.2], [0.6, 0.3, 0.025, 0.025, 0.025, 0.025]]
    )
    p_n = torch.tensor([[0.3, 0.3, 0.1, 0.1, 0.1, 0.1], [0.4, 0.2, 0.1, 0.1, 0.1, 0.1], [0.2, 0.1, 0.1, 0.1, 0.2, 0.3]])
    loss = settings.build()
    scores = torch.zeros(3, 6, requires_grad=True)
    adam = torch.optim.LBFGS([scores], max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14)
    copies = torch.eye(6, dtype=torch.bool)

    def closure() -> torch.Tensor:
        adam.zero_grad()
        total = torch.zeros(())
        for doc in range(3):
            rows = scores[doc].expand(6, 6)
            for label in range(6):
                chosen, weight = copies[label : label + 1], p_n[doc : doc + 1]
                one, _ = loss(rows[:1], chosen, chosen, Sampled(weight_BU=weight, noise_BU=weight.log()))
                total = total + p[doc, label] * one
        total.backward()
        return total

    adam.step(closure)
    found = scores.detach()
    raw, corrected = found.softmax(1), (found + p_n.log()).softmax(1)
    right, wrong = (raw, corrected) if settings.unbiased else (corrected, raw)
    np.testing.assert_allclose(right.numpy(), p.numpy(), atol=1e-5)
    assert float((wrong - p).abs().max()) > 0.1


@pytest.mark.parametrize(
    "rows", [np.array([2, 0]), np.array([True, False, True, False]), slice(1, 3)], ids=["positions", "mask", "slice"]
)
def test_the_ids_on_the_processor_are_those_of_the_chosen_documents(rows: Any) -> None:
    docs_B, mask = np.array([7, 0, 3, 4]), np.eye(4, 5, dtype=bool)
    found = OnHost(mask, mask, None, docs_B, np.arange(5)).documents(rows)
    assert found.docs_B is not None
    assert found.docs_B.tolist() == docs_B[rows].tolist()
    assert found.chosen_BU.tolist() == mask[rows].tolist()
