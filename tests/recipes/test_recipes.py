"""Every recipe in the table: composed of known parts, differing where it says, and able to learn the toy world."""

from __future__ import annotations

import dataclasses
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.bundle import open_bundle
from xc_core.fusion import load_fusion
from xc_core.params import plain
from xc_core.recipes import RECIPES, Recipe
from xc_core.sampling import NEGATIVES, ORDERS
from xc_core.stages import STAGES, run_stage
from xc_core.train.checkpoint import Checkpoints

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


def test_no_two_recipes_are_the_same_method() -> None:
    parts = ("encoder", "negatives", "classifier", "index", "fusion")
    methods = {str([plain(getattr(RECIPES[name], part)) for part in parts]): name for name in RECIPES.names()}
    assert sorted(methods.values()) == RECIPES.names()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The trainings that run in a test, by the name of their stage."""
    ran: dict[str, list[Any]] = {"encoder": [], "classifier": []}
    restore = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", lambda own, task: ran[task.name].append(task) or restore(own, task))
    return ran


def settings(loss: Any) -> dict[str, Any]:
    """Return the kind of a loss and its numbers, those of its parts included, without what it remembers."""
    found: dict[str, Any] = {"kind": type(loss).__name__}
    for name, value in vars(loss).items():
        if dataclasses.is_dataclass(value):
            found[name] = settings(value)
        elif isinstance(value, int | float):
            found[name] = value
    return found


def check_parts(task: Any, stage: Any) -> None:
    """Order, negatives and loss of a training are those that its stage names, with their settings."""
    assert type(task.order) is ORDERS[stage.order.kind]
    assert type(task.negatives) is NEGATIVES[stage.negatives.kind]
    assert (task.order.config, task.negatives.config) == (stage.order, stage.negatives)
    assert settings(task.loss) == settings(stage.loss.build())
    assert task.seed == stage.seed


def check_trainings(ran: dict[str, list[Any]], recipe: Recipe) -> None:
    """What ran is what the recipe names: M1 once or not at all, M4 once or, with refit, three times."""
    encoder, classifier = recipe.encoder, recipe.classifier
    assert len(ran["encoder"]) == (encoder.epochs > 0)
    for task in ran["encoder"]:
        check_parts(task, encoder)
        assert (task.text_share, task.cache, task.optim) == (encoder.text_share, encoder.cache, encoder.optim)
        assert task.search_rows == (encoder.negatives.search_in == "rows")
        assert task.data.augmented == encoder.augment
        assert (task.table is not None) == encoder.joint
        if task.table is not None:
            assert settings(task.table.loss) == settings(encoder.table_loss.build())
            assert task.table.table.config == encoder.table
    assert len(ran["classifier"]) == (classifier.epochs > 0) * (3 if classifier.refit else 1)
    for task in ran["classifier"]:
        check_parts(task, classifier)
        assert (task.dropout, task.table.config) == (classifier.dropout, classifier.table)


@pytest.mark.parametrize("name", [name for name in RECIPES.names() if name != "ngame"])
def test_a_recipe_learns_the_toy_world_by_the_parts_it_names_and_what_it_packs_answers(
    name: str, tmp_path: Path, trainings: dict[str, list[Any]]
) -> None:
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
    recipe = workspace.experiment("toy", name).recipe
    assert recipe is not None
    check_trainings(trainings, recipe)
    assert load_fusion(workspace.folder("fusion", "toy", name) / "fusion.json").config == recipe.fusion
    metrics = json.loads((workspace.folder("evaluation", "toy", name) / "metrics.json").read_text("utf-8"))
    assert metrics["P_at_1"] >= 90, metrics
    answer = open_bundle(workspace.folder("model", "toy", name)).predict(["castle0 castle1 castle2"], k=1)
    assert answer[0][0].title == "castle"
