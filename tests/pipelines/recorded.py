"""Runs jobs on finished artefacts; processes and calls to MLflow are recorded, not started or sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import dagster as dg
import mlflow
import pytest

from assets import stages
from assets.partitions import sync
from assets.processes import StageProcesses
from assets.release import registry
from assets.release.gate import Line, Verdict
from assets.release.judge import Judge
from pipelines.definitions import build
from tests.pipelines.conftest import QUIET
from xc_core.chain import Workspace
from xc_core.git import project_checkout


@dataclass
class Recorded:
    """Jobs of one workspace, with the processes they started and the calls they made to MLflow."""

    workspace: Workspace
    instance: dg.DagsterInstance
    mlflow: MagicMock
    processes: list[dict[str, Any]] = field(default_factory=list)
    """What each process was started with: arguments, root."""
    during: Callable[[list[str]], None] = lambda arguments: None
    """Called instead of each process, with the arguments of ``xc``."""

    @property
    def calls(self) -> list[str]:
        """The arguments of ``xc``, of each process, as one line."""
        return [" ".join(process["arguments"]) for process in self.processes]

    def run(self, job: str, partition: str, **options: Any) -> dg.ExecuteInProcessResult:
        sync(self.instance, self.workspace)
        return build(self.workspace).resolve_job_def(job).execute_in_process(
            QUIET, self.instance, partition_key=partition, **{"raise_on_error": False, **options}
        )  # fmt: skip


@pytest.fixture
def silent_mlflow(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Replace the MLflow client with one that has no runs, and whose model versions have files and pass the gate."""
    client = MagicMock()
    client.search_runs.return_value = []
    client.create_run.return_value.info.run_id = "r"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(mlflow, "MlflowClient", lambda *_, **__: client)
    monkeypatch.setattr(mlflow, "set_tracking_uri", lambda _: None)
    monkeypatch.setattr(mlflow.artifacts, "list_artifacts", lambda **_: ["MLmodel"])
    monkeypatch.setattr(registry, "own_folder", lambda version, artifact_root: Path())
    passed = Verdict((Line("opens and answers", True, "40 texts"),), "40 documents")
    monkeypatch.setattr(Judge, "__call__", lambda self, version, champion: passed)
    return client


@pytest.fixture
def record(
    instance: dg.DagsterInstance, silent_mlflow: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Workspace], Recorded]:
    """Return a function that records the jobs of a workspace; all its artefacts must exist."""

    def start(workspace: Workspace) -> Recorded:
        recorded = Recorded(workspace, instance, silent_mlflow)

        def process(_: StageProcesses, **arguments: Any) -> None:
            recorded.processes.append({k: v for k, v in arguments.items() if k != "context"})
            recorded.during(arguments["arguments"])

        monkeypatch.setattr(StageProcesses, "run", process)
        monkeypatch.setattr(stages, "project_checkout", cache(project_checkout))  # half the time of a job
        return recorded

    return start
