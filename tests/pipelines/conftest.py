"""A whole project in a temporary folder: git, DVC, params.yaml, and the toy world run through Dagster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets import forked, processes
from assets.partitions import experiment_key, sync
from pipelines.definitions import build
from pipelines.graph import dvc_yaml
from tests import forks, stores
from tests.conftest import make_workspace
from xc_core.chain import Workspace

stores.install()
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Configuration of a run that prints nothing."""


def make_project(root: Path) -> Workspace:
    """Return a workspace with the toy world that is also a git and DVC repository, with dvc.yaml from the registry."""
    workspace = make_workspace(root)
    make_repository(root)
    return workspace


def make_repository(root: Path) -> None:
    """Make a project's folder a git and DVC repository, with dvc.yaml from the registry."""
    (root / "dvc.yaml").write_text(dvc_yaml(), "utf-8")
    (root / "constraints.txt").write_text("", "utf-8")
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(command, cwd=root, check=True, capture_output=True)


def dvc(root: Path, *arguments: str) -> str:
    """Run dvc in ``root`` and return what it prints; fail where it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path, "XC_ROOT": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class Materialised:
    """A project whose jobs prepare, retrain and compare have run through Dagster."""

    workspace: Workspace
    instance: dg.DagsterInstance
    definitions: dg.Definitions
    results: dict[str, dg.ExecuteInProcessResult]


def run_job(
    definitions: dg.Definitions, instance: dg.DagsterInstance, job: str, key: Any, **options: Any
) -> dg.ExecuteInProcessResult:
    """Run one job in this process with little noise."""
    return definitions.resolve_job_def(job).execute_in_process(
        instance=instance, partition_key=key, run_config=QUIET, raise_on_error=False, **options
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


WITHOUT_LOGS = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}
"""Settings of an instance: for the output of each step Dagster would start four processes."""


@pytest.fixture(autouse=True)
def nothing_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start DVC as the first stages of a run do, whatever another test has forked."""
    monkeypatch.setattr(forked.Forked, "was_started", False)


@pytest.fixture
def all_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stage start Python, not even the first two of a run."""
    monkeypatch.setattr(processes, "_COLD_STARTS", 0)


@pytest.fixture(scope="session")
def materialised(tmp_path_factory: pytest.TempPathFactory) -> Any:
    workspace = make_project(tmp_path_factory.mktemp("project"))
    with dg.instance_for_test(WITHOUT_LOGS) as instance, pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)  # MLflow sets it to the store that was last used
        definitions = build(workspace)
        sync(instance, workspace)
        with pytest.MonkeyPatch.context() as started:
            started.setattr(subprocess, "run", forks.STARTED)  # the first job as users run it
            # its second stage starts the server of forks; here the project's code stays the same, so they share it
            started.setattr(forked, "LIBRARIES", (*forked.LIBRARIES, "assets.worker", "xc_core.recipes"))
            results = {"prepare": run_job(definitions, instance, "prepare", "toy")}
        with pytest.MonkeyPatch.context() as warm:
            warm.setattr(processes, "_COLD_STARTS", 0)
            results["retrain"] = run_job(definitions, instance, "retrain", experiment_key("toy", "ngame"))
            results["compare"] = run_job(definitions, instance, "compare", "toy")
        yield Materialised(workspace, instance, definitions, results)
