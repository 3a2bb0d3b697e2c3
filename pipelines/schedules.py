"""Weekly retraining, nightly refreshes, nightly checks for drift: three schedules per dataset, off by default."""

import zlib
from typing import Final

import dagster as dg

from assets.partitions import sync
from pipelines.jobs import NEXT_TAG, prepare
from xc_core.chain.workspace import Workspace

_SCHEDULES: Final = (
    ("retrain", "0 2 * * 0", "Weekly, Sunday 02:00 UTC: retrains every recipe."),
    ("refresh", "30 3 * * *", "Nightly, 03:30 UTC: adds new data, without training."),
    ("drift", "30 1 * * *", "Nightly, 01:30 UTC: refreshes or retrains a recipe if the rule of xc drift says so."),
)
"""Job that follows prepare, time, description."""


def safe_name(dataset: str) -> str:
    """Return a dataset's name with only those characters that Dagster allows; different names stay different."""
    safe = dataset.replace("-", "_").replace(".", "_")
    return safe if "." not in dataset else f"{safe}_{zlib.crc32(dataset.encode()):08x}"


def schedules(workspace: Workspace) -> list[dg.ScheduleDefinition]:
    """Return the schedules of every dataset."""
    return [_schedule(workspace, dataset, *one) for dataset in workspace.params.datasets() for one in _SCHEDULES]


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
