"""Weekly retraining and nightly refreshing, one schedule of each a dataset, off until switched on.

Takes: the datasets of params.yaml.              Gives: schedules.
May import: dagster, assets.partitions, pipelines.jobs, xc_core.stages.  Never: runs by default.
"""

import zlib

import dagster as dg

from assets.partitions import sync
from pipelines.jobs import NEXT_TAG, prepare
from xc_core.stages.workspace import Workspace


def safe_name(dataset: str) -> str:
    """Return a dataset's name as Dagster allows it in a schedule's name; different datasets stay different."""
    safe = dataset.replace("-", "_").replace(".", "_")
    return safe if "." not in dataset else f"{safe}_{zlib.crc32(dataset.encode()):08x}"


def schedules(workspace: Workspace) -> list[dg.ScheduleDefinition]:
    """Return both schedules of every dataset."""
    out = []
    for dataset in workspace.datasets():
        out.append(
            _schedule(workspace, dataset, "retrain", "0 2 * * 0", "Weekly, Sunday 02:00: retrains every recipe.")
        )
        out.append(
            _schedule(workspace, dataset, "refresh", "30 3 * * *", "Nightly, 03:30: takes new data in, no training.")
        )
    return out


def _schedule(workspace: Workspace, dataset: str, what: str, cron: str, description: str) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{what}_{safe_name(dataset)}",
        job=prepare,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"{dataset}. {description}",
    )
    def _tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        sync(context.instance, workspace)
        when = context.scheduled_execution_time.isoformat()
        return dg.RunRequest(run_key=f"{what}/{dataset}/{when}", partition_key=dataset, tags={NEXT_TAG: what})

    return _tick
