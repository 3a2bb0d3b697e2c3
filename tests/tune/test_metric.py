"""The objective: named figures and their weights."""

from __future__ import annotations

import pytest

from xc_core.errors import UsageError
from xc_core.tune.metric import Metric

FIGURES = {"P_at_1": 60.0, "P_at_5": 30.0, "PSP_at_5": 90.0}


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("mean", 60.0, "mean of P@1, P@5 and PSP@5"),
        ("P@1", 60.0, "P@1"),
        ("PSP@5", 90.0, "PSP@5"),
        ("P@1=2,PSP@5=1", 70.0, "0.667 P@1 + 0.333 PSP@5"),
        (" P@1 = 1 , P@5 = 3 ", 37.5, "0.25 P@1 + 0.75 P@5"),
        ("PSP@5,P@1", 75.0, "mean of P@1 and PSP@5"),
    ],
)
def test_a_metric_is_a_weighted_mean(text: str, value: float, words: str) -> None:
    metric = Metric.of(text)
    assert metric.value(FIGURES) == pytest.approx(value)
    assert str(metric) == words


@pytest.mark.parametrize(
    "text", ["", "P@3", "p@1", "P@1=0", "P@1=-1", "P@1=x", "P@1=inf", "P@1,P@1", "mean,P@1", "P@1=1e308,P@5=1e308"]
)
def test_another_metric_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--metric"):
        Metric.of(text)
