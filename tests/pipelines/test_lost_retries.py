"""The sensor lost_retries: a lost run is started again if Dagster could not retry it."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from assets import inbox
from assets.partitions import sync
from pipelines import sensors
from pipelines.sensors import RETRY_TAG
from tests.pipelines.ticker import Ticker
from xc_core.chain import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
def ticker(workspace: Workspace, instance: dg.DagsterInstance) -> Ticker:
    workspace.params.path.write_text(
        "datasets: {toy: {}}\nexperiments: {toy_ngame: {dataset: toy, recipe: ngame}}\n", "utf-8"
    )
    sync(instance, workspace)
    return Ticker(workspace, instance, "lost_retries")


def lost(
    instance: dg.DagsterInstance,
    job: str,
    chosen: frozenset[dg.AssetKey] | None = None,
    *,
    said: str = "Failed to retry run",
    **tags: str,
) -> dg.DagsterRun:
    """Return a run whose process was lost, and whose retry Dagster could not start."""
    named = {name.replace("_", "/", 1): value for name, value in tags.items()}
    run = create_run_for_test(instance, job, tags=named, asset_selection=chosen, status=dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run, "The process of the run was killed.")
    instance.add_run_tags(run.run_id, {key: named[key] for key in named if key == "dagster/will_retry"})
    instance.report_engine_event(said, run)
    return run


def test_a_run_that_dagster_could_not_retry_is_started_with_its_partition_tags_and_assets(
    ticker: Ticker, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = frozenset({dg.AssetKey("encoder"), dg.AssetKey("embeddings")})
    first = lost(instance, "retrain", chosen, dagster_partition="toy|ngame", xc_mode="refresh")
    second = lost(instance, "prepare", dagster_partition="toy", xc_next="refresh")
    found = ticker.tick().run_requests
    assert [
        (one.run_key, one.job_name, one.partition_key, one.tags.get("xc/next"), one.tags[RETRY_TAG]) for one in found
    ] == [
        (f"{second.run_id}/retry", "prepare", "toy", "refresh", second.run_id),
        (f"{first.run_id}/retry", "retrain", "toy|ngame", None, first.run_id),
    ]
    assert [one.asset_selection and set(one.asset_selection) for one in found] == [None, chosen]
    assert [one.tags.get("xc/mode") for one in found] == [None, "refresh"]
    monkeypatch.setattr(sensors, "_LOOK_BACK", timedelta(0))
    assert ticker.requested() == [], "older runs than these are nobody's concern any more"


def test_each_tick_looks_at_the_last_failures_and_at_some_earlier_ones(
    ticker: Ticker, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks Dagster several questions, and a job that fails for ever may fail thousands of times a day.

    Of many that failed at once, as if a machine goes down, those beyond the last ones were never started again.
    """
    monkeypatch.setattr(sensors, "_MAX_RUNS", 2)

    def failed() -> str:
        create_run_for_test(instance, "retrain", status=dg.DagsterRunStatus.SUCCESS)  # takes no place
        return f"{lost(instance, 'retrain', dagster_partition='toy|ngame').run_id}/retry"

    def requested() -> set[str | None]:
        keys = [key for key, *_ in ticker.requested()]
        assert len(keys) == len(set(keys)), "one twice in a tick"
        return set(keys)

    runs = [failed() for _ in range(5)]
    assert requested() == set(runs[3:])
    assert requested() == {*runs[3:], *runs[1:3]}
    new = failed()
    assert requested() == {new, runs[4], runs[0]}, "new ones do not wait for their turn"
    assert requested() == {new, runs[4]}, "all were seen: it starts again"
    assert requested() == {new, runs[4], *runs[2:4]}
    assert ticker.cursor == runs[2].removesuffix("/retry")
    instance.delete_run(ticker.cursor)
    runs.remove(runs[2])
    assert requested() == {new, runs[3]}, "the place is lost: it starts again"
    assert requested() == {new, runs[3]}
    assert requested() == {new, *runs[1:]}
    monkeypatch.setattr(sensors, "_MAX_RUNS", 9)
    ticker.cursor = "a run that was deleted"
    assert requested() == {new, *runs}


def test_a_run_of_materialize_is_started_as_the_job_that_has_its_assets(
    ticker: Ticker, instance: dg.DagsterInstance
) -> None:
    chosen = {"prepare": {"tokens"}, "retrain": {"encoder", "evaluation"}}
    for job, names in chosen.items():
        partition = "toy" if job == "prepare" else "toy|ngame"
        lost(instance, "__ASSET_JOB", frozenset(map(dg.AssetKey, names)), dagster_partition=partition)
    corpus = frozenset({dg.AssetKey("corpus")})
    lost(instance, "__ASSET_JOB", corpus, dagster_partition="toy", dagster_backfill="one of several partitions")
    lost(instance, "__ASSET_JOB", corpus)  # a range of partitions
    lost(instance, "__ASSET_JOB", frozenset({dg.AssetKey("data_drift")}), dagster_partition="toy|ngame")
    lost(instance, "__ASSET_JOB", frozenset({dg.AssetKey("not of this project")}), dagster_partition="toy")
    lost(instance, "__ASSET_JOB", dagster_partition="toy")
    found = ticker.tick().run_requests
    assert len(found) == len(chosen)
    assert {one.job_name: {key.to_user_string() for key in one.asset_selection} for one in found} == chosen
    assert {one.partition_key for one in found} == {"toy", "toy|ngame"}


def test_a_run_that_dagster_overlooked_is_started_after_a_minute(
    ticker: Ticker, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run means to be retried, and the cursor of the daemon's retries has passed its failure."""
    own = {"dagster_partition": "toy|ngame"}
    run = lost(instance, "retrain", said="", dagster_will_retry="true", **own)
    lost(instance, "retrain", said="", dagster_will_retry="false", **own)
    lost(instance, "retrain", said="", dagster_will_retry="true", dagster_auto_retry_run_id="another run", **own)
    assert ticker.requested() == [], "Dagster may still retry it"
    monkeypatch.setattr(sensors, "_PATIENCE", timedelta(0))
    assert [key for key, *_ in ticker.requested()] == [f"{run.run_id}/retry"]
    create_run_for_test(instance, "retrain", tags={"dagster/parent_run_id": run.run_id})
    assert ticker.requested() == [], "Dagster has made the retry, and is about to submit it"


@pytest.mark.parametrize("aside", [False, True])
def test_a_run_that_was_lost_after_its_drop_was_ingested_is_started_again(
    workspace: Workspace, ticker: Ticker, instance: dg.DagsterInstance, aside: bool
) -> None:
    """The files are no longer in the inbox, so its sensor does nothing, and no model would be refreshed."""
    folder = inbox.inbox(workspace, "toy")
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text("text,labels\n")
    drop = str(inbox.state(folder, math.inf))
    run = lost(instance, "prepare", dagster_partition="toy", xc_next="refresh", xc_inbox=drop)
    assert ticker.requested() == [], "the sensor of the inbox starts it again"
    if aside:  # killed while it moved the files
        folder.rename(inbox._aside_folder(workspace, "toy", drop))
    else:
        inbox.archive(workspace, "toy", drop)
    tags = {"xc/next": "refresh", "xc/inbox": drop, RETRY_TAG: run.run_id}
    assert ticker.requested() == [(f"{run.run_id}/retry", "prepare", "toy", tags)]


def test_other_failed_runs_are_left_alone(ticker: Ticker, instance: dg.DagsterInstance) -> None:
    own = {"dagster_partition": "toy|ngame"}
    lost(instance, "retrain", said="Retrying the run", **own)
    lost(instance, "retrain", xc_retry_of="another run", **own)
    lost(instance, "retrain", xc_inbox="a drop, which the sensor of the inbox starts again", **own)
    lost(instance, "another job", **own)
    lost(instance, "retrain")
    lost(instance, "prepare", dagster_partition="a dataset that was deleted in Dagster")
    lost(instance, "retrain", dagster_partition="toy|a recipe that was deleted in Dagster")
    assert ticker.requested() == []
    run = lost(instance, "retrain", **own)
    parent = {"dagster/parent_run_id": run.run_id}
    create_run_for_test(instance, "retrain", tags=parent, status=dg.DagsterRunStatus.STARTED)
    assert ticker.requested() == [], "somebody re-executed it"


def test_a_retry_that_dagster_made_and_could_not_submit_is_started(
    ticker: Ticker, instance: dg.DagsterInstance
) -> None:
    """Dagster makes the run, notes it on the lost one, and then `submit_run` raises (a locked database)."""
    run = lost(instance, "retrain", dagster_partition="toy|ngame")
    again = create_run_for_test(instance, "retrain", tags={"dagster/parent_run_id": run.run_id})
    instance.add_run_tags(run.run_id, {"dagster/auto_retry_run_id": again.run_id})
    deleted = {"dagster_auto_retry_run_id": "a run that a person deleted"}
    lost(instance, "retrain", dagster_partition="toy|ngame", **deleted)
    assert [key for key, *_ in ticker.requested()] == [f"{run.run_id}/retry"]
    instance.report_run_canceled(again)
    assert ticker.requested() == [], "the retry was submitted, and a person cancelled it"
