"""The pointer to the champion: it is found again without MLflow."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from assets.mlflow_internals import Alias, alias_in_sqlite
from assets.release import champions, copies
from assets.release.registry import Released
from tests.assets.conftest import Store
from xc_core.chain import Workspace
from xc_core.errors import UnavailableError
from xc_core.manifests import read_manifest

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = [pytest.mark.chain, pytest.mark.filterwarnings("ignore")]


def fetched(project: Workspace) -> Path:
    """Return the folder of the champion."""
    found = champions.champion(project, "toy")
    assert found is not None
    return found.fetch()


def test_the_champion_is_found_again_without_mlflow_until_the_alias_moves(
    released: Released, project: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetched(project)
    alias = alias_in_sqlite(store.uri, "xc-toy", "champion")
    assert alias is not None and alias.version == released.version
    asked: list[str] = []
    monkeypatch.setattr(champions, "_ask_registry", lambda workspace, dataset: asked.append(dataset))
    assert fetched(project) == folder
    assert not asked, "the pointer is enough"
    moved = Alias(released.version + 1, alias.digest)
    monkeypatch.setattr(champions, "alias_in_sqlite", lambda uri, name, alias: moved)
    assert champions.champion(project, "toy") is None
    assert asked == ["toy"], "a moved alias is noticed"


def test_a_version_has_one_name_whether_mlflow_or_the_pointer_answers(released: Released, project: Workspace) -> None:
    """MLflow numbers versions, a server compares names: it would load the same version again."""
    (project.state / "champions" / "toy.json").unlink(missing_ok=True)
    asked = champions.champion(project, "toy")
    fetched(project)
    pointed = champions.champion(project, "toy")
    assert asked is not None and pointed is not None
    assert (asked.version, asked.digest) == (pointed.version, pointed.digest)
    assert asked.version == str(released.version)


def test_a_new_database_in_the_place_of_the_old_one_is_noticed(
    released: Released, project: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its versions have the same numbers, and the files of the old ones may still be there."""
    path = tmp_path / "mlflow.db"
    shutil.copyfile(store.uri.removeprefix("sqlite:///"), path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    folder = fetched(project)
    asked: list[str] = []
    monkeypatch.setattr(champions, "_ask_registry", lambda workspace, dataset: asked.append(dataset))
    assert fetched(project) == folder
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE model_version_tags SET value = 'another model' WHERE key = 'bundle'")
    assert champions.champion(project, "toy") is None
    assert asked == ["toy"]


def test_a_registry_beside_the_tracking_store_is_asked(
    released: Released, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow reads the variable too, so an alias in the tracking store's own file is an old one."""
    fetched(project)
    asked: list[str] = []
    monkeypatch.setattr(champions, "_ask_registry", lambda workspace, dataset: asked.append(dataset))
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://127.0.0.1:9")
    assert champions.champion(project, "toy") is None
    assert asked == ["toy"]


def test_a_registry_on_a_server_is_asked_for_the_version_and_its_files_are_copied_once(
    released: Released, own: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`xc predict` downloaded the champion at each call."""
    monkeypatch.setattr(champions, "alias_in_sqlite", lambda uri, name, alias: None)
    monkeypatch.setattr(copies, "is_here", lambda uri: False)
    pointer = own.state / "champions" / "toy.json"
    pointer.unlink(missing_ok=True)
    folder = fetched(own)
    assert folder.is_relative_to(own.state / "models" / "toy")
    copy = own.state / "models" / "toy" / folder.relative_to(own.state / "models" / "toy").parts[0]
    copies._HELD.pop(copy).close()
    assert fetched(own) == folder
    assert copy in copies._HELD, "another process downloaded it, and this one reads it"
    content = json.loads(pointer.read_text())
    for change in ({"uri": "sqlite:///other.db"}, {"version": 0}, {"digest": "0"}):
        pointer.write_text(json.dumps(content | change))
        again = fetched(own)
        assert again != folder, change
        assert fetched(own) == again
        folder = again
    (folder / "manifest.json").unlink()
    assert fetched(own) != folder, "a copy that is damaged"


@pytest.mark.parametrize(
    "change", [{"uri": "sqlite:///other.db"}, {"folder": "/nowhere"}, {"digest": "0"}, {"version": 0}]
)
def test_a_pointer_to_anything_else_is_not_used(
    released: Released, project: Workspace, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetched(project)
    path = project.state / "champions" / "toy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert fetched(project) == folder
    assert json.loads(path.read_text())["version"] == released.version, "the pointer is corrected"
    path.write_text("{")
    assert fetched(project) == folder


def test_an_alias_is_read_only_from_a_registry_in_a_sqlite_file(tmp_path: Path) -> None:
    for uri in ("http://127.0.0.1:9", f"sqlite:///{tmp_path / 'none.db'}"):
        assert alias_in_sqlite(uri, "xc-toy", "champion") is None
    (tmp_path / "other.db").write_text("not a database")
    assert alias_in_sqlite(f"sqlite:///{tmp_path / 'other.db'}", "xc-toy", "champion") is None


def test_a_second_answer_imports_only_what_it_needs(released: Released, project: Workspace) -> None:
    champions.champion(project, "toy")
    code = (
        "import sys; from xc_core.cli.main import cli; "
        "cli(['predict', '--dataset', 'toy', 'x'], standalone_mode=False); "
        "print({'mlflow', 'transformers', 'dagster', 'sklearn', 'scipy.sparse', 'scipy.special', 'scipy.optimize'} "
        "& sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"


def test_without_an_answer_the_last_champion_is_used_and_nothing_else(
    released: Released, own: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was started again while MLflow was down ended, although it had the model."""
    folder, path, down = fetched(own), own.state / "champions" / "toy.json", "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", down)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    content = json.loads(path.read_text())
    with pytest.raises(UnavailableError):  # the pointer names a different registry
        champions.champion(own, "toy")
    path.write_text(json.dumps(content | {"uri": down}))
    found = champions.champion(own, "toy")
    assert found is not None
    assert (found.version, found.digest, found.fetch()) == (str(released.version), content["digest"], folder)
    assert found.unconfirmed.startswith(f"no answer from MLflow at {down} ")
    path.write_text(json.dumps(content | {"uri": down, "folder": "/nowhere"}))
    with pytest.raises(UnavailableError):
        champions.champion(own, "toy")


def test_a_registry_at_another_address_is_asked_alone_and_once(
    released: Released, own: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll of a server asked it twice, and made the database of runs, which it does not need."""
    from mlflow import MlflowClient

    runs, asked = tmp_path / "runs.db", list[str]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{runs}")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    monkeypatch.setattr(champions, "alias_in_sqlite", lambda uri, name, alias: None)
    for name in ("search_experiments", "search_registered_models", "get_model_version_by_alias"):
        plain = getattr(MlflowClient, name)
        monkeypatch.setattr(
            MlflowClient, name, lambda *a, _name=name, _plain=plain, **k: asked.append(_name) or _plain(*a, **k)
        )
    found = champions.champion(own, "toy")
    assert found is not None and not found.unconfirmed
    assert asked == ["get_model_version_by_alias"]
    assert found.fetch().is_dir()
    assert not runs.exists()
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{runs}"


@pytest.mark.parametrize("broken", [False, True], ids=["server", "database"])
def test_without_runs_the_registry_alone_names_the_champion_and_its_files(
    released: Released, own: Workspace, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """A server on a machine that had never asked ended with 69, though the registry knew version and files."""
    (tmp_path / "broken.db").write_text("no database")
    runs = f"sqlite:///{tmp_path / 'broken.db'}" if broken else "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", runs)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (own.state / "champions" / "toy.json").unlink(missing_ok=True)
    found = champions.champion(own, "toy")
    assert found is not None and not found.unconfirmed
    assert read_manifest(found.fetch()).digest() == found.digest
    assert os.environ["MLFLOW_TRACKING_URI"] == runs


def test_a_tracking_server_that_hands_out_the_files_is_called_down(
    released: Released, own: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked first, in a short time, and no empty copy stays."""
    from mlflow import MlflowClient

    down = "http://127.0.0.1:9"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", down)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(MlflowClient, "get_model_version_download_uri", lambda *_: "mlflow-artifacts:/1/models/m-1")
    (own.state / "champions" / "toy.json").unlink(missing_ok=True)
    found = champions.champion(own, "toy")
    assert found is not None
    with pytest.raises(UnavailableError, match=f"no answer from MLflow at {down} "):
        found.fetch()
    assert not list((own.state / "models" / "toy").iterdir())
