"""The paired difference: the right number, and an interval that is narrow and covers the truth as often as it says."""

from __future__ import annotations

import numpy as np
import pytest

from xc_core.metrics import paired
from xc_core.metrics.paired import differences
from xc_core.metrics.ranking import PerDocument
from xc_core.shapes import F64


def figures(num: F64, den: F64 | None = None) -> PerDocument:
    return PerDocument({"P_at_1": num}, {"P_at_1": np.ones(len(num)) if den is None else den})


def test_the_difference_is_that_of_the_totals_also_of_ratios_of_sums() -> None:
    random = np.random.default_rng(0)
    ours, theirs = (figures(random.random(200), random.random(200) + 1) for _ in range(2))
    found = differences(ours, theirs)["P_at_1"]
    assert found.points == pytest.approx(ours.total()["P_at_1"] - theirs.total()["P_at_1"])
    assert found.low < found.points < found.high


def test_pairing_sees_what_two_separate_intervals_would_not() -> None:
    """One in fifty of 500 documents is better in one model and none is worse; each alone is uncertain by 4 points."""
    random = np.random.default_rng(1)
    base = (random.random(500) < 0.5).astype(float)
    better = base.copy()
    better[np.flatnonzero(base == 0)[:10]] = 1
    found = differences(figures(better), figures(base))["P_at_1"]
    assert found.points == pytest.approx(2.0)
    assert found.clear
    assert found.high - found.low < 3
    shuffled = differences(figures(random.permutation(better)), figures(base))["P_at_1"]
    assert not shuffled.clear
    assert shuffled.high - shuffled.low > 8


def test_the_interval_covers_a_true_difference_of_nothing_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 pairs of equal models: a 95 % interval leaves 0 out 2 to 20 times."""
    monkeypatch.setattr(paired, "RESAMPLES", 300)
    random = np.random.default_rng(2)
    out = 0
    for seed in range(200):
        hits = (random.random((2, 150)) < 0.4).astype(float)
        out += differences(figures(hits[0]), figures(hits[1]), seed=seed)["P_at_1"].clear
    assert 2 <= out <= 20


def test_other_numbers_of_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="3 and 4 documents"):
        differences(figures(np.ones(3)), figures(np.ones(4)))
