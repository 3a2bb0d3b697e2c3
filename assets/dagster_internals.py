"""What the project uses of Dagster beyond its documented interface; another release may change it without notice.

Names of tags and jobs, why a run failed, the storage of pools, errors of Postgres. ``pipelines/launcher.py`` has the
parts of a run launcher.
"""

from __future__ import annotations

from typing import Any, Final

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster._core.events import RunFailureReason
from dagster._utils.error import SerializableErrorInfo  # type: ignore[attr-defined]  # imported there, defined elsewhere

PARTITION: Final = "dagster/partition"
"""Run tag: the key of the partition."""
PARENT_RUN: Final = "dagster/parent_run_id"
"""Run tag: the run that this one repeats."""
BACKFILL: Final = "dagster/backfill"
"""Run tag of one of several partitions that were started together."""
WILL_RETRY: Final = "dagster/will_retry"
"""Run tag: "true" while Dagster means to retry a failed run."""
AUTO_RETRY: Final = "dagster/auto_retry_run_id"
"""Run tag: Dagster's automatic retry, written before that is submitted."""
MAX_RETRIES: Final = "dagster/max_retries"
"""Run tag: how often Dagster retries a run that was lost, if not as often as dagster.yaml says."""
LAUNCHED_BY: Final = "dagster/sensor_name"
"""Run tag without which Dagster shows the run as launched by a person."""
OWN_JOB: Final = "__"
"""How the names of Dagster's own jobs begin."""
MATERIALIZE: Final = "__ASSET_JOB"
"""Its job of runs that the button *Materialize* starts."""
_NOT_RETRIED: Final = "Failed to retry run"
"""Its message if the code server did not answer when a lost run should be retried; it does not try again."""


def retry_failed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return True if Dagster wanted to retry a run, and failed."""
    events = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    return any(event.dagster_event and event.dagster_event.message == _NOT_RETRIED for event in events)


def was_interrupted(event: dg.DagsterEvent) -> bool:
    """Return True for the failure of a run or step that was stopped by Ctrl-C or SIGTERM."""
    data: Any = event.event_specific_data
    return getattr(data, "failure_reason", None) is RunFailureReason.UNEXPECTED_TERMINATION


class CancelledError(dg.DagsterExecutionInterruptedError, DagsterUserCodeProcessError):
    """The interrupt of a cancelled run, of which Dagster shows the message alone.

    Of a plain interrupt it shows the stack, of its own code. Of an error that came from another process it shows what
    that process reported, which here has no stack.
    """

    def __init__(self, message: str) -> None:
        """Take the message that Dagster shows."""
        shown = SerializableErrorInfo(message=message, stack=[], cls_name=None)
        super().__init__(message, user_code_process_error_infos=[shown])  # type: ignore[no-untyped-call]


def size_pool(instance: dg.DagsterInstance, pool: str, places: int) -> None:
    """Set the number of places of a pool."""
    instance.event_log_storage.set_concurrency_slots(pool, places)


def holders(instance: dg.DagsterInstance, pool: str) -> set[str]:
    """Return the ids of the runs that hold a place in a pool."""
    return set(instance.event_log_storage.get_concurrency_info(pool).active_run_ids)


def free_pools(instance: dg.DagsterInstance) -> None:
    """Free the places in pools of runs that have ended or were deleted."""
    for run_id in instance.event_log_storage.get_concurrency_run_ids():
        holder = instance.get_run_by_id(run_id)
        if holder is None or holder.is_finished:
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def errors_of_postgres() -> tuple[type[Exception], ...]:
    """Return what Dagster raises if Postgres does not answer, if its package is installed."""
    try:
        from dagster_postgres.utils import DagsterPostgresException
    except ImportError:
        return ()
    return (DagsterPostgresException,)
