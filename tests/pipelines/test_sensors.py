"""Sensors: when they are evaluated, what they watch, and every run that they request."""

from __future__ import annotations

import json
import os
import time
from itertools import product
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.plan.objects import StepFailureData

from assets import inbox, staleness
from assets.partitions import sync
from pipelines import sensors
from pipelines.definitions import build
from tests.pipelines.conftest import QUIET
from tests.pipelines.ticker import Ticker
from xc_core import artifacts
from xc_core.chain import Workspace
from xc_core.chain.status import Status
from xc_core.lifecycle.drift import Answer, Decision, Record


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Two datasets: toy with two recipes that were trained, other with one that was not."""
    pairs = [("toy", "ngame"), ("toy", "variant"), ("other", "ngame")]
    experiments = {f"{dataset}_{recipe}": {"dataset": dataset, "recipe": recipe} for dataset, recipe in pairs}
    content = {"datasets": {"toy": {}, "other": {}}, "experiments": experiments}
    (tmp_path / "params.yaml").write_text(json.dumps(content))
    workspace = Workspace(tmp_path)
    for name, recipe in product(("encoder", "classifier"), ("ngame", "variant")):
        with artifacts.building(workspace.folder(name, "toy", recipe), kind=name):
            pass
    return workspace


@pytest.fixture
def follow_up(workspace: Workspace, instance: dg.DagsterInstance) -> Ticker:
    """The sensor follow_up after its first tick, which only sets the cursor."""
    sync(instance, workspace)
    ticker = Ticker(workspace, instance, "follow_up")
    assert ticker.requested() == []
    return ticker


def finish(instance: dg.DagsterInstance, job: str, *, fails: bool = False, **tags: str) -> str:
    """Run a job of this name, with one step, to its end; return the id of the run."""

    @dg.op
    def step() -> None:
        if fails:
            raise ValueError("no room on the disk")

    @dg.job(name=job)
    def stub() -> None:
        step()

    named = {name.replace("_", "/"): value for name, value in tags.items()}
    return stub.execute_in_process(QUIET, instance, tags=named, raise_on_error=False).run_id


# definitions


def test_there_are_eight_sensors_each_with_its_status_interval_and_jobs(workspace: Workspace) -> None:
    running, stopped = dg.DefaultSensorStatus.RUNNING, dg.DefaultSensorStatus.STOPPED
    found = {
        sensor.name: (
            sensor.default_status,
            sensor.minimum_interval_seconds,
            sensor.sensor_type.name,
            [target.job_name for target in sensor.targets],
        )
        for sensor in build(workspace).get_repository_def().sensor_defs
    }
    assert found == {
        "new_partitions": (running, 30, "STANDARD", []),
        "staleness": (running, 60, "STANDARD", []),
        "inbox": (stopped, 30, "STANDARD", ["prepare"]),
        "follow_up": (running, 30, "RUN_STATUS", ["retrain", "refresh", "compare", "drift"]),
        "lost_retries": (running, 30, "STANDARD", ["prepare", "retrain", "refresh", "compare", "drift"]),
        "alert_failed_runs": (running, 30, "RUN_STATUS", []),
        "alert_failed_checks": (running, 30, "RUN_STATUS", []),
        "studies": (running, 60, "STANDARD", []),
    }


# follow_up


@pytest.mark.parametrize("job", ["retrain", "refresh", "drift"])
def test_after_prepare_every_recipe_of_the_dataset_has_the_job_of_the_tag(
    follow_up: Ticker, instance: dg.DagsterInstance, job: str
) -> None:
    run = finish(instance, "prepare", dagster_partition="toy", xc_next=job)
    assert follow_up.requested() == [
        (f"{run}/ngame", job, "toy|ngame", {}),
        (f"{run}/variant", job, "toy|variant", {}),
    ]
    assert follow_up.requested() == [], "a run is followed once"


def test_a_recipe_that_was_never_trained_is_not_refreshed(
    workspace: Workspace, follow_up: Ticker, instance: dg.DagsterInstance
) -> None:
    """A refresh trains nothing, so it would fail: each night, if a schedule asks for it."""
    artifacts.remove(workspace.folder("classifier", "toy", "ngame"))
    finish(instance, "prepare", dagster_partition="other", xc_next="refresh")
    assert follow_up.requested() == []
    run = finish(instance, "prepare", dagster_partition="toy", xc_next="refresh")
    assert follow_up.requested() == [(f"{run}/variant", "refresh", "toy|variant", {})]


def test_after_prepare_only_recipes_of_its_dataset_run(follow_up: Ticker, instance: dg.DagsterInstance) -> None:
    run = finish(instance, "prepare", dagster_partition="other", xc_next="retrain")
    assert follow_up.requested() == [(f"{run}/ngame", "retrain", "other|ngame", {})]


@pytest.mark.parametrize("job", ["refresh", "retrain"])
@pytest.mark.parametrize("content", ["datasets: {toy: [", "", None])
def test_a_params_yaml_with_an_error_loses_no_run_that_follows(
    content: str | None, job: str, workspace: Workspace, follow_up: Ticker, instance: dg.DagsterInstance
) -> None:
    """Their settings are on the disk since the recipes were last used; ``gone`` was never a partition."""
    for recipe in ("ngame", "variant", "gone"):
        (workspace.raw("toy").parent / recipe / "settings").mkdir(parents=True, exist_ok=True)
    (workspace.raw("toy").parent / "settings").mkdir()
    (workspace.raw("other").parent / "third" / "settings").mkdir(parents=True)
    if content is None:
        (workspace.root / "params.yaml").unlink()
    else:
        (workspace.root / "params.yaml").write_text(content)
    run = finish(instance, "prepare", dagster_partition="toy", xc_next=job)
    assert follow_up.requested() == [
        (f"{run}/ngame", job, "toy|ngame", {}),
        (f"{run}/variant", job, "toy|variant", {}),
    ]


def test_an_experiment_that_was_declared_since_is_made_a_partition_before_its_job_is_requested(
    workspace: Workspace, follow_up: Ticker, instance: dg.DagsterInstance
) -> None:
    """The sensor new_partitions may be off; without it every tick would fail, and no run would be followed."""
    content = json.loads(workspace.params.path.read_text())
    content["experiments"] = {"toy_late": {"dataset": "toy", "recipe": "late", "base": "ngame"}}
    workspace.params.path.write_text(json.dumps(content))
    run = finish(instance, "prepare", dagster_partition="toy", xc_next="retrain")
    assert follow_up.requested() == [(f"{run}/late", "retrain", "toy|late", {})]


@pytest.mark.parametrize(("job", "partition"), [("prepare", "toy"), ("retrain", "toy|ngame"), ("drift", "toy|ngame")])
def test_a_run_of_a_dataset_that_was_deleted_since_hides_no_other(
    job: str, partition: str, workspace: Workspace, follow_up: Ticker, instance: dg.DagsterInstance
) -> None:
    """As by xc delete, and the partition by hand; every tick would fail, and no run would be followed any more."""
    (workspace.raw("toy").parent / "ngame" / "settings").mkdir()
    Record("c", "m", None, Decision(Answer.RETRAIN, ["why"])).write(workspace, "toy", "ngame")
    finish(instance, job, dagster_partition=partition, xc_next="retrain")
    workspace.params.remove("toy", ["ngame", "variant"], whole=True)
    instance.delete_dynamic_partition("dataset", "toy")
    assert follow_up.requested() == []
    run = finish(instance, "prepare", dagster_partition="other", xc_next="retrain")
    assert follow_up.requested() == [(f"{run}/ngame", "retrain", "other|ngame", {})]


def test_nothing_is_requested_for_a_recipe_whose_partition_was_deleted_during_drift(
    workspace: Workspace, follow_up: Ticker, instance: dg.DagsterInstance
) -> None:
    Record("c", "m", None, Decision(Answer.RETRAIN, ["why"])).write(workspace, "toy", "variant")
    finish(instance, "drift", dagster_partition="toy|variant")
    workspace.params.remove("toy", ["variant"], whole=False)
    instance.delete_dynamic_partition("recipe", "variant")
    assert follow_up.requested() == []


def test_a_partition_that_was_deleted_by_mistake_is_there_again_before_its_job_is_requested(
    follow_up: Ticker, instance: dg.DagsterInstance
) -> None:
    run = finish(instance, "retrain", dagster_partition="toy|variant")
    instance.delete_dynamic_partition("dataset", "toy")
    assert follow_up.requested() == [(f"{run}/compare", "compare", "toy", {})]


def test_after_prepare_without_the_tag_nothing_runs(follow_up: Ticker, instance: dg.DagsterInstance) -> None:
    finish(instance, "prepare", dagster_partition="toy")
    assert follow_up.requested() == []


@pytest.mark.parametrize("job", ["retrain", "refresh"])
@pytest.mark.parametrize("tags", [{}, {"xc_next": "retrain"}])
def test_after_retrain_and_refresh_the_recipes_are_compared(
    follow_up: Ticker, instance: dg.DagsterInstance, job: str, tags: dict[str, str]
) -> None:
    run = finish(instance, job, dagster_partition="toy|variant", **tags)
    assert follow_up.requested() == [(f"{run}/compare", "compare", "toy", {})]


@pytest.mark.parametrize("job", ["__ASSET_JOB", "retrain"])
@pytest.mark.parametrize(("name", "followed"), [("evaluation", True), ("encoder", False)])
def test_after_somebody_materialised_the_evaluation_the_recipes_are_compared(
    follow_up: Ticker, instance: dg.DagsterInstance, job: str, name: str, followed: bool
) -> None:
    """By the button of the graph, or by a job of which only some assets were chosen."""

    @dg.asset(name=name)
    def made() -> None: ...

    own = dg.Definitions(assets=[made], jobs=[dg.define_asset_job("retrain")]).resolve_job_def(job)
    run = own.execute_in_process(
        QUIET, instance, tags={"dagster/partition": "toy|ngame"}, asset_selection=[dg.AssetKey(name)]
    ).run_id
    assert follow_up.requested() == ([(f"{run}/compare", "compare", "toy", {})] if followed else [])


@pytest.mark.parametrize("answer", [*Answer])
def test_after_drift_what_the_rule_asked_for_runs(
    workspace: Workspace, follow_up: Ticker, instance: dg.DagsterInstance, answer: Answer
) -> None:
    Record("c", "m", None, Decision(answer, ["why"])).write(workspace, "toy", "variant")
    Record("c", "m", None, Decision(Answer.RETRAIN, ["why"])).write(workspace, "toy", "ngame")
    run = finish(instance, "drift", dagster_partition="toy|variant")
    wanted = [] if answer is Answer.NOTHING else [(f"{run}/{answer}", str(answer), "toy|variant", {})]
    assert follow_up.requested() == wanted
    assert follow_up.requested() == [], "a run is followed once"


def test_after_drift_without_a_record_nothing_runs(follow_up: Ticker, instance: dg.DagsterInstance) -> None:
    finish(instance, "drift", dagster_partition="toy|variant")
    finish(instance, "drift", fails=True, dagster_partition="toy|ngame")
    assert follow_up.requested() == []


@pytest.mark.parametrize("job", ["compare", "another"])
def test_other_jobs_are_not_followed(follow_up: Ticker, instance: dg.DagsterInstance, job: str) -> None:
    finish(instance, job, dagster_partition="toy|ngame", xc_next="retrain")
    assert follow_up.requested() == []


@pytest.mark.parametrize(("job", "partition"), [("prepare", "toy"), ("retrain", "toy|ngame"), ("refresh", "toy|ngame")])
def test_a_failed_run_is_not_followed(
    follow_up: Ticker, instance: dg.DagsterInstance, job: str, partition: str
) -> None:
    finish(instance, job, fails=True, dagster_partition=partition, xc_next="retrain")
    assert follow_up.requested() == []


# declared


def test_declared_experiments_become_partitions_and_are_counted(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    ticker = Ticker(workspace, instance, "new_partitions")
    found = ticker.tick()
    assert (found.run_requests, found.skip_message) == ([], "2 datasets, 3 experiments")
    assert sorted(instance.get_dynamic_partitions("dataset")) == ["other", "toy"]
    assert sorted(instance.get_dynamic_partitions("recipe")) == ["ngame", "variant"]


# cursors


@pytest.mark.parametrize("cursor", ["not JSON", "[1]", "null", '{"known": [1], "mark": 2, "toy": 3}'])
@pytest.mark.parametrize("name", ["inbox", "staleness", "studies"])
def test_a_cursor_that_the_sensor_did_not_write_counts_as_none(
    workspace: Workspace, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, name: str, cursor: str
) -> None:
    """A person can set it in the UI, and a newer version may have written it: every tick would fail."""
    found = staleness.PartitionState("corpus", "toy", Status.FRESH, "")
    monkeypatch.setattr(staleness, "partition_states", lambda workspace: [found])
    ticker = Ticker(workspace, instance, name)
    ticker.tick()
    plain, ticker.cursor = ticker.cursor, cursor
    ticker.tick()
    assert ticker.cursor == plain or name == "studies"


# inbox


def drop(workspace: Workspace, dataset: str, *, age: float = 60.0) -> str:
    """Put a file that is ``age`` seconds old into an inbox; return the state of the complete inbox."""
    folder = inbox.inbox(workspace, dataset)
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("text,labels\n")
    then = float(int(time.time() - age))
    os.utime(folder / "train.csv", (then, then))
    found = inbox.state(folder, then + 3600)
    assert found is not None
    return found


def record_run(
    instance: dg.DagsterInstance, dataset: str, state: str, status: dg.DagsterRunStatus, *, step: bool = True
) -> str:
    """Record a run of prepare for this state of an inbox, failed in a step or before; return its short id."""
    tags = {"xc/inbox": state, "dagster/partition": dataset}
    run = instance.add_run(dg.DagsterRun("prepare", tags=tags, status=status))
    if status is dg.DagsterRunStatus.FAILURE and step:
        data = StepFailureData(error=None, user_failure_data=None)
        kind = dg.DagsterEventType.STEP_FAILURE.value
        failure = dg.DagsterEvent(kind, "prepare", step_key="corpus", event_specific_data=data)
        instance.handle_new_event(dg.EventLogEntry(None, 10, "", run.run_id, time.time(), "corpus", "prepare", failure))
    return run.run_id[:8]


@pytest.fixture
def inboxes(workspace: Workspace, instance: dg.DagsterInstance) -> Ticker:
    return Ticker(workspace, instance, "inbox")


def test_every_drop_is_prepared_and_then_refreshed(workspace: Workspace, inboxes: Ticker) -> None:
    states = {dataset: drop(workspace, dataset) for dataset in ("toy", "other")}
    assert inboxes.tick().skip_message == "other: files are still arriving; toy: files are still arriving"
    wanted = [
        (f"inbox/{dataset}/{states[dataset]}", None, dataset, {"xc/next": "refresh", "xc/inbox": states[dataset]})
        for dataset in ("other", "toy")
    ]
    assert inboxes.requested() == wanted
    assert inboxes.requested() == wanted, "the same keys until there is a run: Dagster starts one run for a key"
    assert sorted(inboxes.instance.get_dynamic_partitions("dataset")) == ["other", "toy"]


@pytest.mark.parametrize("age", [None, 1.0])
def test_nothing_is_requested_for_an_empty_inbox_or_one_still_being_filled(
    workspace: Workspace, inboxes: Ticker, age: float | None
) -> None:
    if age is not None:
        drop(workspace, "toy", age=age)
    found = inboxes.tick()
    assert (found.run_requests, found.skip_message) == ([], "no inbox holds complete files")


def test_files_with_old_times_that_still_arrive_are_not_ingested(workspace: Workspace, inboxes: Ticker) -> None:
    """``cp -p`` keeps the times of the files, so a folder that is being copied looks old."""
    drop(workspace, "toy")
    assert inboxes.requested() == []
    late = inbox.inbox(workspace, "toy") / "test.csv"
    late.write_text("text,labels\n")
    os.utime(late, (1, 1))
    assert inboxes.requested() == [], "a file came between two ticks"
    assert len(inboxes.requested()) == 1


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0, 21.0, -21.0])
def test_a_clock_that_jumps_between_two_ticks_makes_no_file_complete_that_still_grows(
    workspace: Workspace, inboxes: Ticker, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """After the jump the file seems to have rested for long, or to be of the future."""
    drop(workspace, "toy", age=1.0)
    file = inbox.inbox(workspace, "toy") / "train.csv"
    assert inboxes.requested() == []
    plain, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: plain() + ahead)
    for size in (1, 2, 3):
        ahead = jump
        assert inboxes.requested() == []
        with file.open("a") as stream:  # the next block of it arrives, at the time of the new clock
            stream.write("a,b\n" * size)
        os.utime(file, (time.time(), time.time()))
    ahead += 30.0
    assert inboxes.requested() == []
    ahead += 30.0
    assert len(inboxes.requested()) == 1, "it rested for two ticks"


def test_a_run_that_ended_before_it_read_the_files_is_started_again_three_times_at_most(
    workspace: Workspace, inboxes: Ticker
) -> None:
    state = drop(workspace, "toy")
    inboxes.tick()
    for _ in (2, 3):
        run = record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.FAILURE, step=False)
        (key,) = [key for key, *_ in inboxes.requested()]
        assert key.startswith(f"inbox/toy/{state}/after-{run}")
    record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.FAILURE, step=False)
    found = inboxes.tick()
    assert found.run_requests == []
    assert "ended before it read the files, after 3 attempts" in found.skip_message


@pytest.mark.parametrize("status", ["FAILURE", "CANCELED", "STARTED", "STARTING"])
def test_a_drop_is_requested_once_whatever_the_status_of_its_run(
    workspace: Workspace, inboxes: Ticker, status: str
) -> None:
    run = record_run(inboxes.instance, "toy", drop(workspace, "toy"), dg.DagsterRunStatus[status])
    inboxes.tick()
    found = inboxes.tick()
    assert found.run_requests == []
    assert found.skip_message.startswith(f"toy: run {run} ")
    advice = "could not ingest the files; fix them, or re-execute that run"
    assert (advice in found.skip_message) is (status in {"FAILURE", "CANCELED"})


def test_files_that_were_ingested_may_come_again_and_runs_before_that_do_not_count(
    workspace: Workspace, inboxes: Ticker
) -> None:
    state = drop(workspace, "toy")
    inboxes.tick()
    record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.FAILURE, step=False)
    record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.FAILURE, step=False)
    keys = []
    for status in ("SUCCESS", "SUCCESS"):
        run = record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus[status])
        keys += [key for key, *_ in inboxes.requested()]
        assert keys[-1].startswith(f"inbox/toy/{state}/after-{run}")
    assert len(set(keys)) == 2, "Dagster starts one run for a key"
    run = record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.FAILURE, step=False)
    assert len(inboxes.requested()) == 1, "the first attempt since the last success"


def test_a_drop_whose_run_ends_during_the_tick_is_not_requested_again(
    workspace: Workspace, inboxes: Ticker, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = drop(workspace, "toy")
    inboxes.tick()
    found = sensors._runs

    def ends(instance: dg.DagsterInstance, dataset: str, wanted: str) -> list[dg.DagsterRun]:
        if inbox.state(inbox.inbox(workspace, dataset), time.time()):
            inbox.archive(workspace, dataset, state)
            record_run(instance, dataset, state, dg.DagsterRunStatus.SUCCESS)
        return found(instance, dataset, wanted)

    monkeypatch.setattr(sensors, "_runs", ends)
    assert inboxes.tick().run_requests == []


def test_a_drop_that_was_tried_does_not_delay_another_dataset(workspace: Workspace, inboxes: Ticker) -> None:
    record_run(inboxes.instance, "toy", drop(workspace, "toy"), dg.DagsterRunStatus.FAILURE)
    state = drop(workspace, "other")
    inboxes.tick()
    assert [(key, partition) for key, _, partition, _ in inboxes.requested()] == [(f"inbox/other/{state}", "other")]


def test_a_run_of_another_dataset_or_another_drop_does_not_count(workspace: Workspace, inboxes: Ticker) -> None:
    state = drop(workspace, "toy")
    record_run(inboxes.instance, "other", state, dg.DagsterRunStatus.FAILURE)
    record_run(inboxes.instance, "toy", "0123456789abcdef", dg.DagsterRunStatus.FAILURE)
    inboxes.tick()
    assert [key for key, *_ in inboxes.requested()] == [f"inbox/toy/{state}"]


def test_of_several_runs_of_a_drop_the_last_one_counts(workspace: Workspace, inboxes: Ticker) -> None:
    state = drop(workspace, "toy")
    record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.FAILURE)
    last = record_run(inboxes.instance, "toy", state, dg.DagsterRunStatus.STARTED)
    inboxes.tick()
    assert inboxes.tick().skip_message == f"toy: run {last} is ingesting the files"
