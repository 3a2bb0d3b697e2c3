"""``xc demo``, ``xc ui``, and the check of the graphs by ``xc doctor``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import MagicMock

import dagster as dg
import pytest
from sqlalchemy.exc import OperationalError

from assets.processes import ProcessFailedError
from assets.release.gate import Line, Verdict
from assets.release.judge import Judge
from assets.resources import Dvc
from pipelines.demo import _make_room
from pipelines.servers import _stop, check, check_free, servers_lock, started
from tests.cli.conftest import Xc
from tests.cli.conftest import xc as xc
from tests.conftest import TOY_CHANGES
from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from tests.pipelines.test_launcher import started as recorded_run
from tests.stages.test_model_floors import measured
from xc_core.chain import STAGES, Workspace
from xc_core.errors import BusyError
from xc_core.locks import locked

pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def demo(
    record: Callable[[Workspace], Recorded],
    instance: dg.DagsterInstance,
    trained: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Recorded:
    """A copy of the trained project; its packed model is version 3 and already champion."""
    workspace = Workspace(Path(shutil.copytree(trained.root, tmp_path / "own")))
    for name in ("DAGSTER_HOME", "XC_STATE_DIR", "XC_LOG_DIR", "XC_ROOT", "DAGSTER_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, str(workspace.root))
    monkeypatch.chdir(workspace.root)
    monkeypatch.setattr(dg.DagsterInstance, "get", lambda: instance)
    recorded = record(workspace)
    version = type("Version", (), {"version": "3", "tags": {}})()
    recorded.mlflow.search_model_versions.return_value = [version]
    recorded.mlflow.get_model_version_by_alias.return_value = version
    return recorded


def test_the_demo_runs_three_jobs_and_shows_how_to_use_the_champion(
    demo: Recorded, xc: Xc, instance: dg.DagsterInstance
) -> None:
    killed, started = recorded_run(instance, 2**22 + 1), time.monotonic()
    ended = xc("demo", "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 0, ended.err
    assert f"run {killed.run_id[:8]} was killed; it is marked as failed now" in ended.out
    (seconds,) = re.findall(r"^done in (\d+) s; ", ended.out, re.MULTILINE)
    assert int(seconds) <= time.monotonic() - started + 1
    assert [line for line in ended.out.splitlines() if line.startswith("==")] == [
        "== prepare toy", "== retrain toy|ngame", "== compare toy",
    ]  # fmt: skip
    assert sorted(call.split()[1] for call in demo.calls) == sorted(STAGES)
    assert "models:/xc-toy@champion: version 3 is champion: it is already" in ended.out
    assert 'xc predict --dataset toy "some text"' in ended.out
    assert "toy / ngame: 40 test documents, percent" in ended.out
    assert "Test texts, predicted labels (+ is right), true labels" in ended.out
    assert ended.out.count("    predicted  ") == ended.out.count("    true       ") == 5


def test_the_demo_names_the_recipe_of_a_model_that_is_not_champion(
    demo: Recorded, xc: Xc, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion = type("Version", (), {"version": "2", "tags": {}})()
    refused = Verdict((Line("P@5", False, "31.50 against 38.00"),), "40 documents")
    monkeypatch.setattr(Judge, "__call__", lambda self, version, champion: refused)
    demo.mlflow.get_model_version_by_alias.return_value = champion
    ended = xc("demo", "--dataset", "toy", "--recipe", "ngame")
    assert 'xc predict --dataset toy --recipe ngame "some text"' in ended.out
    assert "version 3 is refused: P@5" in ended.out


def test_the_demo_names_a_recipe_that_does_not_compete(
    demo: Recorded, xc: Xc, edit: Callable[[Workspace, Any], None]
) -> None:
    another = {"dataset": "toy", "recipe": "another", "base": "ngame"}
    edit(demo.workspace, {"datasets/toy/release": {"recipes": ["another"]}, "experiments/toy_another": another})
    ended = xc("demo", "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 0, ended.err
    assert "not registered: datasets.toy.release.recipes does not name ngame" in ended.out
    assert "xc predict --dataset toy --recipe ngame " in ended.out


def test_the_demo_ends_at_a_failed_check(demo: Recorded, xc: Xc) -> None:
    demo.workspace.params.declare_experiment("toy", "ngame", "ngame", {**TOY_CHANGES, "model": {"min_P_at_1": 90.0}})
    measured(demo.workspace, "min_P_at_1", 77.0)
    ended = xc("demo", "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 77
    assert "failed checks: metric_floor" in ended.err
    assert "== compare toy" not in ended.out


def test_the_demo_ends_at_a_failed_step(demo: Recorded, xc: Xc) -> None:
    def fail(arguments: list[str]) -> None:
        if arguments[:2] == ["run", "scores"]:
            raise ProcessFailedError(65)

    demo.during = fail
    ended = xc("demo", "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 77
    assert "failed steps: scores" in ended.err
    assert "== compare toy" not in ended.out


def test_a_disk_that_fails_under_dagsters_database_during_the_demo_is_called_so(
    demo: Recorded, xc: Xc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes read-only, for instance; the demo said that this is a fault of xc."""
    error = OperationalError("INSERT", None, Exception("database or disk is full"))
    monkeypatch.setattr("pipelines.demo._make_room", MagicMock(side_effect=error))
    xc("demo", "--dataset", "toy", "--recipe", "ngame").refused(73, "a full disk (")


def test_an_interrupted_demo_ends_with_nothing_to_fix(demo: Recorded, xc: Xc) -> None:
    def interrupt(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    demo.during = interrupt
    ended = xc("demo", "--dataset", "toy", "--recipe", "ngame")
    assert ended.code == 130
    assert "failed" not in ended.err and "== retrain" not in ended.out


def test_the_demo_ends_killed_runs_and_names_those_it_waits_for(
    instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    killed, alive = recorded_run(instance, 2**22 + 1), recorded_run(instance, os.getpid())
    instance.event_log_storage.set_concurrency_slots("gpu", 2)
    for run in (killed, alive):
        instance.event_log_storage.claim_concurrency_slot("gpu", run.run_id, "encoder")
    _make_room(instance)
    assert capsys.readouterr().out.splitlines() == [
        f"run {killed.run_id[:8]} was killed; it is marked as failed now",
        f"run {alive.run_id[:8]} (retrain of -) is training; the demo waits for its end before it trains",
    ]


# xc ui


STARTED: Final = subprocess.Popen
"""What starts a process; ``servers`` puts ``Server`` in its place."""


class Server:
    """A server that has ended already."""

    started: list[tuple[list[str], dict[str, Any]]]
    pid = 2**30

    def __init__(self, command: list[str], **options: Any) -> None:
        self.command = command
        self.started.append((command, options))

    def poll(self) -> int:
        return 0

    def wait(self, timeout: float) -> int:
        return 0


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[list[str], dict[str, Any]]]:
    """Record the servers instead of starting them."""
    (tmp_path / "params.yaml").write_text("{}")
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    monkeypatch.setattr(Server, "started", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Server)
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr("pipelines.servers.check_free", lambda host, ports: None)  # the default ports may be in use
    return Server.started


def test_ports_that_are_in_use_are_named_before_anything_starts(
    xc: Xc, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster's error was a line among others, its daemon went on, and the pages that were printed were another's."""
    monkeypatch.setattr("pipelines.servers.check_free", check_free)
    with socket.create_server(("127.0.0.1", 0)) as used, socket.create_server(("127.0.0.1", 0)) as other:
        port, free = used.getsockname()[1], other.getsockname()[1]
        other.close()
        found = f"127.0.0.1, port {port}, where no server can listen"
        xc("ui", "--dagster-port", port).refused(64, found, "choose another --dagster-port")
        taken = ("ui", "--dagster-port", free, "--mlflow-port")
        xc(*taken, port).refused(64, found, "choose another --mlflow-port")
        xc(*taken, free).refused(64, f"port {free}", "choose another --mlflow-port")
    assert servers == []


@pytest.mark.parametrize(
    ("arguments", "host", "ports"),
    [
        ([], "127.0.0.1", ("3000", "5000")),
        (["--host", "0.0.0.0", "--dagster-port", "3001", "--mlflow-port", "5001"], "0.0.0.0", ("3001", "5001")),
    ],
)
def test_both_servers_listen_on_loopback_by_default(
    xc: Xc,
    servers: list[tuple[list[str], dict[str, Any]]],
    tmp_path: Path,
    arguments: list[str],
    host: str,
    ports: tuple[str, str],
) -> None:
    assert xc("ui", *arguments).code == 0
    (dagster, options), (server, others) = servers
    assert (tmp_path / "here.db").is_file(), "made before the server, which may be stopped while it makes the tables"
    location = tmp_path / ".xc" / "dagster" / "workspace.yaml"
    assert dagster[1:] == ["dev", "-w", str(location), "-h", host, "-p", ports[0]]
    (module,) = json.loads(location.read_text())["load_from"]
    assert module["python_module"] == {
        "module_name": "pipelines.definitions", "location_name": "xc", "working_directory": str(tmp_path),
    }  # fmt: skip
    assert server[1:3] == ["server", "--default-artifact-root"]
    assert others["env"]["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/here.db"
    assert server[-6:] == ["--host", host, "--port", ports[1], "--workers", "1"]
    assert options["cwd"] == others["cwd"] == tmp_path
    assert options["env"]["DAGSTER_HOME"] == others["env"]["XC_ROOT"] == str(tmp_path)
    assert options["start_new_session"] and others["start_new_session"]
    assert others["env"]["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false", "eight processes that nobody needs"


@pytest.mark.parametrize("own", ["", "ignore:mine"])
def test_warnings_of_the_servers_about_themselves_are_not_shown(
    xc: Xc, servers: list[tuple[list[str], dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """Nobody who starts them can do anything about these; others, and the setting of the user, stay."""
    monkeypatch.setenv("PYTHONWARNINGS", own)
    assert xc("ui").code == 0
    code = """
import warnings
warnings.warn("Function `dev_command` is superseded and its usage is discouraged.", FutureWarning)
warnings.warn("starlette.middleware.wsgi is deprecated and will be removed", DeprecationWarning)
warnings.warn("mine", UserWarning)
warnings.warn("a third one", UserWarning)
"""
    for _, options in servers:
        with STARTED([sys.executable, "-c", code], env=options["env"], stderr=subprocess.PIPE, text=True) as python:
            shown = python.communicate()[1]
        assert [line.split("Warning: ")[1] for line in shown.splitlines() if "Warning: " in line] == (
            ["a third one"] if own else ["mine", "a third one"]
        )


def test_the_pool_and_the_partitions_are_set_before_the_servers_start(
    xc: Xc, servers: list[tuple[list[str], dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr("pipelines.instance.size_pool", lambda *_: done.append(("pool", len(servers))))
    monkeypatch.setattr("assets.partitions.sync", lambda instance, workspace: done.append(("partitions", len(servers))))
    assert xc("ui").code == 0
    assert sorted(done) == [("partitions", 0), ("pool", 0)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, '"{home}" is not a directory or does not exist'),
        ("storage: [", "{home}/dagster.yaml, line 1, column 11: found invalid YAML"),
        ("storge: {}", 'Received unexpected config entry "storge"'),
        ("storage: {sqlite: {base_dir: {env: XC_ABSENT}}}", '"XC_ABSENT" which is not set'),
    ],
)
def test_settings_that_dagster_refuses_are_an_error_of_the_user(
    xc: Xc, servers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, said: str
) -> None:
    home = tmp_path / "home"
    if content is not None:
        home.mkdir()
        (home / "dagster.yaml").write_text(content)
    monkeypatch.setenv("XC_DAGSTER_HOME", "home")
    ended = xc("ui")
    ended.refused(78, f"{home}/dagster.yaml")
    assert said.format(home=home) in ended.err
    assert servers == []


def test_a_database_of_dagster_that_cannot_be_used_is_reported(
    xc: Xc, servers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "runs.db").write_text("not a database " * 100)
    xc("ui").refused(69, "no answer from Dagster's database ((sqlite3.DatabaseError) file is not a database)")
    error = OperationalError("INSERT", None, Exception("database or disk is full"))
    monkeypatch.setattr(dg.DagsterInstance, "get", MagicMock(side_effect=error))
    xc("ui").refused(73, "a full disk ((builtins.Exception) database or disk is full) while writing ")
    assert servers == []


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_second_ui_with_the_same_state_is_refused(
    xc: Xc, servers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Dagster supports one daemon per database: two would both send each alert."""
    state = tmp_path / "state" if elsewhere else tmp_path / ".xc" / "dagster"
    monkeypatch.setenv("XC_STATE_DIR", str(state) if elsewhere else "")
    with locked(state / "ui.lock", "another one"):
        xc("ui").refused(75, f"xc ui with the state in {state}, which process {os.getpid()} is running")
        assert servers == []
    assert xc("ui").code == 0


def test_a_server_that_fails_ends_the_command_with_an_error(
    xc: Xc, servers: list[tuple[list[str], dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager starts it again; with exit code 0 it would not."""
    stopped: list[Any] = []
    monkeypatch.setattr("pipelines.servers._stop", stopped.extend)
    monkeypatch.setattr(Server, "poll", lambda self: 3 if Path(self.command[0]).name == "mlflow" else None)
    ended = xc("ui")
    assert ended.code == 69
    assert "found `mlflow server` ended with exit code 3 (see its messages above)" in ended.err
    assert "choose another --dagster-port or --mlflow-port" in ended.err
    assert len(stopped) == 2, "the other server too"


def test_the_command_runs_as_long_as_both_servers_and_looks_a_few_times_a_second(
    xc: Xc, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, pauses = iter([None, None, None, None]), list[float]()
    monkeypatch.setattr(Server, "poll", lambda self: next(codes, 0))
    monkeypatch.setattr("pipelines.servers.time", SimpleNamespace(sleep=pauses.append))
    assert xc("ui").code == 0
    assert [0.1 <= pause <= 1 for pause in pauses] == [True, True]


def test_a_database_without_its_driver_is_refused_before_the_servers_start(
    xc: Xc, servers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's server started its processes again and again, each with a traceback."""
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mysql://me:5ecret@db/mlflow")
    ended = xc("ui")
    ended.refused(78, "MLFLOW_TRACKING_URI = mysql://***@db/mlflow, a database whose driver cannot be imported")
    assert "pip install mysqlclient" in ended.err
    assert servers == []


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql+psycopg2://me:5ecret@db/mlflow", "http://127.0.0.1:5000"),
        ("https://me:5ecret@tracking", "https://***@tracking"),
    ],
)
def test_a_password_of_the_tracking_address_is_in_the_environment_alone(
    xc: Xc, servers: list[tuple[list[str], dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, uri: str, shown: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    answer = xc("ui")
    assert answer.code == 0
    assert f"MLflow   {shown}" in answer.out
    assert "5ecret" not in f"{answer} {[command for command, _ in servers]}"
    assert len(servers) == (1 if uri.startswith("http") else 2), "a tracking server that runs elsewhere is not started"


@pytest.mark.parametrize(
    ("arguments", "environment", "dagster", "mlflow"),
    [
        ([], {}, "http://127.0.0.1:3000", "http://127.0.0.1:5000"),
        (["--host", "::1"], {}, "http://[::1]:3000", "http://[::1]:5000"),
        (["--host", "0.0.0.0"], {}, None, None),
        (["--host", "0.0.0.0"], {"XC_DAGSTER_URL": "https://d"}, "https://d", None),
        ([], {"XC_DAGSTER_URL": "https://d", "XC_MLFLOW_URL": "https://m"}, "https://d", "https://m"),
        ([], {"MLFLOW_TRACKING_URI": "http://m:5000"}, "http://127.0.0.1:3000", None),
    ],
)
def test_runs_know_the_addresses_of_both_uis_for_their_links(
    xc: Xc,
    servers: list[tuple[list[str], dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    dagster: str | None,
    mlflow: str | None,
) -> None:
    """A tracking server is its own address; an address of all interfaces is none."""
    for name in ("XC_DAGSTER_URL", "XC_MLFLOW_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert xc("ui", *arguments).code == 0
    found = servers[0][1]["env"]
    assert (found.get("XC_DAGSTER_URL"), found.get("XC_MLFLOW_URL")) == (dagster, mlflow)


# xc doctor


def test_servers_heed_sigint_although_a_shell_script_ignores_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with servers_lock(tmp_path / "lock") as lock:
            [process] = started([["sleep", "60"]], tmp_path, {}, lock)  # Python ends with 1 if it is still starting
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=20) == -signal.SIGINT
        finally:
            process.kill()
    assert after is signal.SIG_IGN, "xc ui itself ignores it as before"


def test_servers_that_outlive_an_xc_ui_that_was_killed_are_named_to_the_next_one(tmp_path: Path) -> None:
    """They would be a second daemon; a port of its own is no way out."""
    (tmp_path / "lock").write_text("1\n")  # of an earlier xc ui: another process may have this id now
    with servers_lock(tmp_path / "lock") as lock:
        running = started([["sleep", "60"]] * 2, tmp_path, {}, lock)
    groups = " ".join(f"-{process.pid}" for process in running)
    with pytest.raises(BusyError) as caught:
        servers_lock(tmp_path / "lock").__enter__()
    assert caught.value.do.startswith(f"stop them (kill -INT -- {groups}),")
    os.utime(tmp_path / "lock", (0, 0))  # as if they had ended, and other processes had their ids
    with pytest.raises(BusyError) as caught:
        servers_lock(tmp_path / "lock").__enter__()
    assert "kill" not in caught.value.do
    _stop(running)
    tmp_path.chmod(0o777)
    with servers_lock(tmp_path / "lock"):
        assert (tmp_path / "lock").stat().st_mode & 0o666 == 0o666, "another user may start servers later"


@pytest.mark.parametrize(("heeds", "patience"), [(True, 30.0), (False, 0.1)])
def test_servers_are_asked_to_stop_and_killed_if_they_do_not(tmp_path: Path, heeds: bool, patience: float) -> None:
    code = "import signal, time; signal.signal(2, signal.SIG_{}); open('{}', 'w'); time.sleep(60)"
    commands = [[sys.executable, "-c", code.format("DFL" if heeds else "IGN", name)] for name in "ab"]
    with servers_lock(tmp_path / "lock") as lock:
        running = started(commands, tmp_path, {}, lock)
    while not all((tmp_path / name).exists() for name in "ab"):
        time.sleep(0.01)
    _stop(running, patience)
    assert [process.poll() for process in running] == [-signal.SIGINT if heeds else -signal.SIGKILL] * 2


def test_doctor_reports_that_the_graphs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(ROOT))
    (found,) = check()
    assert found.level == "ok"


def test_doctor_reports_a_project_of_dvc_without_dvc_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").touch()
    (tmp_path / ".dvc").mkdir()
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    (found,) = check()
    assert found.level == "fault"
    assert found.text.startswith(f"no {tmp_path}/dvc.yaml, so `dvc repro` has no stages; copy the file")


def test_doctor_reports_data_that_dvc_would_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(ROOT))
    monkeypatch.setattr(Dvc, "overlooked", lambda dvc: [ROOT / "data" / "toy" / "raw.dvc"])
    (found,) = check()
    assert found.level == "fault"
    assert found.text.startswith("data/toy/raw.dvc that DVC overlooks because of .gitignore: `dvc checkout`")


def test_doctor_accepts_a_project_that_does_not_use_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").touch()
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    (found,) = check()
    assert (found.level, found.text.partition("; ")[2]) == ("ok", "the project does not use DVC (no folder .dvc)")


def test_doctor_reports_a_graph_that_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").touch()
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    (found,) = check()
    assert (found.level, found.text.split(";")[0]) == ("fault", "dvc.yaml differs from the stage registry")
