"""Studies that end early: killed, cut by the budget, failing trials, pruned trials, refused before the first trial."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

from tests import forks
from tests.processes import wait_for
from tests.tune.conftest import LATE, Tune, fixed, record_of, seen, write_space
from xc_core import progress
from xc_core.chain import Workspace, run_stage
from xc_core.cli.main import main
from xc_core.errors import StorageError
from xc_core.tune import limits, study, trial
from xc_core.tune.limits import TimeIsUpError, stopped_after
from xc_core.tune.record import TrialOutcome, TrialRecord, study_folder, study_lock

pytestmark = pytest.mark.chain

ROWS = {"classifier.table.lr": {"log": [0.001, 0.1]}}


def dies() -> None:
    """Run ``xc``, and kill it before the trial whose number is the first argument is fused."""
    calls, fits = [], int(sys.argv.pop(1))

    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        calls.append(name)
        if calls.count(name) == fits and name == "scores":
            os.kill(os.getpid(), signal.SIGKILL)
        return run_stage(workspace, name, *place)

    pytest.MonkeyPatch().setattr(trial, "run_stage", run)
    main(sys.argv[1:])


def dies_drawing() -> None:
    """Run ``xc``, and kill it before it draws the setting whose number is the first argument."""
    plain, left = optuna.trial.Trial._suggest, iter(range(int(sys.argv.pop(1)) - 1))

    def suggest(self: optuna.trial.Trial, *setting: Any) -> Any:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, *setting)

    optuna.trial.Trial._suggest = suggest  # type: ignore[method-assign]
    main(sys.argv[1:])


def command(space: Path, *options: str) -> list[str]:
    settings = fixed(classifier__table__lr=None)
    return ["tune", "--dataset", "toy", "--recipe", "ngame", "--space", str(space), *settings, *options]


def test_a_killed_study_goes_on_and_gives_what_an_unbroken_one_gives(
    tune: Tune, project: Workspace, tmp_path: Path
) -> None:
    """It is killed in the trial of the recipe's own settings, which no sampler draws, and in a later one."""
    space = write_space(tmp_path / "rows.yaml", ROWS)
    for fits in ("1", "3"):
        died = forks.run(f"{__name__}:dies", fits, *command(space, "--trials", "4"))
        assert died.returncode == -signal.SIGKILL, died.stderr
    assert "tune: trial 0 was killed; its settings are tried again" in died.stderr
    ended = tune(ROWS, "--trials", "4")
    assert ended.code == 0, ended.err
    record = record_of(project)
    assert [own.state.value for own in record.trials] == ["stopped", "done", "done", "stopped", "done", "done"]
    assert record.trials[1].values == record.trials[0].values
    assert record.trials[1].own
    assert record.trials[4].values == record.trials[3].values
    assert record.trials[4].taken == (), "its finished stages are there already, under the same name"
    resumed = ended.err.split("was killed")[1].split("trial 4: done")[0]
    assert "classifier: up to date" in resumed
    assert len(list((study_folder(project, "toy", "ngame") / "data" / "toy").iterdir())) == 1
    assert tune(ROWS, "--trials", "4", "--study", "unbroken").code == 0
    assert seen(record_of(project, "unbroken")) == seen(record)


def test_a_study_that_is_killed_while_it_draws_settings_loses_no_trial(
    tune: Tune, project: Workspace, tmp_path: Path
) -> None:
    """It is killed before the first setting of the recipe's own trial, and before the last one of the next trial."""
    space = write_space(tmp_path / "space.yaml", LATE)
    for number in (1, 4):
        died = forks.run(f"{__name__}:dies_drawing", number, "tune", "--dataset", "toy", "--recipe", "ngame",
                         "--space", space, *fixed(**{name.replace(".", "__"): None for name in LATE}))  # fmt: skip
        assert died.returncode == -signal.SIGKILL, died.stderr
    for name in ("ngame", "unbroken"):
        assert tune(LATE, "--trials", "2", "--study", name).code == 0
    assert [own.state.value for own in record_of(project).trials] == ["stopped", "done", "stopped", "done"]
    assert record_of(project).trials[1].own
    assert seen(record_of(project, "unbroken")) == seen(record_of(project))


def test_the_seconds_of_a_killed_trial_count(tune: Tune, project: Workspace, tmp_path: Path) -> None:
    """They are in a file, so files that a copy of the project dates anew do not count. The last one says 100 s."""
    space, folder = write_space(tmp_path / "rows.yaml", ROWS), study_folder(project, "toy", "ngame")
    assert forks.run(f"{__name__}:dies", "1", *command(space, "--trials", "1")).returncode == -signal.SIGKILL
    (written,) = folder.glob("data/toy/trial-*/classifier/manifest.json")
    os.utime(written, (time.time() + 1e6,) * 2)
    (folder / "seconds.json").write_text('{"trial": 0, "seconds": 100.0}')
    assert tune(ROWS, "--trials", "1", "--budget", "90s").code == 0
    record = record_of(project)
    assert [own.state for own in record.trials] == [TrialOutcome.STOPPED]
    assert record.trials[0].seconds == 100 and record.state == "budget used up"
    assert written.is_file(), "what was finished is kept for a larger budget"
    assert tune(ROWS, "--trials", "1", "--budget", "10m").code == 0
    assert [own.state for own in record_of(project).trials] == [TrialOutcome.STOPPED, TrialOutcome.DONE]
    assert record_of(project).trials[0].seconds == record.trials[0].seconds, "counted once"


def test_the_seconds_of_work_are_kept_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_RECORD_SECONDS", 0.005)
    place = tmp_path / "seconds.json"
    with limits.seconds_kept(place, 3):
        wait_for(place.exists, 10, "the file")
        assert 0 < limits.count_of_killed(place, 3) < 10
        assert limits.count_of_killed(place, 4) == 0, "of another trial"
    assert limits.count_of_killed(place, 3) == 0


@pytest.mark.parametrize("damaged", [b'{"tri', b"\xff", b"[]", b"null", b"{}", b'{"trial": 3, "seconds": null}'])
def test_damaged_seconds_of_work_count_as_none(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "seconds.json").write_bytes(damaged)
    assert limits.count_of_killed(tmp_path / "seconds.json", 3) == 0


def test_the_budget_cuts_the_trial_that_runs_and_a_larger_one_finishes_it(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [True]

    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        if name == "scores" and slow[0] and "trial-" in place[1] and record_of(project).ended:
            time.sleep(60)
        return run_stage(workspace, name, *place)

    assert tune(ROWS, "--trials", "1").code == 0
    used = record_of(project).seconds
    monkeypatch.setattr(trial, "run_stage", run)
    started = time.monotonic()
    ended = tune(ROWS, "--trials", "3", "--budget", f"{used + 8:.0f}s")
    assert ended.code == 0, ended.err
    assert time.monotonic() - started < 40
    assert "the budget is used up; the trial that ran was cut" in ended.err
    record = record_of(project)
    assert [own.state for own in record.trials] == [TrialOutcome.DONE, TrialOutcome.STOPPED]
    assert record.seconds >= used + 7
    cut = study_folder(project, "toy", "ngame") / "data" / "toy" / record.trials[1].folder
    assert (cut / "classifier" / "manifest.json").is_file(), "what was finished is kept for the next command"
    slow[0] = False
    assert tune(ROWS, "--trials", "2", "--budget", "10m").code == 0
    later = record_of(project)
    assert [own.state for own in later.trials] == [TrialOutcome.DONE, TrialOutcome.STOPPED, TrialOutcome.DONE]
    assert later.trials[2].values == later.trials[1].values
    assert tune(ROWS, "--trials", "9", "--budget", "1s").code == 0
    assert record_of(project).state == "budget used up"
    assert len(record_of(project).trials) == 3


def test_earlier_trials_have_used_their_part_of_the_budget(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune(LATE, "--trials", "1").code == 0
    used, left = record_of(project).seconds, list[float]()
    monkeypatch.setattr(study, "stopped_after", lambda seconds: left.append(seconds) or nullcontext())
    assert tune(LATE, "--trials", "2", "--budget", "1000s").code == 0
    assert left and 0 < max(left) <= 1000 - used


def test_time_is_up_only_inside_the_block() -> None:
    with pytest.raises(TimeIsUpError), stopped_after(0.05):
        time.sleep(5)
    with stopped_after(0.05):
        pass
    time.sleep(0.1)
    with pytest.raises(TimeIsUpError), stopped_after(0):
        raise AssertionError("nothing may begin")
    for no_limit in (None, 1e18, math.inf):  # seconds of centuries, which no timer of the system takes
        with stopped_after(no_limit):
            pass


def test_outside_the_main_thread_the_block_runs_to_its_end() -> None:
    ended: list[bool] = []

    def block() -> None:
        with stopped_after(0.01):
            time.sleep(0.05)
            ended.append(True)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert ended


def test_another_timer_of_the_process_goes_on_after_the_block() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.6)
        with stopped_after(20):
            assert signal.getsignal(signal.SIGALRM) != before
            time.sleep(0.4)
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= 0.25, "not the whole time again"
        started = time.monotonic()
        while not rung and time.monotonic() - started < 3:
            time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung


def test_settings_that_fail_are_recorded_and_three_in_a_row_end_the_command(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {1, 3, 5}
    count = [-1]

    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        count[0] += name == "encoder"
        if name == "fusion" and count[0] in bad:
            raise ValueError("an odd setting")
        return run_stage(workspace, name, *place)

    monkeypatch.setattr(trial, "run_stage", run)
    assert tune(LATE, "--trials", "7").code == 0, "three fail, but not in a row"
    record = record_of(project)
    states = [own.state for own in record.trials]
    assert states == [
        TrialOutcome.DONE,
        TrialOutcome.FAILED,
        TrialOutcome.DONE,
        TrialOutcome.FAILED,
        TrialOutcome.DONE,
        TrialOutcome.FAILED,
        TrialOutcome.DONE,
    ]
    assert record.trials[1].why == "ValueError: an odd setting"
    bad |= set(range(100))
    ended = tune(LATE, "--trials", "20")
    assert ended.code == 70
    assert "an odd setting" in ended.err
    assert [own.state for own in record_of(project).trials[7:]] == [TrialOutcome.FAILED] * 3
    assert record_of(project).state == "failed"


@pytest.mark.parametrize("moment", ["encoder", "fusion"])
def test_data_that_change_during_a_study_end_it(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As by ``xc ingest --replace`` and ``xc train`` beside it, before or after the last reading of a trial."""
    trials = []

    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        done = run_stage(workspace, name, *place)
        trials.extend([name] * (name == "encoder"))
        if name == moment and len(trials) == 2:
            (project.raw("toy") / "filter_labels_train.txt").write_text("0 0\n")
            for stage in ("corpus", "tokens"):
                run_stage(project, stage, "toy")
        return done

    monkeypatch.setattr(trial, "run_stage", run)
    tune(LATE, "--trials", "3").refused(
        76, "another corpus of toy than at the start of the study ngame", "another study"
    )
    record = record_of(project)
    assert ([own.state for own in record.trials], record.state) == (
        [TrialOutcome.DONE, TrialOutcome.STOPPED],
        "stopped",
    )


def test_token_ids_that_another_command_removes_are_made_again(
    tune: Tune, project: Workspace, edit: Callable[[Workspace, Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``xc train`` beside it, of the only experiment with this tokenizer."""

    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        if name == "fusion":
            edit(project, {"datasets/toy/tokens/tokenizers": ["minilm"]})
            run_stage(project, "tokens", "toy")
        return run_stage(workspace, name, *place)

    with monkeypatch.context() as patch:
        patch.setattr(trial, "run_stage", run)
        tune(LATE, "--trials", "1").refused(76, "which another command removed", "run the same command again")
    assert tune(LATE, "--trials", "1").code == 0
    assert [own.state for own in record_of(project).trials] == [TrialOutcome.STOPPED, TrialOutcome.DONE]


def test_texts_that_are_tokenised_otherwise_are_another_study(
    tune: Tune, project: Workspace, edit: Callable[[Workspace, Any], None]
) -> None:
    assert tune(LATE, "--trials", "1").code == 0
    edit(project, {"datasets/toy/tokens/max_tokens": 2})
    tune(LATE, "--trials", "2").refused(64, "a study 'ngame' of toy with another tokenisation", "--study NAME")
    edit(project, {"datasets/toy/tokens/max_tokens": 510})
    edit(project, {"datasets/toy/tokens/tokenizers": ["wordpiece", "minilm"]})
    assert tune(LATE, "--trials", "2").code == 0, "its trials read the same token ids"


def test_an_error_of_the_machine_ends_the_command_and_the_trial_is_tried_again(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]

    def run(workspace: Workspace, name: str, *place: Any) -> Any:
        if full[0] and name == "fusion":
            raise StorageError("a full disk", expected="space", do="free some")
        return run_stage(workspace, name, *place)

    monkeypatch.setattr(trial, "run_stage", run)
    tune(LATE, "--trials", "2").refused(73, "a full disk", "free some")
    assert record_of(project).state == "stopped"
    full[0] = False
    assert tune(LATE, "--trials", "2").code == 0
    stopped, again, other = record_of(project).trials
    assert [own.state for own in (stopped, again, other)] == [
        TrialOutcome.STOPPED,
        TrialOutcome.DONE,
        TrialOutcome.DONE,
    ]
    assert again.values == stopped.values
    assert again.own


def test_the_lowest_quarter_is_that_of_all_earlier_trials() -> None:
    others = [float(number) for number in range(1, 9)]
    assert [study.is_low(value, others) for value in (1.0, 2.5, 2.75, 2.8, 9.0)] == [True, True, False, False, False]
    assert not study.is_low(0.0, others[:4]), "too few"
    assert study.is_low(0.0, others[:5])
    nan = float("nan")
    assert not study.is_low(0.0, [*others[:4], nan, nan]), "too few that are numbers"
    assert not study.is_low(3.0, [3.0] * 20), "all are equal"
    assert not study.is_low(nan, others)
    random = np.random.default_rng(0).random(400)
    low = sum(study.is_low(value, random[:at].tolist()) for at, value in enumerate(random))
    assert 80 < low < 120, "a quarter of a study, not more and more of it"


def test_a_trial_with_the_settings_of_an_earlier_one_does_not_count_among_the_earlier() -> None:
    of: Any = SimpleNamespace(metric=SimpleNamespace(value=lambda figures: figures["mean"]))
    none: Any = None
    record = TrialRecord(number=28, state=TrialOutcome.STOPPED, values={})
    first = [replace(record, number=at, early={"classifier": at + 1.0}) for at in range(8)]
    again = [replace(first[0], number=at, why="same settings as trial 0") for at in range(8, 28)]
    attempt = study._Attempt(of, none, record, None, {}, first + again)
    assert attempt._prunes("classifier", {"mean": 2.5})


def test_a_trial_whose_scores_are_among_the_lowest_is_ended_early(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_WARMUP_TRIALS", 1)
    space = {"classifier.table.lr": [1e-8, 50.0], "classifier.seed": [0, 1, 2, 3, 4, 5]}
    assert tune(space, "--trials", "6", "--sampler", "random", scores__label_text="null").code == 0
    record = record_of(project)
    pruned = [own for own in record.trials if own.state is TrialOutcome.PRUNED]
    assert pruned, [own.early for own in record.trials]
    for own in pruned:
        assert own.values["classifier.table.lr"] == 50.0, "rows that every step throws elsewhere"
        assert own.value is None
        assert own.why.startswith(("one of the lowest after classifier", "same settings as trial"))
    assert all(set(own.early) == {"classifier"} for own in record.trials)
    stored = optuna.load_study(
        study_name="ngame", storage=f"sqlite:///{study_folder(project, 'toy', 'ngame') / 'study.db'}"
    )
    states = {own.number for own in stored.trials if own.state is optuna.trial.TrialState.PRUNED}
    assert states == {own.number for own in pruned}, "what a sampler learns from"
    again = tune(space, "--trials", "3", "--sampler", "random", "--pruner", "none", "--study", "all")
    assert again.code == 0
    assert {own.state for own in record_of(project, "all").trials} == {TrialOutcome.DONE}
    assert all(own.early == {} for own in record_of(project, "all").trials)


@pytest.mark.parametrize(
    ("space", "options", "code", "found"),
    [
        ({"fusion.rule.dept": [1, 2]}, (), 78, "ngame.fusion.rule.dept (nearest: 'depth')"),
        ({"fusion.rule.depth": [1, "many"]}, (), 78, "ngame.fusion.rule.depth = 'many'"),
        ({"fusion.rule.depth": {"range": [0, 3]}}, (), 78, "depth 0"),
        ({"fusion.rule": ["tree", "sum"], "fusion.rule.depth": [1, 2]}, (), 78, "ngame.fusion.rule.depth"),
        ({"fusion.rule": ["tree", "summ"]}, (), 78, "'summ' (nearest: 'sum')"),
        ({"evaluation.seed": [1, 2]}, (), 78, "a setting of the stage evaluation"),
        (LATE, ("--set", "fusion.rule.depth=3"), 64, "fusion.rule.depth in --set and in the space"),
        (LATE, ("--metric", "P@2"), 64, "--metric P@2 (nearest: 'P@5')"),
        (LATE, ("--budget", "soon"), 64, "--budget soon"),
        (LATE, ("--study", "../x"), 64, "the study name '../x'"),
        (LATE, ("--set", "encodr.epochs=1"), 78, "(nearest: 'encoder')"),
        (LATE, ("--dataset", "tyo"), 66, "no dataset 'tyo' in params.yaml (nearest: 'toy')"),
        (LATE, ("--recipe", "ngme"), 78, "recipe 'ngme' (nearest: 'ngame')"),
    ],
)
def test_mistakes_are_refused_before_the_first_trial(
    tune: Tune, project: Workspace, space: Any, options: tuple[str, ...], code: int, found: str
) -> None:
    tune(space, *options).refused(code, found)
    assert not (project.state / "tune").exists()


def test_a_dataset_without_validation_documents_is_refused(tune: Tune, project: Workspace) -> None:
    text = (project.root / "params.yaml").read_text().replace("corpus: {}", "corpus: {validation_fraction: 0.0}")
    (project.root / "params.yaml").write_text(text)
    tune(LATE).refused(66, "no validation documents with labels of toy", "params.yaml to a larger share")


def test_a_study_file_that_cannot_be_read_may_be_deleted_unless_the_disk_is_full(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = study_folder(project, "toy", "ngame")
    folder.mkdir(parents=True)
    (folder / "study.db").write_bytes(b"no database " * 100)
    tune(LATE).refused(74, "file is not a database", f"delete {folder}")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    tune(LATE).refused(73, "a full disk", "free space")


def test_a_study_whose_file_another_program_has_locked_is_busy_and_goes_on(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is locked when the command starts, then when its second trial ends."""
    folder, run, connect = study_folder(project, "toy", "ngame"), study._Attempt.run, sqlite3.connect
    monkeypatch.setattr("sqlite3.dbapi2.connect", partial(connect, timeout=0))
    assert tune(LATE, "--trials", "1").code == 0
    with closing(connect(folder / "study.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        tune(LATE, "--trials", "2").refused(75, f"{folder / 'study.db'}, which another program has locked", "end that")
        other.execute("rollback")

        def locks(attempt: Any) -> None:
            run(attempt)
            other.execute("begin exclusive")

        with monkeypatch.context() as patch:
            patch.setattr(study._Attempt, "run", locks)
            tune(LATE, "--trials", "2").refused(75, "which another program has locked")
    assert tune(LATE, "--trials", "2").code == 0
    assert tune(LATE, "--trials", "2", "--study", "unbroken").code == 0
    assert seen(record_of(project)) == seen(record_of(project, "unbroken"))


def test_without_optuna_the_extra_is_named(tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    tune(LATE).refused(66, "no installed package optuna", ".[tune]")


def test_a_study_runs_once_at_a_time(tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from xc_core.locks import locked

    monkeypatch.setattr(study, "_PROBE_SECONDS", 0.0)
    with locked(study_folder(project, "toy", "ngame") / "lock", "it"):
        tune(LATE).refused(75, "the study ngame of toy", "wait for it to end")


def test_a_study_waits_while_another_command_looks_whether_it_runs(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xc_core.chain.workspace import at_rest

    with at_rest(project, "toy"), ExitStack() as looking:
        looking.enter_context(study_lock(project, "toy", "ngame"))
        monkeypatch.setattr(time, "sleep", lambda seconds: looking.close())
        tune(LATE).refused(75, "a removal from the dataset toy")


def test_no_study_runs_while_rows_are_removed(tune: Tune, project: Workspace) -> None:
    from xc_core.chain.workspace import at_rest

    with at_rest(project, "toy"):
        tune(LATE).refused(75, "a removal from the dataset toy", "wait for it to end")


def test_a_watcher_that_fails_does_not_end_the_study(
    tune: Tune, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.conftest import entry, offered
    from xc_core.errors import UnavailableError

    calls: list[int] = []

    def fails(record: Any) -> None:
        calls.append(len(record.trials))
        raise UnavailableError("no answer", expected="one", do="start it")

    offered(monkeypatch, "xc.studies", entry("broken", lambda workspace: fails))
    ended = tune(LATE, "--trials", "3")
    assert ended.code == 0
    assert calls == [1]
    assert "the study is not shown there: found no answer" in ended.err
    progress.silence()
