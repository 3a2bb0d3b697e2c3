"""``xc ui`` starts the servers of Dagster and MLflow; ``xc demo`` runs the pipeline on the bundled dataset."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

import click

from assets.database import unmade
from assets.links import DAGSTER_URL, MLFLOW_URL, mlflow_address
from assets.mlflow_errors import check_drivers
from assets.settings import MlflowSettings, dagster_environment, mlflow_settings
from xc_core import artifacts
from xc_core.chain.workspace import Workspace
from xc_core.cli.doctor import Finding
from xc_core.cli.options import host_option
from xc_core.errors import BusyError, UnavailableError, UsageError, bare
from xc_core.leftovers import process_of
from xc_core.locks import locked, share
from xc_core.plugins import importing
from xc_core.visible import http_address

_ALL_INTERFACES: Final = ("0.0.0.0", "::", "")
"""Hosts that stand for every address of the machine."""
_KNOWN_WARNINGS: Final = ("Function `dev_command` is superseded", "starlette.middleware.wsgi is deprecated")
"""Starts of warnings that Dagster and MLflow give about themselves at each start."""


@click.command(short_help="Run the whole pipeline on the bundled dataset.")
@click.option("--dataset", default="wordnet-mini", show_default=True, help="Name of the dataset.")
@click.option("--recipe", default="ngame", show_default=True, help="Name of the recipe.")
def demo(dataset: str, recipe: str) -> None:
    """Run every stage through Dagster, register the model, and show what it predicts."""
    workspace = Workspace.find()
    workspace.params.experiment(dataset, recipe)  # reports what is wrong with a name, before Dagster is imported
    os.environ.update(dagster_environment(workspace.root))
    os.chdir(workspace.root)
    with importing():
        from pipelines.demo import run

    run(workspace, dataset, recipe)


@click.command(short_help="Open the Dagster UI and the MLflow UI.")
@host_option
@click.option("--dagster-port", default=3000, show_default=True, help="Port of the Dagster UI.")
@click.option("--mlflow-port", default=5000, show_default=True, help="Port of the MLflow UI.")
def ui(host: str, dagster_port: int, mlflow_port: int) -> None:
    """Start `dagster dev` and `mlflow server` for this project; both run until interrupted.

    No MLflow server is started if MLFLOW_TRACKING_URI is the address of one.
    """
    workspace = Workspace.find()
    root = workspace.root
    settings = mlflow_settings(root)
    os.environ.update(dagster_environment(root))
    with importing():
        from pipelines.instance import ready

    # two daemons on one database would both send each alert, and might start a run twice
    lock, context = Path(os.environ["XC_STATE_DIR"]) / "ui.lock", click.get_current_context()
    context.with_resource(locked(lock, f"xc ui with the state in {lock.parent}", needed=False))
    inherited = context.with_resource(servers_lock(lock.with_name("servers.lock")))
    elsewhere = settings.uri.startswith("http")
    ports = {"--dagster-port": dagster_port} | ({} if elsewhere else {"--mlflow-port": mlflow_port})
    check_free(host, ports)  # Dagster only logs, among many lines, that it cannot listen
    with ready(workspace):  # the partitions are there from the start
        pass
    # MLflow's job execution, which is for language models, would start eight processes (2 GB)
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    environment |= _addresses(host, dagster_port, mlflow_port)
    ignored = [f"ignore:{start}" for start in _KNOWN_WARNINGS]
    environment["PYTHONWARNINGS"] = ",".join([*ignored, *filter(None, [os.environ.get("PYTHONWARNINGS")])])
    # not an argument: other users can read the arguments of a process, and the address may hold a password
    environment["MLFLOW_BACKEND_STORE_URI"] = settings.uri
    commands = [
        [_beside_python("dagster"), "dev", "-w", str(_code_location(root)), "-h", host, "-p", str(dagster_port)]
    ]
    if not elsewhere:
        commands.append([*_mlflow_server(settings), "--host", host, "--port", str(mlflow_port), "--workers", "1"])
    tracking = settings.shown if elsewhere else http_address(host, mlflow_port)
    click.echo(f"Dagster  {http_address(host, dagster_port)}\nMLflow   {tracking}\nstop with Ctrl-C")
    # SIGTERM stops both servers too, as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running = started(commands, root, environment, inherited)
    try:
        while all(process.poll() is None for process in running):
            time.sleep(0.5)
        _check_ended(commands, running)
    except KeyboardInterrupt:
        click.echo("stopping", err=True)
    finally:
        _stop(running)


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """Raise UsageError if a server cannot listen on one of the ports, which have the names of options."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as probes:  # all at once: two options may have one port
        for option, port in ports.items():
            probe = probes.enter_context(socket.socket(family))
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                probe.listen()
            except (OSError, OverflowError, UnicodeError) as error:
                raise UsageError(
                    f"{bare(host)}, port {port}, where no server can listen ({error})",
                    expected="an address of this machine and a free port",
                    do=f"stop the program that uses it, or choose another {option}",
                ) from error


def _mlflow_server(settings: MlflowSettings) -> list[str]:
    """Return the start of the command of MLflow's server, whose database is there or can be made."""
    check_drivers(settings.uri)  # the server would start its processes again and again
    if unmade(settings.uri):
        with importing():
            from assets.tracking import connect

        connect(settings.uri, settings.lock)  # which makes it whole; a server might be stopped meanwhile
    return [_beside_python("mlflow"), "server", "--default-artifact-root", settings.artifacts]


def _check_ended(commands: list[list[str]], running: list[subprocess.Popen[bytes]]) -> None:
    """Raise UnavailableError for a server that failed: a service manager starts again what did not end with 0."""
    for command, process in zip(commands, running, strict=True):
        if code := process.poll():
            raise UnavailableError(
                f"`{Path(command[0]).name} {command[1]}` ended with exit code {code} (see its messages above)",
                expected="servers that run until they are interrupted",
                do="fix what it reports; for a port that is in use, stop the process that uses it, or choose another "
                "--dagster-port or --mlflow-port",
            )


@contextlib.contextmanager
def servers_lock(path: Path) -> Iterator[TextIO]:
    """Yield a locked file for the servers to inherit: they hold its lock until they end, also if xc ui is killed.

    Raises BusyError if servers of such an xc ui run. On a disk without locks nobody can tell.
    """
    with artifacts.writing(path):
        stream = path.open("a+")
    with stream:
        share(stream, path.parent)
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            latest = os.fstat(stream.fileno()).st_mtime + 5  # a younger process only has the id of one that ended
            groups = [f"-{pid}" for pid in stream.read().split() if process_of(int(pid), latest)]
            hint = f"kill -INT -- {' '.join(groups)}" if groups else "their commands are dagster dev and mlflow server"
            raise BusyError(
                "servers of an xc ui that was killed, which still run",
                expected="one daemon of Dagster per database",
                do=f"stop them ({hint}), then run the same command again",
            ) from None
        except OSError:
            pass
        yield stream


def started(
    commands: list[list[str]], root: Path, environment: dict[str, str], inherited: TextIO
) -> list[subprocess.Popen[bytes]]:
    """Start the servers in sessions of their own, with SIGINT as usual; write their ids into the file they inherit.

    A shell script starts what it ends with & with SIGINT ignored, and children inherit that. Dagster would then ignore
    SIGTERM too, so a cancelled run would train on.
    """
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    options: dict[str, Any] = {"start_new_session": True, "pass_fds": [inherited.fileno()]}
    try:
        running = [subprocess.Popen(command, cwd=root, env=environment, **options) for command in commands]
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    with contextlib.suppress(OSError):  # a full disk: the next xc ui cannot name them
        inherited.truncate(0)
        os.write(inherited.fileno(), "".join(f"{process.pid}\n" for process in running).encode())
    return running


def _addresses(host: str, dagster_port: int, mlflow_port: int) -> dict[str, str]:
    """Return the addresses of both UIs for the links between them.

    An address that the user has set stays. One that listens on all interfaces has no address of its own.
    """
    if host in _ALL_INTERFACES:
        return {}
    addresses = {DAGSTER_URL: http_address(host, dagster_port)}
    if not mlflow_address():
        addresses[MLFLOW_URL] = http_address(host, mlflow_port)
    return {variable: os.environ.get(variable) or address for variable, address in addresses.items()}


def _code_location(root: Path) -> Path:
    """Write the file that names Dagster's code location, and return it: a project need not have a pyproject.toml."""
    path = root / ".xc" / "dagster" / "workspace.yaml"
    module = {"module_name": "pipelines.definitions", "location_name": "xc", "working_directory": str(root)}
    artifacts.write_file(path, json.dumps({"load_from": [{"python_module": module}]}))
    return path


def _stop(running: list[subprocess.Popen[bytes]], patience: float = 15.0) -> None:
    """Stop each server and all its processes: SIGINT first, SIGKILL after ``patience`` seconds."""
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
    """Report whether the stage registry, Dagster's graph and dvc.yaml agree (entry point ``xc.checks``)."""
    from assets.resources import Dvc
    from pipelines.graph import differences
    from pipelines.instance import unread_settings

    root = Workspace.find().root
    if (unread := unread_settings(Path(dagster_environment(root)["DAGSTER_HOME"]))) is not None:
        yield Finding("note", f"{unread.found}; xc ui and xc demo are refused: {unread.do}")
    problems, dvc = differences(root), Dvc.of(root)
    for text in problems:
        yield Finding("fault", text)
    if dvc.enabled and not problems and (hidden := dvc.overlooked()):
        names = ", ".join(path.relative_to(root).as_posix() for path in hidden)
        deleted = "`dvc checkout`, `dvc pull` and `dvc gc` would delete the data"
        do = "write the line /data/*/?* in place of /data/*/*"
        yield Finding("fault", f"{names} that DVC overlooks because of .gitignore: {deleted}; {do}")
    elif not problems and dvc.enabled:
        yield Finding("ok", "stage registry, Dagster's assets and dvc.yaml agree")
    elif not problems:
        yield Finding("ok", "stage registry and Dagster's assets agree; the project does not use DVC (no folder .dvc)")
