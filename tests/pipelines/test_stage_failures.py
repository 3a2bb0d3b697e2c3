"""A stage whose process fails: an error with a message is not retried, a lost process is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import dagster as dg
import pytest

from assets.partitions import sync
from pipelines.definitions import build
from tests.pipelines.recorded import QUIET, Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core.chain import Workspace
from xc_core.git import git_commit

# Dagster warns of previews inside its own Pipes client
pytestmark = pytest.mark.filterwarnings("ignore")

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


def failure(workspace: Workspace, instance: dg.DagsterInstance, stage: str) -> dg.Failure:
    """Run one stage of the dataset and return its failure."""
    sync(instance, workspace)
    job = build(workspace).resolve_job_def("prepare")
    with pytest.raises(dg.Failure) as caught:
        job.execute_in_process(QUIET, instance, partition_key="toy", asset_selection=[dg.AssetKey(stage)])
    return caught.value


@pytest.mark.parametrize("code", [64, 65, 70, 78])
def test_an_exit_code_of_an_error_with_a_message_is_not_retried(
    trained: Workspace, record: Callable[[Workspace], Recorded], code: int
) -> None:
    error = failed_with(record(trained), code)
    assert error.allow_retries is False
    assert "xc run corpus --dataset toy" in str(error.description)
    assert str(code) in str(error.description)


@pytest.mark.parametrize("code", [1, 63, 79, 137, -9])
def test_any_other_exit_code_is_retried(trained: Workspace, record: Callable[[Workspace], Recorded], code: int) -> None:
    assert failed_with(record(trained), code).allow_retries is True


def failed_with(recorded: Recorded, code: int) -> dg.Failure:
    """Let the process of the stage corpus end with ``code``, in the words of Dagster."""

    def end(arguments: list[str]) -> None:
        raise dg.DagsterError(f"External execution process failed with code {code}")

    recorded.during = end
    return failure(recorded.workspace, recorded.instance, "corpus")


def test_another_error_of_the_process_is_raised_as_it_is(
    trained: Workspace, record: Callable[[Workspace], Recorded]
) -> None:
    recorded = record(trained)

    def fail(arguments: list[str]) -> None:
        raise FileNotFoundError("no Python")

    recorded.during = fail
    with pytest.raises(FileNotFoundError, match="no Python"):
        recorded.run("prepare", "toy", raise_on_error=True)


@pytest.mark.parametrize("code", [64, 65, 78])
def test_a_real_process_that_ends_with_a_message_is_not_retried(
    trained: Workspace, instance: dg.DagsterInstance, broken: Broken, code: int
) -> None:
    broken(f"exit {code}")
    error = failure(trained, instance, "corpus")
    assert error.allow_retries is False
    assert error.description == f"`xc run corpus --dataset toy` ended with exit code {code}; the log says why"


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("exit 1", "ended with exit code 1"),
        ("exit 63", "ended with exit code 63"),
        ("exit 79", "ended with exit code 79"),
        ("exit 137", "ended with exit code 137"),
        ("kill -9 $$", "was killed by signal 9"),
    ],
)
def test_a_real_process_that_is_lost_is_retried(
    trained: Workspace, instance: dg.DagsterInstance, broken: Broken, command: str, ended: str
) -> None:
    starts = broken(command)
    error = failure(trained, instance, "tokens")
    assert error.allow_retries is True
    assert error.description == f"`xc run tokens --dataset toy` {ended}; the log says why"
    (line,) = starts.read_text().splitlines()
    assert line.endswith("run tokens --dataset toy")


def test_messages_of_a_stage_reach_the_event_log(
    trained: Workspace, instance: dg.DagsterInstance, silent_mlflow: MagicMock
) -> None:
    """The one test that starts the real process; the artefact exists, so the stage has nothing to do."""
    sync(instance, trained)
    run = build(trained).resolve_job_def("compare").execute_in_process(QUIET, instance, partition_key="toy")
    lines = [str(entry.user_message) for entry in instance.all_logs(run.run_id)]
    assert "leaderboard: up to date" in lines


# the commit


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of one file."""
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_the_commit_is_shown_in_full(repository: Path) -> None:
    assert git_commit(str(repository)) == git(repository, "rev-parse", "HEAD")


def test_a_commit_with_changed_files_is_dirty(repository: Path) -> None:
    (repository / "file").write_text("2")
    assert git_commit(str(repository)) == git(repository, "rev-parse", "HEAD") + "-dirty"


def test_outside_git_there_is_no_commit(tmp_path: Path) -> None:
    assert git_commit(str(tmp_path)) == "none"
