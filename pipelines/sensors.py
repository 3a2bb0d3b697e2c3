"""What starts runs by itself: new experiments in params.yaml, new files in an inbox, the end of a job.

Takes: params.yaml, data/<dataset>/inbox, finished runs.     Gives: sensors.
May import: dagster, assets.partitions, pipelines.jobs, xc_core.stages.  Never: takes half-copied files.
"""

import time
from collections.abc import Iterator

import dagster as dg

from assets.inbox import INBOX_TAG, inbox, state
from assets.partitions import experiment_key, split_key, sync
from pipelines.jobs import NEXT_TAG, compare, prepare, refresh, retrain
from xc_core.stages.workspace import Workspace


def inbox_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor of all inboxes: a whole new drop is taken in by prepare, then refreshed."""

    @dg.sensor(
        name="inbox",
        job=prepare,
        minimum_interval_seconds=30,
        description="New files in data/<dataset>/inbox/ are taken in (a whole dataset, any layout), then refreshed.",
    )
    def _look(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        sync(context.instance, workspace)
        arrived = {name: state(inbox(workspace, name), time.time()) for name in workspace.datasets()}
        drops = {dataset: drop for dataset, drop in arrived.items() if drop is not None}
        tried = {dataset: run for dataset, drop in drops.items() if (run := _last_run(context.instance, dataset, drop))}
        for dataset in sorted(drops.keys() - tried.keys()):
            tags = {NEXT_TAG: "refresh", INBOX_TAG: drops[dataset]}
            yield dg.RunRequest(run_key=f"inbox/{dataset}/{drops[dataset]}", partition_key=dataset, tags=tags)
        if drops.keys() == tried.keys():
            told = "; ".join(_told(dataset, run) for dataset, run in tried.items())
            yield dg.SkipReason(told or "no inbox holds files that have come to rest")

    return _look


def _last_run(instance: dg.DagsterInstance, dataset: str, drop: str) -> dg.DagsterRun | None:
    """Return the last run that was to take in this drop, None where there has been none."""
    tags = {INBOX_TAG: drop, "dagster/partition": dataset}
    return next(iter(instance.get_runs(dg.RunsFilter(tags=tags), limit=1)), None)


def _told(dataset: str, run: dg.DagsterRun) -> str:
    """Return what became of a drop that still lies in its inbox."""
    if run.is_failure_or_canceled:
        return f"{dataset}: run {run.run_id[:8]} could not take the files in; mend them, or re-execute that run"
    return f"{dataset}: run {run.run_id[:8]} is taking the files in"


def partitions_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that shows new datasets and recipes of params.yaml as partitions."""

    @dg.sensor(
        name="declared",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Datasets and recipes of params.yaml become partitions.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        sync(context.instance, workspace)
        return dg.SkipReason(f"{len(workspace.datasets())} datasets, {len(workspace.experiments())} experiments")

    return _look


def follow_up(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that starts what follows a successful prepare, retrain or refresh."""

    @dg.run_status_sensor(
        name="follow_up",
        run_status=dg.DagsterRunStatus.SUCCESS,
        monitored_jobs=[prepare, retrain, refresh],
        request_jobs=[retrain, refresh, compare],
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="After prepare: retrain or refresh each recipe of the dataset (tag xc/next). Then: compare.",
    )
    def _follow(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest]:
        run = context.dagster_run
        dataset, recipe = split_key(run.tags.get("dagster/partition", ""))
        if run.job_name == prepare.name and run.tags.get(NEXT_TAG):
            for name, chosen in workspace.experiments(dataset):
                key = experiment_key(name, chosen)
                yield dg.RunRequest(run_key=f"{run.run_id}/{chosen}", job_name=run.tags[NEXT_TAG], partition_key=key)
        elif recipe is not None:
            yield dg.RunRequest(run_key=f"{run.run_id}/compare", job_name=compare.name, partition_key=dataset)

    return _follow


def failures() -> dg.SensorDefinition:
    """Return the sensor that logs every failed run; a place to hang a mail or chat message on."""

    @dg.run_failure_sensor(name="failures", default_status=dg.DefaultSensorStatus.RUNNING)
    def _tell(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        context.log.error(
            f"{run.job_name} of {run.tags.get('dagster/partition', '-')} failed: {context.failure_event.message}"
        )

    return _tell
