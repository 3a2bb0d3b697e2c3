"""The trainings of ``test_on_card.py`` on a real GPU: losses equal the CPU's within a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.train.steps import DRAWN, RECIPES, m1, m4, take_steps
from xc_core.ann import ExactIndex
from xc_core.devices import CPU, Device, num_cards

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(num_cards() == 0, reason="no GPU that torch can use")]
TOLERANCE = 1e-4
"""Relative difference of losses after three steps in fp32: sums in another order, amplified by the steps."""
CARD = Device("cuda:0")


@pytest.mark.parametrize("name", RECIPES)
def test_m1_has_the_losses_of_a_cpu(name: str, small: Any) -> None:
    found = take_steps(m1(name, CARD, small))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m1(name, CPU, small))]


@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"weight_decay": 0.1}, {"bias": 0.1}])
def test_m4_has_the_losses_of_a_cpu(options: dict[str, float]) -> None:
    found = take_steps(m4(CARD, **options))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m4(CPU, **options))]


@pytest.mark.parametrize("name", DRAWN)
def test_m4_on_drawn_labels_has_the_losses_of_a_cpu(name: str) -> None:
    found = take_steps(m4(CARD, name=name))
    assert found == [pytest.approx(pair, rel=TOLERANCE) for pair in take_steps(m4(CPU, name=name))]


def test_exact_search_finds_what_a_cpu_finds() -> None:
    """Whole numbers, so that products are exact and ties frequent."""
    random = np.random.default_rng(0)
    vectors, queries = (random.integers(-2, 3, (size, 16)).astype(np.float32) for size in (200_000, 500))
    found, expected = (ExactIndex(vectors, device).search(queries, 100) for device in (CARD, CPU))
    assert np.array_equal(found.ids_NK, expected.ids_NK)
    assert np.array_equal(found.scores_NK, expected.scores_NK)
