"""The asset ``model``: how it registers the packed model, with the limit of the recipe."""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import mlflow
import pytest

from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core.chain import Workspace
from xc_core.infer.bundle import Model

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = pytest.mark.filterwarnings("ignore")

KEY = dg.MultiPartitionKey({"dataset": "toy", "recipe": "ngame"})
Record = Callable[[Workspace], Recorded]


@dataclass(frozen=True)
class Version:
    """A version of the registered model."""

    version: str
    name: str = "xc-toy"
    source: str = "models:/xc-toy"
    tags: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def toy(record: Record, trained: Workspace) -> Recorded:
    """The trained project; its packed model is version 3."""
    recorded = record(trained)
    recorded.mlflow.search_model_versions.return_value = [Version("3")]
    return recorded


def packed(recorded: Recorded) -> Model:
    return Model.open(recorded.workspace.folder("model", "toy", "ngame"))


def champion(recorded: Recorded, precision: float, test: str | None = None) -> None:
    """Let version 2 be champion with this P@5 on the test documents ``test``, by default the current ones."""
    tags = {"metrics": json.dumps({"P_at_5": precision}), "test": test or packed(recorded).facts.test}
    recorded.mlflow.get_model_version_by_alias.return_value = Version("2", tags=tags)


def released(recorded: Recorded) -> dict[str, Any]:
    """Run the asset and return what it reports."""
    result = recorded.run("retrain", KEY, asset_selection=[dg.AssetKey("model")])
    assert result.success
    (event,) = result.asset_materializations_for_node("model")
    return {name: event.metadata[name].value for name in ("version", "champion", "gate")}


def moved(recorded: Recorded) -> list[tuple[str, str]]:
    """Return (alias, version) of every alias that was set, in order."""
    return [call.args[1:] for call in recorded.mlflow.set_registered_model_alias.call_args_list]


def test_a_model_at_the_recipes_limit_becomes_champion(toy: Recorded) -> None:
    own, limit = packed(toy).facts.metrics["P_at_5"], packed(toy).facts.max_drop
    assert limit == toy.workspace.params.experiment("toy", "ngame").settings("model").max_drop
    champion(toy, own + limit)
    found = released(toy)
    assert (found["version"], found["champion"]) == (3, True)
    assert found["gate"] == f"version 3 is champion: P@5 {own:.2f} against {own + limit:.2f} of version 2"
    assert moved(toy) == [("challenger", "3"), ("previous", "2"), ("champion", "3")]


def test_a_model_below_the_recipes_limit_stays_challenger(toy: Recorded) -> None:
    own = packed(toy).facts.metrics["P_at_5"]
    champion(toy, own + packed(toy).facts.max_drop + 0.01)
    found = released(toy)
    assert (found["version"], found["champion"]) == (3, False)
    assert found["gate"].startswith("version 3 stays challenger: ")
    assert moved(toy) == [("challenger", "3")]


def test_a_champion_of_other_test_documents_is_evaluated_on_the_current_ones(
    toy: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion is the same model here, so it has the figure of the candidate."""
    shutil.copytree(toy.workspace.folder("model", "toy", "ngame"), tmp_path / "artifacts" / "bundle")
    path = {"bundle": {"path": "artifacts/bundle"}}
    (tmp_path / "MLmodel").write_text(json.dumps({"flavors": {"python_function": {"artifacts": path}}}))
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", lambda uri: str(tmp_path))
    champion(toy, 99.0, test="others")
    own = packed(toy).facts.metrics["P_at_5"]
    found = released(toy)
    assert found["champion"] is True
    assert f"P@5 {own:.2f} against {own:.2f} of version 2" in found["gate"]


def test_the_tags_of_a_new_version_name_its_origin(toy: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: dict[str, Any] = {}

    def log_model(**arguments: Any) -> Any:
        logged.update(arguments)
        return type("Info", (), {"registered_model_version": "7"})()

    monkeypatch.setattr(mlflow, "start_run", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(importlib.import_module("mlflow.pyfunc"), "log_model", log_model)
    toy.mlflow.search_model_versions.return_value = []
    champion(toy, 0.0)
    result = toy.run("retrain", KEY, asset_selection=[dg.AssetKey("model")])
    tags = {call.args[2]: call.args[3] for call in toy.mlflow.set_model_version_tag.call_args_list}
    model = packed(toy)
    assert json.loads(tags.pop("metrics")) == model.facts.metrics
    assert tags == {
        "bundle": model.digest,
        "recipe": "ngame",
        "test": model.facts.test,
        "dagster_run": result.run_id,
        "git": "none",
    }
    assert logged["registered_model_name"] == "xc-toy"
    assert logged["artifacts"] == {"bundle": str(toy.workspace.folder("model", "toy", "ngame"))}
    assert {line.split("==")[0] for line in logged["pip_requirements"]} >= {"torch", "numpy", "polars", "faiss-cpu"}
    assert all("==" in line for line in logged["pip_requirements"])
    assert moved(toy) == [("challenger", "7"), ("previous", "2"), ("champion", "7")]
