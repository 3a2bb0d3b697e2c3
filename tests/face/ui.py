"""A project behind `xc ui`: started, asked and stopped as a user does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conftest import TOY_CHANGES
from tests.pipelines.conftest import make_project
from tests.processes import free_port, wait_for
from tests.soak.servers import Servers
from xc_core.chain import Workspace

_ROOT: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 480.0
_LAUNCH_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 90.0
_LOADED: Final = "{repositoriesOrError{... on RepositoryConnection{nodes{name}}}}"
_RUNS: Final = "{runsOrError{... on Runs{results{runId jobName status tags{key value}}}}}"
_ADDRESSES: Final = ("MLFLOW_TRACKING_URI", "XC_DAGSTER_URL", "XC_MLFLOW_URL")


@dataclass(frozen=True)
class Ui:
    """`xc ui` of a project: the addresses of Dagster and MLflow."""

    workspace: Workspace
    dagster: str
    mlflow: str

    def ask(self, query: str) -> dict[str, Any]:
        """Return the answer of Dagster to a GraphQL query."""
        content = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.dagster}/graphql", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.loads(answer.read())["data"])

    def ready(self) -> bool:
        """Return True if both servers answer and the jobs are loaded."""
        with suppress(OSError, KeyError, TypeError, ValueError):
            urllib.request.urlopen(f"{self.mlflow}/health", timeout=5).close()
            return bool(self.ask(_LOADED)["repositoriesOrError"]["nodes"])
        return False

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, the last one first, without those by which a sensor reports; tags as a mapping."""
        found = self.ask(_RUNS)["runsOrError"]["results"]
        named = [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]
        return [run for run in named if run["jobName"] != "staleness"]

    def new_run(self, before: set[str]) -> str:
        """Wait for a run that is not in ``before`` and that nobody but a person launched; return its id."""
        wait_for(lambda: bool(self._by_hand() - before), _LAUNCH_SECONDS, "the run")
        (run,) = self._by_hand() - before
        return run

    def _by_hand(self) -> set[str]:
        automatic = {"dagster/sensor_name", "dagster/schedule_name"}
        return {str(run["runId"]) for run in self.runs() if not automatic & set(run["tags"])}

    def trains(self) -> bool:
        """Return True if a stage of the project is at work."""
        return bool(Servers(self.workspace.root).processes("assets.worker"))


@contextmanager
def running(root: Path) -> Iterator[Ui]:
    """Start `xc ui` on a project at ``root``, and stop it and all its processes at the end.

    The project is the toy world with two recipes: `ngame`, quick, and `slow`, which trains for minutes. Its schedule
    refresh_toy ticks every minute once it is switched on.
    """
    workspace, ports = _project(root), (str(free_port()), str(free_port()))
    found = Ui(workspace, *(f"http://127.0.0.1:{port}" for port in ports))
    asked = ["ui", "--dagster-port", ports[0], "--mlflow-port", ports[1]]
    environment = {name: value for name, value in os.environ.items() if name not in _ADDRESSES}
    with (root / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "xc_core.cli.main", *asked],
            cwd=root, env={**environment, "XC_ROOT": str(root)}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(found.ready, _START_SECONDS, "xc ui")
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_SECONDS)
        Servers(root).stop_all()  # runs outlive the servers by design


def _project(root: Path) -> Workspace:
    workspace = make_project(root)
    encoder = {**TOY_CHANGES["encoder"], "order": {"batch_size": 32, "refresh_every": 10_000}, "epochs": 50_000.0}
    slow = {**TOY_CHANGES, "encoder": encoder}
    workspace.params.declare_experiment("toy", "slow", "ngame", slow)
    path = workspace.params.path
    path.write_text(path.read_text().replace("  toy:\n", '  toy:\n    schedule: {refresh: "* * * * *"}\n', 1))
    shutil.copy(_ROOT / "dagster.yaml", root)
    return workspace
