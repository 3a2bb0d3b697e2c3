"""The trainings of ``test_on_card.py`` on a real GPU: losses equal the CPU's within a tolerance."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cluster.points import COHESION, mixture, see, whole_numbers
from tests.train.steps import DRAWN, RECIPES, TRAINED, assert_alike, m1, m4, take_steps, tiny_bert, train, unread
from xc_core.ann import ExactIndex
from xc_core.classifiers.storage import stochastic
from xc_core.cluster import balanced_clusters, cohesion, on_card, placed
from xc_core.devices import CPU, Device, fetched, num_cards, put
from xc_core.environment import DEVICE
from xc_core.seeds import generator

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(num_cards() == 0, reason="no GPU that torch can use")]
TOLERANCE = 1e-4
"""Relative difference of losses after three steps in fp32: sums in another order, amplified by the steps."""
CARD = Device("cuda:0")


@pytest.fixture(autouse=True)
def searches_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests have a CPU as the chosen device."""
    monkeypatch.setenv(DEVICE, CARD.name)


@pytest.mark.parametrize("name", RECIPES)
def test_m1_has_the_losses_of_a_cpu(name: str, small: Any) -> None:
    found = take_steps(m1(name, CARD, small))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m1(name, CPU, small))]


@pytest.mark.parametrize("name", ["ngame", "house", "unidec", "astra"])
def test_m1_of_a_transformer_has_the_losses_of_a_cpu(name: str, small: Any) -> None:
    found = take_steps(m1(name, CARD, small, bert=True))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m1(name, CPU, small, bert=True))]


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"weight_decay": 0.1}, {"bias": 0.1}])
def test_m4_has_the_losses_of_a_cpu(options: dict[str, float]) -> None:
    found = take_steps(m4(CARD, **options))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m4(CPU, **options))]


@pytest.mark.parametrize("name", DRAWN)
def test_m4_on_drawn_labels_has_the_losses_of_a_cpu(name: str) -> None:
    found = take_steps(m4(CARD, name=name))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m4(CPU, name=name))]


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_has_the_losses_and_figures_of_a_cpu(name: str, small: Any, tmp_path: Path) -> None:
    assert_alike(*(train(name, device, small, tmp_path) for device in (CARD, CPU)))


@pytest.mark.parametrize("name", ["ngame", "unidec"])
def test_texts_that_are_encoded_twice_give_the_losses_of_a_cpu(name: str, small: Any) -> None:
    card, cpu = (m1(name, device, small, cache=True, scorer={"cache": True}) for device in (CARD, CPU))
    assert take_steps(card) == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(cpu)]


def test_rows_in_bf16_are_rounded_without_bias_and_otherwise_in_each_write() -> None:
    """The random bits come from a generator on the GPU."""
    found = take_steps(m4(CARD, precision="bf16"))
    assert found == [pytest.approx(pair, rel=1e-2) for pair in take_steps(m4(CPU, precision="bf16"))]
    rows_UD = torch.full((400, 250), 1.001, device=CARD.torch)
    rounded = stochastic(rows_UD, 0, 1)
    assert abs(float(rounded.double().mean()) - float(rows_UD[0, 0])) <= 4 * 2**-7 / math.sqrt(rows_UD.numel())
    assert torch.equal(rounded, stochastic(rows_UD, 0, 1))
    assert not torch.equal(rounded, stochastic(rows_UD, 0, 2))


def test_a_transformer_in_bf16_waits_for_nothing() -> None:
    encoder, ids_BT, mask_BT = tiny_bert("bf16")
    expected = encoder(ids_BT, mask_BT).detach()
    encoder.on(CARD)
    given = put(ids_BT[:2].numpy(), CARD.torch), put(mask_BT[:2].numpy(), CARD.torch)
    with unread():
        with encoder.autocast():
            found = encoder(*given)
        found[:, 0].sum().backward()
    torch.testing.assert_close(found.detach().cpu(), expected[:2], rtol=0.05, atol=0.02)
    assert all(value.grad.isfinite().all() for value in encoder.parameters() if value.grad is not None)


def test_a_copy_to_the_processor_is_not_waited_for_before_it_is_read() -> None:
    """A product of many numbers goes before it, so that it cannot have ended when the function is returned."""
    numbers = torch.ones(4096, 4096, device=CARD.torch)
    with unread():
        read = fetched(numbers @ numbers)
        numbers.zero_()
    assert (read() == 4096).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_text_without_tokens_has_a_vector(precision: str) -> None:
    encoder, ids_BT, mask_BT = tiny_bert(precision)
    encoder.on(CARD)
    with torch.no_grad(), encoder.autocast():
        found = encoder(put(ids_BT.numpy(), CARD.torch), put(mask_BT.numpy(), CARD.torch))
    assert found.isfinite().all()


def test_exact_search_finds_what_a_cpu_finds() -> None:
    """Whole numbers, so that products are exact and ties frequent."""
    random = np.random.default_rng(0)
    vectors, queries = (random.integers(-2, 3, (size, 16)).astype(np.float32) for size in (200_000, 500))
    found, expected = (ExactIndex(vectors, device).search(queries, 100) for device in (CARD, CPU))
    assert np.array_equal(found.ids_NK, expected.ids_NK)
    assert np.array_equal(found.scores_NK, expected.scores_NK)


@pytest.mark.parametrize("seen", [1 << 15, 64])
@pytest.mark.parametrize("copied", [1 << 28, 1 << 10])
def test_clusters_are_those_of_a_cpu_if_sums_are_exact(copied: int, seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, seen)
    monkeypatch.setattr(on_card, "_COPIED", copied)
    vectors = whole_numbers(2048, 3)
    expected, sizes = balanced_clusters(vectors, 4, 5)
    points = placed(vectors)
    assert isinstance(points, torch.Tensor)
    assert points.device == CARD.torch
    with unread():
        order, finite = on_card._sorted(points, sizes, generator(5, "clusters"))
    assert finite
    assert np.array_equal(order.cpu().numpy(), expected)


def test_clusters_are_as_near_as_those_of_a_cpu_and_take_the_memory_that_is_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 70,000 points the first two levels are split by samples."""
    monkeypatch.setattr(on_card, "_COPIED", 1 << 22)
    vectors, _ = mixture(0, 70_000, 64, 3000, 0.7)
    expected = cohesion(vectors, *balanced_clusters(vectors, 9, 0))
    points = placed(vectors)
    torch.bmm(points[None, :2], points[None, :2].mT)  # a first product reserves memory for all later ones
    torch.cuda.reset_peak_memory_stats(CARD.torch)
    before = torch.cuda.memory_allocated(CARD.torch)
    order, sizes = balanced_clusters(points, 9, 0)
    needed = torch.cuda.max_memory_allocated(CARD.torch) - before
    assert needed <= on_card.memory_on_card(*vectors.shape, copied=False)
    assert np.array_equal(order, balanced_clusters(points, 9, 0)[0]), "the same again"
    assert sorted(order.tolist()) == list(range(70_000))
    assert sizes.max() - sizes.min() <= 1
    assert cohesion(points, order, sizes) == pytest.approx(expected, rel=COHESION)
    assert cohesion(points, order, sizes) == pytest.approx(cohesion(vectors, order, sizes), rel=1e-4)
