"""What Dagster shows of each artefact, and which files MLflow keeps of it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from assets import links
from assets.markdown import escaped
from assets.shown import SHOWN
from pipelines import demo
from tests.pipelines.judging import own as own
from tests.pipelines.judging import rewritten
from tests.pipelines.recorded import Recorded
from tests.pipelines.recorded import record as record
from tests.pipelines.recorded import silent_mlflow as silent_mlflow
from xc_core import artifacts
from xc_core.chain import STAGES, Workspace
from xc_core.chain.reports import report_path
from xc_core.data.history import TrainedOn
from xc_core.metrics.evaluation import LearntFrom, write_evaluation
from xc_core.sampling.audit import Audit

pytestmark = pytest.mark.filterwarnings("ignore")

KEY = dg.MultiPartitionKey({"dataset": "toy", "recipe": "ngame"})
JOBS = {"corpus": ("prepare", "toy"), "tokens": ("prepare", "toy"), "leaderboard": ("compare", "toy")}


@pytest.fixture
def toy(record: Callable[[Workspace], Recorded], trained: Workspace) -> Recorded:
    return record(trained)


def shown(toy: Recorded, stage: str) -> dict[str, Any]:
    """Run one asset and return its metadata."""
    job, partition = JOBS.get(stage, ("retrain", KEY))
    result = toy.run(job, partition, asset_selection=[dg.AssetKey(stage)])
    (event,) = result.asset_materializations_for_node(stage)
    return {name: plain(value) for name, value in event.metadata.items()}


def plain(value: dg.MetadataValue[Any]) -> Any:
    """Return the value; of a table its rows, head first."""
    if not isinstance(value, dg.TableMetadataValue):
        return value.value
    head = [column.name for column in value.schema.columns]
    assert all(list(record.data) == head for record in value.records)
    return [head, *(list(record.data.values()) for record in value.records)]


def artefact(toy: Recorded, stage: str, name: str) -> Any:
    """Return the content of a JSON file of an artefact."""
    return json.loads((toy.workspace.folder(stage, "toy", "ngame") / name).read_text())


def logged_metrics(toy: Recorded) -> dict[str, float]:
    """Return the metrics that were logged to MLflow, without curves."""
    batches = [call.kwargs.get("metrics", []) for call in toy.mlflow.log_batch.call_args_list]
    return {metric.key: metric.value for batch in batches for metric in batch if metric.step == 0}


def logged_files(toy: Recorded) -> list[str]:
    return [Path(call.args[1]).name for call in toy.mlflow.log_artifact.call_args_list]


@pytest.mark.parametrize("stage", [name for name in STAGES if name != "model"])
def test_every_artefact_shows_its_size_and_place_and_not_its_settings(toy: Recorded, stage: str) -> None:
    found = shown(toy, stage)
    folder = Path(found["path"])
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / "manifest.json"]
    files = [path for path in files if path.name != "made.json"]
    assert found["megabytes"] == round(sum(path.stat().st_size for path in files) / 1e6, 2)
    assert not {"settings", "depends", "fingerprint", "refreshed", "source", "theorem1"} & set(found)


@pytest.mark.parametrize("stage", ["encoder", "classifier"])
def test_a_training_shows_its_last_loss(toy: Recorded, stage: str) -> None:
    last = artefact(toy, stage, "history.json")["losses"][-1]
    assert shown(toy, stage)["last_loss"] == float(f"{last:.5g}")
    assert logged_metrics(toy)["last_loss"] == last


def test_an_encoder_shows_the_figures_of_its_last_refresh(toy: Recorded) -> None:
    last = artefact(toy, "encoder", "history.json")["refreshes"][-1]
    found = shown(toy, "encoder")["last_refresh"]
    assert {name: found[name] for name in ("epoch", "eps1", "cluster_size")} == {
        name: float(f"{last[name]:.5g}") for name in ("epoch", "eps1", "cluster_size")
    }


def test_a_training_without_refreshes_shows_none(toy: Recorded) -> None:
    assert artefact(toy, "classifier", "history.json")["refreshes"] == []
    assert "last_refresh" not in shown(toy, "classifier")


def test_a_corpus_shows_how_near_validation_and_test_are_to_train(toy: Recorded) -> None:
    head, *lines = shown(toy, "corpus")["nearness"]
    assert head == ["nearest train document, percent", "mean similarity", "above 50 %", "above 75 %", "same text"]
    facts = artifacts.read_made(toy.workspace.folder("corpus", "toy")).facts["nearness"]
    for line, split in zip(lines, ("test", "validation"), strict=True):
        assert line[:2] == [split, f"{100 * facts[split]['mean']:.2f}"]


def test_an_audit_shows_both_sides_of_the_theorem_if_they_are_known(toy: Recorded) -> None:
    theorem = Audit.open(toy.workspace.folder("audit", "toy", "ngame")).figures["theorem1"]
    known = {f"theorem1_{name}": value for name, value in theorem.items() if value is not None}
    found = shown(toy, "audit")
    assert {name: found.get(name) for name in known} == {name: float(f"{v:.5g}") for name, v in known.items()}
    assert known.items() <= logged_metrics(toy).items()
    assert len(known) < len(theorem), "the toy world has no missed share"
    assert not ({f"theorem1_{name}" for name in theorem} - set(known)) & set(found)


def test_an_audit_shows_the_share_of_hard_negatives_in_batches_and_the_label_map(toy: Recorded) -> None:
    figures = Audit.open(toy.workspace.folder("audit", "toy", "ngame")).figures
    names, found = ("held_by_batches", "held_by_random_batches", "documents", "k"), shown(toy, "audit")
    assert {name: found[name] for name in names} == {name: figures[name] for name in names}
    assert str(found["label_map"]).startswith("![label_map](http://127.0.0.1:9/get-artifact?path=label_map.png&")
    assert logged_metrics(toy)["held_by_batches"] == figures["held_by_batches"]
    assert logged_files(toy) == ["label_map.png"]


def test_a_fusion_shows_a_row_for_every_score(toy: Recorded) -> None:
    head, *lines = shown(toy, "fusion")["validation"]
    assert head == ["ranked by", "P@1", "P@5", "PSP@5"]
    rows = artefact(toy, "fusion", "made.json")["facts"]["validation"]
    assert [line[0] for line in lines] == list(rows)
    assert set(rows) == {"label_text", "classifier", "sum", "fusion"}
    assert logged_metrics(toy)["fusion.P_at_1"] == rows["fusion"]["P_at_1"]


def test_a_fusion_shows_the_figures_at_each_position_of_the_dial(toy: Recorded) -> None:
    facts = artefact(toy, "fusion", "made.json")["facts"]["tail"]
    head, *lines = shown(toy, "fusion")["tail"]
    assert head == ["dial", "P@1", "P@5", "PSP@5"]
    assert [line[0] for line in lines] == [f"{one['tail']:g}" for one in facts["curve"]]
    assert shown(toy, "fusion")["default_tail"] == facts["default"] == 0


@pytest.mark.parametrize("used", [True, False, None])
def test_a_fusion_shows_whether_it_raises_labels_without_train_documents(tmp_path: Path, used: bool | None) -> None:
    with artifacts.building(tmp_path / "fusion", kind="fusion") as build:
        build.facts |= {"validation": {}} | ({} if used is None else {"new_by_sum": {"used": used}})
    assert SHOWN["fusion"](tmp_path / "fusion").first.get("new_by_sum") is used


@pytest.mark.parametrize(
    ("instead", "row"), [("", "fusion (the model)"), ("classifier", "fusion (the model): classifier alone")]
)
def test_the_row_of_the_model_names_the_score_that_is_used_instead_of_the_fusion(
    tmp_path: Path, instead: str, row: str
) -> None:
    rows = TrainedOn(train=1000, epochs=1.0)
    learnt = LearntFrom(encoder=rows, classifier=rows, joint=False, fitted=True, published=1000, instead=instead)
    figures = {"P_at_1": 50.0}
    report = {"metrics": figures, "ablation": {"classifier": figures, "fusion": figures}, "learnt_from": asdict(learnt)}
    with artifacts.building(tmp_path / "evaluation", kind="evaluation") as build:
        write_evaluation(build, report, {}, [])
    head, *lines = plain(SHOWN["evaluation"](tmp_path / "evaluation").first["metrics"])
    assert [line[0] for line in (head, *lines)] == ["ranked by", row, "classifier"]


def test_an_evaluation_shows_metrics_and_pictures_and_no_text_of_the_data(toy: Recorded) -> None:
    found, report = shown(toy, "evaluation"), artefact(toy, "evaluation", "report.json")
    assert {name: found[name] for name in report["metrics"]} == {
        name: float(f"{value:.5g}") for name, value in report["metrics"].items()
    }
    assert found["metrics"][0] == ["ranked by", "P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10"]
    rows = {line[0]: line[1] for line in found["metrics"][1:]}
    assert list(rows) == ["fusion (the model)", *(name for name in report["ablation"] if name != "fusion")]
    assert all(
        rows[name if name != "fusion" else "fusion (the model)"] == f"{own['P_at_1']:.2f}"
        for name, own in report["ablation"].items()
    )
    assert next(iter(found)) == "metrics", "the figures come first"
    encoder = report["learnt_from"]["encoder"]
    assert found["learnt_from"].startswith(f"encoder: {encoder['train']} train documents, 4 epochs; classifier: ")
    example = artefact(toy, "evaluation", "examples.json")[0]
    assert example["text"][:20] not in str(found), "Dagster keeps its events when a document is forgotten"
    assert logged_files(toy) == ["report.json", "deciles.png", "training.png", "ngame.html"]
    assert found["report_file"] == str(report_path(toy.workspace, "toy", "ngame"))
    assert example["text"] in Path(found["report_file"]).read_text("utf-8")
    assert report["metrics"].items() <= logged_metrics(toy).items()


def test_an_evaluation_shows_its_plots_report_and_run_by_links_to_mlflow(
    toy: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_MLFLOW_URL", "http://m:5000")
    toy.mlflow.get_experiment_by_name.return_value.experiment_id = "1"
    found = shown(toy, "evaluation")
    pages, mode = r"http://m:5000/#/experiments/1/runs/([^/?]+)", re.escape("?workflowType=machine_learning")
    linked = re.fullmatch(f"{pages}{mode}", found["mlflow_run"])
    assert linked
    picture = f"![deciles](http://m:5000/get-artifact?path=deciles.png&run_uuid={linked[1]})"
    assert found["deciles"] == picture and len(picture) < 1000, "Dagster folds longer Markdown away"
    assert re.fullmatch(f"{pages}/artifacts/ngame.html{mode}", found["report"])
    assert found["report_file"] == str(report_path(toy.workspace, "toy", "ngame"))
    assert list(found)[:4] == ["metrics", "deciles", "training", "report"], "in this order"


def test_without_an_address_an_evaluation_has_its_plots_in_it_and_no_link(
    toy: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "mlflow_address", lambda: None)
    found = shown(toy, "evaluation")
    assert found["deciles"].startswith("![deciles](data:image/png;base64,")
    assert found["report"] == str(report_path(toy.workspace, "toy", "ngame"))
    assert found["mlflow_run"] == "r"


def test_a_text_of_the_data_is_no_markdown() -> None:
    hostile = "![p](http://127.0.0.1:9/p.png) [click](javascript:x) <b>|`*_ www.x.org a\x9b31m\nb"
    shown = escaped(hostile)
    assert html.unescape(shown) == " ".join(hostile.replace("\x9b", "\ufffd").split())
    assert not re.search(r"[!\[\]()<>|`*_:]|www\.", shown)
    assert "\n" not in shown


def test_the_demo_shows_no_text_of_the_data_as_commands_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "metrics_table", lambda *_: "")
    predicted = [{"label": "red \x1b[31m", "true": True}]
    example = {"text": "up \x1b[1A", "predicted": predicted, "true": ["red \x1b[31m"]}
    shown: Any = SimpleNamespace(report={"documents": 1}, examples=[example])
    demo._show(shown, "toy")
    text = capsys.readouterr().out
    assert text.count("\x1b") == 0 and text.count("\\x1b") >= 3


def test_an_evaluation_shows_zeros_and_leaves_out_unknown_metrics(
    record: Callable[[Workspace], Recorded], own: Workspace
) -> None:
    with rewritten(own.folder("evaluation", "toy", "ngame")) as build:
        report = json.loads((build.path / "report.json").read_text())
        metrics = {"P_at_1": 0.0, "P_at_5": None}
        build.json("report.json", {**report, "metrics": metrics})
        build.json("metrics.json", metrics)
    toy = record(own)
    found = shown(toy, "evaluation")
    assert (found["P_at_1"], "P_at_5" in found) == (0.0, False)
    assert logged_metrics(toy)["P_at_1"] == 0.0


def test_a_leaderboard_shows_its_table(toy: Recorded) -> None:
    found = shown(toy, "leaderboard")
    assert found["table"] == (toy.workspace.folder("leaderboard", "toy") / "leaderboard.md").read_text()
    assert logged_files(toy) == ["leaderboard.md", "leaderboard.png"]
