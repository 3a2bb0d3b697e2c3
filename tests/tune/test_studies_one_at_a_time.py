"""Studies of the sampler one-at-a-time: their trials, that they go on where they were stopped, and their figures."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.cli.conftest import Xc
from tests.tune.conftest import Tune, fixed, record_of, seen, write_space
from xc_core.chain import Workspace, run_stage
from xc_core.chain.costs import read_costs
from xc_core.tune import study, trial
from xc_core.tune.record import StudyRecord, TrialOutcome, study_folder
from xc_core.tune.space import TRIAL_STAGES

pytestmark = pytest.mark.chain

ONE = ("--sampler", "one-at-a-time")
SPACE: dict[str, Any] = {
    "classifier.table.lr": [0.02, 0.001],
    "fusion.rule.weight": {"range": [0.0, 1.0], "step": 0.5},
    "scores.frequency": [None],
}
"""0.02, 1.0 and the score frequency are those of the recipe."""
CHANGES: list[dict[str, Any]] = [
    {},
    {"fusion.rule.weight": 0.0},
    {"fusion.rule.weight": 0.5},
    {"scores.frequency": None},
    {"classifier.table.lr": 0.001},
]
ALL = tuple(stage.name for stage in TRIAL_STAGES)


def gains(record: StudyRecord) -> list[Any]:
    return [trial.gains for trial in record.ended]


def test_a_study_has_a_trial_per_change_and_differences_from_the_recipe(
    tune: Tune, xc: Xc, project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of ``xc compare`` between both as experiments of the project."""
    monkeypatch.setattr(study, "importances", lambda _: {"scores.frequency": 1.0})  # as of 10 trials with each setting
    ended = tune(SPACE, *ONE, "--out", tmp_path / "note.md")
    assert ended.code == 0, ended.err
    assert "tune: 5 trials in all: ngame as it is, then each other value of each setting\n" in ended.err
    record = record_of(project)
    assert [dict(own.values) for own in record.trials] == CHANGES
    assert [own.own for own in record.trials] == [True, False, False, False, False]
    assert {own.state for own in record.trials} == {TrialOutcome.DONE}
    late, middle = ALL[: ALL.index("fusion")], ALL[: ALL.index("classifier")]
    expected = [ALL, late, late, ALL[: ALL.index("scores")], middle]
    assert [own.taken for own in record.trials] == expected, "no stage before a change is made again"
    assert (record.state, record.importances, record.asked["pruner"]) == ("all values tried", {}, "none")
    assert record.asked["base values"] == {
        "classifier.table.lr": 0.02, "fusion.rule.weight": 1.0, "scores.frequency": "frequency"
    }  # fmt: skip
    lr = record.trials[4]
    settings = fixed(classifier__table__lr=0.001)
    assert xc("train", "--dataset", "toy", "--recipe", "other", "--base", "ngame", *settings,
              "--budget", "none", "--until", "fusion").code == 0  # fmt: skip
    shown = json.loads(xc("compare", "--dataset", "toy", "--on", "validation", "--json", "other", "ngame").out)
    for figure in ("P_at_1", "P_at_5", "PSP_at_5"):
        assert {**lr.gains[figure], "clear": lr.gain(figure).clear} == shown["metrics"][figure]
        assert lr.gain(figure).points == pytest.approx(lr.figures[figure] - record.trials[0].figures[figure], abs=1e-4)
    assert record.trials[0].value is not None and lr.value is not None
    assert lr.gain("objective").points == pytest.approx(lr.value - record.trials[0].value, abs=1e-4)
    note = (tmp_path / "note.md").read_text()
    assert ended.out.splitlines()[2:8] == [line for line in note.splitlines() if line.startswith("| ")][:6]
    assert "Which settings of `ngame` on toy change the figures" in note and "no single change is clearly" in note


def test_seconds_are_those_of_all_stages_wherever_they_were_made(tune: Tune, project: Workspace) -> None:
    assert tune({"fusion.rule.depth": [1]}, *ONE).code == 0
    costs = {stage: read_costs(project, stage, "toy", "ngame")["seconds"] for stage in ALL}
    first, second = record_of(project).trials
    assert first.stages_seconds == pytest.approx(sum(costs.values()))
    assert second.stages_seconds is not None
    own_fusion = second.stages_seconds - sum(costs.values()) + costs["fusion"]
    assert 0 < own_fusion < second.seconds
    project.scratch("cost", "encoder", "toy", "ngame").unlink()
    shutil.rmtree(study_folder(project, "toy", "ngame"))
    ended = tune({"fusion.rule.depth": [1]}, *ONE)
    assert [own.stages_seconds for own in record_of(project).trials] == [None, None]
    assert ended.out.splitlines()[4].endswith(" |    - |")


def test_the_same_command_goes_on_and_says_when_all_are_done(tune: Tune, project: Workspace) -> None:
    part = tune(SPACE, *ONE, "--trials", "2")
    assert (part.code, record_of(project).state) == (0, "all trials done")
    assert part.out.count("fusion.rule.weight |") == 1, "a row for the change that was tried"
    assert tune(SPACE, *ONE).code == 0
    record = record_of(project)
    assert [dict(own.values) for own in record.trials] == CHANGES
    again = tune(SPACE, *ONE)
    assert "study ngame of toy: all values tried; trials: 5 done" in again.out and "trial 5" not in again.err
    assert record_of(project).trials == record.trials
    assert tune(SPACE, *ONE, "--study", "unbroken").code == 0
    unbroken = record_of(project, "unbroken")
    assert (seen(unbroken), gains(unbroken)) == (seen(record), gains(record))
    tune({**SPACE, "fusion.rule.depth": [1]}, *ONE).refused(64, "another space (fusion.rule.depth), base values")
    tune({"fusion.rule.depth": [7]}, *ONE).refused(78, "only values that the recipe has already: fusion.rule.depth")


@pytest.mark.parametrize("space", [{"classifier.table.lr": [0.001, 0.05]},
                                   {"classifier.table.lr": [0.001], "fusion.rule.depth": [1]}])  # fmt: skip
def test_a_killed_study_goes_on_with_the_change_that_was_killed(
    tune: Tune, project: Workspace, tmp_path: Path, space: dict[str, Any]
) -> None:
    """In the trial of the recipe as it is, then in the last one."""
    path, names = write_space(tmp_path / "own.yaml", space), {name.replace(".", "__"): None for name in space}
    for fits in ("1", "3"):
        died = forks.run("tests.tune.test_limits:dies", fits, "tune", "--dataset", "toy", "--recipe", "ngame",
                         "--space", path, *fixed(**names), *ONE)  # fmt: skip
        assert died.returncode == -signal.SIGKILL, died.stderr
    assert tune(space, *ONE).code == 0
    record = record_of(project)
    assert [own.state.value for own in record.trials] == ["stopped", "done", "done", "stopped", "done"]
    assert [own.own for own in record.ended] == [True, False, False]
    assert tune(space, *ONE, "--study", "unbroken").code == 0
    unbroken = record_of(project, "unbroken")
    assert (seen(unbroken), gains(unbroken)) == (seen(record), gains(record))
    assert all(trial.gains for trial in record.ended[1:])


@pytest.mark.parametrize("moment", ["fusion", "comparing", "compared"])
def test_a_trial_that_is_interrupted_is_tried_again(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Also one that is done and not yet compared: its row would be missing for good."""
    module, name = (trial, "run_stage") if moment == "fusion" else (study, "compared")
    function, ended = getattr(module, name), [0]

    def interrupted(*given: Any) -> Any:
        here = moment != "fusion" or given[1] == "fusion"
        ended[0] += here
        if moment == "compared":
            function(*given)
        if here and ended[0] in (1, 3):
            raise KeyboardInterrupt
        return function(*given)

    monkeypatch.setattr(module, name, interrupted)
    assert [tune(SPACE, *ONE).code for _ in range(3)] == [130, 130, 0]
    record = record_of(project)
    assert [own.state.value for own in record.trials] == ["stopped", "done", "stopped", *["done"] * 4]
    assert [dict(own.values) for own in record.ended] == CHANGES
    assert [bool(own.gains) for own in record.ended] == [False, True, True, True, True]


def test_a_change_that_fails_is_a_row_without_figures_and_the_others_are_tried(
    tune: Tune, project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(workspace: Any, name: str, *place: Any) -> Any:
        if name == "scores" and "frequency" not in workspace.experiment.recipe.scores:
            raise ValueError("an odd setting")
        return run_stage(workspace, name, *place)

    monkeypatch.setattr(trial, "run_stage", run)
    assert tune(SPACE, *ONE, "--out", tmp_path / "note.md").code == 0
    record = record_of(project)
    assert [own.state.value for own in record.trials] == ["done", "done", "done", "failed", "done"]
    assert "- trial 3 failed (ValueError: an odd setting): scores.frequency null" in (tmp_path / "note.md").read_text()


def test_without_figures_of_the_recipe_as_it_is_nothing_is_compared(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        if name == "fusion":
            raise ValueError("an odd setting")
        return run_stage(workspace, name, *place)

    monkeypatch.setattr(trial, "run_stage", run)
    found = "no figures of the recipe as it is: trial 0 failed (ValueError: an odd setting)"
    for _ in range(2):
        tune(SPACE, *ONE).refused(66, found, "--study NAME")
    assert len(record_of(project).trials) == 1


def changed(folder: Path) -> None:
    (folder / "base" / "fusion" / "validation.npz").write_bytes(b"other")


def removed(folder: Path) -> None:
    shutil.rmtree(folder / "base")


@pytest.mark.parametrize("damage", [changed, removed])
def test_damaged_figures_of_the_recipe_as_it_is_end_the_study(
    tune: Tune, project: Workspace, damage: Callable[[Path], None]
) -> None:
    assert tune(SPACE, *ONE, "--trials", "1").code == 0
    folder = study_folder(project, "toy", "ngame")
    kept = shutil.copytree(folder / "base", folder.parent / "kept")
    damage(folder)
    tune(SPACE, *ONE).refused(74, "base", "--study NAME")
    assert [own.state.value for own in record_of(project).trials] == ["done", "stopped"]
    shutil.rmtree(folder / "base", ignore_errors=True)
    shutil.move(kept, folder / "base")
    assert tune(SPACE, *ONE).code == 0
    assert [dict(own.values) for own in record_of(project).ended] == CHANGES


def test_a_rule_whose_fusion_could_not_be_tested_is_compared_by_what_is_judged(tune: Tune, project: Workspace) -> None:
    """Without a rule that learns, the sum of the scores is what is served."""
    space, none = {"scores.frequency": [None]}, {"fusion__rule": "sum", "fusion__fallback": None}
    assert tune(space, *ONE, **none).code == 0
    first, second = record_of(project).trials
    assert (first.served, second.served) == ("sum", "sum")
    assert second.gain("P_at_5").points == pytest.approx(second.figures["P_at_5"] - first.figures["P_at_5"], abs=1e-4)
