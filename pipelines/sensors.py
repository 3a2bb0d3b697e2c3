"""The sensors: they watch params.yaml, artefacts, inboxes and finished runs, and start runs or report."""

import json
import time
from collections.abc import Iterator

import dagster as dg

from assets import staleness, studies
from assets.inbox import INBOX_TAG, inbox, state
from assets.partitions import experiment_key, split_key, sync
from pipelines.jobs import NEXT_TAG, compare, prepare, refresh, retrain
from xc_core.chain.workspace import Workspace


def inbox_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor of all inboxes: a new copy of a dataset is ingested by prepare, then refreshed."""

    @dg.sensor(
        name="inbox",
        job=prepare,
        minimum_interval_seconds=30,
        description="Ingests a dataset (whole, in any layout) that arrives in data/<dataset>/inbox/, then refreshes.",
    )
    def _look(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        sync(context.instance, workspace)
        arrived = {name: state(inbox(workspace, name), time.time()) for name in workspace.params.datasets()}
        drops = {dataset: drop for dataset, drop in arrived.items() if drop is not None}
        tried = {dataset: run for dataset, drop in drops.items() if (run := _last_run(context.instance, dataset, drop))}
        for dataset in sorted(drops.keys() - tried.keys()):
            tags = {NEXT_TAG: "refresh", INBOX_TAG: drops[dataset]}
            yield dg.RunRequest(run_key=f"inbox/{dataset}/{drops[dataset]}", partition_key=dataset, tags=tags)
        if drops.keys() == tried.keys():
            message = "; ".join(_message(dataset, run) for dataset, run in tried.items())
            yield dg.SkipReason(message or "no inbox holds complete files")

    return _look


def _last_run(instance: dg.DagsterInstance, dataset: str, drop: str) -> dg.DagsterRun | None:
    """Return the last run that was started to ingest this drop, None if there is none."""
    tags = {INBOX_TAG: drop, "dagster/partition": dataset}
    return next(iter(instance.get_runs(dg.RunsFilter(tags=tags), limit=1)), None)


def _message(dataset: str, run: dg.DagsterRun) -> str:
    """Return why a drop is still in its inbox."""
    if run.is_failure_or_canceled:
        return f"{dataset}: run {run.run_id[:8]} could not ingest the files; fix them, or re-execute that run"
    return f"{dataset}: run {run.run_id[:8]} is ingesting the files"


def partitions_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that shows new datasets and recipes of params.yaml as partitions."""

    @dg.sensor(
        name="declared",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Adds datasets and recipes of params.yaml as partitions.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        sync(context.instance, workspace)
        return dg.SkipReason(
            f"{len(workspace.params.datasets())} datasets, {len(workspace.params.experiments())} experiments"
        )

    return _look


def staleness_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that shows which artefacts are out of date, as ``xc status`` says."""

    @dg.sensor(
        name="staleness",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows which artefacts are out of date (check up_to_date) when settings, data or artefacts change.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        now, before = staleness.mark(workspace), json.loads(context.cursor or "{}")
        if before.get("mark") == now:
            return dg.SkipReason("nothing has changed")
        known = before.get("known", {})
        found = [one for one in staleness.verdicts(workspace) if not one.missing or one.key in known]
        changed = [verdict for verdict in found if known.get(verdict.key) != verdict.text]
        if changed:
            staleness.report(context.instance, changed)
        cursor = json.dumps({"mark": now, "known": {verdict.key: verdict.text for verdict in found}})
        return dg.SensorResult(skip_reason=f"{len(changed)} of {len(found)} artefacts reported", cursor=cursor)

    return _look


def studies_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that shows the studies of ``xc tune`` as partitions of the asset ``study``."""

    @dg.sensor(
        name="studies",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows the studies of `xc tune` (asset study) when trials end.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        found, cursor = studies.changed(workspace, context.cursor)
        if not found:
            return dg.SkipReason("no study has changed")
        keys = sorted({studies.key(record) for record in found})
        return dg.SensorResult(
            asset_events=[studies.event(record) for record in found],
            dynamic_partitions_requests=[studies.STUDIES.build_add_request(keys)],
            cursor=cursor,
        )

    return _look


def follow_up(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that starts the jobs that follow a successful prepare, retrain or refresh."""

    @dg.run_status_sensor(
        name="follow_up",
        run_status=dg.DagsterRunStatus.SUCCESS,
        monitored_jobs=[prepare, retrain, refresh],
        request_jobs=[retrain, refresh, compare],
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts retrain or refresh (tag xc/next) for every recipe after prepare, and compare after these.",
    )
    def _follow(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest]:
        run = context.dagster_run
        dataset, recipe = split_key(run.tags.get("dagster/partition", ""))
        if run.job_name == prepare.name and run.tags.get(NEXT_TAG):
            for name, chosen in workspace.params.experiments(dataset):
                key = experiment_key(name, chosen)
                yield dg.RunRequest(run_key=f"{run.run_id}/{chosen}", job_name=run.tags[NEXT_TAG], partition_key=key)
        elif recipe is not None:
            yield dg.RunRequest(run_key=f"{run.run_id}/compare", job_name=compare.name, partition_key=dataset)

    return _follow


def failures() -> dg.SensorDefinition:
    """Return the sensor that logs every failed run; add a mail or chat message here."""

    @dg.run_failure_sensor(
        name="failures", default_status=dg.DefaultSensorStatus.RUNNING, description="Logs every failed run."
    )
    def _log(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        context.log.error(
            f"{run.job_name} of {run.tags.get('dagster/partition', '-')} failed: {context.failure_event.message}"
        )

    return _log
