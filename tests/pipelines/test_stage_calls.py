"""Every asset calls ``xc`` once, with the arguments for its scope and for the mode of the run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test
from ruamel.yaml import YAML

from assets import inbox
from assets.processes import HOST_TAG
from pipelines.launcher import worker
from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core.chain import STAGES, Workspace
from xc_core.chain.workspace import at_rest
from xc_core.errors import BusyError
from xc_core.git import project_checkout
from xc_core.lifecycle import drift
from xc_core.manifests import read_manifest

pytestmark = pytest.mark.filterwarnings("ignore")

Record = Callable[[Workspace], Recorded]
KEY = dg.MultiPartitionKey({"dataset": "toy", "recipe": "ngame"})
EXPERIMENT = [name for name, stage in STAGES.items() if stage.scope == "experiment"]


@pytest.fixture
def toy(record: Record, trained: Workspace) -> Recorded:
    return record(trained)


def registered(toy: Recorded) -> None:
    """Let the packed model be a registered version already."""
    version = type("Version", (), {"version": "3", "tags": {}})()
    toy.mlflow.search_model_versions.return_value = [version]
    toy.mlflow.get_model_version_by_alias.return_value = version


@pytest.mark.parametrize(
    ("job", "partition", "calls"),
    [
        ("prepare", "toy", ["run corpus --dataset toy", "run tokens --dataset toy"]),
        ("compare", "toy", ["run leaderboard --dataset toy"]),
        ("retrain", KEY, [f"run {name} --dataset toy --recipe ngame" for name in EXPERIMENT]),
        (
            "refresh",
            KEY,
            [f"run {name} --dataset toy --recipe ngame --refresh" for name in EXPERIMENT if name != "encoder"],
        ),
    ],
)
def test_a_job_calls_each_of_its_stages_once(toy: Recorded, job: str, partition: str, calls: list[str]) -> None:
    registered(toy)
    assert toy.run(job, partition).success
    assert sorted(toy.calls) == sorted(calls)
    order = [call.split()[1] for call in toy.calls]
    needs = [(dep, name) for name in order for dep in STAGES[name].deps if dep in order]
    assert all(order.index(dep) < order.index(name) for dep, name in needs)


@pytest.mark.parametrize("tags", [{}, {HOST_TAG: "another machine"}])
def test_the_process_of_a_run_that_a_command_executes_is_known_before_its_first_stage(
    toy: Recorded, instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    """As of dg launch; if it was killed, its run would stay started and keep its place in the pool gpu for days."""
    found: list[dg.DagsterRun | None] = []
    toy.during = lambda _: found.extend(instance.get_runs())
    assert toy.run("compare", "toy", tags=tags).success
    (run,) = found
    assert run is not None
    assert run.tags[HOST_TAG] == tags.get(HOST_TAG, socket.gethostname())
    process = worker(instance, run)
    assert process is not None
    assert process.pid == os.getpid()


def test_rows_are_not_removed_while_a_stage_is_recorded(toy: Recorded) -> None:
    """xc forget would name MLflow as a place to clear before they came there, and xc delete take the files away."""
    found: list[str] = []

    def removes(*_: object, **__: object) -> MagicMock:
        with pytest.raises(BusyError) as refused, at_rest(toy.workspace, "toy"):
            pass
        found.append(str(refused.value))
        return MagicMock(info=MagicMock(run_id="r"))

    toy.mlflow.create_run.side_effect = removes
    assert toy.run("compare", "toy").success
    assert found
    with at_rest(toy.workspace, "toy"):
        pass


@pytest.mark.parametrize(("status", "over"), [("FAILURE", True), ("SUCCESS", True), ("STARTED", False), (None, False)])
def test_what_a_run_that_has_ended_left_running_in_mlflow_is_ended(
    toy: Recorded, instance: dg.DagsterInstance, status: str | None, over: bool
) -> None:
    run = None if status is None else create_run_for_test(instance, status=dg.DagsterRunStatus[status])
    left = MagicMock(data=MagicMock(tags={"dagster.run_id": run.run_id if run else "of another instance"}))
    toy.mlflow.search_runs.side_effect = lambda _, query, **__: [left] if "RUNNING" in query else []
    assert toy.run("compare", "toy").success
    ended = [call.args for call in toy.mlflow.set_terminated.call_args_list]
    assert ((left.info.run_id, "KILLED") in ended) is over


def test_the_asset_data_drift_shows_the_answer_its_reasons_and_all_figures(toy: Recorded) -> None:
    figures = drift.Figures(
        labels=12, unknown_labels=2, untrained_labels=2, documents_since_training=60, query_auc=0.87654321,
        documents_since_model=0, new_recall=None, test_recall=91.0, refreshed=True,
    )  # fmt: skip
    verdict = drift.Decision(drift.Answer.RETRAIN, ["one reason", "another"])
    now = drift.versions(toy.workspace, "toy", "ngame")
    drift.Record(*now, figures, verdict).write(toy.workspace, "toy", "ngame")
    result = toy.run("drift", KEY)
    assert toy.calls == ["drift --dataset toy --recipe ngame"]
    (event,) = result.asset_materializations_for_node("data_drift")
    assert {name: one.value for name, one in event.metadata.items()} == {
        "answer": "retrain", "reasons": "one reason; another", "labels": 12, "unknown_labels": 2,
        "untrained_labels": 2, "documents_since_training": 60, "query_auc": 0.87654, "documents_since_model": 0,
        "test_recall": 91.0, "refreshed": True,
    }  # fmt: skip


def test_the_asset_data_drift_does_not_show_an_earlier_answer(toy: Recorded) -> None:
    """The command does not fail if its answer cannot be kept."""
    drift.Record("c", "m", None, drift.Decision(drift.Answer.NOTHING, [])).write(toy.workspace, "toy", "ngame")
    assert not toy.run("drift", KEY).success


def test_only_the_mode_refresh_refreshes(toy: Recorded) -> None:
    assert toy.run("retrain", KEY, asset_selection=[dg.AssetKey("classifier")], tags={"xc/mode": "train"}).success
    assert toy.calls == ["run classifier --dataset toy --recipe ngame"]


def test_a_stage_runs_in_the_project(toy: Recorded) -> None:
    assert toy.run("compare", "toy").success
    (process,) = toy.processes
    assert process == {"arguments": ["run", "leaderboard", "--dataset", "toy"], "root": str(toy.workspace.root)}


# what is reported of an artefact


def test_the_data_version_of_an_artefact_is_its_digest_without_dvc_too(toy: Recorded) -> None:
    result = toy.run("retrain", KEY, asset_selection=[dg.AssetKey("scores")])
    (event,) = result.asset_materializations_for_node("scores")
    folder = toy.workspace.folder("scores", "toy", "ngame")
    digest = read_manifest(folder).digest()
    assert (event.metadata["path"].value, event.metadata["dvc_md5"].value) == (str(folder), digest)
    assert event.tags is not None
    assert event.tags["dagster/data_version"] == digest


@pytest.mark.parametrize(("job", "partition", "stage"), [("prepare", "toy", "tokens"), ("retrain", KEY, "clusters")])
def test_the_tags_of_a_run_name_its_job_and_its_artefact(toy: Recorded, job: str, partition: str, stage: str) -> None:
    result = toy.run(job, partition, asset_selection=[dg.AssetKey(stage)])
    recipe = {"xc.recipe": "ngame"} if job == "retrain" else {}
    digest = read_manifest(toy.workspace.folder(stage, "toy", "ngame" if recipe else None)).digest()
    tags, code = toy.mlflow.create_run.call_args_list[-1].kwargs["tags"], project_checkout(toy.workspace.root)
    assert len(code.commit) == 40
    assert tags == recipe | {
        "mlflow.parentRunId": "r",
        "xc.stage": stage,
        "xc.dataset": "toy",
        "dagster.run_id": result.run_id,
        "xc.git": code.commit,
        "xc.git_changed": code.changes,
        "xc.artefact": digest,
        "xc.dvc_md5": digest,
    }


def test_costs_and_metrics_of_a_stage_are_logged(toy: Recorded) -> None:
    toy.run("retrain", KEY, asset_selection=[dg.AssetKey("evaluation")])
    batches = [call.kwargs.get("metrics", []) for call in toy.mlflow.log_batch.call_args_list]
    names = {metric.key for batch in batches for metric in batch}
    assert {"cost_seconds", "cost_peak_memory_mb", "P_at_1"} <= names


def test_curves_and_parameters_of_a_training_are_logged(toy: Recorded) -> None:
    toy.run("retrain", KEY, asset_selection=[dg.AssetKey("encoder")])
    batches = [call.kwargs for call in toy.mlflow.log_batch.call_args_list]
    history = json.loads((toy.workspace.folder("encoder", "toy", "ngame") / "history.json").read_text())
    losses = [metric.value for batch in batches for metric in batch.get("metrics", []) if metric.key == "loss"]
    params = {param.key: param.value for batch in batches for param in batch.get("params", [])}
    assert losses == history["losses"]
    assert (params["epochs"], params["encoder.name"]) == ("4.0", "bag")


# DVC


@pytest.fixture
def with_dvc(
    record: Record, trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Recorded, list[str]]:
    """A copy of the project with DVC, and the list of the DVC commands it starts; none of them runs."""
    workspace = Workspace(Path(shutil.copytree(trained.root, tmp_path / "own")))
    (workspace.root / ".dvc").mkdir()
    outs = {"dataset-settings@toy": "89ab.dir", "tokens@toy": "0123.dir"}
    lock = {"stages": {address: {"outs": [{"md5": md5}]} for address, md5 in outs.items()}}
    (workspace.root / "dvc.lock").write_text(json.dumps(lock))
    commands: list[str] = []

    real = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        if "dvc" not in command:
            return real(command, **options)
        commands.append(" ".join(command[command.index("dvc") + 1 :]))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return record(workspace), commands


def test_raw_files_and_artefacts_are_recorded_in_dvc(with_dvc: tuple[Recorded, list[str]]) -> None:
    toy, commands = with_dvc
    result = toy.run("prepare", "toy")
    assert commands == [
        "--wait-for-lock add data/toy/raw",
        "--wait-for-lock commit --force dataset-settings@toy corpus@toy",
        "--wait-for-lock commit --force dataset-settings@toy tokens@toy",
    ]
    (event,) = result.asset_materializations_for_node("tokens")
    assert event.metadata["dvc_md5"].value == "0123.dir"
    assert event.tags is not None
    assert event.tags["dagster/data_version"] == toy.workspace.digest("tokens", "toy")


def test_an_artefact_of_a_recipe_is_recorded_under_both_names(with_dvc: tuple[Recorded, list[str]]) -> None:
    toy, commands = with_dvc
    assert toy.run("retrain", KEY, asset_selection=[dg.AssetKey("clusters")]).success
    assert commands == ["--wait-for-lock commit --force settings@toy_ngame clusters@toy_ngame"]


def test_an_artefact_that_git_tracks_is_refused_before_its_stage_runs(with_dvc: tuple[Recorded, list[str]]) -> None:
    """DVC refuses it after hours of training."""
    toy, commands = with_dvc
    for command in (["init", "--quiet"], ["add", "data/toy/tokens"]):
        subprocess.run(["git", *command], cwd=toy.workspace.root, check=True)
    result = toy.run("prepare", "toy", asset_selection=[dg.AssetKey("tokens")])
    (failed,) = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    assert "artefacts that git tracks: data/toy/tokens" in str(failed)
    assert (toy.calls, commands) == ([], [])


# the inbox


@pytest.fixture
def dropped(record: Record, trained: Workspace, tmp_path: Path) -> tuple[Recorded, str]:
    """A workspace of its own with a drop in the inbox of toy, and the drop's state."""
    workspace = Workspace(Path(shutil.copytree(trained.root, tmp_path / "own")))
    folder = inbox.inbox(workspace, "toy")
    folder.mkdir()
    (folder / "train.csv").write_text("text,labels\n")
    os.utime(folder / "train.csv", (1_000_000, 1_000_000))
    state = inbox.state(folder, time.time())
    assert state is not None
    return record(workspace), state


def test_a_drop_is_ingested_and_archived_before_the_corpus_is_made(dropped: tuple[Recorded, str]) -> None:
    toy, state = dropped
    folder, archive = inbox.inbox(toy.workspace, "toy"), toy.workspace.state / "inbox" / "toy" / state
    seen: list[tuple[str, bool, bool]] = []
    toy.during = lambda arguments: seen.append((arguments[0], any(folder.iterdir()), archive.is_dir()))
    assert toy.run("prepare", "toy", tags={"xc/inbox": state}).success
    assert toy.calls == [
        f"ingest {folder} --dataset toy --replace",
        "run corpus --dataset toy",
        "run tokens --dataset toy",
    ]
    assert seen == [("ingest", True, False), ("run", False, True), ("run", False, True)]
    assert [path.name for path in archive.iterdir()] == ["train.csv"]


def test_older_drops_are_deleted_by_the_setting_of_the_dataset(dropped: tuple[Recorded, str]) -> None:
    toy, state = dropped
    params = YAML(typ="safe").load(toy.workspace.params.path.read_text())
    params["datasets"]["toy"]["update"] = {"keep": 2}
    toy.workspace.params.path.write_text(json.dumps(params))
    archives = toy.workspace.state / "inbox" / "toy"
    for number in range(3):
        (archives / str(number)).mkdir(parents=True)
        os.utime(archives / str(number), (number, number))
    assert toy.run("prepare", "toy", tags={"xc/inbox": state}).success
    assert {path.name for path in archives.iterdir()} == {"2", state}


def test_a_drop_is_archived_though_params_yaml_breaks_during_its_ingest(dropped: tuple[Recorded, str]) -> None:
    toy, state = dropped
    params, archive = toy.workspace.params.path, toy.workspace.state / "inbox" / "toy" / state
    good = params.read_text()

    def edited(arguments: list[str]) -> None:
        params.write_text("a: [" if arguments[0] == "ingest" else good)

    toy.during = edited
    toy.run("prepare", "toy", tags={"xc/inbox": state})
    assert archive.is_dir()


def test_a_drop_that_changed_since_its_run_was_requested_is_not_ingested(dropped: tuple[Recorded, str]) -> None:
    toy, state = dropped
    (inbox.inbox(toy.workspace, "toy") / "more.csv").write_text("text,labels\n")
    result = toy.run("prepare", "toy", tags={"xc/inbox": state})
    assert not result.success
    assert toy.calls == []
    assert "an inbox of toy that changed after this run was requested" in str(result.failure_data_for_node("corpus"))


def test_a_drop_that_is_refused_stays_in_the_inbox(dropped: tuple[Recorded, str]) -> None:
    toy, state = dropped

    def refuse(arguments: list[str]) -> None:
        raise dg.DagsterError("External execution process failed with code 65")

    toy.during = refuse
    assert not toy.run("prepare", "toy", tags={"xc/inbox": state}).success
    assert inbox.state(inbox.inbox(toy.workspace, "toy"), time.time()) == state


def test_without_the_tag_of_a_drop_the_inbox_is_left_alone(dropped: tuple[Recorded, str]) -> None:
    toy, state = dropped
    assert toy.run("prepare", "toy").success
    assert toy.calls[0] == "run corpus --dataset toy"
    assert inbox.state(inbox.inbox(toy.workspace, "toy"), time.time()) == state
