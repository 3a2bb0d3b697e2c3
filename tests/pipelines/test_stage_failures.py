"""A stage whose process fails: an explained error ends the run, a lost process is tried again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import MagicMock

import dagster as dg
import pytest

from assets.partitions import sync
from assets.station import git_commit
from pipelines.definitions import build
from tests.pipelines.recorded import QUIET, Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core.stages import Workspace

# Dagster warns of previews inside its own Pipes client
pytestmark = pytest.mark.filterwarnings("ignore")

Broken = Callable[[str], Path]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broken:
    """Replace the Python of all stages by a shell command; return a file with a line per start."""

    def install(command: str) -> Path:
        starts, python = tmp_path / "starts", tmp_path / "python"
        python.write_text(f'#!/bin/sh\necho "$@" >> {starts}\n{command}\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        return starts

    return install


def ending(workspace: Workspace, instance: dg.DagsterInstance, stage: str) -> BaseException:
    """Run one stage of the dataset and return the exception it ends with."""
    sync(instance, workspace)
    job = build(workspace).resolve_job_def("prepare")
    with pytest.raises(Exception) as caught:
        job.execute_in_process(QUIET, instance, partition_key="toy", asset_selection=[dg.AssetKey(stage)])
    return caught.value


def may_be_tried_again(error: BaseException) -> bool:
    """True if a retry policy would act: on everything but a failure that forbids it."""
    return not (isinstance(error, dg.Failure) and not error.allow_retries)


@pytest.mark.parametrize("code", [64, 65, 70, 78])
def test_an_explained_exit_code_forbids_another_try(
    trained: Workspace, record: Callable[[Workspace], Recorded], code: int
) -> None:
    error = ending_with(record(trained), code)
    assert isinstance(error, dg.Failure)
    assert error.allow_retries is False
    assert "xc run corpus --dataset toy" in str(error.description)
    assert str(code) in str(error.description)


@pytest.mark.parametrize("code", [1, 63, 79, 137, -9])
def test_any_other_end_allows_another_try(
    trained: Workspace, record: Callable[[Workspace], Recorded], code: int
) -> None:
    error = ending_with(record(trained), code)
    assert isinstance(error, dg.Failure)
    assert error.allow_retries is True


def ending_with(recorded: Recorded, code: int) -> BaseException:
    """Let the process of the stage corpus end with ``code``, as Dagster words it."""

    def end(arguments: list[str]) -> None:
        raise dg.DagsterError(f"External execution process failed with code {code}")

    recorded.during = end
    return ending(recorded.workspace, recorded.instance, "corpus")


@pytest.mark.xfail(strict=True, reason="Dagster's error for a failed process is no DagsterError, so it is not caught")
@pytest.mark.parametrize("command", ["exit 64", "exit 65", "exit 78"])
def test_a_real_process_that_explains_its_end_is_not_tried_again(
    trained: Workspace, instance: dg.DagsterInstance, broken: Broken, command: str
) -> None:
    broken(command)
    assert not may_be_tried_again(ending(trained, instance, "corpus"))


@pytest.mark.parametrize("command", ["exit 1", "exit 63", "exit 79", "exit 137", "kill -9 $$"])
def test_a_real_process_that_is_lost_may_be_tried_again(
    trained: Workspace, instance: dg.DagsterInstance, broken: Broken, command: str
) -> None:
    starts = broken(command)
    assert may_be_tried_again(ending(trained, instance, "tokens"))
    (line,) = starts.read_text().splitlines()
    assert line.endswith("run tokens --dataset toy")


def test_messages_of_a_stage_reach_the_event_log(
    trained: Workspace, instance: dg.DagsterInstance, silent_mlflow: MagicMock
) -> None:
    """The one test that starts the real process; the artefact exists, so the stage has nothing to do."""
    sync(instance, trained)
    run = build(trained).resolve_job_def("compare").execute_in_process(QUIET, instance, partition_key="toy")
    lines = [str(entry.user_message) for entry in instance.all_logs(run.run_id)]
    assert "leaderboard: up to date, nothing to do" in lines


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


def test_the_commit_is_given_in_full(repository: Path) -> None:
    assert git_commit(str(repository)) == git(repository, "rev-parse", "HEAD")


def test_a_commit_with_changed_files_is_dirty(repository: Path) -> None:
    (repository / "file").write_text("2")
    assert git_commit(str(repository)) == git(repository, "rev-parse", "HEAD") + "-dirty"


def test_outside_git_there_is_no_commit(tmp_path: Path) -> None:
    assert git_commit(str(tmp_path)) == "none"
