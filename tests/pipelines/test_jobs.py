"""Jobs and assets: what each job selects and carries, and the policies of each asset."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from pipelines.definitions import build
from xc_core.chain import STAGES, Workspace

ON_GPU = {"encoder", "embeddings", "clusters", "negatives", "classifier"}
AFTER_ENCODER = {stage.name for stage in STAGES.values() if stage.scope == "experiment"} - {"encoder"}
EXPERIMENT_CHECKS = {
    "clusters": {"cluster_balance"},
    "classifier": {"finite_weights"},
    "scores": {"index_recall"},
    "evaluation": {"metric_floor"},
    "model": {"gate"},
}
JOBS = {
    "prepare": ({"corpus", "tokens"}, {"corpus": {"schema", "empty_labels", "leakage"}}),
    "retrain": (AFTER_ENCODER | {"encoder"}, EXPERIMENT_CHECKS),
    "refresh": (AFTER_ENCODER, EXPERIMENT_CHECKS),
    "compare": ({"leaderboard"}, {}),
    "drift": ({"data_drift"}, {}),
}
"""The assets of each job, and their checks; all except the leaderboard and data_drift have ``up_to_date`` too."""
PER_DATASET = {"corpus", "tokens", "leaderboard"}
EXPERIMENT = {"dataset": "dataset", "recipe": "recipe"}
"""The dimensions of an experiment's partitions."""


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    return build(empty(tmp_path_factory.mktemp("project")))


def empty(root: Path) -> Workspace:
    """Return a workspace without datasets."""
    (root / "params.yaml").write_text("{}")
    return Workspace(root)


def dimensions(partitions: dg.PartitionsDefinition | None) -> dict[str, str | None]:
    """Return the names of the dimensions of a partitions definition, each with that of its dynamic partitions."""
    if isinstance(partitions, dg.MultiPartitionsDefinition):
        found = {dimension.name: dimension.partitions_def for dimension in partitions.partitions_defs}
    else:
        found = {"": partitions}
    assert all(isinstance(one, dg.DynamicPartitionsDefinition) for one in found.values())
    return {name: getattr(one, "name", None) for name, one in found.items()}


def test_there_are_five_jobs(definitions: dg.Definitions) -> None:
    names = {job.name for job in definitions.get_repository_def().get_all_jobs()}
    assert names - {"__ASSET_JOB"} == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_a_job_selects_exactly_its_assets_and_their_checks(definitions: dg.Definitions, name: str) -> None:
    layer = definitions.resolve_job_def(name).asset_layer
    checks: dict[str, set[str]] = {}
    for key in layer.asset_graph.asset_check_keys:
        checks.setdefault(key.asset_key.to_user_string(), set()).add(key.name)
    assets, blocking = JOBS[name]
    fresh = {asset: {"up_to_date"} for asset in assets - {"leaderboard", "data_drift"}}
    assert {key.to_user_string() for key in layer.selected_asset_keys} == assets
    assert checks == {asset: blocking.get(asset, set()) | fresh.get(asset, set()) for asset in blocking | fresh}


@pytest.mark.parametrize("name", JOBS)
def test_only_refresh_carries_the_mode(definitions: dg.Definitions, name: str) -> None:
    job = definitions.resolve_job_def(name)
    assert dict(job.run_tags) == ({"xc/mode": "refresh"} if name == "refresh" else {})


@pytest.mark.parametrize("name", JOBS)
def test_a_job_has_the_partitions_of_its_assets(definitions: dg.Definitions, name: str) -> None:
    wanted = {"": "dataset"} if name in {"prepare", "compare"} else EXPERIMENT
    assert dimensions(definitions.resolve_job_def(name).partitions_def) == wanted


@pytest.mark.parametrize("name", JOBS)
def test_a_job_runs_its_steps_in_one_process(definitions: dg.Definitions, name: str) -> None:
    """Each stage already runs in a process of its own."""
    assert definitions.resolve_job_def(name).executor_def is dg.in_process_executor


@pytest.mark.parametrize("name", STAGES)
def test_an_asset_shows_the_registry_entry_of_its_stage(definitions: dg.Definitions, name: str) -> None:
    asset = definitions.resolve_assets_def(name)
    (spec,) = asset.specs
    stage = STAGES[name]
    assert spec.code_version == stage.code_version
    assert (spec.group_name, spec.description) == (stage.group, stage.does)
    assert {dep.asset_key.to_user_string() for dep in spec.deps} == set(stage.deps)
    assert set(spec.kinds) == set(stage.kinds)
    assert list(spec.owners) == ["team:xc"]


@pytest.mark.parametrize("name", STAGES)
def test_only_assets_that_compute_on_a_gpu_wait_for_it(definitions: dg.Definitions, name: str) -> None:
    op = definitions.resolve_assets_def(name).op
    assert op.pool == ("gpu" if name in ON_GPU else None)
    assert op.retry_policy is None, "Dagster would retry a cancelled run"


@pytest.mark.parametrize("name", STAGES)
def test_an_asset_is_partitioned_as_its_stage_is_scoped(definitions: dg.Definitions, name: str) -> None:
    found = dimensions(definitions.resolve_assets_def(name).partitions_def)
    assert found == ({"": "dataset"} if name in PER_DATASET else EXPERIMENT)


def test_every_check_is_blocking_and_partitioned_as_its_asset(definitions: dg.Definitions) -> None:
    specs = [spec for check in definitions.asset_checks or [] for spec in check.check_specs]
    named = {name for _, checks in JOBS.values() for names in checks.values() for name in names}
    assert {spec.name for spec in specs} == named - {"gate"}
    page = (Path(__file__).parents[2] / "docs/runbook.md").read_text("utf-8").partition("## The gate")[2]
    assert not [name for name in named - {"gate"} if f"`{name}`" not in page], "name it in docs/runbook.md, The gate"
    for spec in specs:
        asset = definitions.resolve_assets_def(spec.asset_key)
        assert spec.blocking, spec.key
        assert spec.partitions_def == asset.partitions_def, spec.key


@pytest.mark.parametrize("name", STAGES)
def test_every_versioned_asset_has_the_check_up_to_date(definitions: dg.Definitions, name: str) -> None:
    asset = definitions.resolve_assets_def(name)
    specs = {spec.name: spec for spec in asset.check_specs}
    wanted = {"up_to_date"} if STAGES[name].versioned else set()
    assert set(specs) == (wanted | {"gate"} if name == "model" else wanted)
    for spec in specs.values():
        assert not spec.blocking, "an artefact that is out of date is shown; it stops no run"
        assert spec.partitions_def == asset.partitions_def


def test_every_resource_is_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", "file:///elsewhere")
    resources = build(empty(tmp_path)).resources or {}
    assert set(resources) == {"project", "pipes", "dvc", "tracking"}
    assert isinstance(resources["pipes"], dg.PipesSubprocessClient)
    assert resources["project"].root == resources["dvc"].root == str(tmp_path)
    tracking = resources["tracking"]
    assert (tracking.uri, tracking.artifacts) == (dg.EnvVar("MLFLOW_TRACKING_URI"), "file:///elsewhere")
    assert Path(tracking.lock).is_relative_to(tmp_path)


@pytest.mark.parametrize("present", [True, False])
def test_dvc_records_only_if_the_project_uses_it(tmp_path: Path, present: bool) -> None:
    workspace = empty(tmp_path)
    if present:
        (tmp_path / ".dvc").mkdir()
    assert (build(workspace).resources or {})["dvc"].enabled is present
