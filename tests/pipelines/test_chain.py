"""The pipeline through Dagster on the toy world: what is materialised, recorded in DVC, logged and registered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import mlflow
import pytest
from ruamel.yaml import YAML

from assets.release.aliases import CHAMPION, version_of
from assets.release.versions import model_name
from assets.settings import mlflow_settings
from assets.tracking import connect
from tests.conftest import ToyWorld
from tests.pipelines.conftest import Materialised, dvc, make_project, run_job
from tests.stages.test_model_floors import measured
from xc_core import artifacts, manifests
from xc_core.chain import STAGES, Workspace

pytestmark = [
    pytest.mark.chain,
    pytest.mark.timeout(600),
    # MLflow and its dependencies warn of features they will drop; nothing here calls these
    pytest.mark.filterwarnings("ignore"),
]


def client(workspace: Workspace) -> Any:
    settings = mlflow_settings(workspace.root)
    return connect(settings.uri, settings.lock)


def test_every_job_succeeds_and_every_check_passes(materialised: Materialised) -> None:
    assert {job: result.success for job, result in materialised.results.items()} == dict.fromkeys(
        materialised.results, True
    )
    checks = [e for result in materialised.results.values() for e in result.get_asset_check_evaluations()]
    assert {e.check_name for e in checks} == {
        "schema", "empty_labels", "leakage", "cluster_balance", "finite_weights", "index_recall", "metric_floor",
        "gate", "up_to_date",
    }  # fmt: skip
    assert all(e.passed for e in checks)


def test_every_stage_reports_path_digest_and_the_md5_that_dvc_recorded(materialised: Materialised) -> None:
    lock = (materialised.workspace.root / "dvc.lock").read_text()
    seen = set()
    for result in materialised.results.values():
        for event in result.get_asset_materialization_events():
            materialisation = event.step_materialization_data.materialization
            name = materialisation.asset_key.to_user_string()
            seen.add(name)
            folder = Path(str(materialisation.metadata["path"].value))
            md5 = str(materialisation.metadata["dvc_md5"].value)
            assert not STAGES[name].versioned or f"md5: {md5}" in lock, name
            assert materialisation.tags is not None
            assert materialisation.tags["dagster/data_version"] == manifests.read_manifest(folder).digest()
    assert seen == set(STAGES)


@pytest.mark.parametrize(("stage", "names"), [("evaluation", ("training", "deciles")), ("audit", ("label_map",))])
def test_pictures_are_shown(materialised: Materialised, stage: str, names: tuple[str, ...]) -> None:
    events = materialised.results["retrain"].asset_materializations_for_node(stage)
    for name in names:
        assert str(events[0].metadata[name].value).startswith(f"![{name}](data:image/png;base64,")


def test_dvc_has_nothing_to_do_after_dagster(materialised: Materialised) -> None:
    root = materialised.workspace.root
    assert "up to date" in dvc(root, "status")
    assert "up to date" in dvc(root, "repro", "--dry")


@pytest.mark.slow
def test_the_lock_is_the_same_whichever_of_dagster_and_dvc_ran(materialised: Materialised, tmp_path: Path) -> None:
    twin = make_project(tmp_path)
    dvc(twin.root, "repro")
    one, two = (YAML(typ="safe").load((w.root / "dvc.lock").read_text()) for w in (twin, materialised.workspace))
    assert one == two
    assert "up to date" in dvc(twin.root, "status")


def test_mlflow_has_one_parent_and_one_child_a_stage(materialised: Materialised) -> None:
    mlflow_client = client(materialised.workspace)
    experiment = mlflow_client.get_experiment_by_name("xc-toy")
    run_id = materialised.results["retrain"].run_id
    runs = mlflow_client.search_runs([experiment.experiment_id], f"tags.`dagster.run_id` = '{run_id}'", max_results=100)
    parents = [run for run in runs if run.data.tags.get("xc.role") == "parent"]
    assert len(parents) == 1
    children = {run.data.tags["xc.stage"]: run for run in runs if "xc.stage" in run.data.tags}
    assert set(children) == {stage.name for stage in STAGES.values() if stage.scope == "experiment"}
    assert all(run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id for run in children.values())
    assert children["evaluation"].data.metrics["P_at_1"] == parents[0].data.metrics["P_at_1"] > 90
    assert len(mlflow_client.get_metric_history(children["encoder"].info.run_id, "loss")) > 10
    assert children["encoder"].data.params["encoder.name"] == "bag"
    assert {f.path for f in mlflow_client.list_artifacts(children["evaluation"].info.run_id)} >= {
        "training.png", "deciles.png", "report.json",
    }  # fmt: skip
    assert {f.path for f in mlflow_client.list_artifacts(children["audit"].info.run_id)} >= {"label_map.png"}


def test_the_champion_loads_by_alias_and_answers_without_pickle(
    materialised: Materialised, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_client = client(materialised.workspace)
    version = version_of(mlflow_client, model_name("toy"), CHAMPION)
    assert version is not None
    assert version.tags["recipe"] == "ngame"
    folder = Path(mlflow.artifacts.download_artifacts("models:/xc-toy@champion"))
    assert not [p for p in folder.rglob("*") if p.suffix in {".pkl", ".pickle", ".pt", ".bin", ".joblib"}]
    import pickle

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    model = mlflow.pyfunc.load_model("models:/xc-toy@champion")
    answers = model.predict(["river0 castle0 river1 castle1 river2 castle2"], params={"k": 2})
    assert {label["title"] for label in answers[0]} == {"river", "castle"}


@pytest.mark.slow
def test_running_again_makes_nothing_new(materialised: Materialised) -> None:
    before = version_of(client(materialised.workspace), model_name("toy"), CHAMPION)
    manifests = {p: p.read_bytes() for p in materialised.workspace.data.rglob("manifest.json")}
    key = materialised.results["retrain"].dagster_run.tags["dagster/partition"]
    again = run_job(materialised.definitions, materialised.instance, "retrain", key)
    assert again.success
    assert {p: p.read_bytes() for p in manifests} == manifests
    after = version_of(client(materialised.workspace), model_name("toy"), CHAMPION)
    assert before is not None
    assert after is not None
    assert after.version == before.version


@pytest.mark.usefixtures("all_forked")
def test_a_failing_check_stops_the_chain_before_the_model(materialised: Materialised, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(materialised.workspace.root, root, symlinks=True)
    workspace = Workspace(root)
    experiment = workspace.params.read()["experiments"]["toy_ngame"]
    workspace.params.declare_experiment("toy", "ngame", "ngame", {**experiment["stages"], "model": {"min_P_at_1": 90}})
    measured(workspace, "min_P_at_1", 77.0)
    before = manifests.read_manifest(workspace.folder("model", "toy", "ngame")).digest()
    key = materialised.results["retrain"].dagster_run.tags["dagster/partition"]
    from pipelines.definitions import build

    last = [dg.AssetKey("evaluation"), dg.AssetKey("model")]
    result = run_job(build(workspace), materialised.instance, "retrain", key, asset_selection=last)
    assert not result.success
    failed = [e.check_name for e in result.get_asset_check_evaluations() if not e.passed]
    assert failed == ["metric_floor"]
    assert not result.asset_materializations_for_node("model")
    assert manifests.read_manifest(workspace.folder("model", "toy", "ngame")).digest() == before


@pytest.mark.usefixtures("all_forked")
def test_refresh_takes_new_labels_in_without_training(materialised: Materialised, tmp_path: Path) -> None:
    root = tmp_path / "project"
    shutil.copytree(materialised.workspace.root, root, symlinks=True)
    workspace = Workspace(root)
    world = ToyWorld.make()
    world.labels.append({"uid": "L10", "title": "comet", "content": "river0 comet"})
    world.train.append(
        {"uid": "N1", "title": "comet", "content": "comet comet", "target_ind": [10], "target_rel": [1.0]}
    )
    world.write(workspace.raw("toy"))
    from pipelines.definitions import build

    definitions, key = build(workspace), materialised.results["retrain"].dagster_run.tags["dagster/partition"]
    encoder = manifests.read_manifest(workspace.folder("encoder", "toy", "ngame")).digest()
    assert run_job(definitions, materialised.instance, "prepare", "toy").success
    assert run_job(definitions, materialised.instance, "refresh", key, tags={"xc/mode": "refresh"}).success
    assert manifests.read_manifest(workspace.folder("encoder", "toy", "ngame")).digest() == encoder
    facts = artifacts.read_made(workspace.folder("classifier", "toy", "ngame")).facts
    assert (facts["rows_kept"], facts["rows_new"]) == (10, 1)
    assert dg.AssetKey("model") in {e.asset_key for e in materialised.instance.fetch_materializations(
        dg.AssetKey("model"), limit=1).records}  # fmt: skip
