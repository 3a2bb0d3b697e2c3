"""Refresh without training: trained rows stay, a new label starts where rows start, noise does not know it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import TOY_CHANGES, ToyWorld, make_workspace
from xc_core.errors import MovedError
from xc_core.recipes import RECIPES
from xc_core.stages import STAGES, Workspace, run_stage

NEW = {"uid": "L10", "title": "meadow", "content": "river0 river1 castle0"}


def rows(workspace: Workspace, recipe: str) -> np.ndarray[Any, Any]:
    return np.load(workspace.folder("classifier", "toy", recipe) / "rows.npy")


def prepared(recipe: str, root: Path) -> tuple[Workspace, np.ndarray[Any, Any]]:
    """A workspace whose ``recipe`` is trained and whose corpus has got a label since; the rows of before."""
    workspace = make_workspace(root)
    changes = deepcopy(TOY_CHANGES)
    if RECIPES[recipe].encoder.joint:
        changes["classifier"]["epochs"] = 0.0
    else:
        changes["encoder"]["epochs"] = 0.0
    workspace.declare_experiment("toy", recipe, recipe, changes)
    for stage in STAGES:
        if stage not in ("leaderboard", "evaluation", "model"):
            run_stage(workspace, stage, "toy", recipe)
    before = rows(workspace, recipe)
    world = ToyWorld.make()
    world.labels.append(NEW)
    world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [10], "target_rel": [1.0]})
    world.write(workspace.raw("toy"))
    encoder = workspace.folder("encoder", "toy", recipe)
    kept = (encoder / "encoder.safetensors").read_bytes()
    for stage in ("corpus", "tokens", "embeddings"):
        run_stage(workspace, stage, "toy", recipe if STAGES[stage].scope == "experiment" else None)
    assert (encoder / "encoder.safetensors").read_bytes() == kept
    return workspace, before


@pytest.mark.parametrize("recipe", ["renee", "unidec", "ove"])
def test_trained_rows_stay_and_a_new_one_is_its_text_as_rows_are_scored(recipe: str, tmp_path: Path) -> None:
    workspace, before = prepared(recipe, tmp_path)
    run_stage(workspace, "classifier", "toy", recipe, refresh=True)
    after = rows(workspace, recipe)
    np.testing.assert_array_equal(after[:10], before)
    width = after.shape[1]
    own = RECIPES[recipe].encoder if RECIPES[recipe].encoder.joint else RECIPES[recipe].classifier
    loss = RECIPES[recipe].encoder.table_loss if RECIPES[recipe].encoder.joint else RECIPES[recipe].classifier.loss
    norm = float(np.linalg.norm(after[10]))
    assert norm == pytest.approx(1.0 if own.table.unit else 1 / loss.temperature, rel=1e-4)
    if recipe == "unidec":
        assert not after[10, : width // 2].any(), "it stands in the half that faces rows"
        assert not before[:, : width // 2].any()


def test_a_noise_distribution_over_other_labels_is_refused(tmp_path: Path) -> None:
    workspace, _ = prepared("adversarial", tmp_path)
    with pytest.raises(MovedError, match="11 labels, and a noise distribution over 10"):
        run_stage(workspace, "classifier", "toy", "adversarial", refresh=True)
