"""The servers of a project as a service manager runs them: each process by itself, started again if it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.processes import free_port, wait_for

SERVERS: Final = ("webserver", "daemon", "tracking", "code")
_MODULE: Final = "pipelines.definitions"
_START_SECONDS: Final = 120.0
_QUERY: Final = "query($i: ID!){runOrError(runId:$i){... on Run{status tags{key value}}}}"
_LAUNCH: Final = (
    "mutation($p: ExecutionParams!){launchRun(executionParams:$p){__typename ... on LaunchRunSuccess{run{runId}}}}"
)
_STOP: Final = "mutation($i: String!){terminateRun(runId:$i){__typename}}"


@dataclass
class Servers:
    """Webserver, daemon, code server and tracking server of the project at ``root``."""

    root: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in SERVERS})
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        state = self.root / ".xc" / "dagster"
        return {
            **os.environ,
            "DAGSTER_HOME": str(self.root),
            "XC_ROOT": str(self.root),
            "XC_STATE_DIR": str(state),
            "XC_LOG_DIR": str(state / "logs"),
            "DAGSTER_DISABLE_TELEMETRY": "1",
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.ports['tracking']}",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "XC_CHECKPOINT_SECONDS": "0.5",
            "XC_RETRY_SECONDS": "10",
        }

    def command(self, name: str) -> list[str]:
        """Return the command of a server."""
        store = self.root / ".xc" / "mlflow"
        port = str(self.ports[name])
        workspace = ["-w", str(self.root / "workspace.yaml")]
        loopback = ["--host", "127.0.0.1", "--port", port]
        return {
            "code": ["-m", "dagster", "api", "grpc", "-m", _MODULE, *loopback, "--location-name", "xc"],
            "webserver": ["-m", "dagster_webserver", *loopback, *workspace],
            "daemon": ["-m", "dagster._daemon", "run", *workspace],
            "tracking": ["-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}",
                         "--default-artifact-root", (store / "artifacts").as_uri(), *loopback, "--workers", "1"],
        }[name]  # fmt: skip

    def start(self, name: str) -> None:
        """Start a server unless it runs."""
        process = self.running.get(name)
        if process is not None and process.poll() is None:
            return
        with (self.root / f"{name}.log").open("ab") as log:
            command = [sys.executable, *self.command(name)]
            self.running[name] = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def start_all(self) -> None:
        """Start every server and wait until the webserver knows the jobs."""
        content = {"host": "127.0.0.1", "port": self.ports["code"], "location_name": "xc"}
        (self.root / "workspace.yaml").write_text(json.dumps({"load_from": [{"grpc_server": content}]}))
        (self.root / ".xc" / "mlflow").mkdir(parents=True, exist_ok=True)
        self.start("tracking")
        self.start("code")
        wait_for(lambda: self._listens("code"), _START_SECONDS, "code server")
        for name in SERVERS:
            self.start(name)
        wait_for(lambda: self._listens("tracking"), _START_SECONDS, "tracking server")
        wait_for(self.ready, _START_SECONDS, "webserver")

    def _listens(self, name: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[name]), timeout=1):
            return True
        return False

    def ready(self) -> bool:
        """Return True if the webserver answers and has loaded the jobs."""
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
            found = self.ask("{repositoriesOrError{... on RepositoryConnection{nodes{name}}}}")
            return bool(found["repositoriesOrError"]["nodes"])
        return False

    def stop_all(self) -> None:
        """Kill every server and all processes of this project."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for found in self.processes():
            with contextlib.suppress(psutil.Error):
                found.kill()

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return the processes of this project whose command has this word."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                own = process.environ().get("XC_ROOT") == str(self.root) and process.pid != os.getpid()
                if own and word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the answer of the webserver to a GraphQL query."""
        content = json.dumps({"query": query, "variables": variables}).encode()
        url = f"http://127.0.0.1:{self.ports['webserver']}/graphql"
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.loads(answer.read())["data"])

    def launch(self, job: str, stages: tuple[str, ...]) -> str:
        """Start stages of a job for toy/ngame, as the button of the UI does; return the id of the run."""
        names = {"dagster/partition": "toy|ngame", "dagster/partition/dataset": "toy",
                 "dagster/partition/recipe": "ngame"}  # fmt: skip
        tags = [{"key": key, "value": value} for key, value in names.items()]
        selector = {"repositoryLocationName": "xc", "repositoryName": "__repository__", "jobName": job,
                    "assetSelection": [{"path": [stage]} for stage in stages]}  # fmt: skip
        wanted = {"selector": selector, "runConfigData": "{}", "executionMetadata": {"tags": tags}}
        return str(self.ask(_LAUNCH, p=wanted)["launchRun"]["run"]["runId"])

    def cancel(self, run: str) -> None:
        """Terminate a run, as the button of the UI does."""
        assert self.ask(_STOP, i=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def run(self, run: str) -> tuple[str, dict[str, str]]:
        """Return the status and tags of a run."""
        found = self.ask(_QUERY, i=run)["runOrError"]
        return found["status"], {tag["key"]: tag["value"] for tag in found["tags"]}
