"""Stages that are forked from a server: processes as any other, only faster to start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from assets import forked
from assets.forked import Forked
from assets.processes import ProcessFailedError, StageProcesses, stop
from tests.assets.stand_ins import describe, die, outlive, tidy, wait
from xc_core.chain import Workspace

pytestmark = [
    pytest.mark.chain,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]

SERVER: Any = forkserver._forkserver


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a server, soon, with one of the libraries."""
    with monkeypatch.context() as patch:
        patch.setattr(forked, "LIBRARIES", ("numpy",))
        assert forked.prepare()


def started(main: Any, folder: Path) -> Forked:
    """Start a stage that says with a file that it runs."""
    process = Forked([str(folder / "runs")], str(folder), os.environ, main)
    until = time.monotonic() + 60
    while not (folder / "runs").exists():
        assert time.monotonic() < until, "the process did not start"
        time.sleep(0.01)
    return process


def test_a_fork_has_the_arguments_the_folder_the_environment_and_the_files_of_its_starter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_OTHER", "of the starter, not of the process")
    process = Forked(["run", "x"], str(tmp_path), {"XC_OWN": "1", "PATH": "/bin"}, describe)
    assert process.wait(60) == 0
    seen = json.loads((tmp_path / "seen.json").read_text("utf-8"))
    server_id = SERVER._forkserver_pid
    assert seen.pop("title") == f"{sys.executable} -m assets.worker run x"
    assert seen.pop("frozen") > 10_000, "the libraries' objects are searched for garbage, which copies their pages"
    assert seen == {
        "arguments": ["run", "x"],
        "argv": ["run", "x"],
        "cwd": str(tmp_path),
        "first import from": str(tmp_path),
        "environ": {"XC_OWN": "1", "PATH": "/bin", "XC_PARENT": str(server_id)},
    }
    assert capfd.readouterr() == ("to standard output\n", "to standard error\n")


def test_a_fork_writes_to_the_files_that_its_starter_has_now(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Dagster gives each step files of its own, so those of the first step are not those of the second."""
    for _ in range(2):
        assert Forked([], str(tmp_path), os.environ, describe).wait(60) == 0
        assert capfd.readouterr().out == "to standard output\n"


def test_a_fork_runs_xc_and_ends_with_its_code(workspace: Workspace, capfd: pytest.CaptureFixture[str]) -> None:
    root = str(workspace.root)
    environ = {**os.environ, "XC_ROOT": root}
    assert Forked(["run", "corpus", "--dataset", "toy"], root, environ).wait(60) == 0
    assert workspace.folder("corpus", "toy").is_dir()
    assert Forked(["run", "corpus", "--dataset", "nothing"], root, environ).wait(60) == 66
    assert "no dataset 'nothing' in params.yaml" in capfd.readouterr().err


def test_a_fork_is_stopped_as_another_process_is(tmp_path: Path) -> None:
    process = started(wait, tmp_path)
    assert "PATH" in psutil.Process(process.pid).environ(), "the title wrote over the environment"
    assert (process.poll(), process.returncode) == (None, None)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    stop(process)
    assert process.returncode == -signal.SIGTERM


def test_a_fork_that_is_killed_is_lost(tmp_path: Path) -> None:
    code = Forked([], str(tmp_path), os.environ, die).wait(60)
    assert code == -signal.SIGKILL
    assert ProcessFailedError(code).lost


def test_a_fork_ends_with_its_server_and_the_next_one_has_another(tmp_path: Path) -> None:
    """The server ends with the run, killed or not."""
    process = started(outlive, tmp_path)
    child, first = psutil.Process(process.pid), SERVER._forkserver_pid
    os.kill(first, signal.SIGKILL)
    child.wait(timeout=20)
    assert ProcessFailedError(process.wait(20)).lost
    assert Forked([], str(tmp_path), os.environ, describe).wait(60) == 0
    assert SERVER._forkserver_pid != first


def test_a_stage_whose_run_has_ended_has_time_to_finish(tmp_path: Path) -> None:
    assert Forked([str(tmp_path / "runs")], str(tmp_path), os.environ, tidy).wait(20) == 143
    assert (tmp_path / "finished").exists()


@pytest.mark.parametrize("was_started", [True, False])
def test_a_command_of_dvc_is_forked_once_a_stage_was_and_ends_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, was_started: bool
) -> None:
    started: list[Sequence[str]] = []
    run = subprocess.run

    def noted(command: Sequence[str], **options: Any) -> Any:
        started.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    if was_started:
        assert Forked([], str(tmp_path), os.environ, describe).wait(60) == 0
        capfd.readouterr()
    done, failed = forked.dvc(["--version"], str(tmp_path)), forked.dvc(["status"], str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3.")
    assert (failed.returncode, failed.stdout) == (253, "")
    assert failed.stderr.startswith("ERROR: you are not inside of a DVC repository")
    commands = [[sys.executable, "-m", "dvc", word] for word in ("--version", "status")]
    assert started == ([] if was_started else commands)
    assert capfd.readouterr() == ("", "")


def test_dvc_has_the_folder_the_environment_and_the_title_of_a_started_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forked, "was_started", True)
    monkeypatch.setattr(forked, "_run_dvc", describe)
    monkeypatch.setenv("XC_OWN", "1")
    assert forked.dvc(["commit"], str(tmp_path)).stdout == "to standard output\n"
    seen = json.loads((tmp_path / "seen.json").read_text("utf-8"))
    assert (seen["title"], seen["cwd"]) == (f"{sys.executable} -m dvc commit", str(tmp_path))
    assert seen["environ"]["XC_OWN"] == "1"
    assert "XC_PARENT" not in seen["environ"]


def test_a_killed_command_of_dvc_has_the_code_of_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forked, "was_started", True)
    monkeypatch.setattr(forked, "_run_dvc", die)
    assert forked.dvc([], str(tmp_path)).returncode == -signal.SIGKILL


def test_an_interrupt_kills_the_command_of_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[Forked] = []
    wait_for = Forked.wait

    def interrupted(process: Forked, timeout: float | None = None) -> int:
        processes.append(process)
        if len(processes) > 1:
            return wait_for(process, timeout)
        while not (tmp_path / "runs").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Forked, "was_started", True)
    monkeypatch.setattr(Forked, "wait", interrupted)
    monkeypatch.setattr(forked, "_run_dvc", wait)
    with pytest.raises(KeyboardInterrupt):
        forked.dvc([str(tmp_path / "runs")], str(tmp_path))
    assert processes[0].returncode == -signal.SIGKILL


def test_what_the_server_imports_starts_no_thread_and_is_not_the_projects() -> None:
    """A fork has only the thread that forked: a lock that another one held would stay locked."""
    code = f"import os, sys, {', '.join(forked.LIBRARIES)}; print(len(os.listdir('/proc/self/task')), *sys.modules)"
    one = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=one, capture_output=True, text=True, check=True)
    threads, *modules = done.stdout.split()
    assert threads == "1"
    assert not {name.split(".")[0] for name in modules} & {"xc_core", "assets", "pipelines", "polars", "pyarrow"}


@pytest.mark.parametrize("supported", [True, False])
def test_from_the_third_stage_of_a_run_on_stages_are_forked(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    prepared: list[int] = []
    kinds: list[str] = []

    def prepare() -> bool:
        prepared.append(len(kinds))
        return supported

    def cold(command: Sequence[str], **options: Any) -> None:
        assert command == [sys.executable, "-m", "assets.worker", "run", "x"]
        assert options == {"cwd": "/here", "env": {"A": "1", "XC_PARENT": str(os.getpid())}}
        kinds.append("started")

    def fork(arguments: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
        assert (arguments, cwd, env) == (["run", "x"], "/here", {"A": "1"})
        kinds.append("forked")

    monkeypatch.setattr(forked, "prepare", prepare)
    monkeypatch.setattr(forked, "Forked", fork)
    monkeypatch.setattr(subprocess, "Popen", cold)
    of_run = StageProcesses()
    for _ in range(4):
        of_run._start(["run", "x"], "/here", {"A": "1"})
    assert kinds == ["started", "started", *(["forked", "forked"] if supported else ["started", "started"])]
    assert prepared == [1, 2, 3]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_on_another_system_than_linux_processes_are_not_forked(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: None)
    assert not forked.prepare()


def test_where_the_server_cannot_start_processes_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(forkserver, "ensure_running", refuse)
    assert not forked.prepare()
