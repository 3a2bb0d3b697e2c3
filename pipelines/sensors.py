"""The sensors: they watch params.yaml, artefacts, inboxes and finished runs, and start runs or report."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Final

import dagster as dg

from assets import staleness, studies
from assets.dagster_internals import (
    AUTO_RETRY,
    BACKFILL,
    MATERIALIZE,
    PARENT_RUN,
    PARTITION,
    WILL_RETRY,
    CancelledError,
    retry_failed,
)
from assets.inbox import INBOX_TAG, inbox, state, was_ingested
from assets.partitions import DATASETS, RECIPES, experiment_key, split_key, sync
from assets.stages import MODE_TAG
from pipelines.jobs import ALL, NEXT_TAG, compare, drift, prepare, refresh, retrain
from xc_core.chain.kept import untrained
from xc_core.chain.names import SETTINGS
from xc_core.chain.workspace import Workspace
from xc_core.errors import ConfigError, MissingError
from xc_core.lifecycle.drift import Answer, read_record
from xc_core.visible import counted

_ATTEMPTS: Final = 3
"""Runs for one drop, if they end before they read it: under load a launch may fail."""
RETRY_TAG: Final = "xc/retry_of"
"""Run tag: the run that this one repeats, because Dagster could not retry it."""
_REPEATED: Final = (NEXT_TAG, MODE_TAG, INBOX_TAG)
"""Run tags that a repeated run keeps."""
_PATIENCE: Final = timedelta(minutes=1)
"""A run that Dagster means to retry, and has not retried this long after it failed, was overlooked."""
_LOOK_BACK: Final = timedelta(days=1)
_MAX_RUNS: Final = 20
"""So many failed runs are looked at in a tick: the last ones, and as many earlier ones, a tick after the other."""


def inbox_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor of all inboxes: a new copy of a dataset is ingested by prepare, then refreshed."""

    @dg.sensor(
        name="inbox",
        job=prepare,
        minimum_interval_seconds=30,
        description="Ingests a dataset (whole, in any layout) that arrives in data/<dataset>/inbox/, then refreshes.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sync(context.instance, workspace)
        states = {name: state(inbox(workspace, name), time.time()) for name in workspace.params.datasets()}
        previous = _read_cursor(context.cursor)
        drops = {dataset: drop for dataset, drop in states.items() if drop is not None}
        # copies keep old times (cp -p), so a file that has not changed for long may still grow
        complete = {dataset: drop for dataset, drop in drops.items() if previous.get(dataset) == drop}
        requests = []
        messages = [f"{name}: files are still arriving" for name in sorted(drops.keys() - complete.keys())]
        for dataset, drop in sorted(complete.items()):
            runs = _runs(context.instance, dataset, drop)
            returned = bool(runs) and runs[0].is_success and state(inbox(workspace, dataset), time.time()) == drop
            failures = len(list(takewhile(lambda run: not run.is_success, runs)))
            if not runs or returned or (_never_read(context.instance, runs[0]) and failures < _ATTEMPTS):
                key = f"inbox/{dataset}/{drop}" + (f"/after-{runs[0].run_id}" if runs else "")
                tags = {NEXT_TAG: "refresh", INBOX_TAG: drop}
                requests.append(dg.RunRequest(run_key=key, partition_key=dataset, tags=tags))
            else:
                messages.append(_waiting_reason(context.instance, dataset, runs[0]))
        skip = None if requests else "; ".join(messages) or "no inbox holds complete files"
        return dg.SensorResult(run_requests=requests, skip_reason=skip, cursor=json.dumps(drops))

    return _look


def _read_cursor(cursor: str | None) -> dict[str, Any]:
    """Return what a sensor noted at its last tick; nothing if it did not write this: a person, or another version."""
    try:
        content = json.loads(cursor or "")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _runs(instance: dg.DagsterInstance, dataset: str, drop: str) -> list[dg.DagsterRun]:
    """Return the last runs that were started to ingest this drop, the last one first.

    After a success the same files may come again, times included: an earlier version of the data.
    """
    tags = {INBOX_TAG: drop, PARTITION: dataset}
    return list(instance.get_runs(dg.RunsFilter(tags=tags), limit=_ATTEMPTS))


def _never_read(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return True if a run failed before any of its steps did: it could not be launched, or its process was killed."""
    failed = run.status is dg.DagsterRunStatus.FAILURE
    return failed and not instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)


def _waiting_reason(instance: dg.DagsterInstance, dataset: str, run: dg.DagsterRun) -> str:
    """Return why a drop is still in its inbox."""
    name = f"{dataset}: run {run.run_id[:8]}"
    if _never_read(instance, run):
        return f"{name} ended before it read the files, after {_ATTEMPTS} attempts; see its log, then re-execute it"
    if run.is_failure_or_canceled:
        return f"{name} could not ingest the files; fix them, or re-execute that run"
    return f"{name} is ingesting the files"


def partitions_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that shows new datasets and recipes of params.yaml as partitions."""

    @dg.sensor(
        name="new_partitions",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Adds datasets and recipes of params.yaml as partitions.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        sync(context.instance, workspace)
        return dg.SkipReason(
            f"{counted(len(workspace.params.datasets()), 'dataset')}, "
            f"{counted(len(workspace.params.experiments()), 'experiment')}"
        )

    return _look


def staleness_sensor(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that shows which artefacts are out of date, as ``xc status`` says."""

    @dg.sensor(
        name=staleness.SENSOR,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Shows which artefacts are out of date (check up_to_date) when settings, data or artefacts change.",
    )
    def _look(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        mark, previous = staleness.mark(workspace), _read_cursor(context.cursor)
        if previous.get("mark") == mark:
            return dg.SkipReason("nothing has changed")
        known = previous["known"] if isinstance(previous.get("known"), dict) else {}
        try:
            found = staleness.partition_states(workspace)
        except CancelledError as cancelled:  # xc ui was stopped meanwhile; the next tick looks again
            return dg.SkipReason(str(cancelled))
        states = [state for state in found if not state.missing or state.key in known]
        changed = [state for state in states if known.get(state.key) != state.text]
        later = staleness.being_recorded(context.instance, changed)
        changed = [state for state in changed if state.key not in later]
        if changed:
            staleness.report(context.instance, changed)
        seen = {state.key: state.text for state in states if state.key not in later}
        seen |= {key: known[key] for key in later & known.keys()}
        cursor = json.dumps({"mark": "" if later else mark, "known": seen})  # without a mark the next tick looks again
        return dg.SensorResult(skip_reason=f"{len(changed)} of {len(states)} artefacts reported", cursor=cursor)

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
        records, cursor = studies.changed(workspace, _read_cursor(context.cursor))
        if not records:
            return dg.SkipReason("no study has changed")
        keys = sorted({studies.key(record) for record in records})
        return dg.SensorResult(
            asset_events=[studies.event(record) for record in records],
            dynamic_partitions_requests=[studies.STUDIES.build_add_request(keys)],
            cursor=cursor,
        )

    return _look


def follow_up(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that starts the jobs that follow a successful run of a job, or of the asset evaluation."""

    @dg.run_status_sensor(
        name="follow_up",
        run_status=dg.DagsterRunStatus.SUCCESS,
        request_jobs=[job for job in ALL if job is not prepare],
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts retrain, refresh or drift (tag xc/next) for every recipe after prepare (refresh: for every "
        "trained one), what the rule asks for after drift, and compare after every run that evaluates a recipe.",
    )
    def _follow(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest]:
        run = context.dagster_run
        dataset, recipe = split_key(run.tags.get(PARTITION, ""))
        with suppress(ConfigError, MissingError):
            sync(context.instance, workspace)
        if not _are_partitions(context.instance, dataset):
            return  # somebody deleted it
        if run.job_name == prepare.name and run.tags.get(NEXT_TAG):
            for name in _recipes(context.instance, workspace, dataset):
                if run.tags[NEXT_TAG] == refresh.name and untrained(workspace, dataset, name):
                    context.log.info(f"{dataset}: no refresh of {name}, which was never trained; start retrain")
                    continue
                key = experiment_key(dataset, name)
                yield dg.RunRequest(run_key=f"{run.run_id}/{name}", job_name=run.tags[NEXT_TAG], partition_key=key)
        elif run.job_name == drift.name and recipe is not None and _are_partitions(context.instance, dataset, recipe):
            record = read_record(workspace, dataset, recipe)
            if record is not None and record.verdict.answer is not Answer.NOTHING:
                job, key = record.verdict.answer.value, experiment_key(dataset, recipe)
                yield dg.RunRequest(run_key=f"{run.run_id}/{job}", job_name=job, partition_key=key)
        elif recipe is not None and _evaluates(run):
            yield dg.RunRequest(run_key=f"{run.run_id}/compare", job_name=compare.name, partition_key=dataset)

    return _follow


def _recipes(instance: dg.DagsterInstance, workspace: Workspace, dataset: str) -> list[str]:
    """Return the recipes of a dataset; while params.yaml has an error, those whose settings were written before.

    Dagster never shows a run to this sensor again, so a job that is not requested now would be lost. One that is
    requested fails, says what is wrong in params.yaml, and can be re-executed. A file without the dataset that was just
    prepared is one that somebody is writing.
    """
    try:
        if dataset in workspace.params.datasets():
            return workspace.params.recipes(dataset)
    except (ConfigError, MissingError):
        pass
    with_settings = {folder.parent.name for folder in workspace.raw(dataset).parent.glob(f"*/{SETTINGS}")}
    return sorted(with_settings & set(instance.get_dynamic_partitions(str(RECIPES.name))))


def lost_retries(workspace: Workspace) -> dg.SensorDefinition:
    """Return the sensor that starts a lost run again if Dagster's automatic retry was not started.

    Dagster tries only once, and fails if the code server is down: if it was killed too, or starts later than the daemon
    after a restart of the machine. It also overlooks a run, probably if it reads the failure before the status changes.
    """

    @dg.sensor(
        name="lost_retries",
        jobs=list(ALL),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Starts a run again whose process was lost, if Dagster did not start its automatic retry.",
    )
    def _look(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest]:
        now = datetime.now(UTC)
        failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=now - _LOOK_BACK)
        for record in _some(context, failed):
            run, overlooked = record.dagster_run, now.timestamp() - (record.end_time or 0) > _PATIENCE.total_seconds()
            job = _job_of(context, run)
            if job and _lost(context.instance, workspace, run, overlooked):
                dataset, recipe = split_key(run.tags[PARTITION])
                yield dg.RunRequest(
                    run_key=f"{run.run_id}/retry",
                    job_name=job,
                    partition_key=experiment_key(dataset, recipe) if recipe else dataset,
                    asset_selection=sorted(run.asset_selection) if run.asset_selection else None,
                    tags={name: run.tags[name] for name in _REPEATED if name in run.tags} | {RETRY_TAG: run.run_id},
                )

    return _look


def _some(context: dg.SensorEvaluationContext, failed: dg.RunsFilter) -> list[dg.RunRecord]:
    """Return the last runs and those after the cursor, which is moved: so all are returned in one tick or another."""
    newest = page = list(context.instance.get_run_records(failed, limit=_MAX_RUNS))
    if context.cursor:
        page = list(context.instance.get_run_records(failed, limit=_MAX_RUNS, cursor=context.cursor))
    context.update_cursor(page[-1].dagster_run.run_id if len(page) == _MAX_RUNS else "")
    return list({record.dagster_run.run_id: record for record in (*newest, *page)}.values())


def _lost(instance: dg.DagsterInstance, workspace: Workspace, run: dg.DagsterRun, overlooked: bool) -> bool:
    """Return True if Dagster did not retry a run that it should, and neither a person nor the inbox's sensor did."""
    if {RETRY_TAG, BACKFILL} & run.tags.keys():
        return False  # Dagster does not retry runs of a backfill that was cancelled
    if not _are_partitions(instance, *split_key(run.tags.get(PARTITION, ""))):
        return False
    drop = run.tags.get(INBOX_TAG)
    if drop and not was_ingested(workspace, split_key(run.tags[PARTITION])[0], drop):
        return False  # the files are in the inbox, so its sensor starts the run again
    retries = instance.get_runs(dg.RunsFilter(tags={PARENT_RUN: run.run_id}))
    if any(retry.status is not dg.DagsterRunStatus.NOT_STARTED for retry in retries):
        return False
    created = AUTO_RETRY in run.tags
    if retry_failed(instance, run):
        return bool(retries) or not created  # a retry that was made and is gone was deleted by a person
    return overlooked and run.tags.get(WILL_RETRY) == "true" and not created and not retries


def _job_of(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> str | None:
    """Return the job of a run; of one that *Materialize* started, the job that has all its assets, if there is one.

    Not ``drift``: a training may follow that job, and none follows *Materialize*.
    """
    if run.job_name != MATERIALIZE:
        return run.job_name if run.job_name in {job.name for job in ALL} else None
    if context.repository_def is None or not run.asset_selection:
        return None
    graph = context.repository_def.asset_graph
    jobs = (job for job in ALL if job is not drift)
    return next((job.name for job in jobs if run.asset_selection <= job.selection.resolve(graph)), None)


def _are_partitions(instance: dg.DagsterInstance, dataset: str, recipe: str | None = None) -> bool:
    """Return True if Dagster knows a dataset, and a recipe if it is named.

    A request for one that was deleted would fail the whole tick, each time again.
    """
    keys = ((DATASETS, dataset), (RECIPES, recipe))
    return all(instance.has_dynamic_partition(str(part.name), key) for part, key in keys if key is not None)


def _evaluates(run: dg.DagsterRun) -> bool:
    """Return True if a run evaluates a recipe: by a job, or because somebody materialised the asset."""
    selection = run.asset_selection
    return dg.AssetKey("evaluation") in selection if selection else run.job_name in {retrain.name, refresh.name}
