"""Rows that were trained with the encoder are served, or M4 starts from them, with the scores that they had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from tests.stages.halves import open_embeddings, open_tables, rows_of, run_until
from xc_core.chain import Workspace, run_stage
from xc_core.encoders import TrainedEncoder
from xc_core.params import deep_merged
from xc_core.shapes import F32
from xc_core.train.checkpoint import Checkpoints

ENCODER = {**TOY_CHANGES["encoder"], "epochs": 1.0, "scorer": {"rows": {"lr": 0.05}}}
STILL = {"epochs": 1.0, "dropout": 0.0, "order": {"kind": "random", "batch_size": 32}}
"""One epoch of M4, with a learning rate (below) that changes nothing."""


def classified(workspace: Workspace, recipe: str, **classifier: Any) -> F32:
    """Train up to the classifier with these settings of M4 and return its rows; what is up to date stays."""
    changes = deep_merged(TOY_CHANGES, {"encoder": ENCODER}) | {"classifier": classifier, "fusion": {}}
    workspace.params.declare_experiment("toy", recipe, recipe, changes)
    run_until(workspace, "classifier", recipe)
    return rows_of(workspace, recipe=recipe)


def trained_rows(workspace: Workspace, recipe: str) -> F32:
    rows = TrainedEncoder.open(workspace.folder("encoder", "toy", recipe)).rows_LD
    assert rows is not None
    return rows


@pytest.mark.parametrize("recipe", ["renee", "unidec"])
def test_without_epochs_of_m4_the_rows_trained_with_the_encoder_are_served_to_the_bit(
    recipe: str, tmp_path: Path
) -> None:
    workspace = make_workspace(tmp_path)
    served, trained = classified(workspace, recipe, epochs=0.0), trained_rows(workspace, recipe)
    np.testing.assert_array_equal(served, trained)
    unit = np.allclose(np.linalg.norm(served, axis=1), 1, atol=1e-3)
    assert open_tables(workspace, recipe).unit == unit == (recipe == "unidec")
    assert not np.allclose(trained, open_embeddings(workspace, recipe).labels_LD, atol=1e-3)
    if recipe == "renee":
        for temperature in (0.05, 0.3):
            loss = {"kind": "bce", "temperature": temperature, "bias": 1.0}
            still = classified(workspace, recipe, **STILL, loss=loss, table={"unit": False, "lr": 1e-8})
            np.testing.assert_allclose(still, trained, rtol=1e-5, atol=1e-5, err_msg="logits stay logits")


def test_if_m4_compares_directions_it_starts_from_unit_rows(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    still = classified(workspace, "unidec", **STILL, table={"unit": True, "lr": 1e-8})
    trained = trained_rows(workspace, "unidec")
    np.testing.assert_allclose(still, trained / np.linalg.norm(trained, axis=1, keepdims=True), atol=1e-5)


def test_if_m4_compares_products_unit_rows_keep_their_length(tmp_path: Path) -> None:
    """They were multiplied by the temperature, as if they were logits, so M4 began with scores near 0."""
    workspace = make_workspace(tmp_path)
    loss = {"kind": "bce", "temperature": 0.05, "bias": 1.0}
    still = classified(workspace, "unidec", **STILL, loss=loss, table={"unit": False, "lr": 1e-8})
    np.testing.assert_allclose(still, trained_rows(workspace, "unidec") / 0.05, rtol=1e-5, atol=1e-5)
    assert not open_tables(workspace, "unidec").unit, "the rows of new labels get lengths too"


@pytest.mark.parametrize("recipe", ["renee", "unidec"])
def test_rows_whose_length_counts_are_released_as_logits_of_their_own_loss(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are divided by the temperature of the loss on rows, not by that of the loss on label texts (unidec)."""
    tasks: list[Any] = []
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: tasks.append(task) or restore(own, task))
    workspace = make_workspace(tmp_path)
    on_rows, rows = {"kind": "bce", "temperature": 0.07}, {"unit": False, "lr": 0.05}
    changes = {
        "renee": {**ENCODER, "loss": on_rows},
        "unidec": {**ENCODER, "loss": {"temperature": 0.3}, "scorer": {"loss": on_rows, "rows": rows}},
    }
    workspace.params.declare_experiment("toy", recipe, recipe, {"encoder": changes[recipe]})
    for name in ("corpus", "tokens", "encoder"):
        run_stage(workspace, name, "toy", recipe)
    table = tasks[0].head.rows.table
    assert not table.config.unit
    width = table.rows_LD.shape[1]
    found = trained_rows(workspace, recipe)
    np.testing.assert_allclose(found[:, -width:], table.rows_LD.numpy() / 0.07, rtol=1e-5)
    assert not found[:, :-width].any(), "the half of the vector that is compared with label texts"
