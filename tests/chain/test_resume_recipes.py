"""A training whose loss or negatives have state, stopped and resumed, ends with the bytes of an unbroken one.

The recipes have state besides weights and rows: eta of augment-and-reduce, a fitted tree, hard negatives of a search, a
search under way, clusters, a curriculum. A stop is an error within a step, in this process.
"""

from __future__ import annotations

import os
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TOY_CHANGES, make_workspace
from xc_core.chain import STAGES, Workspace, run_stage
from xc_core.params import deep_merged
from xc_core.train.classifier import ClassifierTask
from xc_core.train.encoder import EncoderTask

TASKS: dict[str, Any] = {"encoder": EncoderTask, "classifier": ClassifierTask}
ETA = {"kind": "augment-reduce", "temperature": 0.2}
SAMPLE = {"hard": 3, "uniform": 4}
"""Of ten labels."""


class StoppedError(Exception):
    """The process is gone."""


def workspace_before(root: Path, recipe: str, stage: str, changes: dict[str, Any]) -> Workspace:
    """Return a workspace in which all stages before ``stage`` have run."""
    workspace, own = make_workspace(root), deepcopy(TOY_CHANGES)
    if stage == "classifier":
        own["encoder"]["epochs"] = 0.0
    workspace.params.declare_experiment("toy", recipe, recipe, deep_merged(own, {stage: changes}))
    for name in list(STAGES)[: list(STAGES).index(stage)]:
        run_stage(workspace, name, "toy", recipe)
    return workspace


def content(workspace: Workspace, stage: str, recipe: str) -> dict[str, bytes]:
    folder = workspace.folder(stage, "toy", recipe)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stopped_at(step_number: int, workspace: Workspace, stage: str, recipe: str) -> list[int]:
    """Run the stage until the training's step of that number; return the numbers of the steps before it."""
    done, plain = [], TASKS[stage].step

    def step(task: Any, docs: Any, number: int, scale: float, ready: Any) -> tuple[float, float]:
        if number == step_number:
            raise StoppedError
        done.append(number)
        return plain(task, docs, number, scale, ready)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TASKS[stage], "step", step)
        with pytest.raises(StoppedError):
            run_stage(workspace, stage, "toy", recipe)
    return done


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "eta of M4": ("anr", "classifier", {"epochs": 3.0, "negatives": SAMPLE}),
    "the tree of M4": ("adversarial", "classifier", {"epochs": 3.0, "negatives": {"width": 4}}),
    "eta of label texts and of rows, clusters": (
        "unidec",
        "encoder",
        {"epochs": 3.0, "loss": ETA, "scorer": {"loss": ETA}, "negatives": {"hard": 3, "search": 4}},
    ),
    "a search under way and a curriculum": (
        "astra-classifier-curriculum",
        "encoder",
        {"epochs": 4.0, "negatives": {**SAMPLE, "curriculum": 3.0}, "order": {"batch_size": 32}},
    ),
    "eta of rows alone": ("renee", "encoder", {"epochs": 3.0, "loss": ETA, "scorer": {"rows": {"lr": 0.05}}}),
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_within_and_between_epochs_it_ends_with_the_same_bytes(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has 7 batches, or 8 with label texts: it is stopped in the first, at its end, in the third."""
    recipe, stage, changes = CASES[case]
    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "-1")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # slow, and only for power cuts
    whole = workspace_before(tmp_path / "whole", recipe, stage, changes)
    broken = Workspace(Path(shutil.copytree(whole.root, tmp_path / "broken")))
    run_stage(whole, stage, "toy", recipe)
    reached = 0
    for stop in (3, 7, 17):
        assert stopped_at(stop, broken, stage, recipe) == [*range(reached, stop)], "it resumes and repeats nothing"
        reached = stop
    run_stage(broken, stage, "toy", recipe)
    assert content(broken, stage, recipe) == content(whole, stage, recipe)
