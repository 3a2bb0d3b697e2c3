"""``xc tune``: trials are counted and continued, early stages are trained once, losers are deleted."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Xc, entry, offered
from tests.tune.conftest import LATE, Tune, record_of, seen
from xc_core import artifacts, manifests
from xc_core.chain import Workspace, runner
from xc_core.chain.experiment import resolve
from xc_core.chain.fingerprints import resolved
from xc_core.git import project_checkout
from xc_core.tune import study
from xc_core.tune.record import StudyRecord, TrialOutcome, study_folder
from xc_core.tune.space import TRIAL_STAGES

pytestmark = pytest.mark.chain

EARLY = ("encoder", "embeddings", "clusters", "negatives", "classifier", "scores")


def trials_of(project: Workspace, study: str = "ngame") -> list[Path]:
    return sorted((study_folder(project, "toy", study) / "data" / "toy").glob("*"))


def test_trials_of_late_settings_take_over_what_is_trained_and_the_best_is_kept(tune: Tune, project: Workspace) -> None:
    before = (project.root / "params.yaml").read_bytes()
    ended = tune(LATE, "--trials", "5")
    assert ended.code == 0, ended.err
    record, own = record_of(project), project.folder("encoder", "toy", "ngame")
    assert [trial.state for trial in record.trials] == [TrialOutcome.DONE] * 5
    taken = [trial.taken for trial in record.trials]
    assert taken == [(*EARLY, "fusion")] + [EARLY] * 4, "nothing that ngame has is made again"
    assert len({trial.value for trial in record.trials}) > 1, "the settings make a difference"
    (kept,) = trials_of(project)
    assert record.best is not None
    assert kept.name == record.best.folder
    assert artifacts.verify(kept / "encoder").digest() == manifests.read_manifest(own).digest()
    assert (kept / "encoder" / "encoder.safetensors").stat().st_ino == (own / "encoder.safetensors").stat().st_ino
    assert sorted(path.name for path in kept.iterdir()) == sorted([*(stage.name for stage in TRIAL_STAGES), "settings"])
    assert (project.root / "params.yaml").read_bytes() == before, "trials are not experiments of the project"
    assert project.params.experiments() == [("toy", "ngame")]


def test_the_record_that_is_shown_after_a_trial_has_its_result_and_its_rank(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By it artefacts of trials are deleted: those of the best one and of the last one are kept."""
    shown: list[tuple[StudyRecord, StudyRecord, set[str]]] = []

    def watcher(record: StudyRecord) -> None:
        shown.append((record, record_of(project), {path.name for path in trials_of(project)}))

    offered(monkeypatch, "xc.studies", entry("here", lambda workspace: watcher))
    assert tune(LATE, "--trials", "4").code == 0
    *running, (finished, *_) = shown
    best = [record.best for record, *_ in running]
    assert [record.trials for record, *_ in running] == [finished.trials[: n + 1] for n in range(4)]
    assert [written.trials for _, written, _ in running] == [record.trials for record, *_ in running]
    assert [kept for *_, kept in running] == [
        {trial.folder, own.folder} for trial, own in zip(best, finished.trials, strict=True) if trial
    ]
    assert any(trial == own for trial, own in zip(best[1:], finished.trials[1:], strict=True)), "one beats those before"


def test_a_setting_in_the_middle_trains_only_what_follows(tune: Tune, project: Workspace) -> None:
    assert tune({"classifier.table.lr": [0.02, 0.001]}, "--trials", "9", "--keep", "2").code == 0
    first, second = (own for own in record_of(project).trials if not own.why)
    assert (first.values["classifier.table.lr"], first.own) == (0.02, True), "a study begins with the recipe's own"
    assert first.taken == (*EARLY, "fusion")
    assert (second.taken, second.own) == (EARLY[:4], False)
    a, b = (study_folder(project, "toy", "ngame") / "data" / "toy" / trial.folder for trial in (first, second))
    same = {name: manifests.read_manifest(a / name) == manifests.read_manifest(b / name) for name in EARLY}
    assert same == {name: name in EARLY[:4] for name in EARLY}


def test_the_same_command_continues_and_trials_done_count(tune: Tune, project: Workspace) -> None:
    assert tune(LATE, "--trials", "2").code == 0
    assert tune(LATE, "--trials", "4").code == 0
    record = record_of(project)
    assert (len(record.trials), record.state) == (4, "all trials done")
    files = {path: path.stat().st_mtime_ns for path in trials_of(project)}
    again = tune(LATE, "--trials", "4")
    assert again.code == 0
    assert "trial 4" not in again.err
    assert {path: path.stat().st_mtime_ns for path in trials_of(project)} == files
    assert tune(LATE, "--trials", "4", "--study", "whole").code == 0
    assert seen(record_of(project, "whole")) == seen(record), "two commands draw what one draws"


def test_every_trial_and_every_seed_draws_other_settings(tune: Tune, project: Workspace) -> None:
    for name, seed in (("first", "1"), ("again", "1"), ("second", "2")):
        options = ("--trials", "3", "--sampler", "random", "--study", name, "--seed", seed)
        assert tune(LATE, *options).code == 0
    first, again, second = (
        [own.values["fusion.rule.weight"] for own in record_of(project, name).trials[1:]]
        for name in ("first", "again", "second")
    )
    assert first == again
    assert len({*first, *second}) == 4, "after the recipe's own settings"


@pytest.mark.parametrize(
    ("space", "options", "differs"),
    [
        ({**LATE, "fusion.rule.depth": [1, 2]}, (), "space (fusion.rule.depth)"),
        (LATE, ("--metric", "P@1"), "metric (P@1, P@5, PSP@5)"),
        (LATE, ("--seed", "1"), "seed (0 before, 1 now)"),
        (LATE, ("--sampler", "random"), "sampler (tpe before, random now)"),
        (LATE, ("--set", "classifier.seed=3"), "changes (classifier.seed)"),
    ],
)
def test_another_study_under_the_same_name_is_refused(
    tune: Tune, project: Workspace, space: Any, options: tuple[str, ...], differs: str
) -> None:
    assert tune(LATE, "--trials", "1").code == 0
    before = seen(record_of(project))
    tune(space, "--trials", "2", *options).refused(64, f"a study 'ngame' of toy with another {differs}", "--study NAME")
    assert seen(record_of(project)) == before


def test_another_corpus_is_another_study(tune: Tune, project: Workspace) -> None:
    assert tune(LATE, "--trials", "1").code == 0
    lines = project.raw("toy") / "filter_labels_train.txt"
    lines.write_text("0 0\n")
    tune(LATE, "--trials", "2").refused(64, "with another corpus", "--study NAME")


def test_a_space_that_is_used_up_ends_the_study(tune: Tune, project: Workspace) -> None:
    ended = tune({"fusion.rule.depth": [1, 2]}, "--trials", "30", "--sampler", "random")
    assert ended.code == 0
    record = record_of(project)
    assert record.state == "all combinations tried"
    assert len({trial.values["fusion.rule.depth"] for trial in record.trials}) == 2
    repeated = [trial for trial in record.trials if trial.why.startswith("same settings as trial")]
    assert len(record.trials) == 2 + len(repeated)
    assert all(trial.seconds == 0 and trial.value is not None for trial in repeated)


def test_trials_that_repeat_settings_do_not_count(tune: Tune, project: Workspace) -> None:
    values = [1, 2, 3, 4]
    ended = tune({"fusion.rule.depth": values}, "--trials", "4", "--sampler", "random")
    assert ended.code == 0
    record = record_of(project)
    assert record.state == "all trials done"
    assert {trial.values["fusion.rule.depth"] for trial in record.trials} == set(values)
    assert len(record.trials) > 4, "with this seed the sampler repeats itself"
    assert len(record.ranked()) == 4, "the table shows each once"
    assert "trials: 4 done;" in ended.out


def test_a_sampler_that_draws_nothing_new_ends_the_study(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_MAX_REPEATS", 1)
    assert tune({"fusion.rule.depth": [1, 2, 3, 4]}, "--trials", "4", "--sampler", "random").code == 0
    assert record_of(project).state == "the sampler draws nothing new"


def test_the_command_that_is_printed_trains_the_winner(tune: Tune, xc: Xc, project: Workspace, tmp_path: Path) -> None:
    space = {"fusion.rule": ["tree", "sum"], "encoder.loss.margin": [0.2, 0.3], "scores.frequency": [None, {}]}
    none = {"encoder__epochs": 0, "classifier__epochs": 0}
    ended = tune(space, "--trials", "3", "--out", tmp_path / "note.md", **none)
    assert ended.code == 0, ended.err
    record, note = record_of(project), (tmp_path / "note.md").read_text()
    assert record.best is not None
    line = ended.out.splitlines()[-1].removeprefix("train it:  ")
    assert line in note
    program, *arguments = shlex.split(line)
    assert program == "xc"
    assert xc(*arguments, "--until", "corpus").code == 0
    declared = project.params.experiment("toy", "ngame-tuned")
    folder = study_folder(project, "toy", "ngame") / "data" / "toy" / record.best.folder
    for stage in TRIAL_STAGES:
        assert (folder / "settings" / f"{stage.name}.json").read_text() == resolved(project, stage, declared)


def test_the_note_has_what_a_reader_needs(tune: Tune, project: Workspace, tmp_path: Path) -> None:
    assert tune(LATE, "--trials", "3", "--seed", "5", "--out", tmp_path / "note.md").code == 0
    note, record = (tmp_path / "note.md").read_text(), record_of(project)
    assert re.search(r"^xc tune --dataset toy --recipe ngame --space \S+ .*--trials 3 --seed 5$", note, re.MULTILINE)
    assert "fusion.rule.depth: [1, 2, 3, 7]" in note
    assert all(f"{trial.value:.2f}" in note for trial in record.trials)
    assert record.origin["date"][:10] in note
    assert record.origin["commit"][:12] in note
    assert record.origin["changed"] == project_checkout(project.root).changes


def test_no_stage_after_the_fusion_is_run(tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    code = runner.code

    def watched(stage: Any, function: str) -> Any:
        ran.append(stage.name)
        return code(stage, function)

    monkeypatch.setattr(runner, "code", watched)
    assert tune({"encoder.seed": [1, 2]}, "--trials", "1").code == 0
    assert ran == [stage.name for stage in TRIAL_STAGES]
    assert not {"evaluation", "audit", "model", "leaderboard"} & set(ran)


def test_a_recipe_whose_fusion_learns_nothing_is_judged_too(tune: Tune, project: Workspace) -> None:
    added = {"fusion__rule": "sum"}
    assert tune({"scores.frequency": [None, {}]}, "--trials", "2", "--study", "sums", **added).code == 0
    assert {trial.served for trial in record_of(project, "sums").trials} == {"sum"}
    added |= {"scores__frequency": "null", "scores__label_text": "null"}
    assert tune({"fusion.candidates": [3, 6]}, "--trials", "2", "--study", "one", **added).code == 0
    for trial in record_of(project, "one").trials:
        assert trial.served == "classifier"
        assert trial.documents == 31, "all held-out documents, although the served rows have learnt them (refit)"
        assert trial.value == pytest.approx(sum(trial.figures.values()) / 3)
        assert 0 < trial.figures["P_at_1"] < 100, "rows that have learnt these documents are not what is judged"


def test_a_trial_has_the_figures_of_what_is_served(tune: Tune, project: Workspace) -> None:
    assert tune({"fusion.tail_cost": [50.0, 100.0]}, "--trials", "1").code == 0
    (trial,) = record_of(project).trials
    made = study_folder(project, "toy", "ngame") / "data" / "toy" / trial.folder / "fusion" / "made.json"
    assert trial.figures == json.loads(made.read_text())["facts"]["figures"]


def test_a_trial_that_learns_from_the_documents_that_judge_it_is_refused(tune: Tune, project: Workspace) -> None:
    refit = {"fusion__rule": "sum", "encoder__refit": "true", "encoder__epochs": "1"}
    tune({"fusion.candidates": [3, 6]}, "--trials", "1", **refit).refused(78, "encoder.refit", "encoder.refit=false")
    assert not trials_of(project), "refused before anything is trained"


def test_a_missing_package_of_the_fusion_is_reported_before_a_trial(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    space, others = {"fusion.rule": ["tree", "lightgbm"]}, {"encoder__epochs": "0"}
    tune(space, "--trials", "1", **others).refused(66, "no installed package lightgbm", "pip install")
    assert not trials_of(project)


def test_the_study_file_survives_a_broken_record(tune: Tune, project: Workspace) -> None:
    assert tune(LATE, "--trials", "1").code == 0
    before, path = record_of(project), study_folder(project, "toy", "ngame") / "study.json"
    path.write_text("{")
    assert tune(LATE, "--trials", "1").code == 0
    assert seen(record_of(project)) == seen(before)
    assert json.loads(path.read_text())["asked"]["recipe"] == "ngame"


def test_variants_of_params_yaml_can_be_tuned(tune: Tune, xc: Xc, project: Workspace, tmp_path: Path) -> None:
    declared = {"encoder": {"epochs": 0.0, "encoder": {"name": "bag", "width": 32}}, "classifier": {"epochs": 0.0}}
    project.params.declare_experiment("toy", "mine", "ngame", declared)
    path = tmp_path / "own.yaml"
    path.write_text("fusion.rule.depth: [1, 3]\n")
    ended = xc("tune", "--dataset", "toy", "--recipe", "mine", "--space", path, "--trials", "2")
    assert ended.code == 0, ended.err
    record = record_of(project, "mine")
    assert record.asked["changes"] == {"encoder.epochs": 0.0, "encoder.encoder.name": "bag",
                                       "encoder.encoder.width": 32, "classifier.epochs": 0.0}  # fmt: skip
    assert "--base ngame" in ended.out
    assert resolve("mine", "ngame", declared).encoder.epochs == 0
