"""What a stage depends on must not change while it runs; everything else may."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chain.toy import STAGES_OF, Edit, folder_of, recipe_of, set_content, set_fact
from xc_core import artifacts
from xc_core.chain import Workspace, run_stage
from xc_core.chain.context import Context
from xc_core.chain.costs import read_costs
from xc_core.errors import MovedError
from xc_core.train.checkpoint import Checkpoints
from xc_core.train.loop import _Run
from xc_core.train.state import Position


def running(name: str, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch, function: str = "run") -> None:
    """Let ``change`` happen at the end of the stage's own code."""
    module = importlib.import_module(f"xc_core.stages.{name}")
    plain = getattr(module, function)

    def changing(context: Context[Any]) -> None:
        plain(context)
        change()

    monkeypatch.setattr(module, function, changing)


@dataclass(frozen=True)
class Change:
    """Something that changes while a stage runs."""

    stage: str
    apply: Callable[[Workspace, Edit], object]
    refresh: bool = False


def setting(name: str, value: Any) -> Callable[[Workspace, Edit], None]:
    return lambda workspace, edit: edit(workspace, {f"{STAGES_OF}/{name}": value})


def content(stage: str) -> Callable[[Workspace, Edit], None]:
    return lambda workspace, edit: set_content(folder_of(workspace, stage))


def fact(stage: str) -> Callable[[Workspace, Edit], None]:
    return lambda workspace, edit: set_fact(folder_of(workspace, stage), "another", "figure")


def params(text: str) -> Callable[[Workspace, Edit], object]:
    return lambda workspace, edit: (workspace.root / "params.yaml").write_text(text)


def source_file(workspace: Workspace, edit: Edit) -> None:
    (workspace.raw("toy") / "another.txt").write_text("1")


def own_tokens(workspace: Workspace, edit: Edit) -> None:
    set_content(folder_of(workspace, "tokens") / "wordpiece")


def nothing(workspace: Workspace, edit: Edit) -> None:
    pass


MOVED = {
    "a setting of its own": Change("clusters", setting("clusters/size", 5)),
    "a setting of its own part": Change("fusion", setting("fusion/rule", {"depth": 3})),
    "a setting while it is refreshed": Change("classifier", setting("classifier/dropout", 0.1), refresh=True),
    "an input": Change("audit", content("clusters")),
    "an input goes": Change("audit", lambda workspace, edit: shutil.rmtree(folder_of(workspace, "clusters"))),
    "the experiment goes": Change("audit", params("datasets: {toy: {}}\n")),
    "the file breaks": Change("audit", params("datasets: [")),
    "a source file": Change("corpus", source_file),
    "the tokens of its tokenizer": Change("encoder", own_tokens),
    "an evaluation": Change("leaderboard", content("evaluation")),
}
UNMOVED = {
    "a setting of another stage": Change("clusters", setting("fusion/rule", {"depth": 3})),
    "the rows of the fusion": Change("classifier", setting("fusion/rows", 3)),
    "another experiment": Change(
        "clusters", lambda workspace, edit: workspace.params.declare_experiment("toy", "b", "dpr", {})
    ),
    "a source file of the corpus before": Change("clusters", source_file),
    "tokens of another tokenizer": Change("encoder", content("tokens")),
    "how an input was made": Change("audit", fact("clusters")),
    "an artefact that needs this one": Change("clusters", content("evaluation")),
    "nothing, while it is refreshed": Change("classifier", nothing, refresh=True),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_change_of_what_a_stage_depends_on_is_noticed_and_nothing_is_kept(
    name: str, copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = MOVED[name]
    folder, recipe = folder_of(copied, change.stage), recipe_of(change.stage)
    before, made = artifacts.verify(folder), artifacts.read_made(folder)
    costs = read_costs(copied, change.stage, "toy", recipe)
    running(change.stage, lambda: change.apply(copied, edit), monkeypatch, "refresh" if change.refresh else "run")
    with pytest.raises(
        MovedError, match=f"found parameters or inputs of {change.stage} that changed during the run"
    ) as caught:
        run_stage(copied, change.stage, "toy", "ngame", force=True, refresh=change.refresh)
    assert (caught.value.exit_code, caught.value.do) == (76, "run the same command again; the result was not kept")
    assert name != "the file breaks" or "which are gone or cannot be read" in caught.value.found
    assert (artifacts.verify(folder), artifacts.read_made(folder)) == (before, made)
    assert read_costs(copied, change.stage, "toy", recipe) == costs
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("name", UNMOVED)
def test_everything_else_may_change(name: str, copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    change = UNMOVED[name]
    running(change.stage, lambda: change.apply(copied, edit), monkeypatch, "refresh" if change.refresh else "run")
    assert not run_stage(copied, change.stage, "toy", "ngame", force=True, refresh=change.refresh).skipped


@pytest.mark.parametrize("stage", ["encoder", "classifier"])
def test_a_training_ends_after_the_checkpoint_that_finds_changed_inputs_and_resumes_once_they_are_back(
    stage: str, copied: Workspace, edit: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on to its end, perhaps for hours, and kept nothing. A file that is replaced right now is no change."""
    save, saves, file = Checkpoints.save, list[int](), copied.root / "params.yaml"
    before = file.read_text("utf-8")
    edit(copied, {f"{STAGES_OF}/{stage}/seed": 7})
    contents = {2: "datasets: [", 3: before, 4: file.read_text("utf-8")}
    file.write_text(before, "utf-8")

    def changing(self: Checkpoints, task: Any, position: Position, *given: Any, **named: Any) -> None:
        save(self, task, position, *given, **named)
        saves.append(position.step)
        if content := contents.pop(len(saves), None):
            file.write_text(content, "utf-8")

    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "-1")
    monkeypatch.setattr(Checkpoints, "save", changing)
    with pytest.raises(MovedError, match=f"inputs of {stage} that changed during the run: settings"):
        run_stage(copied, stage, "toy", "ngame", force=True)
    assert saves == [1, 2, 3, 4]
    file.write_text(before, "utf-8")
    run_stage(copied, stage, "toy", "ngame", force=True)
    assert saves[4] == 5


def test_a_training_whose_project_is_moved_ends_after_the_next_checkpoint_and_resumes_in_the_new_place(
    copied: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on to its end, perhaps for hours, and wrote its checkpoints into a new folder at the old place."""
    save, saves, new = Checkpoints.save, list[int](), tmp_path / "new"

    def saving(self: Checkpoints, task: Any, position: Position, *given: Any, **named: Any) -> None:
        save(self, task, position, *given, **named)
        saves.append(position.step)

    def moving(self: _Run, reads: bool) -> bool:
        if len(saves) == 2 and copied.root.exists():
            copied.root.rename(new)
        return due(self, reads)

    monkeypatch.setenv("XC_CHECKPOINT_SECONDS", "-1")
    monkeypatch.setattr(Checkpoints, "save", saving)
    due = _Run._save_due
    monkeypatch.setattr(_Run, "_save_due", moving)
    with pytest.raises(MovedError, match="inputs of encoder that changed during the run, which are gone"):
        run_stage(copied, "encoder", "toy", "ngame", force=True)
    assert saves == [1, 2]
    assert not copied.root.exists(), "no checkpoint is written at the old place"
    run_stage(Workspace(new), "encoder", "toy", "ngame", force=True)
    assert saves[2] == 3, "after the last checkpoint before the move"


@pytest.mark.parametrize("stage", ["corpus", "encoder", "scores", "model"])
def test_a_stage_without_a_checkpoint_whose_project_is_moved_ends_like_one_with_a_checkpoint(
    copied: Workspace, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with a FileNotFoundError, exit code 70."""
    module = importlib.import_module(f"xc_core.stages.{stage}")
    plain, new = module.run, tmp_path / "new"

    def moving(context: Context[Any]) -> None:
        if copied.root.is_dir():
            copied.root.rename(new)
        plain(context)

    monkeypatch.setattr(module, "run", moving)
    with pytest.raises(MovedError, match=f"{stage} that changed during the run.* was moved or deleted"):
        run_stage(copied, stage, "toy", recipe_of(stage), force=True)
    assert not copied.root.exists()
    assert not run_stage(Workspace(new), stage, "toy", recipe_of(stage), force=True).skipped


def test_an_error_of_a_first_run_is_not_one_of_a_moved_project(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no artefact yet, but its folder is in its place."""

    def failing(context: Context[Any]) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(importlib.import_module("xc_core.stages.corpus"), "run", failing)
    with pytest.raises(ValueError, match="a fault"):
        run_stage(workspace, "corpus", "toy")
