"""The definitions: light to load, the same graph as in the registry and in dvc.yaml, each with a description."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.partitions import experiment_key, split_key
from assets.stages import ASSETS
from pipelines import graph, jobs
from pipelines.definitions import build
from tests.conftest import make_workspace
from xc_core.chain import STAGES
from xc_core.errors import ConfigError, UsageError

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
    assert {key.to_user_string() for key in keys} == {"encoder", "embeddings", "clusters", "classifier"}


def test_checks_jobs_sensors_and_schedules_have_a_description(tmp_path: Path) -> None:
    repository = build(make_workspace(tmp_path)).get_repository_def()
    checks = [spec for check in repository.asset_checks_defs_by_key.values() for spec in check.check_specs]
    own_jobs = (repository.get_job(job.name) for job in jobs.ALL)
    shown: list[Any] = [*checks, *own_jobs, *repository.sensor_defs, *repository.schedule_defs]
    for defined in shown:
        assert defined.description, defined.name


def test_partition_keys_split_and_bad_ones_are_refused() -> None:
    assert split_key(str(experiment_key("toy", "ngame"))) == ("toy", "ngame")
    assert split_key("toy") == ("toy", None)
    with pytest.raises(UsageError):
        split_key("a|b|c")
