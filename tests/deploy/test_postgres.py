"""Dagster and MLflow with their state in a real Postgres: four servers, one model from raw files to champion."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from ruamel.yaml import YAML

from assets.release.aliases import CHAMPION, version_of
from assets.release.versions import model_name
from assets.tracking import connect
from tests.conftest import TOY_CHANGES
from tests.deploy.postgres import PASSWORD, Postgres, running
from tests.pipelines.conftest import make_project
from tests.processes import wait_for
from tests.soak.servers import Servers
from xc_core.chain import STAGES, Workspace, run_stage

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "deploy" / "postgres" / "dagster.yaml"
CHAIN = ("evaluation", "model")
"""The stages that run through Dagster; those before them run in the test's own process, which is quicker."""
BEFORE = tuple(STAGES)[: tuple(STAGES).index("evaluation")]


def settings(path: Path) -> dict[str, Any]:
    return dict(YAML(typ="safe").load(path.read_text("utf-8")))


def test_the_profile_differs_from_the_project_in_its_storage_alone() -> None:
    profile, project = settings(PROFILE), settings(ROOT / "dagster.yaml")
    assert {name for name in profile | project if profile.get(name) != project.get(name)} == {"storage"}
    database = profile["storage"]["postgres"]["postgres_db"]
    written = {name for name, value in database.items() if not isinstance(value, dict)}
    assert written == {"scheme"}, "all else comes from the environment"


class PostgresServers(Servers):
    """The servers of a project, with their state in Postgres."""

    postgres: Postgres

    @property
    def environment(self) -> dict[str, str]:
        own = {"MLFLOW_BACKEND_STORE_URI": self.postgres.uri("mlflow")}
        return {**super().environment, **self.postgres.environment, **own}

    def command(self, name: str) -> list[str]:
        found = super().command(name)
        if name == "tracking":
            place = found.index("--backend-store-uri")
            del found[place : place + 2]
        return found


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
def test_a_model_is_trained_and_registered_and_both_are_read_back(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = make_project(tmp_path)
    workspace.params.declare_experiment("toy", "ngame", "ngame", TOY_CHANGES)
    shutil.copy(PROFILE, tmp_path)
    for stage in BEFORE:
        run_stage(workspace, stage, "toy", "ngame")
    servers = PostgresServers(tmp_path)
    servers.postgres = postgres
    try:
        servers.start_all()
        run = servers.launch("retrain", CHAIN)
        wait_for(lambda: servers.run(run)[0] in ("SUCCESS", "FAILURE"), 600, "run")
        assert servers.run(run)[0] == "SUCCESS", (tmp_path / "daemon.log").read_text()[-2000:]
    finally:
        servers.stop_all()
    for name, value in servers.environment.items():
        monkeypatch.setenv(name, value)
    _read_back_dagster(tmp_path, postgres, run)
    _read_back_mlflow(workspace, postgres, run)
    assert not list(tmp_path.rglob("*.db")), "something is in sqlite still"


def _read_back_dagster(home: Path, postgres: Postgres, run: str) -> None:
    """Check the run and what it made, in a new instance and in the tables themselves."""
    assert postgres.ask("dagster", f"SELECT status FROM runs WHERE run_id = '{run}'") == [("SUCCESS",)]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        made = instance.get_latest_materialization_event(dg.AssetKey("model"))
        assert made is not None
        assert made.run_id == run
        assert instance.event_log_storage.get_concurrency_info("gpu").active_slot_count == 0
        assert PASSWORD not in dg.serialize_value(instance.get_ref())


def _read_back_mlflow(workspace: Workspace, postgres: Postgres, run: str) -> None:
    """Check the champion and the runs of its stages, in a client of the database and in the tables themselves."""
    assert postgres.ask("mlflow", "SELECT name, alias FROM registered_model_aliases ORDER BY alias") == [
        ("xc-toy", "challenger"), ("xc-toy", "champion"),
    ]  # fmt: skip
    client = connect(postgres.uri("mlflow"), workspace.state / "lock" / "mlflow")
    version = version_of(client, model_name("toy"), CHAMPION)
    assert version is not None
    assert version.tags["recipe"] == "ngame"
    experiment = client.get_experiment_by_name("xc-toy")
    runs = client.search_runs([experiment.experiment_id], f"tags.`dagster.run_id` = '{run}'", max_results=100)
    assert {one.data.tags["xc.stage"] for one in runs if "xc.stage" in one.data.tags} == set(CHAIN)
