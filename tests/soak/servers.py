"""The servers of a project as a service manager runs them: each process by itself, started again if it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from pipelines.sensors import RETRY_TAG
from tests.processes import free_port, wait_for
from tests.soak.client import post

SERVERS: Final = ("webserver", "daemon", "tracking", "code")
STAGE, TRAINER, WORKER, SERVING = "stage", "trainer", "run worker", "xc serve"
ENDED: Final = ("SUCCESS", "FAILURE", "CANCELED")
_MODULE: Final = "pipelines.definitions"
_START_SECONDS: Final = 120.0
_RUN_SECONDS: Final = 1200.0
_QUERY: Final = "query($i: ID!){runOrError(runId:$i){... on Run{status tags{key value}}}}"
_LAUNCH: Final = (
    "mutation($p: ExecutionParams!){launchRun(executionParams:$p){__typename ... on LaunchRunSuccess{run{runId}}}}"
)
_REPOSITORY: Final = {"repositoryLocationName": "xc", "repositoryName": "__repository__"}
_SWITCH: Final = "mutation($s: SensorSelector!){startSensor(sensorSelector:$s){__typename}}"
_TICKS: Final = (
    "query($s: SensorSelector!){sensorOrError(sensorSelector:$s){... on Sensor{sensorState{ticks{timestamp runIds}}}}}"
)
_PARTITIONS: Final = "query($k: AssetKeyInput!){assetNodeOrError(assetKey:$k){... on AssetNode{partitionKeys}}}"
_RUNS: Final = "query($f: RunsFilter!){runsOrError(filter:$f){... on Runs{results{runId status endTime}}}}"
_HEARTBEATS: Final = "{instance{daemonHealth{allDaemonStatuses{required lastHeartbeatTime}}}}"
_STOP: Final = "mutation($i: String!){terminateRun(runId:$i){__typename}}"
AWAY: Final = (OSError, http.client.HTTPException, KeyError, TypeError, ValueError)
"""Errors of a question to a webserver that was killed, or that starts."""


@dataclass
class Servers:
    """Webserver, daemon, code server and tracking server of the project at ``root``; processes of `xc serve`."""

    root: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in SERVERS})
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def serving(self) -> list[str]:
        """Names of the processes of `xc serve`."""
        return [name for name in self.ports if kind_of(name) == SERVING]

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
            SERVING: ["-m", "xc_core.cli.main", "serve", "--dataset", "toy", "--port", port, "--poll", "0.5",
                      "--threads", "1"],
        }[SERVING if name in self.serving else name]  # fmt: skip

    def start(self, name: str) -> None:
        """Start a server unless it runs. What is left of its processes ends first, except runs of the code server."""
        process = self.running.get(name)
        if process is not None:
            if process.poll() is None:
                return
            if name != "code":
                _end_group(process)
        with (self.root / f"{name.replace(' ', '-')}.log").open("ab") as log:
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

    def serve(self, count: int) -> list[int]:
        """Start ``count`` processes of `xc serve`; return their ports once all of them answer."""
        names = [f"{SERVING} {number}" for number in range(1, count + 1)]
        self.ports |= {name: free_port() for name in names}
        for name in names:
            self.start(name)
        for name in names:
            wait_for(lambda name=name: self.answers(name, 0.0), _START_SECONDS, name)  # type: ignore[misc]
        return [self.ports[name] for name in names]

    def look_after(self, stop: threading.Event, seconds: float) -> None:
        """Start servers that have ended, within ``seconds``, until ``stop`` is set."""
        while not stop.wait(seconds):
            for name in list(self.running):
                self.start(name)

    def answers(self, name: str, since: float) -> bool:
        """Return True if a server that was killed at the time ``since`` is at work again."""
        with contextlib.suppress(*AWAY):
            if name == "webserver":
                return self.ready()
            if name == "daemon":
                found = self.ask(_HEARTBEATS)["instance"]["daemonHealth"]["allDaemonStatuses"]
                return all(one["lastHeartbeatTime"] > since for one in found if one["required"])
            if name == "tracking":
                with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/health", timeout=5) as answer:
                    return bool(answer.status == 200)
            if name in self.serving:
                return post(self.ports[name], {"text": "river0"})[0] == 200
            return self._listens(name)
        return False

    def _listens(self, name: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[name]), timeout=1):
            return True
        return False

    def ready(self) -> bool:
        """Return True if the webserver answers and has loaded the jobs."""
        with contextlib.suppress(*AWAY):
            found = self.ask("{repositoriesOrError{... on RepositoryConnection{nodes{name}}}}")
            return bool(found["repositoriesOrError"]["nodes"])
        return False

    def stop_all(self) -> None:
        """Kill every server and all processes of this project."""
        for process in self.running.values():
            _end_group(process)
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
        """Start stages of a job for toy/ngame, as the button of the UI does; return the id of the run.

        The job prepare runs for the dataset.
        """
        names = {"dagster/partition": "toy|ngame", "dagster/partition/dataset": "toy",
                 "dagster/partition/recipe": "ngame"}  # fmt: skip
        names = {"dagster/partition": "toy"} if job == "prepare" else names
        tags = [{"key": key, "value": value} for key, value in names.items()]
        selector = {**_REPOSITORY, "jobName": job, "assetSelection": [{"path": [stage]} for stage in stages]}
        wanted = {"selector": selector, "runConfigData": "{}", "executionMetadata": {"tags": tags}}
        return str(self.ask(_LAUNCH, p=wanted)["launchRun"]["run"]["runId"])

    def cancel(self, run: str) -> None:
        """Terminate a run, as the button of the UI does."""
        assert self.ask(_STOP, i=run)["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def switch_on(self, sensor: str) -> None:
        """Switch a sensor on, as the switch of the UI does."""
        selector = {**_REPOSITORY, "sensorName": sensor}
        assert self.ask(_SWITCH, s=selector)["startSensor"]["__typename"] == "Sensor"

    def ticks(self, sensor: str) -> list[tuple[float, list[str]]]:
        """Return the time of each tick of a sensor, as seconds since 1970, and the runs that it started; last first."""
        state = self.ask(_TICKS, s={**_REPOSITORY, "sensorName": sensor})["sensorOrError"]["sensorState"]
        return [(float(tick["timestamp"]), list(tick["runIds"])) for tick in state["ticks"]]

    def started_by(self, sensor: str) -> list[str]:
        """Return the runs that a sensor started, by their tag, the last one first."""
        tags = [{"key": "dagster/sensor_name", "value": sensor}]
        return [str(run["runId"]) for run in self.ask(_RUNS, f={"tags": tags})["runsOrError"]["results"]]

    def partitions(self, asset: str) -> list[str]:
        """Return the partitions of an asset."""
        return list(self.ask(_PARTITIONS, k={"path": [asset]})["assetNodeOrError"]["partitionKeys"])

    def runs(self, job: str) -> dict[str, str]:
        """Return the status of each run of a job, the last one first."""
        found = self.ask(_RUNS, f={"pipelineName": job})["runsOrError"]["results"]
        return {str(run["runId"]): str(run["status"]) for run in found}

    def ends(self) -> list[tuple[str, float]]:
        """Return the status of each run of all jobs, and when it ended (0 if it has not), as seconds since 1970."""
        found = self.ask(_RUNS, f={})["runsOrError"]["results"]
        return [(str(run["status"]), float(run["endTime"] or 0)) for run in found]

    def run(self, run: str) -> tuple[str, dict[str, str]]:
        """Return the status and tags of a run."""
        found = self.ask(_QUERY, i=run)["runOrError"]
        return found["status"], {tag["key"]: tag["value"] for tag in found["tags"]}

    def _retry_of(self, run: str) -> str:
        """Return the run that the sensor ``lost_retries`` started instead of Dagster, an empty string if none."""
        with contextlib.suppress(*AWAY):
            found = self.ask(_RUNS, f={"tags": [{"key": RETRY_TAG, "value": run}]})["runsOrError"]["results"]
            return str(found[0]["runId"]) if found else ""
        return ""

    def ended(self, run: str, seconds: float = _RUN_SECONDS) -> str:
        """Wait for the end of a run and of its automatic retry; return the last status."""
        started, status = time.monotonic(), "not known"
        while time.monotonic() - started < seconds:
            try:
                status, tags = self.run(run)
            except AWAY:
                time.sleep(1)
                continue
            if retry := tags.get("dagster/auto_retry_run_id") or (status == "FAILURE" and self._retry_of(run)):
                run = retry
            elif status in ENDED and tags.get("dagster/will_retry", "false") != "true":
                return status
            time.sleep(0.5)
        raise AssertionError(f"run {run} is {status} after {seconds:.0f} s")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def words(process: psutil.Process) -> list[str]:
    """Return the command of a process; the title of a forked stage is one text."""
    return " ".join(process.cmdline()).split()


def kind_of(name: str) -> str:
    """Return the kind of a process: those of `xc serve` are one."""
    return SERVING if name.startswith(SERVING) else name


def victim(servers: Servers, kind: str) -> psutil.Process | None:
    """Return a living process of a kind: a server by its name, a run worker, a stage, or a stage that trains.

    The tracking server answers in a child of its first process, which would live on without its parent.
    """
    if kind in servers.ports:
        process = servers.running[kind]
        if process.poll() is not None:
            return None
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(process.pid)
            return [first, *(first.children() if kind == "tracking" else [])][-1]
        return None
    stages = servers.processes("assets.worker")
    if kind == WORKER:
        found = [p for p in servers.processes("spawn_main") if p not in servers.processes("mlflow")]
    else:
        trains = [p for p in stages if {"encoder", "classifier"} & set(words(p))]
        found = trains if kind == TRAINER else stages
    return found[0] if found else None


def leftovers(root: Path) -> list[str]:
    """Return the temporary files and folders of writers in the project."""
    found = [path for path in root.rglob(".*") if path.suffix == ".tmp" or path.name.endswith(".old")]
    return [str(path.relative_to(root)) for path in found if ".git" not in path.parts]
