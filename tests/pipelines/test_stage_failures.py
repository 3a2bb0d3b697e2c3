"""A stage whose process fails: an error with a message is not retried, a lost process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import dagster as dg
import psutil
import pytest

from assets import stages, worker
from assets.dagster_internals import was_interrupted
from assets.partitions import sync
from assets.processes import ProcessFailedError, stop
from pipelines.definitions import build
from tests.pipelines.conftest import QUIET
from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core import progress
from xc_core.chain import Workspace
from xc_core.environment import DEVICE
from xc_core.errors import UnavailableError
from xc_core.progress import report, report_paced, silence

# Dagster warns of previews inside its own Pipes client
pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
Broken = Callable[[str], Path]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Replace the Python of all stages with a shell command; return a file with a line per start."""

    def install(command: str) -> Path:
        starts, python = tmp_path / "starts", tmp_path / "python"
        python.write_text(f'#!/bin/sh\necho "$@" >> {starts}\n{command}\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        return starts

    return install


def failed(workspace: Workspace, instance: dg.DagsterInstance, stage: str) -> str:
    """Run one stage of the dataset, without a pause before a retry; return why it failed."""
    sync(instance, workspace)
    job = build(workspace).resolve_job_def("prepare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XC_RETRY_SECONDS", "0")
        options: dict[str, Any] = {"partition_key": "toy", "raise_on_error": False}
        result = job.execute_in_process(QUIET, instance, asset_selection=[dg.AssetKey(stage)], **options)
    (event,) = [event for event in result.all_events if event.is_step_failure]
    return event.step_failure_data.error_display_string


def started(recorded: Recorded, error: Exception) -> tuple[int, str]:
    """Let each process of the stage corpus end with an error; return their number, and why the stage failed."""

    def end(arguments: list[str]) -> None:
        raise error

    recorded.during = end
    why = failed(recorded.workspace, recorded.instance, "corpus")
    return len(recorded.processes), why


@pytest.mark.parametrize("code", [64, 65, 70, 78])
def test_an_exit_code_of_an_error_with_a_message_is_not_retried(
    trained: Workspace, record: Callable[[Workspace], Recorded], code: int
) -> None:
    starts, why = started(record(trained), ProcessFailedError(code))
    assert starts == 1
    assert f"`xc run corpus --dataset toy` ended with exit code {code}; the log says why" in why


def test_the_failure_of_a_stage_says_what_its_process_said(
    trained: Workspace, record: Callable[[Workspace], Recorded]
) -> None:
    _, why = started(record(trained), ProcessFailedError(65, "train.csv, line 328: found the byte 0xff"))
    assert "`xc run corpus --dataset toy` ended with exit code 65: train.csv, line 328: found the byte 0xff" in why


@pytest.mark.parametrize("code", [129, 130, 143, -1, -2, -15])
def test_a_process_that_somebody_stopped_is_not_retried(
    trained: Workspace, record: Callable[[Workspace], Recorded], code: int
) -> None:
    assert started(record(trained), ProcessFailedError(code))[0] == 1


@pytest.mark.parametrize("code", [1, 63, 75, 79, 137, -9, -11])
def test_a_lost_process_and_a_busy_stage_are_retried_once(
    trained: Workspace, record: Callable[[Workspace], Recorded], code: int
) -> None:
    starts, why = started(record(trained), ProcessFailedError(code))
    assert starts == 2
    assert "Exceeded max_retries of 1" in why
    assert "xc run corpus --dataset toy" in why


def test_a_service_that_does_not_answer_is_asked_once_more(
    trained: Workspace, record: Callable[[Workspace], Recorded]
) -> None:
    starts, why = started(record(trained), UnavailableError("no answer from MLflow", expected="one", do="start it"))
    assert starts == 2
    assert "Exceeded max_retries of 1" in why and "no answer from MLflow" in why


@pytest.mark.parametrize("deleted", [False, True], ids=["cancelled", "deleted"])
def test_a_lost_process_of_a_run_that_somebody_ended_is_not_retried(
    trained: Workspace, record: Callable[[Workspace], Recorded], deleted: bool
) -> None:
    recorded = record(trained)

    def end(arguments: list[str]) -> None:
        (run,) = recorded.instance.get_runs()
        if deleted:
            recorded.instance.delete_run(run.run_id)
        else:
            recorded.instance.report_run_canceling(run)
        raise ProcessFailedError(-9)

    recorded.during = end
    failed(trained, recorded.instance, "corpus")
    assert len(recorded.processes) == 1


def interrupted(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, *, cancelled: bool, recording: bool = False
) -> tuple[list[dg.DagsterEvent], dg.DagsterRunStatus]:
    """Let SIGTERM reach the process of a run while a stage is at work, or while its result is recorded.

    Return the failures and the end of the run.
    """

    def end(*_: object) -> None:
        (run,) = recorded.instance.get_runs()
        if cancelled:
            recorded.instance.report_run_canceling(run)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    if recording:
        monkeypatch.setattr(stages, "summary", end)
    else:
        recorded.during = end
    sync(recorded.instance, recorded.workspace)
    job = build(recorded.workspace).resolve_job_def("prepare")
    options: dict[str, Any] = {"partition_key": "toy", "raise_on_error": False}
    result = job.execute_in_process(QUIET, recorded.instance, asset_selection=[dg.AssetKey("corpus")], **options)
    (run,) = recorded.instance.get_runs()
    kinds = (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED)
    return [event for event in result.all_events if event.event_type in kinds], run.status


@pytest.mark.parametrize(
    ("recording", "sentence"),
    [
        (False, "The run was cancelled, and the process of this stage was stopped."),
        (
            True,
            "The run was cancelled while the result of this stage was recorded in DVC and MLflow. The artefact is "
            "complete; another run of the stage records it.",
        ),
    ],
)
def test_a_cancelled_run_shows_a_sentence_and_no_stack_of_dagster(
    trained: Workspace,
    record: Callable[[Workspace], Recorded],
    monkeypatch: pytest.MonkeyPatch,
    recording: bool,
    sentence: str,
) -> None:
    """The page of the run showed 60 lines of Dagster's code, twice, as if something were broken."""
    (step, end), status = interrupted(record(trained), monkeypatch, cancelled=True, recording=recording)
    assert status is dg.DagsterRunStatus.CANCELED
    for error in (step.step_failure_data.error, end.job_canceled_data.error):
        assert error is not None
        assert error.to_string().strip() == sentence
        assert not error.stack and error.cause is None


def test_an_interrupt_that_nobody_asked_for_keeps_its_stack(
    trained: Workspace, record: Callable[[Workspace], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    (step, end), status = interrupted(record(trained), monkeypatch, cancelled=False)
    assert status is dg.DagsterRunStatus.FAILURE
    assert step.step_failure_data.error.stack and was_interrupted(end)


def test_another_error_of_the_process_is_raised_as_it_is(
    trained: Workspace, record: Callable[[Workspace], Recorded]
) -> None:
    starts, why = started(record(trained), FileNotFoundError("no Python"))
    assert starts == 1
    assert "FileNotFoundError: no Python" in why


@pytest.mark.parametrize(
    ("command", "starts", "ended"),
    [
        ("exit 64", 1, "ended with exit code 64"),
        ("exit 78", 1, "ended with exit code 78"),
        ("exit 130", 1, "ended with exit code 130"),
        ("kill -TERM $$", 1, "was killed by signal 15"),
        ("exit 137", 2, "ended with exit code 137"),
        ("kill -9 $$", 2, "was killed by signal 9"),
    ],
)
def test_a_real_process_is_retried_if_it_is_lost(
    trained: Workspace, instance: dg.DagsterInstance, broken: Broken, command: str, starts: int, ended: str
) -> None:
    lines = broken(command)
    assert f"`xc run tokens --dataset toy` {ended}; the log says why" in failed(trained, instance, "tokens")
    found = lines.read_text().splitlines()
    assert [line.endswith("run tokens --dataset toy") for line in found] == [True] * starts


# no process outlives its run


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    deaf = f"import pathlib, signal, time; signal.signal(15, signal.SIG_IGN); pathlib.Path({str(ready)!r}).touch()"
    process = subprocess.Popen([sys.executable, "-c", f"{deaf}; time.sleep(60)"])
    while not ready.exists():
        time.sleep(0.01)
    stop(process, patience=0.2)
    assert process.returncode == -9


def test_a_stage_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A run worker that is killed takes the stage along: it would hold the lock, and train for nobody."""
    sleeper = "import time; import assets.worker as w; w.main = lambda _: time.sleep(60); w.run([])"
    starter = (
        "import os, subprocess, sys; own = {**os.environ, 'XC_PARENT': str(os.getpid())};"
        "print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], env=own).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", starter, sleeper]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    child.wait(timeout=20)


@pytest.mark.parametrize(("ended", "code"), [(143, 143), (65, 65), (0, 0), (None, 0), ("text", 1)])
def test_an_exit_with_a_message_leaves_no_traceback_in_the_run(
    trained: Workspace, monkeypatch: pytest.MonkeyPatch, ended: int | str | None, code: int
) -> None:
    def main(arguments: list[str]) -> None:
        report("xc: stopped by SIGTERM")
        raise SystemExit(ended)

    opened = MagicMock()
    pipes = opened.__enter__.return_value
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    monkeypatch.setattr(worker, "main", main)
    monkeypatch.setattr(worker, "pace", lambda seconds: None)
    monkeypatch.setattr(worker, "open_dagster_pipes", lambda: opened)
    with pytest.raises(SystemExit) as caught:
        worker.run(["run", "corpus"])
    assert caught.value.code == code
    opened.__exit__.assert_called_once_with(None, None, None)
    silence()
    pipes.log.error.assert_called_once_with("xc: stopped by SIGTERM")
    said = [call.args[0] for call in pipes.report_custom_message.call_args_list]
    assert said == ([{worker.REASON: "stopped by SIGTERM"}] if code else [])


def test_a_stage_of_a_run_gets_its_device_and_logs_its_progress_seldom(
    trained: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[str] = []

    def main(arguments: list[str]) -> None:
        devices.append(os.environ[DEVICE])
        for now in (100.0, 110.0, 120.0):
            monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda now=now: now))
            report_paced("epochs", f"at {now:.0f} s")

    opened = MagicMock()
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    monkeypatch.setenv(DEVICE, "auto")
    monkeypatch.setattr(progress, "_pace", progress.LINE_SECONDS)
    monkeypatch.setattr(worker, "main", main)
    monkeypatch.setattr(worker, "open_dagster_pipes", lambda: opened)
    with pytest.raises(SystemExit):
        worker.run(["run", "corpus"])
    silence()
    assert devices == ["cpu"], "a stage outside of the pool leaves the GPU to a training"
    logged = [call.args[0] for call in opened.__enter__.return_value.log.info.call_args_list]
    assert logged == ["at 100 s", "at 120 s"], "Dagster keeps every line"


def test_messages_of_a_stage_reach_the_event_log(
    trained: Workspace, instance: dg.DagsterInstance, silent_mlflow: MagicMock
) -> None:
    """The one test that starts the real process; the artefact exists, so the stage has nothing to do."""
    sync(instance, trained)
    run = build(trained).resolve_job_def("compare").execute_in_process(QUIET, instance, partition_key="toy")
    lines = [str(entry.user_message) for entry in instance.all_logs(run.run_id)]
    assert "leaderboard: up to date" in lines
