"""Refresh without training: trained rows stay, a new label's is foreseen from its text, noise does not know it."""

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


def naive_ridge(text: Any, texts: Any, rows: Any) -> Any:
    """Each coordinate of a row by itself: least squares with an intercept, the slopes' squares added to the errors."""
    found = []
    for column in rows.T.astype(np.float64):
        wide = np.c_[texts - texts.mean(0), np.ones(len(texts))].astype(np.float64)
        penalty = np.c_[np.eye(texts.shape[1]), np.zeros(texts.shape[1])]
        slopes = np.linalg.lstsq(np.r_[wide, penalty], np.r_[column, np.zeros(texts.shape[1])], rcond=None)[0]
        found.append(np.r_[text - texts.mean(0), 1.0] @ slopes)
    return np.array(found)


@pytest.mark.parametrize("recipe", ["renee", "unidec", "ove"])
def test_trained_rows_stay_and_a_new_one_is_where_a_map_from_texts_to_rows_puts_its_text(
    recipe: str, tmp_path: Path
) -> None:
    workspace, before = prepared(recipe, tmp_path)
    run_stage(workspace, "classifier", "toy", recipe, refresh=True)
    after = rows(workspace, recipe)
    np.testing.assert_array_equal(after[:10], before)
    width = after.shape[1]
    own = RECIPES[recipe].encoder if RECIPES[recipe].encoder.joint else RECIPES[recipe].classifier
    embeddings = workspace.folder("embeddings", "toy", recipe)
    starts = np.load(embeddings / ("starts.npy" if (embeddings / "starts.npy").is_file() else "labels.npy"))
    foreseen = naive_ridge(starts[10], starts[:10], before)
    np.testing.assert_allclose(
        after[10], foreseen / np.linalg.norm(foreseen) if own.table.unit else foreseen, atol=1e-5
    )
    if recipe == "unidec":
        assert not after[10, : width // 2].any(), "it stands in the half that faces rows"
        assert not before[:, : width // 2].any()


def test_a_noise_distribution_over_other_labels_is_refused(tmp_path: Path) -> None:
    workspace, _ = prepared("adversarial", tmp_path)
    with pytest.raises(MovedError, match="11 labels, and a noise distribution over 10"):
        run_stage(workspace, "classifier", "toy", "adversarial", refresh=True)
