"""Studies of ``xc tune`` in MLflow: a run per study, a child run per trial, each once."""

from __future__ import annotations

import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from assets.study_runs import StudyRuns, watcher
from tests.assets.conftest import Store
from tests.cli.conftest import entry, offered
from tests.tune.conftest import LATE, Tune, record_of
from tests.tune.conftest import noisy as noisy
from tests.tune.conftest import project as project
from tests.tune.conftest import tune as tune
from tests.tune.records import BASE, CHANGES, FIGURES, changes, study, trial
from xc_core.canonical import canonical
from xc_core.chain import Workspace
from xc_core.errors import UnavailableError
from xc_core.tune.record import StudyRecord, TrialOutcome, study_folder, study_lock

pytestmark = pytest.mark.filterwarnings("ignore")


def shown(store: Store, *records: StudyRecord) -> tuple[Any, dict[str, Any]]:
    """Show records one after the other; return the run of the study and those of its trials by number."""
    runs = StudyRuns(store.client, store.uri, store.artifacts)
    for record in records:
        runs.show(record)
    experiment = store.client.get_experiment_by_name(f"xc-{records[0].dataset}").experiment_id
    found = store.client.search_runs([experiment])
    (parent,) = [run for run in found if run.data.tags["xc.role"] == "study"]
    children = [run for run in found if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(found) - 1
    by_number = {run.data.tags["xc.trial"]: run for run in children}
    assert len(by_number) == len(children), "each trial once"
    return parent, by_number


def test_a_study_that_goes_on_is_one_run_with_a_child_per_trial(store: Store) -> None:
    dataset = f"d-{uuid.uuid4().hex[:8]}"
    trials = [
        trial(0, 50.0),
        trial(1, why="low"),
        trial(2, state=TrialOutcome.FAILED),
        trial(3, state=TrialOutcome.STOPPED),
        trial(4, 60.0),
    ]
    record = study(*trials, dataset=dataset)
    records = [replace(record, trials=record.trials[:count]) for count in range(6)]
    parent, children = shown(store, *records)
    assert parent.info.status == "RUNNING"
    assert [own.info.run_name for own in (parent, children["4"])] == [f"study {record.name}", "trial 4"]
    assert set(children) == {"0", "1", "2", "3", "4"}
    assert [children[n].info.status for n in sorted(children)] == [
        "FINISHED",
        "FINISHED",
        "FAILED",
        "KILLED",
        "FINISHED",
    ]
    assert [children[n].data.tags["xc.state"] for n in sorted(children)] == [
        "done",
        "pruned",
        "failed",
        "stopped",
        "done",
    ]
    assert children["4"].data.params == {"fusion.rule.depth": "5", "encoder.loss": "triplet"}
    assert children["4"].data.metrics == {**FIGURES, "objective": 60.0, "early_classifier": 44.0, "seconds": 2.5}
    assert children["1"].data.tags["xc.why"] == "low"
    assert parent.data.metrics == {**FIGURES, "best_objective": 60.0}
    steps = store.client.get_metric_history(parent.info.run_id, "best_objective")
    assert [(own.step, own.value) for own in steps] == [(1, 50), (2, 50), (3, 50), (4, 50), (5, 60)]
    assert (parent.data.tags["xc.best"], parent.data.params["seed"]) == ("4", "0")
    assert parent.data.params["metric.P_at_1"] == "1.0"
    assert "--set fusion.rule.depth=5" in parent.data.tags["xc.command"]
    assert shown(store, replace(record, state="all trials done"))[0].info.status == "FINISHED"


def test_a_study_of_single_changes_has_the_command_of_a_change_that_is_clearly_better(store: Store) -> None:
    dataset = f"d-{uuid.uuid4().hex[:8]}"
    parent, children = shown(store, changes(BASE, CHANGES[0], dataset=dataset))
    assert (parent.data.tags["xc.best"], "xc.command" in parent.data.tags) == ("1", False)
    assert (children["0"].data.params, children["1"].data.params) == ({}, {"fusion.rule": "sum"})
    parent, children = shown(store, changes(BASE, *CHANGES, dataset=dataset))
    assert "--set encoder.loss.margin=0.5" in parent.data.tags["xc.command"]
    assert len(children) == 6 and parent.data.params["base values.fusion.rule"] == "tree"


@pytest.mark.parametrize("cut", ["log_batch", "set_terminated"])
@pytest.mark.parametrize("call", [0, 1])
def test_what_a_killed_command_began_to_log_is_finished_by_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, cut: str, call: int
) -> None:
    """It is killed before the parameters of the study, the figures of a trial, or the end of a run are logged."""

    class KilledError(BaseException):
        pass

    record, plain, left = study(trial(0, 50.0), dataset=f"d-{uuid.uuid4().hex[:8]}"), getattr(store.client, cut), [call]

    def killed(*arguments: Any, **named: Any) -> None:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        plain(*arguments, **named)

    record = replace(record, state="all trials done")
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(store.client, cut, killed)
        shown(store, record)
    parent, children = shown(store, record)
    assert [run.info.status for run in (parent, children["0"])] == ["FINISHED", "FINISHED"]
    assert children["0"].data.metrics["objective"] == 50.0 and children["0"].data.params["encoder.loss"] == "triplet"
    assert parent.data.params["metric.P_at_1"] == "1.0"


def test_a_study_that_was_deleted_and_started_again_is_another_run(store: Store) -> None:
    dataset = f"d-{uuid.uuid4().hex[:8]}"
    first = study(trial(0, 50.0), dataset=dataset)
    shown(store, first)
    again = replace(first, origin={**first.origin, "date": "2026-11-23 10:00:00"})
    with pytest.raises(ValueError, match="too many values"):
        shown(store, again)


def test_without_mlflow_the_error_is_one_that_the_study_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UnavailableError):
        watcher(Workspace(tmp_path))


def test_the_entry_point_finds_the_projects_store(store: Store, tmp_path: Path) -> None:
    record = study(trial(0, 50.0), dataset=f"d-{uuid.uuid4().hex[:8]}")
    watcher(Workspace(tmp_path))(record)
    assert store.client.get_experiment_by_name(f"xc-{record.dataset}") is not None


def test_xc_tune_logs_its_trials(tune: Tune, project: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.studies", entry("mlflow", watcher))
    for trials in ("1", "2"):
        assert tune(LATE, "--trials", trials, "--study", "logged").code == 0
    experiment = store.client.get_experiment_by_name("xc-toy").experiment_id
    (parent,) = store.client.search_runs([experiment], "tags.`xc.study` = 'logged' and tags.`xc.role` = 'study'")
    children = store.client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    objectives = {int(run.data.tags["xc.trial"]): run.data.metrics["objective"] for run in children}
    assert objectives == {own.number: own.value for own in record_of(project, "logged").trials}
    assert (parent.info.status, parent.data.tags["xc.state"]) == ("FINISHED", "all trials done")


def test_the_run_of_a_study_that_was_killed_is_ended_by_the_next_xc_tune(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any study; one that runs goes on, and one that is continued is running again."""
    workspace = Workspace(tmp_path)
    records = [study(trial(0, 50.0), dataset=f"d-{uuid.uuid4().hex[:8]}", name=name) for name in ("lost", "busy")]
    for record in records:
        record.write(study_folder(workspace, record.dataset, record.name))
        shown(store, record)

    def states() -> list[tuple[str, str]]:
        return [(run.info.status, run.data.tags["xc.state"]) for run in (shown_run(store, own) for own in records)]

    damaged = study_folder(workspace, "d", "damaged")
    damaged.mkdir(parents=True)
    (damaged / "study.json").write_text(canonical({**asdict(records[0]), "origin": {}}))
    with study_lock(workspace, records[1].dataset, "busy"):
        show = watcher(workspace)
    assert states() == [("KILLED", "killed"), ("RUNNING", "running")]
    show(records[0])
    assert states()[0] == ("RUNNING", "running")


def test_a_run_of_a_trial_that_was_begun_is_completed_when_its_killed_study_is_ended(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown as running until the study went on."""
    record = study(trial(0, 50.0), dataset=f"d-{uuid.uuid4().hex[:8]}")
    workspace = Workspace(tmp_path)
    record.write(study_folder(workspace, record.dataset, record.name))

    def children() -> list[Any]:
        experiment = store.client.get_experiment_by_name(f"xc-{record.dataset}").experiment_id
        return list(store.client.search_runs([experiment], "tags.`xc.role` = 'trial'"))

    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr(store.client, "set_terminated", Mock(side_effect=KeyboardInterrupt))
        shown(store, record)
    assert [run.info.status for run in children()] == ["RUNNING"]
    watcher(workspace)
    (run,) = children()
    assert (run.info.status, run.data.metrics["objective"]) == ("FINISHED", 50.0)
    assert shown_run(store, record).info.status == "KILLED"


def test_a_trial_is_logged_once_however_often_its_study_is_shown(store: Store) -> None:
    record = study(trial(0, 50.0), dataset=f"d-{uuid.uuid4().hex[:8]}")
    for _ in range(2):
        shown(store, record)
    experiment = store.client.get_experiment_by_name(f"xc-{record.dataset}").experiment_id
    (run,) = store.client.search_runs([experiment], "tags.`xc.role` = 'trial'")
    assert len(store.client.get_metric_history(run.info.run_id, "objective")) == 1


def shown_run(store: Store, record: StudyRecord) -> Any:
    """Return the run of a study as MLflow has it now."""
    experiment = store.client.get_experiment_by_name(f"xc-{record.dataset}").experiment_id
    (found,) = store.client.search_runs([experiment], "tags.`xc.role` = 'study'")
    return found
