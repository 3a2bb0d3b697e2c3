"""The definitions: light to load, one graph in three places, jobs and schedules as promised, sensors that decide."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets import checks, inbox
from assets.inbox import INBOX_TAG
from assets.partitions import experiment_key, split_key, sync
from pipelines import graph, jobs, schedules, sensors
from pipelines.definitions import ASSETS, build
from tests.conftest import ToyWorld, make_workspace
from tests.pipelines.test_sensors import record_run
from xc_core.chain import STAGES, Workspace
from xc_core.errors import ConfigError, MovedError, UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_loading_the_definitions_imports_nothing_heavy() -> None:
    heavy = ("torch", "mlflow", "faiss", "transformers")
    code = f"import pipelines.definitions, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_three_graphs_agree() -> None:
    assert graph.differences(ROOT) == []


def test_a_difference_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    assert "dvc.yaml differs" in graph.differences(tmp_path)[0]
    (tmp_path / "dvc.yaml").write_text(graph.dvc_yaml())
    monkeypatch.setattr(graph, "registry_edges", lambda: graph.dagster_edges() - {("corpus", "tokens")})
    assert graph.differences(tmp_path) == ["the edge corpus -> tokens is only in Dagster"]


def test_the_definitions_hold_every_stage_and_nothing_else() -> None:
    assert {key.to_user_string() for asset in ASSETS for key in asset.keys} == set(STAGES)


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "soon", "３０"])
def test_a_time_before_a_retry_that_is_none_is_refused_before_a_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """It was read when a process was lost, so that its own error stood in place of the cause."""
    monkeypatch.setenv("XC_RETRY_SECONDS", text)
    with pytest.raises(ConfigError, match=f"XC_RETRY_SECONDS='{text}'"):
        build(make_workspace(tmp_path))


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_selection_strings_parse() -> None:
    """With the antlr that dvc's stable hydra brings this dies of a TypeError while all else seems well."""
    selection = dg.AssetSelection.from_string('group:"training" and kind:"pytorch"')
    keys = selection.resolve(ASSETS)
    assert {key.to_user_string() for key in keys} == {"encoder", "embeddings", "classifier"}


def test_assets_have_owner_group_kind_and_description() -> None:
    for asset in ASSETS:
        for spec in asset.specs:
            assert list(spec.owners) == ["team:xc"]
            assert spec.group_name in {"data", "training", "search", "release"}
            assert spec.kinds
            assert spec.description


def test_a_check_has_the_partitions_of_its_asset_and_stops_the_run() -> None:
    partitions = {spec.key: spec.partitions_def for asset in ASSETS for spec in asset.specs}
    found = [spec for check in checks.ALL for spec in check.check_specs]
    assert [spec.name for spec in found] == [
        "schema", "empty_labels", "leakage", "cluster_balance", "finite_weights", "index_recall", "metric_floor"
    ]  # fmt: skip
    assert all(spec.partitions_def == partitions[spec.asset_key] and spec.blocking for spec in found)


def test_checks_sensors_and_schedules_have_a_description(tmp_path: Path) -> None:
    repository = build(make_workspace(tmp_path)).get_repository_def()
    checks = [spec for check in repository.asset_checks_defs_by_key.values() for spec in check.check_specs]
    for defined in (*checks, *repository.sensor_defs, *repository.schedule_defs):
        assert defined.description, defined.name


def test_only_stages_that_compute_on_a_gpu_wait_for_its_pool() -> None:
    pooled = {asset.key.to_user_string() for asset in ASSETS if asset.op.pool == "gpu"}
    assert pooled == {"encoder", "embeddings", "negatives", "classifier"}


def test_jobs_cover_all_stages(tmp_path: Path) -> None:
    definitions = build(make_workspace(tmp_path))
    covered = {job: set(definitions.resolve_job_def(job).graph.node_dict) for job in ("prepare", "retrain", "compare")}
    names = {name for nodes in covered.values() for name in nodes}
    assert set(STAGES) <= names
    refreshed = set(definitions.resolve_job_def("refresh").graph.node_dict)
    assert "encoder" not in refreshed
    assert {"embeddings", "clusters", "classifier", "scores", "fusion", "evaluation", "model"} <= refreshed


def test_schedules_are_three_a_dataset_and_off(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    found = schedules.schedules(workspace)
    assert [(s.name, s.cron_schedule) for s in found] == [
        ("retrain_toy", "0 2 * * 0"), ("refresh_toy", "30 3 * * *"), ("drift_toy", "30 1 * * *")]  # fmt: skip
    assert all(s.default_status is dg.DefaultScheduleStatus.STOPPED for s in found)
    assert schedules.safe_name("a.b") != schedules.safe_name("a-b")


def test_a_schedule_asks_for_prepare_and_names_what_follows(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    with dg.instance_for_test() as instance:
        when = datetime(2026, 1, 4, 2, tzinfo=UTC)
        repository = build(workspace).get_repository_def()
        with dg.build_schedule_context(instance, when, repository_def=repository) as context:
            ticked = schedules.schedules(workspace)[0].evaluate_tick(context)
        (request,) = ticked.run_requests or []
        assert (request.partition_key, request.tags[jobs.NEXT_TAG]) == ("toy", "retrain")
        assert instance.get_dynamic_partitions("dataset") == ["toy"]


def test_partition_keys_split_and_bad_ones_are_refused() -> None:
    assert split_key(str(experiment_key("toy", "ngame"))) == ("toy", "ngame")
    assert split_key("toy") == ("toy", None)
    with pytest.raises(UsageError):
        split_key("a|b|c")


def fill_inbox(workspace: Workspace, *, age: float) -> Path:
    folder = ToyWorld.make(documents=20, tests=10).write(inbox.inbox(workspace, "toy"))
    for path in folder.iterdir():
        os.utime(path, (time.time() - age, time.time() - age))
    return folder


def test_an_inbox_counts_once_it_has_come_to_rest(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    assert inbox.state(inbox.inbox(workspace, "toy"), time.time()) is None
    folder = fill_inbox(workspace, age=60)
    first = inbox.state(folder, time.time())
    assert first is not None
    (folder / "late.txt").write_text("still being copied")
    assert inbox.state(folder, time.time()) is None
    with pytest.raises(MovedError):
        inbox.waits(workspace, "toy", first, time.time())


def test_the_inbox_sensor_requests_one_run_a_drop(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    sensor = sensors.inbox_sensor(workspace)
    with dg.instance_for_test() as instance:
        cursor = [""]

        def requested() -> list[dg.RunRequest]:
            found: Any = sensor(dg.build_sensor_context(instance, cursor[0]))
            cursor[0] = found.cursor
            return list(found.run_requests)

        assert requested() == []
        fill_inbox(workspace, age=60)
        assert requested() == [], "it may still be copied"
        (first,), (second,) = requested(), requested()
        assert first.run_key == second.run_key
        assert (first.partition_key, first.tags[jobs.NEXT_TAG]) == ("toy", "refresh")


@pytest.mark.parametrize(
    ("status", "says"),
    [(dg.DagsterRunStatus.FAILURE, "fix them, or re-execute that run"), (dg.DagsterRunStatus.STARTED, "is ingesting")],
)
def test_the_inbox_sensor_says_what_became_of_a_drop_that_is_still_there(
    tmp_path: Path, status: dg.DagsterRunStatus, says: str
) -> None:
    workspace = make_workspace(tmp_path)
    folder = fill_inbox(workspace, age=60)
    sensor = sensors.inbox_sensor(workspace)
    with dg.instance_for_test() as instance:
        cursor = [""]

        def looked() -> Any:
            """Look twice, so that files stand still; return the second answer."""
            for _ in range(2):
                found: Any = sensor(dg.build_sensor_context(instance, cursor[0]))
                cursor[0] = found.cursor
            return found

        (request,) = looked().run_requests
        run = record_run(instance, "toy", request.tags[INBOX_TAG], status)
        message = looked().skip_reason.skip_message
        assert message.startswith(f"toy: run {run}")
        assert says in message
        for path in folder.iterdir():
            os.utime(path, (time.time() - 30, time.time() - 30))
        (again,) = looked().run_requests
        assert again.run_key != request.run_key


def test_the_inbox_is_taken_in_under_the_datasets_own_settings(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    from xc_core.data.ingest import IngestConfig

    workspace.params.declare_dataset("toy", IngestConfig(propensity="amazon", allow=("empty-text", "clean-text")))
    arguments = inbox.ingest_arguments(workspace, "toy")
    assert arguments[-6:] == ["--propensity", "amazon", "--allow", "empty-text", "--allow", "clean-text"]


def test_new_experiments_become_partitions(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    with dg.instance_for_test() as instance:
        sync(instance, workspace)
        workspace.params.declare_experiment("toy", "variant", "ngame", {})
        sync(instance, workspace)
        sync(instance, workspace)
        assert sorted(instance.get_dynamic_partitions("recipe")) == ["ngame", "variant"]


def test_the_instance_file_loads_and_keeps_state_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(tmp_path),
        "XC_STATE_DIR": str(tmp_path / "state"),
        "XC_LOG_DIR": str(tmp_path / "logs"),
    }
    code = (
        "import dagster as dg; i = dg.DagsterInstance.get();"
        "print(i.get_concurrency_config().pool_config.default_pool_limit)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "1"
    assert {p.name for p in tmp_path.iterdir()} <= {"dagster.yaml", "state", "logs"}
