"""Every recipe in the table: composed of known parts, differing where it says, and able to learn the toy world."""

from __future__ import annotations

import dataclasses
import json
from copy import deepcopy
from pathlib import Path

import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.bundle import open_bundle
from xc_core.recipes import RECIPES
from xc_core.stages import STAGES, run_stage

ABLATIONS = ("ance", "dpr", "o-sgd", "tas")


@pytest.mark.parametrize("name", RECIPES.names())
def test_a_recipe_names_itself_its_source_and_its_module(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    assert recipe.paper
    assert recipe.module.startswith("xc_core.recipes.")


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_of_ngame_differs_in_m1_alone(name: str) -> None:
    ours, base = RECIPES[name], RECIPES["ngame"]
    differing = {f.name for f in dataclasses.fields(ours) if getattr(ours, f.name) != getattr(base, f.name)}
    assert differing == {"name", "paper", "module", "encoder"}
    parts = {
        f.name
        for f in dataclasses.fields(ours.encoder)
        if getattr(ours.encoder, f.name) != getattr(base.encoder, f.name)
    }
    assert parts <= {"order", "negatives", "loss"}
    assert parts


@pytest.mark.parametrize("name", [name for name in RECIPES.names() if name != "ngame"])
def test_a_recipe_learns_the_toy_world_and_what_it_packs_answers(name: str, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    changes = deepcopy(TOY_CHANGES)
    changes["classifier"]["negatives"] = {"uniform": 4}
    if RECIPES[name].encoder.joint:
        changes["encoder"]["table"] = {"lr": 0.05}
    if not RECIPES[name].encoder.epochs:  # drawn labels teach little each, and the bag is as it came
        changes["encoder"]["epochs"] = 0.0
        changes["classifier"]["epochs"] = 60.0
    elif not RECIPES[name].classifier.epochs:
        changes["classifier"]["epochs"] = 0.0
    workspace.declare_experiment("toy", name, name, changes)
    for stage in STAGES:
        if stage != "leaderboard":
            run_stage(workspace, stage, "toy", name)
    metrics = json.loads((workspace.folder("evaluation", "toy", name) / "metrics.json").read_text("utf-8"))
    assert metrics["P_at_1"] >= 90, metrics
    answer = open_bundle(workspace.folder("model", "toy", name)).predict(["castle0 castle1 castle2"], k=1)
    assert answer[0][0].title == "castle"
