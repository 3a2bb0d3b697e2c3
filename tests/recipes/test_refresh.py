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


def relabelled(workspace: Workspace, first: dict[str, str] | None) -> None:
    """Write the toy world with line numbers as the labels' uids, after a new first label where there is one."""
    world = ToyWorld.make()
    if first is not None:
        world.labels.insert(0, first)
        for document in (*world.train, *world.test):
            document["target_ind"] = [label + 1 for label in document["target_ind"]]
        world.train.append({"uid": "D9999", "title": "meadow0", "content": "", "target_ind": [0], "target_rel": [1.0]})
    for line, label in enumerate(world.labels):
        label["uid"] = str(line)
    world.write(workspace.raw("toy"))


def test_rows_are_not_handed_to_labels_whose_line_numbers_moved(tmp_path: Path) -> None:
    """Layouts without uids take line numbers: a line put in before others gives each of them its neighbour's row."""
    workspace = make_workspace(tmp_path)
    changes = deepcopy(TOY_CHANGES)
    changes["encoder"]["epochs"] = 0.0
    workspace.declare_experiment("toy", "ngame", "ngame", changes)
    relabelled(workspace, None)
    for stage in ("corpus", "tokens", "encoder", "embeddings", "clusters", "negatives", "classifier"):
        run_stage(workspace, stage, "toy", "ngame")
    before = rows(workspace, "ngame")
    relabelled(workspace, dict(NEW))
    for stage in ("corpus", "tokens", "embeddings"):
        run_stage(workspace, stage, "toy", "ngame")
    with pytest.raises(MovedError, match=r"10 of 10 labels .* another text .*\n.*\n.*append new labels at the end"):
        run_stage(workspace, "classifier", "toy", "ngame", refresh=True)
    np.testing.assert_array_equal(rows(workspace, "ngame"), before)


def test_inputs_of_another_corpus_are_refused_by_every_stage_after_the_encoder(tmp_path: Path) -> None:
    """Else vectors of the old texts are judged, and packed, with the names of the new ones."""
    workspace, _ = prepared("ove", tmp_path)
    for stage in ("index", "fusion", "evaluation"):
        with pytest.raises(MovedError, match="made from another corpus than there is now"):
            run_stage(workspace, stage, "toy", "ove")
    run_stage(workspace, "classifier", "toy", "ove", refresh=True)
    for stage in ("clusters", "negatives", "index", "fusion", "evaluation"):
        run_stage(workspace, stage, "toy", "ove")
