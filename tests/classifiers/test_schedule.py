"""The learning rate rises and then falls to zero."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.classifiers import schedule


@pytest.mark.parametrize(
    ("done", "warmup", "expected"),
    [(0, 0.1, 0), (0.05, 0.1, 0.5), (0.1, 0.1, 1), (0.55, 0.1, 0.5), (1, 0.1, 0), (0, 0, 1), (0.25, 0, 0.75)],
)
def test_the_schedule_has_these_values(done: float, warmup: float, expected: float) -> None:
    assert schedule(done, warmup) == pytest.approx(expected)


@given(st.floats(0, 1), st.floats(0, 0.99))
@settings(deadline=None, max_examples=60)
def test_the_schedule_stays_within_0_and_1(done: float, warmup: float) -> None:
    assert 0 <= schedule(done, warmup) <= 1
    assert schedule(1.1, warmup) == 0


def test_a_single_step_has_the_whole_rate() -> None:
    """In a warm-up it would have the rate 0 and learn nothing."""
    assert schedule(0, 0.1, 1) == 1
    assert schedule(0, 0.1, 0.25) == 1
    assert schedule(0, 0.1, 2) == 0
