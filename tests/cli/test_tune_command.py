"""``xc tune``: what its options ask of a study, and what it writes. tests/tune runs studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TOY, Ended, Xc, entry, offered
from tests.tune.records import study, trial
from xc_core.chain import Workspace
from xc_core.errors import UnavailableError
from xc_core.tune import study as studies
from xc_core.tune.metric import Metric
from xc_core.tune.study import StudyLimits

pytest.importorskip("optuna")

RECORD = study(trial(0, 50.0), trial(1, 60.0))


class Asked:
    """Runs ``xc tune`` on the recipe ngame, and keeps what its study would have been started with."""

    def __init__(self, xc: Xc, space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.xc, self.space, self.calls = xc, space, list[Any]()
        monkeypatch.setattr(studies, "tune", self._run)

    def _run(self, *asked: Any) -> Any:
        self.calls.append(asked)
        return RECORD

    def __call__(self, *options: object) -> Ended:
        return self.xc("tune", *TOY, "--recipe", "ngame", "--space", self.space, *options)


@pytest.fixture
def tune(xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch) -> Asked:
    space = fresh.root / "space.yaml"
    space.write_text("fusion.rule.depth: [1, 2]\n")
    return Asked(xc, space, monkeypatch)


def test_a_study_has_20_trials_no_time_limit_and_the_name_of_its_recipe(tune: Asked, fresh: Workspace) -> None:
    ended = tune()
    assert ended.code == 0, ended.err
    ((tuning, limits, _),) = tune.calls
    assert limits == StudyLimits(trials=20, seconds=None, keep=1)
    assert (tuning.dataset, tuning.recipe, tuning.name) == ("toy", "ngame", "ngame")
    assert (tuning.metric, tuning.sampler, tuning.seed, tuning.prune) == (Metric.of("mean"), "tpe", 0, True)
    assert (tuning.changes, dict(tuning.space.settings).keys()) == ({}, {"fusion.rule.depth"})
    assert fresh.folder("tokens", "toy").is_dir(), "the trials need it"


def test_what_is_asked_for_reaches_the_study(tune: Asked) -> None:
    limits = ("--trials", 7, "--budget", "1.5h", "--keep", 0)
    how = ("--metric", "P@1=2,PSP@5=1", "--sampler", "random", "--pruner", "none", "--seed", 5, "--study", "mine")
    assert tune(*limits, *how, "--set", "encoder.epochs=2", "--set", "classifier.epochs=3").code == 0
    ((tuning, asked, _),) = tune.calls
    assert asked == StudyLimits(trials=7, seconds=5400.0, keep=0)
    assert (tuning.name, tuning.metric) == ("mine", Metric.of("P@1=2,PSP@5=1"))
    assert (tuning.sampler, tuning.seed, tuning.prune) == ("random", 5, False)
    assert tuning.changes == {"encoder": {"epochs": 2}, "classifier": {"epochs": 3}}


def test_settings_that_another_kind_does_not_keep_are_named(tune: Asked) -> None:
    tune.space.write_text("classifier.order: [stored-clusters, random]\nclassifier.epochs: [1, 2]\n")
    named = (
        "tune: ngame: another kind has its own defaults: classifier.order.batch_size 128 instead of 1024; --set keeps"
    )
    ended = tune()
    assert ended.code == 0 and named in ended.err, ended.err
    assert "another kind" not in tune("--set", "classifier.order.batch_size=64").err


def test_settings_that_only_xc_train_used_are_named(tune: Asked, fresh: Workspace) -> None:
    fresh.params.declare_experiment("toy", "ngame", "ngame", {"classifier": {"epochs": 2}, "encoder": {"epochs": 1}})
    named = "ngame: not used, set in params.yaml by xc train or its budget: classifier.epochs; give them with --set"
    ended = tune("--set", "encoder.epochs=2")
    assert ended.code == 0, ended.err
    assert f"tune: {named} to use them" in ended.err


def test_one_at_a_time_all_trials_are_run_and_none_is_pruned(tune: Asked) -> None:
    how = ("--sampler", "one-at-a-time")
    tune.space.write_text("fusion.rule.depth: [1, 2, 7]\nscores.frequency: [null]\n")
    ended = tune(*how)
    assert ended.code == 0, ended.err
    assert "tune: 4 trials in all: ngame as it is, then each other value of each setting\n" in ended.err
    assert (tune(*how, "--trials", 2).code, tune(*how, "--pruner", "none").code) == (0, 0)
    assert [limits.trials for _, limits, _ in tune.calls] == [4, 2, 4]
    assert [(tuning.sampler, tuning.prune) for tuning, _, _ in tune.calls] == [("one-at-a-time", False)] * 3
    tune(*how, "--pruner", "quarter").refused(64, "--pruner quarter with --sampler one-at-a-time", "drop --pruner")
    tune("--sampler", "random").refused(78, "[None]", "give at least two values")


@pytest.mark.parametrize(("option", "least"), [("--trials", 1), ("--keep", 0)])
def test_a_study_has_a_trial_and_may_keep_none(tune: Asked, option: str, least: int) -> None:
    assert (tune(option, least).code, tune(option, least - 1).code, len(tune.calls)) == (0, 2, 1)


def test_the_result_is_printed_and_the_note_is_written_only_if_asked_for(tune: Asked, tmp_path: Path) -> None:
    note = tmp_path / "note.md"
    ended = tune("--trials", 3)
    assert ended.out.startswith(f"study ngame of toy: {RECORD.state}; trials: 2 ")
    assert "written" not in ended.err
    settings = ("--set", "classifier.epochs=3", "--pruner", "none", "--trials", 3)
    written = tune(*settings, "--out", note)
    assert (written.out, written.err.splitlines()[-1]) == (ended.out, f"tune: {note} written")
    (command,) = [line for line in note.read_text().splitlines() if line.startswith("xc tune ")]
    assert command == (
        f"xc tune --dataset toy --recipe ngame --space {tune.space} --set classifier.epochs=3 --pruner none --trials 3"
    )


def test_a_watcher_that_cannot_start_is_reported_and_the_others_see_the_study(
    tune: Asked, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(workspace: Workspace) -> Any:
        raise UnavailableError("no answer", expected="one", do="start it")

    def started(workspace: Workspace) -> Any:
        return workspace.root

    offered(monkeypatch, "xc.studies", entry("absent", absent), entry("page", started))
    ended = tune()
    assert ended.code == 0
    assert "tune: the study is not shown by absent: found no answer" in ended.err
    assert [call[2] for call in tune.calls] == [[fresh.root]]
