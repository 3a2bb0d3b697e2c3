"""Rows that were trained with the encoder are what serves, or what M4 goes on from, as the scores that they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.params import deep_merged
from xc_core.shapes import F32
from xc_core.stages import STAGES, Workspace, run_stage
from xc_core.train.checkpoint import Checkpoints

ENCODER = {**TOY_CHANGES["encoder"], "epochs": 1.0, "table": {"lr": 0.05}}
STILL = {"epochs": 1.0, "dropout": 0.0, "order": {"kind": "random", "batch_size": 32, "cluster_size": 1}}
"""One epoch of M4, with a step size (below) that moves nothing."""


def classified(workspace: Workspace, recipe: str, **classifier: Any) -> F32:
    """Train up to the classifier with these settings of M4 and return its rows; what is there already stays."""
    changes = deep_merged(TOY_CHANGES, {"encoder": ENCODER}) | {"classifier": classifier}
    workspace.declare_experiment("toy", recipe, recipe, changes)
    for name in list(STAGES)[: list(STAGES).index("classifier") + 1]:
        run_stage(workspace, name, "toy", recipe)
    return load(workspace, recipe, "classifier", "rows.npy")


def load(workspace: Workspace, recipe: str, stage: str, name: str) -> F32:
    found: F32 = np.load(workspace.folder(stage, "toy", recipe) / name)
    return found


@pytest.mark.parametrize("recipe", ["renee", "unidec"])
def test_without_epochs_of_m4_the_rows_trained_with_the_encoder_are_served_to_the_bit(
    recipe: str, tmp_path: Path
) -> None:
    workspace = make_workspace(tmp_path)
    served, trained = classified(workspace, recipe, epochs=0.0), load(workspace, recipe, "encoder", "rows.npy")
    np.testing.assert_array_equal(served, trained)
    assert not np.allclose(trained, load(workspace, recipe, "embeddings", "labels.npy"), atol=1e-3)
    if recipe == "renee":
        for temperature in (0.05, 0.3):
            loss = {"name": "bce", "temperature": temperature, "bias": 1.0}
            still = classified(workspace, recipe, **STILL, loss=loss, table={"unit": False, "lr": 1e-9})
            np.testing.assert_allclose(still, trained, rtol=1e-5, atol=1e-5, err_msg="logits stay logits")


def test_where_m4_compares_directions_it_goes_on_from_unit_rows(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    still = classified(workspace, "unidec", **STILL, table={"unit": True, "lr": 1e-9})
    trained = load(workspace, "unidec", "encoder", "rows.npy")
    np.testing.assert_allclose(still, trained / np.linalg.norm(trained, axis=1, keepdims=True), atol=1e-5)


def test_rows_whose_length_counts_are_released_as_logits_of_their_own_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That on label texts has another temperature, and no say here."""
    tasks: list[Any] = []
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: tasks.append(task) or restore(own, task))
    workspace = make_workspace(tmp_path)
    workspace.declare_experiment("toy", "renee", "renee", {"encoder": ENCODER})
    for name in ("corpus", "tokens", "encoder"):
        run_stage(workspace, name, "toy", "renee")
    recipe = workspace.experiment("toy", "renee").recipe
    assert recipe is not None and recipe.encoder.loss.temperature != recipe.encoder.table_loss.temperature
    expected = tasks[0].table.table.rows_LD.numpy() / recipe.encoder.table_loss.temperature
    np.testing.assert_allclose(load(workspace, "renee", "encoder", "rows.npy"), expected, rtol=1e-5)
