"""Clusters and searches of a training with fewer epochs: they begin in its last epoch at the latest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from xc_core.chain import Workspace, run_stage
from xc_core.planning import budget
from xc_core.recipes import RECIPES


@pytest.mark.parametrize(
    "name", ["astra", "astra-classifier-hard", "astra-label-curriculum", "unidec", "ngame", "ance"]
)
@pytest.mark.parametrize("epochs", [1.2, 2.0, 2.5])
def test_clusters_and_searches_begin_before_a_scaled_training_ends(name: str, epochs: float) -> None:
    """Otherwise all the strategies of ASTRA's table 5 would be one training under seven names."""
    stage = RECIPES[name].encoder
    share = epochs / stage.epochs
    scaled = RECIPES[name].changed({"encoder": {"epochs": epochs, **budget.shortened(stage, epochs)}}).encoder
    seen = range(math.ceil(epochs))
    assert any(scaled.order.due(epoch) for epoch in seen) or not stage.order.adapts
    assert any(scaled.negatives.due(epoch) for epoch in seen) or not stage.negatives.searches
    if hasattr(stage.negatives, "curriculum"):
        assert scaled.negatives.curriculum == pytest.approx(stage.negatives.curriculum * share, rel=1e-2)  # type: ignore[attr-defined]


def test_the_recipes_above_cluster_search_or_have_a_curriculum() -> None:
    assert RECIPES["ngame"].encoder.order.adapts and RECIPES["unidec"].encoder.order.adapts
    searching = ("astra", "astra-classifier-hard", "astra-label-curriculum", "unidec", "ance")
    assert all(RECIPES[name].encoder.negatives.searches for name in searching)
    assert RECIPES["astra-label-curriculum"].encoder.negatives.curriculum == 4.0  # type: ignore[attr-defined]


def test_epochs_that_are_rounded_to_whole_ones_still_search(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.004 of 4 epochs of astra are declared as 2.0, whose last is epoch 1, not 2."""
    experiment = workspace.params.experiment("toy", "ngame")
    monkeypatch.setattr(budget, "_cached_estimate", lambda *args, **how: {"encoder": 1000.0, "encoding": 0.0})
    found = budget.scaled_epochs(workspace, replace(experiment, recipe=RECIPES["astra"]), 501.0)["encoder"]
    assert found["epochs"] == 2.0
    scaled = RECIPES["astra"].changed({"encoder": found}).encoder
    assert any(scaled.negatives.due(epoch) for epoch in range(2))


def test_what_begins_in_time_as_it_is_stays_and_one_epoch_is_too_few_for_anything() -> None:
    assert budget.shortened(RECIPES["astra"].encoder, 3.0) == {}
    assert budget.shortened(RECIPES["astra"].encoder, 1.0) == {}
    assert budget.shortened(RECIPES["astra"].encoder, 2.0) == {"negatives": {"warmup_epochs": 1, "ahead": 0}}


def test_a_training_that_ends_before_its_first_clustering_says_so(workspace: Workspace, lines: list[str]) -> None:
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    for epochs in (1, 2):
        later = {"encoder": {"name": "bag"}, "order": {"warmup_epochs": 1}, "epochs": epochs}
        workspace.params.declare_experiment("toy", "ngame", "ngame", {"encoder": later})
        run_stage(workspace, "encoder", "toy", "ngame")
    messages = [line for line in lines if "before the first" in line]
    assert messages == [
        "encoder: with epochs 1 the training ends before the first clustering, so all batches are random"
    ]


def test_a_training_that_ends_before_its_first_search_says_so(workspace: Workspace, lines: list[str]) -> None:
    for stage in ("corpus", "tokens"):
        run_stage(workspace, stage, "toy")
    encoder = {"encoder": {"name": "bag"}, "epochs": 1, "order": {"kind": "random", "batch_size": 32}}
    encoder["negatives"] = {"kind": "mined", "positives": 1, "hard": 1, "search": 4, "warmup_epochs": 1}
    workspace.params.declare_experiment("toy", "ngame", "ngame", {"encoder": encoder})
    run_stage(workspace, "encoder", "toy", "ngame")
    messages = [line for line in lines if "before the first" in line]
    assert messages == [
        "encoder: with epochs 1 the training ends before the first search for hard negatives, so there are none"
    ]
