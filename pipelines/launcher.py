"""Dagster's run launcher for one machine, with a health check: a run whose process was killed is marked as failed.

Dagster's own default launcher has none, so a killed run would stay started and keep its place in the pool ``gpu``.
"""

from __future__ import annotations

import math
import os
import signal
import socket
from typing import Any, Final

import dagster as dg
import psutil

# what a launcher of one's own needs has no public name in Dagster
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, WorkerStatus

from assets.dagster_internals import free_pools
from assets.processes import HOST_TAG, PID_TAG
from xc_core.leftovers import process_of

_PROCESS_TAG: Final = "xc/process"
"""Run tag: the id of the run's process, and the seconds from the start of the machine to that of the process. A change
of the clock does not change them, but would make the process younger than its first event. The seconds alone do not
tell two processes apart: Linux counts them in steps of 0.01."""
_PID: Final = "pid"
_CLOCK_SECONDS: Final = 5.0
"""The clock may have been set by this much between the start of a process and its first event."""


def worker(instance: dg.DagsterInstance, run: dg.DagsterRun) -> psutil.Process | None:
    """Return the process of a run of this machine, None if it has ended or not yet started.

    Its id is a tag, or in an event that Dagster records before the run is started. A process of that id that is younger
    is another one, unless it is the one that ``health`` has seen before. If the code server answers too late, Dagster
    launches the run twice. The second process ends when it sees that the run has started, so the first one counts.
    """
    return next(iter(_alive(instance, run)), None)


def _alive(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[psutil.Process]:
    """Return the processes of a run that have not ended, the first one first."""
    known = run.tags.get(_PROCESS_TAG)
    processes = (
        process_of(pid, math.inf if known else recorded_at + _CLOCK_SECONDS)
        for pid, recorded_at in _recorded_processes(instance, run)
    )
    return [process for process in processes if process is not None and (not known or known == _identity(process))]


def _recorded_processes(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[tuple[int, float]]:
    """Return the id of each process of a run, the first one first, and the time of its last record."""
    if run.tags.get(PID_TAG):
        record = instance.get_run_record_by_id(run.run_id)
        return [(int(run.tags[PID_TAG]), record.create_timestamp.timestamp() if record else 0.0)]
    return _launched_processes(instance, run)


def _launched_processes(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[tuple[int, float]]:
    """Return id and time of the last record of each process that the code server has started."""
    last_records: dict[int, float] = {}
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        data: Any = entry.dagster_event and entry.dagster_event.engine_event_data
        if data and _PID in data.metadata:
            last_records[int(data.metadata[_PID].value)] = entry.timestamp
    return list(last_records.items())


def _identity(process: psutil.Process) -> str:
    return f"{process.pid} {process.create_time() - psutil.boot_time():.2f}"


def health(instance: dg.DagsterInstance, run: dg.DagsterRun) -> CheckRunHealthResult:
    """Return whether the process of a started run is alive; one on another machine counts as alive.

    One that is alive gets a tag by which it is known from then on; of two, one will end, and nobody knows which yet.
    """
    if run.tags.get(HOST_TAG) != socket.gethostname():
        return CheckRunHealthResult(WorkerStatus.RUNNING, "its process cannot be seen from this machine")
    processes = _alive(instance, run)
    if not processes:
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "the process of the run was killed")
    if len(processes) == 1 and not run.tags.get(_PROCESS_TAG):
        instance.add_run_tags(run.run_id, {_PROCESS_TAG: _identity(processes[0])})
    return CheckRunHealthResult(WorkerStatus.RUNNING, run_worker_id=str(processes[0].pid))


class LocalRunLauncher(dg.DefaultRunLauncher):
    """Dagster's default launcher, with a health check of processes; it stops a run even without its code server."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: the daemon asks every ``poll_interval_seconds`` (dagster.yaml)."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return whether the process of a started run is alive."""
        return health(self._instance, run)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run and note the machine; a retry begins with the tags of the lost run, which name its process.

        A run that the code server has launched already, although it answered too late, is not launched again: it would
        ignore the second process, and mark the run as failed when that one ends.
        """
        on_this_machine = context.dagster_run.tags.get(HOST_TAG) == socket.gethostname()
        launched = _launched_processes(self._instance, context.dagster_run) if on_this_machine else []
        if any(process_of(pid, recorded_at + _CLOCK_SECONDS) is not None for pid, recorded_at in launched):
            message = "The process of an earlier launch is at work, so no other one is started."
            self._instance.report_engine_event(message, context.dagster_run)
            return
        cleared = {tag: "" for tag in (PID_TAG, _PROCESS_TAG) if tag in context.dagster_run.tags}
        self._instance.add_run_tags(context.dagster_run.run_id, {HOST_TAG: socket.gethostname(), **cleared})
        super().launch_run(context)

    def terminate(self, run_id: str) -> bool:
        """Stop a run through its code server, else by a signal to its process; without one, mark it as canceled."""
        try:
            if super().terminate(run_id):  # type: ignore[no-untyped-call]
                return True
        except Exception as error:  # the errors of Dagster's client have no common name
            self._instance.report_engine_event(f"The code server does not answer: {error}", run_id=run_id)
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or run.tags.get(HOST_TAG) != socket.gethostname():
            return False
        if process := worker(self._instance, run):
            os.kill(process.pid, signal.SIGTERM)
        else:
            self._instance.report_run_canceled(run, "The process of the run had ended already.")
        return True


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Mark the started runs whose process was killed as failed, and free their places in pools; return their ids.

    The daemon does this while ``xc ui`` runs; the demo, which needs no daemon, does it itself.
    """
    active = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]))
    lost = [run for run in active if health(instance, run).status is WorkerStatus.NOT_FOUND]
    for run in lost:
        instance.report_run_failed(run, "The process of the run was killed.")
    free_pools(instance)
    return [run.run_id for run in lost]
