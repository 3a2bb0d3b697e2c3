"""The model registry: aliases, what a registered model holds, and failures, which leave the last champion in place."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

from assets.markdown import escaped
from assets.release import aliases, registry
from assets.release import versions as released_versions
from assets.release.candidate import candidate
from assets.release.gate import Line, Verdict
from assets.release.origin import origin
from assets.release.page import Page, description
from assets.release.registry import Candidate, Released
from assets.release.versions import check_version, is_whole, model_name, set_page
from assets.resources import Tracking
from tests.assets.conftest import FIRST, Registry, Store, champion_files, failing
from tests.test_bundle import pickled
from xc_core.artifacts import building
from xc_core.chain import Workspace
from xc_core.errors import MissingError, MovedError, RefusedError, UnavailableError
from xc_core.infer import acceptance
from xc_core.infer.bundle import open_predictor
from xc_core.manifests import read_manifest
from xc_core.metrics.evaluation import Evaluation

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]


# aliases


def test_promoting_keeps_the_last_champion_as_previous(versions: Registry) -> None:
    first, second, third = (versions.version() for _ in range(3))
    for number in (first, second, second):  # the champion may be promoted again
        aliases.set_champion(versions.client, versions.name, number)
    assert versions.aliases() == {"champion": second, "previous": first}
    aliases.set_champion(versions.client, versions.name, third)
    assert versions.aliases() == {"champion": third, "previous": second}


def test_rollback_exchanges_champion_and_previous_and_a_second_one_undoes_the_first(versions: Registry) -> None:
    first, second = versions.version(), versions.version()
    for number in (first, second):
        aliases.set_champion(versions.client, versions.name, number)
    assert aliases.roll_back(versions.client, versions.dataset) == (first, second)
    assert versions.aliases() == {"champion": first, "previous": second}
    assert aliases.roll_back(versions.client, versions.dataset) == (second, first)
    assert versions.aliases() == {"champion": second, "previous": first}


def test_a_rollback_does_not_replace_a_champion_that_it_has_not_seen(versions: Registry) -> None:
    """Another process promotes a version while the previous champion is opened."""
    first, second, third = (versions.version() for _ in range(3))
    for number in (first, second):
        aliases.set_champion(versions.client, versions.name, number)

    @contextmanager
    def moving() -> Iterator[None]:
        aliases.set_champion(versions.client, versions.name, third)
        yield

    with pytest.raises(MovedError, match=r"another champion of .* than version 2"):
        aliases.roll_back(versions.client, versions.dataset, moving)
    assert versions.aliases() == {"champion": third, "previous": second}
    tags = [versions.client.get_model_version(versions.name, str(number)).tags for number in (first, second, third)]
    assert not any(aliases.ROLLED_BACK in own for own in tags)


@pytest.mark.parametrize(
    ("champion", "versions_there", "found", "do"),
    [
        (None, 0, "no champion of", "there is no other version; register one: xc promote --dataset {} --recipe NAME"),
        (None, 1, "no champion of", "promote version 1: xc promote --dataset {} --version 1"),
        (
            1,
            1,
            "no previous champion of",
            "there is no other version; register one: xc promote --dataset {} --recipe NAME",
        ),
        (2, 3, "no previous champion of", "promote one of the versions 1, 3: xc promote --dataset {} --version N"),
    ],
)
def test_rollback_needs_a_previous_champion(
    versions: Registry, champion: int | None, versions_there: int, found: str, do: str
) -> None:
    for _ in range(versions_there):
        versions.version()
    if champion is not None:
        aliases.set_champion(versions.client, versions.name, champion)
    with pytest.raises(MissingError, match=found) as caught:
        aliases.roll_back(versions.client, versions.dataset)
    assert caught.value.do == do.format(versions.dataset)


def test_a_version_that_is_not_there_is_named_with_those_that_are(versions: Registry) -> None:
    with pytest.raises(MissingError, match="there is none yet"):
        check_version(versions.client, versions.name, 1)
    for _ in range(2):
        versions.version()
    check_version(versions.client, versions.name, 2)
    with pytest.raises(MissingError, match=r"no version 7 of xc-d\d+\n  expected: one of the versions 1, 2\n"):
        check_version(versions.client, versions.name, 7)


# the model itself


def test_the_tags_of_a_registered_model_name_its_origin(released: Released, store: Store, releasing: Workspace) -> None:
    assert (released.version, released.is_champion) == (1, True)
    judged = "acceptance set version 1 (test documents), 40 documents (few: figures of fewer than 50 are uncertain)"
    assert released.message == f"version 1 is champion: the first one, judged on {judged}"
    tags = FIRST[0].tags
    assert (tags["recipe"], tags["dagster_run"], tags["gate"]) == ("ngame", "r1", "passed")
    assert tags["bundle"] == read_manifest(releasing.folder("model", "toy", "ngame")).digest()
    assert tags["data"] == read_manifest(releasing.folder("corpus", "toy")).digest()
    assert re.fullmatch("[0-9a-f]{40}|none", tags["git"]), "a commit, never with -dirty"
    assert tags["made_by"] and tags["git_changed"]


def test_the_run_of_a_registered_model_has_figures_with_intervals_settings_plots_and_data(
    released: Released, store: Store, releasing: Workspace
) -> None:
    version = store.client.get_model_version("xc-toy", "1")
    run = store.client.get_run(version.run_id)
    report = Evaluation.open(releasing.folder("evaluation", "toy", "ngame")).report
    metrics = run.data.metrics
    assert metrics["P_at_1"] == pytest.approx(report["metrics"]["P_at_1"])
    ends = (metrics["P_at_5_low"], metrics["P_at_5_high"])
    assert ends == pytest.approx(tuple(report["intervals"]["P_at_5"]))
    assert metrics["head_recall_at_5"] == pytest.approx(report["bins"]["head"]["recall_at_5"])
    assert metrics["index_recall_classifier"] == report["index_recall"]["classifier"]
    half = report["calibration"]["thresholds"][4]
    assert metrics["calibration_error"] == pytest.approx(report["calibration"]["error"])
    assert (half["least"], metrics["precision_at_probability_half"]) == (0.5, pytest.approx(half["precision"]))
    assert (run.data.params["recipe"], run.data.params["settings.encoder.epochs"]) == ("ngame", "4.0")
    (data,) = run.inputs.dataset_inputs
    assert data.dataset.name == "toy/corpus"
    assert [tag.value for tag in data.tags] == ["training"], "as a run of a stage has it"
    assert read_manifest(releasing.folder("corpus", "toy")).digest().startswith(data.dataset.digest)
    plots = {file.path for file in store.client.list_artifacts(version.run_id, "plots")}
    assert "plots/deciles.png" in plots
    assert run.data.tags["dagster_run"] == "r1"


def test_what_runs_edit_is_recorded_whole(released: Released, store: Store, releasing: Workspace) -> None:
    run_id = store.client.get_model_version("xc-toy", "1").run_id
    recorded = mlflow.artifacts.load_text(f"runs:/{run_id}/origin/params.yaml")
    assert recorded == (releasing.root / "params.yaml").read_text()
    artefacts = json.loads(mlflow.artifacts.load_text(f"runs:/{run_id}/origin/artefacts.json"))
    assert artefacts["encoder"]["digest"] == read_manifest(releasing.folder("encoder", "toy", "ngame")).digest()
    assert "numpy==" in mlflow.artifacts.load_text(f"runs:/{run_id}/origin/environment.txt")


def test_the_champion_predicts_by_its_alias_what_the_packed_model_predicts(
    released: Released, store: Store, releasing: Workspace
) -> None:
    model = mlflow.pyfunc.load_model("models:/xc-toy@champion")
    texts = ["falcon", "castle0 castle1", ""]
    own = open_predictor(releasing.folder("model", "toy", "ngame"))
    asked = (
        ({}, 5, None, 0.0),
        ({"k": 2}, 2, None, 0.0),
        ({"k": None, "tail": None, "min_probability": None}, 5, None, 0.0),
        ({"k": 100}, 100, None, 0.0),
        ({"tail": 1.0}, 5, 1.0, 0.0),
        ({"tail": 0.0}, 5, 0.0, 0.0),
        ({"min_probability": 0.3}, 5, None, 0.3),
    )
    for params, *question in asked:
        expected = [
            [{name: getattr(one, name) for name in ("uid", "title", "score", "probability")} for one in row]
            for row in own.predict(texts, *question)
        ]
        assert model.predict(texts, params=params) == expected
    assert model.predict([]) == []
    assert is_whole(store.client.get_model_version("xc-toy", "1")), "files that MLflow adds are no damage"


def test_the_parameters_of_the_model_are_those_of_the_prediction() -> None:
    """The dial of the toy model has no effect, so its answers would not tell."""
    from assets.release import serving  # MLflow warns while it is read

    asked: list[Any] = []
    model = serving.Labels()
    model.predictor = SimpleNamespace(predict=lambda *given: asked.append(given) or [])
    expected = ((None, 5, None, 0.0), ({"k": 2}, 2, None, 0.0), ({"tail": 1.0}, 5, 1.0, 0.0),
                ({"tail": 0.0}, 5, 0.0, 0.0), ({"tail": -1.0}, 5, None, 0.0), ({"k": None, "tail": None}, 5, None, 0.0),
                ({"min_probability": 0.5}, 5, None, 0.5), ({"min_probability": None}, 5, None, 0.0))  # fmt: skip
    for params, *_ in expected:
        assert model.predict(None, ["falcon"], params) == []
    assert asked == [(["falcon"], *question) for _, *question in expected]


def test_the_model_has_a_schema_with_its_parameters(released: Released, store: Store) -> None:
    signature = mlflow.models.get_model_info("models:/xc-toy@champion").signature.to_dict()
    assert json.loads(signature["inputs"]) == [{"type": "string", "required": True}]
    params = [(one["name"], one["type"], one["default"]) for one in json.loads(signature["params"])]
    assert params == [("k", "long", 5), ("tail", "double", -1.0), ("min_probability", "double", 0.0)]
    (answer,) = json.loads(signature["outputs"])
    assert set(answer["items"]["properties"]) == {"uid", "title", "score", "probability"}


@pytest.mark.parametrize(
    ("texts", "params", "message"),
    [
        (["a"], {"k": "many"}, "Failed to validate type and shape for 'k'"),
        (["a"], {"k": 2.5}, "Failed to validate type and shape for 'k'"),
        (["a"], {"k": 0}, "found k 0"),
        (["a"], {"tail": 1.5}, "found tail 1.5"),
        (["a", None], None, "Expected type str, but got NoneType"),
        ("a", None, "Expected list, but got str"),
        ([1], None, "Expected type str, but got int"),
    ],
)
def test_the_model_refuses_input_that_its_schema_does_not_allow(
    released: Released, store: Store, texts: Any, params: dict[str, Any] | None, message: str
) -> None:
    model = mlflow.pyfunc.load_model("models:/xc-toy@champion")
    with pytest.raises(Exception, match=message):
        model.predict(texts, params=params)


def test_the_registered_files_hold_no_pickle(released: Released, store: Store) -> None:
    folder = Path(mlflow.artifacts.download_artifacts("models:/xc-toy@champion"))
    # Python may keep what it compiled of serving.py beside it, and checks that against serving.py
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    texts = {".py", ".yaml", ".txt", ".html", ""}
    assert {path.name: why for path in files if path.suffix not in texts and (why := pickled(path))} == {}
    for path in files:
        if path.suffix in texts:
            path.read_text("utf-8")
    assert "serving.py" in {path.name for path in files}
    flavour = mlflow.models.Model.load(str(folder)).flavors["python_function"]
    assert Path(flavour["model_code_path"]).name == "serving.py", "the model is code by name, not an object"
    assert "python_model" not in flavour


def test_the_pages_of_model_and_version_say_what_they_are(released: Released, store: Store) -> None:
    assert "Labels for texts of the dataset `toy`." in store.client.get_registered_model("xc-toy").description
    page = FIRST[0].description.replace(" &nbsp;&nbsp;", "")
    assert page.count("\n| --- |") == 2, "two tables"
    assert "Recipe `ngame`. Figures on test documents, in percent." in page
    assert re.search(r"\| P@5 \| [\d.]+ \| [\d.]+ to [\d.]+ \|", page)
    assert "- Dagster run: r1" in page
    assert "**Gate**: acceptance set version 1 (test documents), 40 documents" in html.unescape(page)
    assert "| opens and answers | 40 texts answered in a clean process | - | passed |" in page
    run = store.client.get_model_version("xc-toy", "1").run_id
    experiment = store.client.get_experiment_by_name("xc-toy").experiment_id
    report = f"#/experiments/{experiment}/runs/{run}/artifacts/ngame.html?workflowType=machine_learning"
    assert f"- report: [ngame.html]({report})\n- commit: " in page
    picture = f"![plots/deciles.png](get-artifact?path=plots%2Fdeciles.png&run_uuid={run})"
    assert picture in page and picture in store.client.get_run(run).data.tags["mlflow.note.content"]


def test_the_page_of_a_version_leads_to_its_dagster_run_and_asset_if_they_have_an_address() -> None:
    tags = {"dagster_run": "r1", "dagster_run_url": "http://d/runs/r1", "dagster_asset_url": "http://d/assets/model"}
    linked = description("ngame", Page(), tags, Verdict((), "40 documents"))
    assert "- Dagster run: [r1](http://d/runs/r1)\n- Dagster asset: [model](http://d/assets/model)" in linked
    assert "](" not in description("ngame", Page(), {"dagster_run": "r1"}, Verdict((), "40 documents"))


@pytest.mark.parametrize(("address", "run", "pages"), [("http://d", "r1", 2), ("", "r1", 0), ("http://d", "", 0)])
def test_only_a_version_that_dagster_made_has_pages_in_dagster(
    releasing: Workspace, monkeypatch: pytest.MonkeyPatch, address: str, run: str, pages: int
) -> None:
    monkeypatch.setenv("XC_DAGSTER_URL", address)
    found = {tag: page for tag, page in origin(releasing, "toy", "ngame", run).tags.items() if tag.endswith("_url")}
    known = {
        "dagster_run_url": "http://d/runs/r1",
        "dagster_asset_url": "http://d/assets/model?view=partitions&partition=toy%7Cngame",
    }
    assert found == (known if pages else {})


def test_markdown_of_others_is_shown_as_it_is() -> None:
    text = "![p](http://x/y.png)\n[c](javascript:a) <img> `x` | y"
    shown = escaped(text)
    assert html.unescape(shown) == text.replace("\n", " ")
    assert not re.search(r"[!\[\]()<>`|\\:]", shown)


def test_the_champions_files_are_found_by_its_alias(released: Released, store: Store) -> None:
    assert open_predictor(champion_files(store, "toy")).predict(["falcon"], 1)[0][0].title == "falcon"
    assert aliases.version_of(store.client, "xc-toy", aliases.PREVIOUS) is None
    assert aliases.version_of(store.client, "xc-unheard-of", aliases.CHAMPION) is None


# failures


def test_a_failing_registration_leaves_the_last_champion_in_place(
    released: Released, store: Store, releasing: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(candidate(releasing, "toy", "ngame"), digest="other")
    tracking = Tracking(root=str(store.lock.parent), uri=store.uri, artifacts=store.artifacts, lock=str(store.lock))
    monkeypatch.setattr(mlflow.pyfunc, "log_model", failing(MlflowException("connection lost")))
    with pytest.raises(UnavailableError, match="connection lost"), tracking.client() as client:
        registry.register(client, store.artifacts, other)
    assert mlflow.active_run() is None
    champion = aliases.version_of(store.client, "xc-toy", aliases.CHAMPION)
    assert champion is not None
    assert int(champion.version) == released.version
    assert mlflow.pyfunc.load_model("models:/xc-toy@champion").predict(["falcon"])[0][0]["title"] == "falcon"


def test_a_champion_whose_files_are_gone_is_an_error_that_names_it(
    released: Released, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(released_versions, "files_of", failing(OSError("No such file or directory: 'x'")))
    with pytest.raises(MissingError, match="no files of xc-toy version 1") as caught:
        champion_files(store, "toy")
    assert caught.value.do == "xc promote --dataset toy --version 1 --repair"


def passing(version: Any, champion: Any | None) -> Verdict:
    return Verdict((Line("P@5", True, "50.00"),), "40 documents")


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_model_whose_registered_files_are_damaged_is_registered_again(
    store: Store, releasing: Workspace, released: Released, damage: str
) -> None:
    own = replace(candidate(releasing, "toy", "ngame"), dataset=f"lost-{damage}", judge=passing)
    assert registry.register(store.client, store.artifacts, own).version == 1
    folder = champion_files(store, own.dataset)
    if damage == "gone":
        shutil.rmtree(folder.parents[1])
        with pytest.raises(MissingError, match="no files of xc-lost-gone version 1"):
            champion_files(store, own.dataset)
    else:
        weights = folder / "encoder.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    again = registry.register(store.client, store.artifacts, own)
    assert (again.version, again.is_champion) == (2, True)
    assert champion_files(store, own.dataset).is_dir()
    assert registry.register(store.client, store.artifacts, own).version == 2


def test_a_registration_that_is_killed_leaves_no_version_without_its_origin(
    store: Store, releasing: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(candidate(releasing, "toy", "ngame"), dataset="killed", judge=passing)
    real, calls = store.client.set_model_version_tag, []

    def killed(*tag: str) -> None:
        calls.append(tag)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*tag)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store.client, "set_model_version_tag", killed)
        registry.register(store.client, store.artifacts, own)
    assert registry.register(store.client, store.artifacts, own).version == 1
    tags = store.client.get_model_version("xc-killed", "1").tags
    assert own.tags.items() <= tags.items()
    assert tags["gate"] == "passed"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_registration_that_ends_before_its_version_leaves_no_files(
    store: Store, releasing: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """On a full disk each attempt left one more copy of the model; one that is killed is cleared up by the next."""
    name = f"ends-{type(error).__name__.lower()}"
    own = replace(candidate(releasing, "toy", "ngame"), dataset=name, judge=passing, under_way=tmp_path / "under way")
    models = Path(store.artifacts.removeprefix("file://")) / f"xc-{name}" / "models"
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(registry, "log_page", failing(error))
        registry.register(store.client, store.artifacts, own)
    assert any(map(Path.is_file, models.rglob("*"))) == isinstance(error, KeyboardInterrupt)
    assert registry.register(store.client, store.artifacts, own).version == 1
    assert len(list(models.glob("*/artifacts/MLmodel"))) == 1
    assert champion_files(store, name).is_dir()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_model_that_cannot_be_deleted_stays_and_the_next_one_is_registered(
    store: Store,
    releasing: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """A bucket may let its user write but not delete: each later registration would fail."""
    name = f"stays-{type(error).__name__.lower()}"
    own = replace(candidate(releasing, "toy", "ngame"), dataset=name, judge=passing, under_way=tmp_path / "under way")
    monkeypatch.setattr(registry, "delete_model", failing(MlflowException("AccessDenied: s3:DeleteObject")))
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(registry, "log_page", failing(error))
        registry.register(store.client, store.artifacts, own)
    notes: list[str] = []
    monkeypatch.setattr(registry, "report", notes.append)
    for _ in range(2):  # only the first one finds something to delete
        assert registry.register(store.client, store.artifacts, own).version == 1
    (note,) = notes
    assert note.endswith(f"{name} that was not completed stay in MLflow (AccessDenied: s3:DeleteObject)")


def test_the_next_registration_deletes_no_version_and_no_model_of_another_project(
    store: Store, releasing: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registration may be killed after its version is there. A project that is copied meanwhile knows its run, whose
    files may be in a bucket or on a server, where no path says whose they are."""
    own = replace(candidate(releasing, "toy", "ngame"), dataset="late", judge=passing, under_way=tmp_path / "under way")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(registry, "_check_logged", failing(KeyboardInterrupt()))
        registry.register(store.client, store.artifacts, own)
    assert own.under_way is not None
    assert own.under_way.is_file()
    assert registry.register(store.client, store.artifacts, own).version == 1
    assert champion_files(store, "late").is_dir()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(registry, "log_page", failing(KeyboardInterrupt()))
        registry.register(store.client, store.artifacts, replace(own, digest="other"))
    models = Path(store.artifacts.removeprefix("file://")) / "xc-late" / "models"
    assert len(list(models.glob("*/artifacts/MLmodel"))) == 2
    copied = Path(shutil.copy2(own.under_way, tmp_path / "copy"))
    registry._clear_up(store.client, copied)
    assert (len(list(models.glob("*/artifacts/MLmodel"))), copied.exists()) == (2, False)
    registry._clear_up(store.client, own.under_way)
    assert len(list(models.glob("*/artifacts/MLmodel"))) == 1


def test_a_version_whose_run_is_gone_is_judged_again(
    store: Store, releasing: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow gc` deletes runs; the files of their models stay."""
    own = replace(candidate(releasing, "toy", "ngame"), dataset="outlived", judge=passing)
    registry.register(store.client, store.artifacts, own)
    store.client.delete_registered_model_alias("xc-outlived", aliases.CHAMPION)
    gone = MlflowException("no run", error_code=RESOURCE_DOES_NOT_EXIST)
    monkeypatch.setattr(type(store.client), "get_run", failing(gone))
    found = registry.register(store.client, store.artifacts, own)
    assert (found.version, found.is_champion) == (1, True)


def test_a_model_that_is_replaced_while_it_is_registered_makes_no_version_and_leaves_no_files(
    store: Store, releasing: Workspace, tmp_path: Path
) -> None:
    """Another run may pack another model in the same folder; the version must not have a digest that is not its own."""
    own = replace(
        candidate(releasing, "toy", "ngame"),
        dataset="replaced",
        judge=passing,
        digest="0" * 64,
        under_way=tmp_path / "under way",
    )
    with pytest.raises(MovedError, match="packed model of replaced/ngame changed while it was registered"):
        registry.register(store.client, store.artifacts, own)
    assert store.client.search_model_versions("name = 'xc-replaced'") == []
    models = Path(store.artifacts.removeprefix("file://")) / "xc-replaced" / "models"
    assert not list(filter(Path.is_file, models.rglob("*")))


def test_a_version_whose_files_cannot_be_read_back_is_not_deleted(
    store: Store, releasing: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a lost network says nothing about the files."""
    own = replace(candidate(releasing, "toy", "ngame"), dataset="unread", judge=passing)
    monkeypatch.setattr(released_versions, "files_of", failing(OSError("No space left on device")))
    with pytest.raises(MissingError, match="No space left on device"):
        registry.register(store.client, store.artifacts, own)
    (version,) = store.client.search_model_versions("name = 'xc-unread'")
    assert version.tags["bundle"] == own.digest, "so the next run finds it"
    monkeypatch.undo()
    mlflow.set_tracking_uri(store.uri)
    assert registry.register(store.client, store.artifacts, own).version == 1


def test_a_model_that_another_process_registers_at_the_same_moment_is_registered_once(versions: Registry) -> None:
    """Otherwise the second version replaces the first one as champion, and a rollback goes back to the same model."""
    versions.release(versions.version())
    own = replace(versions.candidate(1), digest="digest of 2")

    @contextmanager
    def registering() -> Iterator[None]:
        assert versions.version() == 2
        yield

    found = registry.register(versions.client, "", replace(own, registering=registering))
    assert (found.version, versions.aliases()) == (2, {"champion": 2, "challenger": 2, "previous": 1})


def test_the_run_of_a_killed_registration_is_ended_by_the_next_one(versions: Registry, tmp_path: Path) -> None:
    """MLflow showed it as running for ever; a run that somebody else made stays as it is."""
    own = replace(versions.candidate(versions.version()), under_way=tmp_path / "registering" / "toy.json")
    experiment = versions.client.create_experiment(f"{versions.name} killed")
    mark = registry._marking_run(experiment, own).__enter__()
    killed, other = (versions.client.create_run(experiment, tags=tags).info.run_id for tags in (mark, {}))
    registry.register(versions.client, "", own)
    assert [versions.client.get_run(run).info.status for run in (killed, other)] == ["KILLED", "RUNNING"]
    assert own.under_way is not None and not own.under_way.exists()
    gone = json.dumps(["999999", "00", str(own.under_way)])  # MLflow was deleted meanwhile
    for left in (gone, "", "[7]"):  # the others are damaged
        own.under_way.write_text(left)
        assert registry.register(versions.client, "", own).version == 1
        assert not own.under_way.exists()


def test_a_registration_leaves_nothing_to_end(
    store: Store, releasing: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(candidate(releasing, "toy", "ngame"), dataset="ended", judge=passing, under_way=tmp_path / "own.json")
    seen: list[list[str]] = []

    def fails(*_: object) -> None:
        experiment, mark, _ = json.loads((tmp_path / "own.json").read_text())
        runs = store.client.search_runs([experiment], f"tags.`{registry._MARK}` = '{mark}'")
        seen.append([run.info.status for run in runs])
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(registry, "log_page", fails)
        registry.register(store.client, store.artifacts, own)
    assert seen == [["RUNNING"]], "a kill here leaves a run that the file names"
    assert registry.register(store.client, store.artifacts, own).version == 1
    assert not (tmp_path / "own.json").exists()


def test_the_gate_measures_the_registered_files(
    store: Store, releasing: Workspace, released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is served is what was measured, whatever another run packs in the project's folder meanwhile."""
    measured: list[Path] = []

    def refuse(folder: Path, _: object) -> None:
        measured.append(folder)
        raise RefusedError("too slow", expected="an answer", do="wait")

    monkeypatch.setattr(acceptance, "measured", refuse)
    version = store.client.get_model_version("xc-toy", str(released.version))
    verdict = candidate(releasing, "toy", "ngame").judge(version, None)
    assert (measured, verdict.passed) == ([champion_files(store, "toy")], False)


def test_the_gate_does_not_bring_back_what_a_person_rolled_back(
    store: Store, releasing: Workspace, tmp_path: Path
) -> None:
    """The nightly run registers the same model again, although nothing has changed."""
    toy = replace(candidate(releasing, "toy", "ngame"), dataset="back", judge=passing)

    def packed(number: int) -> Candidate:
        folder = tmp_path / str(number)
        with building(folder, kind="model") as build:
            shutil.copytree(toy.folder, build.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("ma*.json"))
            facts = json.loads((build.path / "model.json").read_text())
            (build.path / "model.json").write_text(json.dumps({**facts, "dataset": "back"}))
            (build.path / "more").write_text(f"model {number}")
        return replace(toy, folder=folder, digest=read_manifest(folder).digest())

    first, second = packed(1), packed(2)
    for number, own in ((1, first), (2, second)):
        found = registry.register(store.client, store.artifacts, own)
        assert (found.version, found.is_champion) == (number, True)
    assert aliases.roll_back(store.client, "back") == (1, 2)
    again = registry.register(store.client, store.artifacts, second)
    assert (again.version, again.is_champion) == (2, False)
    assert "it was rolled back on 20" in again.message and "--version 2 makes it champion" in again.message
    champion = aliases.version_of(store.client, "xc-back", aliases.CHAMPION)
    assert champion is not None and int(champion.version) == 1

    aliases.set_champion(store.client, "xc-back", 2)
    assert aliases.ROLLED_BACK not in store.client.get_model_version("xc-back", "2").tags
    aliases.set_champion(store.client, "xc-back", 1)
    assert registry.register(store.client, store.artifacts, second).is_champion


@pytest.mark.parametrize("change", ["rollback", "promote"])
def test_a_change_of_the_champion_that_is_killed_between_two_aliases_can_be_completed(
    versions: Registry, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A rollback has set the champion by then; it cannot be repeated. A promotion is repeated as a whole."""
    first, second, third = (versions.version() for _ in range(3))
    for number in (first, second):
        aliases.set_champion(versions.client, versions.name, number)
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        real = versions.client.set_registered_model_alias

        def once(*asked: str) -> None:
            real(*asked)
            raise KeyboardInterrupt

        killed.setattr(versions.client, "set_registered_model_alias", once)
        if change == "rollback":
            aliases.roll_back(versions.client, versions.dataset)
        else:
            aliases.set_champion(versions.client, versions.name, third)
    serves = first if change == "rollback" else second
    assert versions.aliases()["champion"] == serves
    with pytest.raises(
        MissingError, match=rf"no previous champion .*; an earlier change was cut off, version {serves} is both"
    ):
        aliases.roll_back(versions.client, versions.dataset)
    if change == "promote":
        aliases.set_champion(versions.client, versions.name, third)
        assert versions.aliases() == {"champion": third, "previous": second}


def test_a_rollback_without_a_champion_speaks_of_no_change_that_was_cut_off(versions: Registry) -> None:
    versions.client.set_registered_model_alias(versions.name, aliases.PREVIOUS, str(versions.version()))
    with pytest.raises(MissingError, match="no champion of") as caught:
        aliases.roll_back(versions.client, versions.dataset)
    assert "cut off" not in caught.value.found


def test_a_page_is_no_longer_than_what_mlflow_stores_in_any_database(versions: Registry) -> None:
    """Postgres refuses 5,001 characters, sqlite takes them."""
    number = versions.version()
    set_page(versions.client, versions.name, number, "x" * 6000)
    assert len(versions.client.get_model_version(versions.name, str(number)).description) == 5000
    tags = dict.fromkeys(("git_changed", "overruled_because"), "path/of/a/file.py, " * 250)
    tags |= {"overruled_by": "Ada", "overruled_at": "today"}
    page = description("ngame", Page(), tags, Verdict((), "40 documents"))
    assert len(page) < 2500 and "path/of/a/file.py" in page


def test_models_are_named_after_their_dataset() -> None:
    assert model_name("toy") == "xc-toy"
    assert (aliases.CHAMPION, aliases.CHALLENGER, aliases.PREVIOUS) == ("champion", "challenger", "previous")
