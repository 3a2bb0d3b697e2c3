"""``xc demo`` and ``xc ui``: the chain through Dagster on the bundled dataset, and the two user interfaces.

Takes: nothing, or ports.                   Gives: a demo's table; two servers on loopback.
May import: click, dagster (inside functions), assets, pipelines, xc_core.  Never: listens beyond loopback unless told.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from assets.settings import dagster_environment, mlflow_settings
from xc_core.cli.doctor import Finding
from xc_core.stages.workspace import Workspace


@click.command(short_help="Materialise the whole chain on the bundled dataset.")
@click.option("--dataset", default="wordnet-mini", show_default=True)
@click.option("--recipe", default="ngame", show_default=True)
def demo(dataset: str, recipe: str) -> None:
    """Materialise every asset through Dagster, register the champion, and show what it predicts."""
    workspace = Workspace.find()
    os.environ.update(dagster_environment(workspace.root))
    os.chdir(workspace.root)
    from pipelines.demo import run

    run(workspace, dataset, recipe)


@click.command(short_help="Open the Dagster UI and the MLflow UI.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; others can reach what is not loopback.",
)
@click.option("--dagster-port", default=3000, show_default=True)
@click.option("--mlflow-port", default=5000, show_default=True)
def ui(host: str, dagster_port: int, mlflow_port: int) -> None:
    """Start `dagster dev` and `mlflow server` on this project and keep both until interrupted."""
    root = Workspace.find().root
    settings = mlflow_settings(root)
    # of MLflow's server runs and models are wanted, not the eight processes (2 GB) for its jobs of language models
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ, **dagster_environment(root)}
    commands = [
        [_beside_python("dagster"), "dev", "-h", host, "-p", str(dagster_port)],
        [_beside_python("mlflow"), "server", "--backend-store-uri", settings.uri, "--default-artifact-root",
         settings.artifacts, "--host", host, "--port", str(mlflow_port), "--workers", "1"],
    ]  # fmt: skip
    click.echo(f"Dagster  http://{host}:{dagster_port}\nMLflow   http://{host}:{mlflow_port}\nstop with Ctrl-C")
    # a plain kill must take both servers along, as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running = [subprocess.Popen(command, cwd=root, env=environment, start_new_session=True) for command in commands]
    try:
        while all(process.poll() is None for process in running):
            time.sleep(0.5)
    except KeyboardInterrupt:
        click.echo("stopping", err=True)
    finally:
        _stop(running)


def _stop(running: list[subprocess.Popen[bytes]], patience: float = 15.0) -> None:
    """End each server and everything it started: asked first, made to after ``patience`` seconds."""
    for number in (signal.SIGINT, signal.SIGKILL):
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=patience)


def _beside_python(name: str) -> str:
    """Return the path of a command of this environment."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else (shutil.which(name) or name)


def check() -> Iterator[Finding]:
    """Say whether Dagster's graph, the registry of stages and dvc.yaml are the same (entry point ``xc.checks``)."""
    from pipelines.graph import differences

    found = differences(Workspace.find().root)
    for text in found:
        yield Finding("fault", text)
    if not found:
        yield Finding("ok", "stage registry, Dagster's assets and dvc.yaml agree")
