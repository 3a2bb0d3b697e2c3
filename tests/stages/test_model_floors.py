"""A model is packed at its floors and above, and refused below them or if there is no number to compare."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.chain.fingerprints import fingerprint
from xc_core.chain.status import depends
from xc_core.errors import RefusedError
from xc_core.infer.bundle import Model

Edit = Callable[[Workspace, dict[str, Any]], None]
FLOORS = "experiments/toy_ngame/stages/model"
NAMES = {"min_P_at_1": "P@1 on test documents", "min_index_recall": "index recall of the score classifier"}


def rewritten(workspace: Workspace, stage: str, files: dict[str, str]) -> None:
    """Replace texts of an artefact, which stays valid and up to date."""
    folder = workspace.folder(stage, "toy", "ngame")
    now = depends(workspace, STAGES[stage], workspace.params.partition("toy", "ngame"))
    old = folder.with_name("old")
    shutil.copytree(folder, old)
    with artifacts.building(folder, kind=stage) as build:
        shutil.copytree(old, build.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(manifests.MANIFEST))
        for name, text in files.items():
            (build.path / name).write_text(text, "utf-8")
        made = artifacts.read_made(old)
        build.facts |= made.facts
        build.origin = replace(made, fingerprint=fingerprint(now), depends=now)
    shutil.rmtree(old)


def content(workspace: Workspace, stage: str, name: str) -> Any:
    return json.loads((workspace.folder(stage, "toy", "ngame") / name).read_text("utf-8"))


def measured(workspace: Workspace, setting: str, value: float | None, score: str = "classifier") -> None:
    """Let ``value`` be what was measured for the floor ``setting``; in JSON nan and infinity are written as such."""
    if setting == "min_index_recall":
        scores = content(workspace, "scores", "scores.json")
        scores["figures"][score]["recall"] = value
        rewritten(workspace, "scores", {"scores.json": json.dumps(scores)})
        rewritten(workspace, "fusion", {})
    metrics = content(workspace, "evaluation", "metrics.json")
    metrics |= {"P_at_1": value} if setting == "min_P_at_1" else {}
    rewritten(workspace, "evaluation", {"metrics.json": json.dumps(metrics)})


def packed(workspace: Workspace) -> bool:
    """Run the stage model; return True if there is a new model, and check that a refusal leaves the old one."""
    folder = workspace.folder("model", "toy", "ngame")
    before = artifacts.verify(folder)
    try:
        ran = run_stage(workspace, "model", "toy", "ngame")
    except RefusedError as error:
        assert error.exit_code == 77
        assert artifacts.verify(folder) == before
        return False
    assert not ran.skipped
    return True


@pytest.mark.parametrize(
    ("setting", "value", "floor"),
    [("min_P_at_1", 62.5, 62.5), ("min_P_at_1", 100 / 3, 100 / 3), ("min_index_recall", 0.9, 0.9)],
)
def test_a_model_is_packed_at_the_floor_and_just_above_it_and_refused_just_below_it(
    setting: str, value: float, floor: float, copied: Workspace, edit: Edit
) -> None:
    edit(copied, {f"{FLOORS}/{setting}": floor})
    for step, good in ((-math.inf, False), (math.inf, True)):
        measured(copied, setting, math.nextafter(value, step))
        assert packed(copied) == good
    measured(copied, setting, value)
    assert packed(copied)


@pytest.mark.parametrize("setting", NAMES)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_refused_however_low_the_floor(
    setting: str, value: float | None, copied: Workspace, edit: Edit
) -> None:
    edit(copied, {f"{FLOORS}/{name}": 0.0 for name in NAMES})
    measured(copied, setting, value)
    assert not packed(copied)


@pytest.mark.parametrize("setting", NAMES)
def test_a_refusal_names_the_figure_and_the_floor(setting: str, copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{FLOORS}/{setting}": 0.75})
    for value, shown in ((0.5, "0.5"), (None, "no number")):
        measured(copied, setting, value)
        with pytest.raises(RefusedError) as caught:
            run_stage(copied, "model", "toy", "ngame")
        assert caught.value.found == f"a model with {NAMES[setting]} of {shown}"
        assert "at least 0.75" in caught.value.expected and f"model.{setting}" in caught.value.expected


def test_each_floor_is_of_its_own_figure(copied: Workspace, edit: Edit) -> None:
    """P@1 is in percent and recall is a share, so each would pass or fail by the floor of the other."""
    edit(copied, {f"{FLOORS}/min_P_at_1": 50.0, f"{FLOORS}/min_index_recall": 0.5})
    for P_at_1, recall, good in ((60.0, 0.6, True), (40.0, 0.6, False), (60.0, 0.4, False), (0.6, 60.0, False)):
        measured(copied, "min_P_at_1", P_at_1)
        measured(copied, "min_index_recall", recall)
        assert packed(copied) == good, (P_at_1, recall)


def test_the_floors_of_a_recipe_that_sets_none_are_0_and_nine_tenths(copied: Workspace) -> None:
    for P_at_1, recall, good in ((0.0, 0.9, True), (0.0, 0.899, False), (-0.1, 0.9, False)):
        measured(copied, "min_P_at_1", P_at_1)
        measured(copied, "min_index_recall", recall)
        assert packed(copied) == good, (P_at_1, recall)


def test_every_score_with_an_index_must_reach_the_floor(copied: Workspace, edit: Edit) -> None:
    edit(copied, {f"{FLOORS}/min_index_recall": 0.75})
    for score in ("classifier", "label_text"):
        measured(copied, "min_index_recall", 0.5, score)
        with pytest.raises(RefusedError, match=f"index recall of the score {score} of 0.5"):
            run_stage(copied, "model", "toy", "ngame")
        measured(copied, "min_index_recall", 0.75, score)
        assert packed(copied)


def test_a_packed_model_has_the_metrics_of_its_evaluation(copied: Workspace) -> None:
    measured(copied, "min_P_at_1", 77.0)
    assert packed(copied)
    folder = copied.folder("model", "toy", "ngame")
    assert Model.open(folder).facts.metrics == content(copied, "evaluation", "metrics.json")
    assert Model.open(folder).facts.metrics["P_at_1"] == 77.0
    assert artifacts.read_made(folder).depends["evaluation"] == copied.digest("evaluation", "toy", "ngame")
