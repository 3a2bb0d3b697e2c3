"""The values of dagster.yaml as an instance loads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.secrets.env_file import get_env_var_dict
from ruamel.yaml import YAML

from assets import cards
from assets.cards import POOL, own_card
from assets.dagster_internals import size_pool
from assets.settings import dagster_environment
from pipelines.instance import ready, unread_settings
from pipelines.servers import check
from xc_core.chain import Workspace
from xc_core.environment import DEVICE
from xc_core.errors import BusyError, ConfigError
from xc_core.locks import locked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def loaded(home: Path) -> Iterator[dg.DagsterInstance]:
    """The project's instance, its state in a folder of its own."""
    shutil.copy(ROOT / "dagster.yaml", home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XC_STATE_DIR", str(home / "state"))
        patch.setenv("XC_LOG_DIR", str(home / "logs"))
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield instance


def test_the_folders_of_the_environment_are_those_of_dagsters_servers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's commands read the project's .env, whose values replace those of the environment."""
    monkeypatch.setenv("XC_STATE_DIR", "/state")
    monkeypatch.delenv("XC_LOG_DIR", raising=False)
    assert get_env_var_dict(str(ROOT)) == {"XC_STATE_DIR": "/state", "XC_LOG_DIR": ".xc/dagster/logs"}


def test_four_runs_at_once_and_one_step_per_pool(loaded: dg.DagsterInstance) -> None:
    concurrency = loaded.get_concurrency_config()
    pools = concurrency.pool_config
    assert (pools.default_pool_limit, pools.op_granularity_run_buffer) == (1, 1)
    assert pools.pool_granularity is not None
    assert pools.pool_granularity.value == "op"
    assert concurrency.run_queue_config is not None
    assert concurrency.run_queue_config.max_concurrent_runs == 4


def test_a_run_waits_for_two_minutes_while_the_code_server_is_down(loaded: dg.DagsterInstance) -> None:
    queue = loaded.get_concurrency_config().run_queue_config
    assert queue is not None
    assert queue.max_user_code_failure_retries * queue.user_code_failure_retry_delay == 120


@pytest.mark.parametrize(("gpus", "places"), [(0, 1), (1, 1), (4, 4)])
def test_the_pool_has_a_place_per_gpu(
    loaded: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, gpus: int, places: int
) -> None:
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: gpus)
    size_pool(loaded, POOL, cards.places())
    assert loaded.event_log_storage.get_concurrency_info(POOL).slot_count == places


@pytest.mark.parametrize(
    ("arguments", "asked", "wanted"),
    [
        (["run", "encoder"], None, "cuda:1"),
        (["run", "classifier"], "auto", "cuda:1"),
        (["run", "encoder"], "cpu", "cpu"),
        *((["run", name], "auto", "cuda:1") for name in ("clusters", "negatives")),
        (["run", "corpus"], None, "cpu"),
        *((["run", name], "auto", "cpu") for name in ("scores", "fusion", "evaluation", "audit", "model")),
        (["run", "evaluation"], "cuda:2", "cuda:2"),
        (["ingest", "encoder"], None, None),
    ],
)
def test_a_stage_of_the_pool_gets_the_first_free_gpu_and_any_other_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], asked: str | None, wanted: str | None
) -> None:
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: 3)
    monkeypatch.setenv(DEVICE, asked or "")
    with locked(tmp_path / "cuda-0", "another stage"), own_card(arguments, tmp_path):
        assert os.environ[DEVICE] == (wanted or "")
        with own_card(["run", "embeddings"], tmp_path):
            assert os.environ[DEVICE] == (wanted or "cuda:1"), "what is chosen already stays"


def test_a_crashed_run_is_found_and_gives_its_place_in_a_pool_back(loaded: dg.DagsterInstance) -> None:
    assert loaded.run_monitoring_enabled
    assert loaded.run_monitoring_settings == {
        "enabled": True,
        "start_timeout_seconds": 120,
        "cancel_timeout_seconds": 60,
        "max_runtime_seconds": 259_200,
        "poll_interval_seconds": 10,
        "free_slots_after_run_end_seconds": 10,
    }
    assert type(loaded.run_launcher).__name__ == "LocalRunLauncher"
    assert loaded.run_launcher.supports_check_run_worker_health


def test_only_a_lost_run_is_started_again_and_only_once(loaded: dg.DagsterInstance) -> None:
    assert loaded.run_retries_enabled
    assert loaded.run_retries_max_retries == 1
    assert loaded.run_retries_retry_on_asset_or_op_failure is False


def test_nothing_is_sent_away(loaded: dg.DagsterInstance) -> None:
    assert (loaded.telemetry_enabled, loaded.nux_enabled) == (False, False)


def test_messages_of_the_library_reach_the_event_log(loaded: dg.DagsterInstance) -> None:
    assert (loaded.managed_python_loggers, loaded.python_log_level) == (["xc_core"], "INFO")


def test_ticks_are_kept_for_days_by_their_outcome(loaded: dg.DagsterInstance) -> None:
    retention = loaded.get_settings("retention")
    assert retention["schedule"] == {"purge_after_days": 90}
    assert retention["sensor"] == {"purge_after_days": {"skipped": 7, "failure": 90, "success": 90}}
    assert loaded.freshness_enabled is True


def test_state_and_logs_lie_where_the_environment_says(loaded: dg.DagsterInstance, home: Path) -> None:
    assert loaded.storage_directory() == str(home / "state" / "storage")
    assert loaded.root_directory == str(home / "state")
    logs = YAML(typ="safe").load((home / "dagster.yaml").read_text())["compute_logs"]["config"]
    assert logs == {"base_dir": {"env": "XC_LOG_DIR"}, "polling_timeout": 1}
    assert {path.name for path in home.iterdir()} <= {"dagster.yaml", "state", "logs"}


def project_in(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make ``home`` a project with the settings of Dagster, and set the environment of its servers; return it."""
    home.mkdir()
    shutil.copy(ROOT / "dagster.yaml", home)
    for variable, folder in dagster_environment(home).items():
        monkeypatch.setenv(variable, folder)
    return home


@pytest.mark.parametrize("name", ["a [1]", "what?", "*"])
def test_a_folder_in_which_dagster_overlooks_its_settings_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All settings were ignored there: state beside the code, telemetry on, no pool, no retry of a lost run."""
    home = project_in(tmp_path / name, monkeypatch)
    monkeypatch.setattr("pipelines.servers.Workspace.find", lambda: Workspace(home))
    if "[" in name:
        with dg.DagsterInstance.from_config(str(home)) as instance:
            assert instance.telemetry_enabled, "Dagster finds the file now: it need not be refused any more"
    with (
        pytest.raises(ConfigError, match=r"takes as a pattern to look for dagster\.yaml") as refused,
        ready(Workspace(home)),
    ):
        pass
    assert str(home) in refused.value.found
    note = next(check())
    assert (note.level, refused.value.found in note.text) == ("note", True)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("XC_DAGSTER_HOME", str(tmp_path / "other"))
    assert all("as a pattern" not in found.text for found in check())


@pytest.mark.parametrize("name", ["Üb er", "a ] {x}", "50%~$HOME"])
def test_settings_are_found_in_a_folder_of_any_other_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project_in(tmp_path / name, monkeypatch)
    assert unread_settings(home) is None
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert not instance.telemetry_enabled


def test_a_stage_keeps_its_card_while_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("xc_core.devices.num_cards", lambda: 1)
    monkeypatch.setenv("XC_DEVICE", "")
    with own_card(["run", "encoder"], tmp_path), pytest.raises(BusyError), locked(tmp_path / "cuda-0", "another stage"):
        pass
    with locked(tmp_path / "cuda-0", "another stage"):
        pass
