"""A row of the leaderboard shows the lowest recall of all indexes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xc_core.metrics.leaderboard import METRICS
from xc_core.stages import leaderboard


@pytest.mark.parametrize(("recalls", "shown"), [({"label_text": 1.0, "classifier": 0.93}, 0.93), ({}, None)])
def test_the_index_recall_of_a_recipe_is_the_lowest_of_its_scores(recalls: dict[str, float], shown: Any) -> None:
    intervals = {"P_at_1": [1.0, 2.0], "PSP_at_5": [3.0, 4.0]}
    found: Any = SimpleNamespace(
        metrics=dict.fromkeys(METRICS, 1.5), report={"intervals": intervals, "index_recall": recalls}
    )
    costs: dict[str, dict[str, float]] = {"encoder": {}, "classifier": {}, "evaluation": {}}
    assert leaderboard._row("ngame", found, costs)["index_recall"] == shown
