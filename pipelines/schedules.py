"""Weekly retraining, nightly refreshes, nightly checks for drift: three schedules per dataset, off by default."""

import zlib
from contextlib import suppress
from typing import Final

import dagster as dg

from assets.partitions import sync
from pipelines.jobs import NEXT_TAG, prepare
from xc_core.chain.dataset import ScheduleConfig
from xc_core.chain.workspace import Workspace
from xc_core.errors import ConfigError, MissingError, XCError

_SCHEDULES: Final = {
    "retrain": "Trains every recipe of {} again.",
    "refresh": "Updates every trained recipe of {} for new data, without training.",
    "drift": "Refreshes or retrains a recipe of {} if the rule of xc drift says so.",
}
"""What the schedules do, by the job that follows prepare; ``datasets.NAME.schedule`` of params.yaml says when."""


def safe_name(dataset: str) -> str:
    """Return a dataset's name with only those characters that Dagster allows; different names stay different."""
    safe = dataset.replace("-", "_").replace(".", "_")
    return safe if "." not in dataset else f"{safe}_{zlib.crc32(dataset.encode()):08x}"


def schedules(workspace: Workspace) -> list[dg.ScheduleDefinition]:
    """Return the schedules of every dataset."""
    datasets = workspace.params.datasets()
    return [_schedule(workspace, dataset, next_job) for dataset in datasets for next_job in _SCHEDULES]


def _schedule(workspace: Workspace, dataset: str, next_job: str) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{next_job}_{safe_name(dataset)}",
        job=prepare,
        cron_schedule=_cron(workspace, dataset, next_job),
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=_SCHEDULES[next_job].format(dataset),
    )
    def _tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        with suppress(ConfigError, MissingError):  # Dagster does not repeat a tick; the run says what is wrong
            sync(context.instance, workspace)
            if dataset not in workspace.params.datasets() and not workspace.raw(dataset).parent.exists():
                return dg.SkipReason(f"{dataset} was deleted; reload the definitions to remove its schedules")
        when = context.scheduled_execution_time.isoformat()
        return dg.RunRequest(run_key=f"{next_job}/{dataset}/{when}", partition_key=dataset, tags={NEXT_TAG: next_job})

    return _tick


def _cron(workspace: Workspace, dataset: str, next_job: str) -> str:
    """Return when a schedule starts; the default if the dataset's settings are wrong, so that the UI still loads.

    A run, ``xc status`` and ``xc doctor`` report what is wrong.
    """
    try:
        settings = workspace.params.dataset(dataset).schedule
    except XCError:
        settings = ScheduleConfig()
    return str(getattr(settings, next_job))
