"""Facts of an artefact as metadata and metrics: what is left out, shortened, nested or drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from mlflow import get_registry_uri

from assets import links
from assets.metadata import Shown, link, numbers, picture, plots, short, summary, table
from assets.settings import dagster_environment, mlflow_settings
from xc_core.artifacts import Made, building
from xc_core.manifests import MANIFEST, Manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An artefact of 2.234 MB, of which only the manifest exists."""
    files = {"a": {"bytes": 1_500_000, "sha256": ""}, "b/c": {"bytes": 734_000, "sha256": ""}}
    (tmp_path / MANIFEST).write_text(Manifest("scores", files).to_file())
    return tmp_path


def made(**facts: Any) -> Made:
    return Made("f", {"settings": "s"}, settings={"k": 1}, facts={"rows": 3, **facts})


def test_facts_are_shown_and_settings_are_not(folder: Path) -> None:
    hidden = {name: {"x": 1} for name in ("source", "metrics", "theorem1", "validation", "figures", "test", "max_drop")}
    found = summary(folder, made(recall=0.123456789, absent=None, split={"a": 1}, **hidden), None)
    assert found.metadata == {
        "rows": 3, "recall": 0.12346, "split": dg.MetadataValue.json({"a": 1}), "megabytes": 2.23,
    }  # fmt: skip
    assert found.metrics == {"rows": 3.0, "recall": 0.123456789, "split.a": 1.0}
    assert found.files == []


def test_facts_that_say_nothing_are_left_out(folder: Path) -> None:
    """A page of Dagster had rows with [] and {}."""
    none = {"allow": [], "accepted": {"documents": {}, "labels": {}}, "alike_labels": {}, "note": ""}
    some = {"empty_texts": 0, "accepted_rows": {"documents": {"empty-text": 1}, "labels": {}}}
    assert list(summary(folder, made(**none, **some), None).metadata) == ["rows", *some, "megabytes"]


def test_what_a_stage_shows_itself_replaces_its_facts(folder: Path) -> None:
    own = Shown({}, {"rows": 4, "loss": 0.000012345678, "none": None}, {"rows": 5.0}, [folder / "report.json"])
    found = summary(folder, made(), {folder: own}.get)
    assert found.metadata == {"rows": 4, "megabytes": 2.23, "loss": 1.2346e-05}
    assert found.metrics == {"rows": 5.0}
    assert found.files == [folder / "report.json"]


def test_pictures_of_an_artefact_are_shown_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "artefact"
    with building(folder, kind="scores") as build:
        for name in ("b.png", "a.png", "c.txt"):
            (build.path / name).write_bytes(b"1")
    (folder / "other.png").write_bytes(b"not a file of the artefact")
    found = summary(folder, made(), None)
    assert found.files == [folder / "a.png", folder / "b.png"]
    shown = plots(found.files, lambda name: None)
    assert set(shown) == {"a", "b"}
    assert shown["a"] == dg.MetadataValue.md("![a](data:image/png;base64,MQ==)")


@pytest.mark.parametrize(("size", "inline"), [(400_000, True), (400_001, False)])
def test_a_large_picture_is_shown_as_a_path(tmp_path: Path, size: int, inline: bool) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"0" * size)
    found = picture(path)
    assert isinstance(found, dg.MarkdownMetadataValue) is inline
    assert inline or found == dg.MetadataValue.path(str(path))


def test_numbers_of_nested_facts_have_dotted_names() -> None:
    nested = {"a": 1, "b": {"c": 2.5, "d": {"e": True}}, "text": "x", "list": [1], "none": None}
    assert numbers(nested) == {"a": 1.0, "b.c": 2.5, "b.d.e": 1.0}


@pytest.mark.parametrize(
    ("value", "shortened"), [(99.862148, 99.862), (0.00012345678, 0.00012346), (123456.7, 123460.0), (7, 7), ("x", "x")]
)
def test_a_number_is_shown_with_five_significant_digits(value: Any, shortened: Any) -> None:
    assert short(value) == shortened


def test_a_table_has_two_decimals_and_a_dash_for_a_missing_value() -> None:
    rows: dict[str, dict[str, float | None]] = {"tree": {"P_at_1": 50.125, "R": 1.0}, "sum": {"P_at_1": None}}
    found = table("score", rows, ["P_at_1", "R"])
    assert isinstance(found, dg.TableMetadataValue)
    assert [column.name for column in found.schema.columns] == ["score", "P@1", "R"]
    assert [record.data for record in found.records] == [
        {"score": "tree", "P@1": "50.12", "R": "1.00"},
        {"score": "sum", "P@1": "-", "R": "-"},
    ]


@pytest.mark.parametrize("size", [1, 400_001])
def test_plots_with_an_address_are_loaded_from_there_so_that_dagster_shows_them_at_once(
    tmp_path: Path, size: int
) -> None:
    for name in ("deciles.png", "report.json"):
        (tmp_path / name).write_bytes(b"0" * size)
    found = plots(sorted(tmp_path.iterdir()), lambda name: f"http://127.0.0.1:5000/get-artifact?path={name}")
    assert found == {"deciles": dg.MetadataValue.md("![deciles](http://127.0.0.1:5000/get-artifact?path=deciles.png)")}


def test_a_link_without_an_address_is_a_text() -> None:
    assert link("http://127.0.0.1:5000/", "run 1") == dg.MetadataValue.url("http://127.0.0.1:5000/")
    assert link(None, "run 1") == dg.MetadataValue.text("run 1")


def test_an_address_that_no_browser_can_break_is_shown_as_a_short_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster shows an address as it is: a long host made the table wider than its panel, and names left the view."""
    run = "0123456789abcdef" * 2
    for host, breaks in (("mlflow", True), ("127.0.0.1:5000", True), (f"{'mlflow.' * 9}example.org", False)):
        monkeypatch.setenv("XC_MLFLOW_URL", f"https://{host}")
        address = links.mlflow_run("12", run)
        assert address is not None
        shown = link(address, run)
        assert shown == (dg.MetadataValue.url(address) if breaks else dg.MetadataValue.md(f"[{run}]({address})"))
    report = links.mlflow_shown("12", run, "ngame.html")
    assert report is not None and link(report, f"/home/{'x' * 99}/ngame.html").value == f"[ngame.html]({report})"
    assert len(str(link(report, "x" * 99).value)) == len(report) + len("[]()") + 40


# settings


def test_mlflow_is_in_the_project_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("XC_MLFLOW_ARTIFACTS", raising=False)
    found = mlflow_settings(tmp_path)
    assert found.uri == f"sqlite:///{tmp_path}/.xc/mlflow/mlflow.db"
    assert found.artifacts == (tmp_path / ".xc" / "mlflow" / "artifacts").as_uri()
    assert not (tmp_path / ".xc" / "mlflow").exists(), "who makes the database makes its folder"
    assert (tmp_path / ".xc" / ".gitignore").read_text() == "*\n", "DVC would read a dvc.yaml that is kept there"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", "s3://bucket")
    named = mlflow_settings(tmp_path)
    assert (named.uri, named.artifacts) == ("http://tracking:5000", "s3://bucket")
    assert found.lock == named.lock == tmp_path / ".xc" / "lock" / "mlflow"


@pytest.mark.parametrize(
    ("variable", "value", "found"),
    [
        ("MLFLOW_TRACKING_URI", "sqlite:///runs/mlflow.db", "sqlite:///{root}/runs/mlflow.db"),
        ("MLFLOW_TRACKING_URI", "sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("MLFLOW_TRACKING_URI", "postgresql:///mlflow", "postgresql:///mlflow"),
        ("MLFLOW_REGISTRY_URI", "sqlite:///runs/models.db", "sqlite:///{root}/runs/models.db"),
        ("MLFLOW_REGISTRY_URI", "http://models:5000", "http://models:5000"),
        ("XC_MLFLOW_ARTIFACTS", "runs/files", "file://{root}/runs/files"),
        ("XC_MLFLOW_ARTIFACTS", "/data/files", "file:///data/files"),
        ("XC_MLFLOW_ARTIFACTS", "mlflow-artifacts:/files", "mlflow-artifacts:/files"),
    ],
)
def test_a_relative_path_of_mlflow_is_one_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, found: str
) -> None:
    """Each command would otherwise have a database of its own, in the folder it happens to run in."""
    monkeypatch.setenv(variable, value)
    settings = mlflow_settings(tmp_path)
    got = {"MLFLOW_TRACKING_URI": settings.uri, "MLFLOW_REGISTRY_URI": settings.registry}
    assert got.get(variable, settings.artifacts) == found.format(root=tmp_path)
    if variable == "MLFLOW_REGISTRY_URI":
        assert get_registry_uri() == settings.registry, "MLflow reads the variable itself"


def test_dagster_keeps_its_state_in_the_project_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XC_STATE_DIR", "XC_LOG_DIR"):
        monkeypatch.delenv(name, raising=False)
    state = tmp_path / ".xc" / "dagster"
    plain = {"DAGSTER_HOME": str(tmp_path), "XC_ROOT": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"}
    assert dagster_environment(tmp_path) == plain | {"XC_STATE_DIR": str(state), "XC_LOG_DIR": str(state / "logs")}
    monkeypatch.setenv("XC_STATE_DIR", "/state")
    monkeypatch.setenv("XC_LOG_DIR", "/logs")
    assert dagster_environment(tmp_path) == plain | {"XC_STATE_DIR": "/state", "XC_LOG_DIR": "/logs"}
    monkeypatch.setenv("XC_STATE_DIR", "state")  # xc ui may be started in another folder than its servers
    monkeypatch.setenv("XC_LOG_DIR", "state/logs")
    state = tmp_path / "state"
    assert dagster_environment(tmp_path) == plain | {"XC_STATE_DIR": str(state), "XC_LOG_DIR": str(state / "logs")}
