"""Whether the process of a run is alive, and what happens to runs whose process was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import dagster as dg
import psutil
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher import LaunchRunContext, WorkerStatus

from assets.dagster_internals import holders
from assets.processes import HOST_TAG, own_tags
from pipelines.launcher import LocalRunLauncher, end_lost_runs, health, worker

STARTED, CANCELING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the process of a run."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as process:
        yield process
        process.kill()


def started(
    instance: dg.DagsterInstance,
    pid: int,
    status: dg.DagsterRunStatus = STARTED,
    host: str = "",
) -> dg.DagsterRun:
    """Record a run whose process has this id."""
    tags = {HOST_TAG: host or socket.gethostname()}
    run = instance.add_run(dg.DagsterRun("retrain", status=status, tags=tags))
    instance.report_engine_event("Started process for run", run, EngineEventData.in_process(pid))
    return run


def launcher(instance: dg.DagsterInstance) -> LocalRunLauncher:
    made = LocalRunLauncher()
    made.register_instance(instance)
    return made


def test_a_run_is_healthy_as_long_as_its_process_lives(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    run = started(instance, sleeper.pid)
    assert launcher(instance).check_run_worker_health(run).status is WorkerStatus.RUNNING
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert health(instance, run).status is WorkerStatus.NOT_FOUND, "a zombie is no process"
    sleeper.wait()
    assert health(instance, run).status is WorkerStatus.NOT_FOUND


def test_a_younger_process_of_the_same_id_is_another_one(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(instance, sleeper.pid)
    later = psutil.Process(sleeper.pid).create_time() + 3600
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: later)
    assert health(instance, run).status is WorkerStatus.NOT_FOUND


@pytest.mark.parametrize("same_moment", [False, True])
def test_a_clock_that_is_set_ends_no_run(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, same_moment: bool
) -> None:
    """The time at which the machine, and so each process, was started moves with the clock."""
    if same_moment:  # Linux counts in steps of 0.01 s
        start = psutil.Process(sleeper.pid).create_time() - psutil.boot_time()
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: start + psutil.boot_time())
    run, boot_time = started(instance, sleeper.pid), psutil.boot_time()
    assert health(instance, run).status is WorkerStatus.RUNNING
    known = instance.get_run_by_id(run.run_id)
    assert known is not None
    for seconds in (3600, -3600):
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda seconds=seconds: boot_time + seconds)
        assert health(instance, known).status is WorkerStatus.RUNNING
    with subprocess.Popen(["sleep", "60"]) as other:
        instance.report_engine_event("Started process again", known, EngineEventData.in_process(other.pid))
        sleeper.kill()
        sleeper.wait()
        assert health(instance, known).status is WorkerStatus.NOT_FOUND, "another process than the one that is known"
        other.kill()


@pytest.mark.parametrize("own", [False, True])
def test_the_retry_of_a_lost_run_has_a_process_of_its_own(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Dagster's automatic retry begins with all tags of the run that was lost."""
    lost = instance.add_run(dg.DagsterRun("retrain", status=STARTED, tags=own_tags())) if own else None
    lost = lost or started(instance, os.getpid())
    assert health(instance, lost).status is WorkerStatus.RUNNING
    parent = instance.get_run_by_id(lost.run_id)
    assert parent is not None
    retry = instance.add_run(dg.DagsterRun("retrain", status=STARTED, tags=parent.tags))
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda *_: None)
    launcher(instance).launch_run(LaunchRunContext(retry, workspace=None))
    instance.report_engine_event("Started process for run", retry, EngineEventData.in_process(sleeper.pid))
    for _ in range(2):  # the first one notes the process
        known = instance.get_run_by_id(retry.run_id)
        assert known is not None
        assert health(instance, known).run_worker_id == str(sleeper.pid)


def test_a_run_of_another_machine_is_left_alone(instance: dg.DagsterInstance) -> None:
    run = started(instance, 2**22 + 1, host="elsewhere")
    assert health(instance, run).status is WorkerStatus.RUNNING
    assert end_lost_runs(instance) == []


def test_a_run_that_executes_itself_is_known_by_its_tags(instance: dg.DagsterInstance) -> None:
    run = instance.add_run(dg.DagsterRun("retrain", status=STARTED, tags=own_tags()))
    found = worker(instance, run)
    assert found is not None and found.pid == os.getpid()


@pytest.mark.parametrize(("seconds", "is_it"), [(-60.0, True), (4.0, True), (6.0, False)])
def test_a_process_that_is_younger_than_its_run_by_more_than_the_clock_is_another_one(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, seconds: float, is_it: bool
) -> None:
    run = instance.add_run(dg.DagsterRun("retrain", status=STARTED, tags=own_tags()))
    record = instance.get_run_record_by_id(run.run_id)
    assert record is not None
    born = record.create_timestamp.timestamp() + seconds
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: born)
    assert (worker(instance, run) is not None) is is_it


def test_of_several_processes_of_a_run_one_that_is_alive_counts(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    run = started(instance, 2**22 + 1)
    instance.report_engine_event("Started process again", run, EngineEventData.in_process(sleeper.pid))
    found = worker(instance, run)
    assert found is not None and found.pid == sleeper.pid


@pytest.mark.parametrize("noted", [True, False])
def test_a_run_that_was_launched_twice_goes_on(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], noted: bool
) -> None:
    """On a busy machine the code server answers too late, and the second process ends as soon as it sees the first."""
    run = started(instance, os.getpid())
    if noted:
        health(instance, run)
    instance.report_engine_event("Started process for run", run, EngineEventData.in_process(sleeper.pid))
    for _ in range(2):
        known = instance.get_run_by_id(run.run_id)
        assert known is not None
        assert health(instance, known).run_worker_id == str(os.getpid())
        sleeper.kill()
        sleeper.wait()


def test_a_run_that_was_launched_twice_goes_on_in_the_second_process_too(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    """If that one was the first to start the run. Until the other one ends, nobody knows which is at work."""
    run = started(instance, sleeper.pid)
    instance.report_engine_event("Started process for run", run, EngineEventData.in_process(os.getpid()))
    for own in (sleeper.pid, os.getpid(), os.getpid()):
        known = instance.get_run_by_id(run.run_id)
        assert known is not None
        assert health(instance, known).run_worker_id == str(own)
        sleeper.kill()
        sleeper.wait()
    known = instance.get_run_by_id(run.run_id)
    assert known is not None and known.tags["xc/process"]


@pytest.mark.parametrize("case", ["at work", "ended", "younger", "of another machine", "of the lost run"])
def test_a_run_whose_process_is_at_work_is_not_launched_again(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """The code server answered too late, and Dagster tries again. It would mark the run as failed in the end."""
    again = []
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda self, context: again.append(context))
    host = "elsewhere" if case == "of another machine" else ""
    run = started(instance, sleeper.pid, dg.DagsterRunStatus.STARTING, host)
    if case == "ended":
        sleeper.kill()
        sleeper.wait()
    elif case == "younger":  # than the record: the id is that of another process now
        monkeypatch.setattr("pipelines.launcher._CLOCK_SECONDS", -1e9)
    elif case == "of the lost run":  # whose tags the retry has
        run = instance.add_run(dg.DagsterRun("retrain", tags={**own_tags(), "xc/pid": str(sleeper.pid)}))
    launcher(instance).launch_run(LaunchRunContext(run, workspace=None))
    assert len(again) == (0 if case == "at work" else 1)


@pytest.mark.parametrize("status", [STARTED, CANCELING])
def test_a_killed_run_fails_and_gives_its_place_in_the_pool_back(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], status: dg.DagsterRunStatus
) -> None:
    lost, alive = started(instance, 2**22 + 1, status), started(instance, sleeper.pid)
    instance.event_log_storage.set_concurrency_slots("gpu", 3)
    for run_id in (lost.run_id, alive.run_id, "deleted"):
        instance.event_log_storage.claim_concurrency_slot("gpu", run_id, "encoder")
    assert holders(instance, "gpu") == {lost.run_id, alive.run_id, "deleted"}
    assert end_lost_runs(instance) == [lost.run_id]
    found = instance.get_run_by_id(lost.run_id)
    assert found is not None and found.status is dg.DagsterRunStatus.FAILURE
    assert holders(instance, "gpu") == {alive.run_id}


def test_a_run_without_its_code_server_is_stopped_by_a_signal(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    run = started(instance, sleeper.pid)
    assert launcher(instance).terminate(run.run_id)
    assert sleeper.wait(timeout=20) == -15


def test_a_run_whose_process_has_gone_is_cancelled_at_once(instance: dg.DagsterInstance) -> None:
    run = started(instance, 2**22 + 1)
    assert launcher(instance).terminate(run.run_id)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None and found.status is dg.DagsterRunStatus.CANCELED


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE])
def test_a_run_that_is_over_is_not_stopped(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes], status: dg.DagsterRunStatus
) -> None:
    run = started(instance, sleeper.pid, status)
    assert not launcher(instance).terminate(run.run_id)
    found = instance.get_run_by_id(run.run_id)
    assert found is not None and found.status is status
    assert sleeper.poll() is None


def test_a_run_of_another_machine_is_not_stopped_from_here(
    instance: dg.DagsterInstance, sleeper: subprocess.Popen[bytes]
) -> None:
    run = started(instance, sleeper.pid, host="elsewhere")
    assert not launcher(instance).terminate(run.run_id)
    assert sleeper.poll() is None
