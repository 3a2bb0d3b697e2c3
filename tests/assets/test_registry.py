"""The model registry: aliases, what a registered model holds, and failures, which leave the last champion in place."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from assets.release import registry
from assets.release.registry import Candidate, Released
from assets.resources import Tracking
from tests.assets.conftest import Registry, Store, failing
from tests.test_bundle import pickled
from xc_core.artifacts import read_manifest
from xc_core.chain import Workspace
from xc_core.errors import MissingError, UnavailableError
from xc_core.infer.bundle import Model, open_predictor

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = pytest.mark.filterwarnings("ignore")


# aliases


def test_promoting_keeps_the_last_champion_as_previous(versions: Registry) -> None:
    first, second, third = (versions.version(p) for p in (1.0, 2.0, 3.0))
    for number in (first, second, second, third):
        registry.set_champion(versions.client, versions.name, number)
    assert versions.aliases() == {"champion": third, "previous": second}


def test_rollback_exchanges_champion_and_previous_and_a_second_one_undoes_the_first(versions: Registry) -> None:
    first, second = versions.version(1.0), versions.version(2.0)
    for number in (first, second):
        registry.set_champion(versions.client, versions.name, number)
    assert registry.roll_back(versions.client, versions.dataset) == (first, second)
    assert versions.aliases() == {"champion": first, "previous": second}
    assert registry.roll_back(versions.client, versions.dataset) == (second, first)
    assert versions.aliases() == {"champion": second, "previous": first}


@pytest.mark.parametrize(("promoted", "found"), [(False, "no champion of"), (True, "no previous champion of")])
def test_rollback_needs_a_previous_champion(versions: Registry, promoted: bool, found: str) -> None:
    number = versions.version(1.0)
    if promoted:
        registry.set_champion(versions.client, versions.name, number)
    with pytest.raises(MissingError, match=found) as caught:
        registry.roll_back(versions.client, versions.dataset)
    assert f"xc promote --dataset {versions.dataset}" in caught.value.do


def test_a_version_that_is_not_there_is_named_with_those_that_are(versions: Registry) -> None:
    with pytest.raises(MissingError, match="there is none yet"):
        registry.check_version(versions.client, versions.name, 1)
    for precision in (1.0, 2.0):
        versions.version(precision)
    registry.check_version(versions.client, versions.name, 2)
    with pytest.raises(MissingError, match=r"no version 7 of xc-d\d+\n  expected: one of 1, 2\n"):
        registry.check_version(versions.client, versions.name, 7)


# the model itself


def test_the_tags_of_a_registered_model_name_its_origin(released: Released, store: Store, trained: Workspace) -> None:
    assert released == Released(1, True, "version 1 is champion: the first one")
    version = registry.version_of(store.client, "xc-toy", registry.CHAMPION)
    assert version is not None
    tags = version.tags
    assert (tags["recipe"], tags["dagster_run"], tags["git"]) == ("ngame", "r1", "abc")
    assert tags["bundle"] == read_manifest(trained.folder("model", "toy", "ngame")).digest()
    assert json.loads(tags["metrics"])["P_at_1"] > 90


def test_the_champion_predicts_by_its_alias_what_the_packed_model_predicts(
    released: Released, store: Store, trained: Workspace
) -> None:
    model = mlflow.pyfunc.load_model("models:/xc-toy@champion")
    texts = ["falcon", "castle0 castle1", ""]
    own = open_predictor(trained.folder("model", "toy", "ngame"))
    asked = (
        ({}, 5, None),
        ({"k": 2}, 2, None),
        ({"k": 100}, 100, None),
        ({"tail": 1.0}, 5, 1.0),
        ({"tail": 0.0}, 5, 0.0),
    )
    for params, k, tail in asked:
        expected = [
            [{"uid": one.uid, "title": one.title, "score": one.score} for one in row]
            for row in own.predict(texts, k, tail)
        ]
        assert model.predict(texts, params=params) == expected
    assert model.predict([]) == []


def test_the_model_has_a_schema_with_k_and_tail(released: Released, store: Store) -> None:
    signature = mlflow.models.get_model_info("models:/xc-toy@champion").signature.to_dict()
    assert json.loads(signature["inputs"]) == [{"type": "string", "required": True}]
    params = [(one["name"], one["type"], one["default"]) for one in json.loads(signature["params"])]
    assert params == [("k", "long", 5), ("tail", "double", -1.0)]
    (answer,) = json.loads(signature["outputs"])
    assert set(answer["items"]["properties"]) == {"uid", "title", "score"}


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
    files = [path for path in folder.rglob("*") if path.is_file()]
    texts = {".py", ".yaml", ".txt", ""}
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
    page = store.client.get_model_version("xc-toy", str(released.version)).description
    assert re.fullmatch(
        r"Recipe `ngame`\. On test documents, in percent: P@1 [\d.]+, P@5 [\d.]+, PSP@1 [\d.]+, PSP@5 [\d.]+\.", page
    )


def test_the_champions_bundle_is_found_by_its_alias(released: Released, store: Store) -> None:
    folder = registry.bundle_folder(store.client, "toy")
    assert folder is not None
    assert open_predictor(folder).predict(["falcon"], 1)[0][0].title == "falcon"
    assert registry.bundle_folder(store.client, "toy", registry.PREVIOUS) is None
    assert registry.bundle_folder(store.client, "unheard-of") is None


# failures


def test_a_failing_registration_leaves_the_last_champion_in_place(
    released: Released, store: Store, trained: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(Candidate.of(Model.open(trained.folder("model", "toy", "ngame")), {}), digest="other")
    tracking = Tracking(uri=store.uri, artifacts=store.artifacts, lock=str(store.lock))
    monkeypatch.setattr(mlflow.pyfunc, "log_model", failing(MlflowException("connection lost")))
    with pytest.raises(UnavailableError, match="connection lost"), tracking.client() as client:
        registry.register(client, store.artifacts, other)
    assert mlflow.active_run() is None
    champion = registry.version_of(store.client, "xc-toy", registry.CHAMPION)
    assert champion is not None
    assert int(champion.version) == released.version
    assert mlflow.pyfunc.load_model("models:/xc-toy@champion").predict(["falcon"])[0][0]["title"] == "falcon"


def test_a_champion_whose_files_are_gone_is_an_error_that_names_it(
    released: Released, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", failing(OSError("No such file or directory: 'x'")))
    with pytest.raises(MissingError, match="no files of xc-toy version 1") as caught:
        registry.bundle_folder(store.client, "toy")
    assert "--recipe" in caught.value.do


def test_a_model_whose_registered_files_are_gone_is_registered_again(
    store: Store, trained: Workspace, released: Released
) -> None:
    model = Model.open(trained.folder("model", "toy", "ngame"))
    candidate = replace(Candidate.of(model, {}), dataset="lost", metrics={"P_at_5": 50.0})
    assert registry.register(store.client, store.artifacts, candidate).version == 1
    folder = registry.bundle_folder(store.client, "lost")
    assert folder is not None
    shutil.rmtree(folder.parents[1])
    with pytest.raises(MissingError, match="no files of xc-lost version 1"):
        registry.bundle_folder(store.client, "lost")
    again = registry.register(store.client, store.artifacts, candidate)
    assert again == Released(2, True, "version 2 is champion: P@5 50.00 against 50.00 of version 1")
    assert registry.bundle_folder(store.client, "lost") is not None
    assert registry.register(store.client, store.artifacts, candidate).version == 2


def test_models_are_named_after_their_dataset() -> None:
    assert registry.model_name("toy") == "xc-toy"
    assert (registry.CHAMPION, registry.CHALLENGER, registry.PREVIOUS) == ("champion", "challenger", "previous")
