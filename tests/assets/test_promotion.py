"""``xc promote``, ``xc rollback``, and what ``xc predict`` and ``xc doctor`` need from MLflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from assets.release import promotion, registry
from assets.release.pointer import alias_in_sqlite
from assets.release.registry import Released
from tests.assets.conftest import Registry, Store
from tests.cli.conftest import Xc, entry, offered
from tests.conftest import TOY_CHANGES
from xc_core.artifacts import read_manifest
from xc_core.chain import Workspace
from xc_core.data.ingest import IngestConfig

# MLflow and its dependencies warn of features that they will drop; nothing here uses these
pytestmark = pytest.mark.filterwarnings("ignore")

UNREACHABLE = "http://127.0.0.1:9"
"""Port 9 (discard) of this machine, where nothing listens."""


@pytest.fixture
def project(trained: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The trained toy project, with the MLflow of the session."""
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    return trained


@pytest.fixture
def no_server(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The same with a tracking server that does not answer."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return project


@pytest.fixture
def declared(versions: Registry, fresh: Workspace) -> Registry:
    """Registered versions of a dataset that params.yaml knows."""
    fresh.params.declare_dataset(versions.dataset, IngestConfig())
    return versions


def aliases(store: Store) -> dict[str, str]:
    """Return the version of each alias of xc-toy."""
    return dict(store.client.get_registered_model("xc-toy").aliases)


def test_promote_without_a_name_makes_the_challenger_champion(xc: Xc, declared: Registry) -> None:
    declared.release(declared.version(40.0), 40.0)
    declared.release(declared.version(10.0), 10.0)
    assert declared.aliases()["champion"] == 1
    promoted = xc("promote", "--dataset", declared.dataset)
    assert (promoted.code, promoted.out) == (0, f"models:/xc-{declared.dataset}@champion is version 2\n")
    assert declared.aliases() == {"champion": 2, "challenger": 2, "previous": 1}


def test_promote_without_a_challenger_is_refused(xc: Xc, declared: Registry) -> None:
    declared.version(40.0)
    xc("promote", "--dataset", declared.dataset).refused(66, f"no challenger of xc-{declared.dataset}", "--recipe")


def test_a_person_may_promote_what_the_gate_refuses(xc: Xc, declared: Registry) -> None:
    declared.release(declared.version(40.0), 40.0)
    declared.version(0.0)
    assert xc("promote", "--dataset", declared.dataset, "--version", 2).code == 0
    assert declared.aliases() == {"champion": 2, "challenger": 1, "previous": 1}


def test_promote_and_rollback_move_the_champion_that_predict_uses(
    released: Released,
    xc: Xc,
    project: Workspace,
    store: Store,
) -> None:
    second = store.client.create_model_version("xc-toy", "nowhere").version
    try:
        assert xc("promote", "--dataset", "toy", "--version", second).out == (
            f"models:/xc-toy@champion is version {second}\n"
        )
        assert xc("rollback", "--dataset", "toy").out == (
            f"models:/xc-toy@champion is version 1 again (instead of {second})\n"
        )
        assert json.loads(xc("predict", "--dataset", "toy", "--json", "falcon").out)[0]["title"] == "falcon"
        assert xc("rollback", "--dataset", "toy").code == 0
        assert xc("promote", "--dataset", "toy", "--recipe", "ngame").out == "models:/xc-toy@champion is version 1\n"
    finally:
        registry.set_champion(store.client, "xc-toy", 1)
        store.client.delete_registered_model_alias("xc-toy", registry.PREVIOUS)
        store.client.delete_model_version("xc-toy", second)


def test_a_model_that_is_out_of_date_is_not_promoted(released: Released, xc: Xc, own: Workspace, store: Store) -> None:
    before = aliases(store)
    own.params.declare_experiment("toy", "ngame", "ngame", {**TOY_CHANGES, "fusion": {"candidates": 5}})
    promoted = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    promoted.refused(76, "a model of toy/ngame that is out of date", "xc train --dataset toy --recipe ngame")
    assert aliases(store) == before


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["promote", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')"),
        (["rollback", "--dataset", "toyy"], 66, "no dataset 'toyy' in params.yaml (nearest: 'toy')"),
        (["promote", "--dataset", "a'b"], 64, 'the dataset name "a\'b"'),
        (["rollback", "--dataset", "../x"], 64, "the dataset name '../x'"),
        (["promote", "--dataset", "toy", "--recipe", "ngme"], 66, "(nearest: 'toy_ngame')"),
        (["promote", "--dataset", "toy", "--recipe", "ngame", "--version", "1"], 64, "both --recipe and --version"),
        (["promote", "--dataset", "toy", "--version", "99"], 66, "no version 99 of xc-toy"),
        (["rollback", "--dataset", "toy"], 66, "no previous champion of xc-toy"),
    ],
)
def test_what_cannot_be_promoted_or_rolled_back_is_refused(
    released: Released,
    xc: Xc,
    project: Workspace,
    arguments: list[str],
    code: int,
    found: str,
) -> None:
    xc(*arguments).refused(code, found)


# xc doctor


def test_doctor_names_the_champion(released: Released, project: Workspace, store: Store) -> None:
    found = [(finding.level, finding.text) for finding in promotion.check()]
    assert found[:2] == [
        ("ok", f"MLflow answers at {store.uri}"),
        ("ok", "champion of toy: version 1, recipe ngame"),
    ]


def test_a_dataset_without_a_champion_has_no_folder_and_a_note(declared: Registry, fresh: Workspace) -> None:
    assert promotion.champion(fresh, declared.dataset) is None
    found = [(finding.level, finding.text) for finding in promotion.check()]
    assert ("note", f"champion of {declared.dataset}: none yet") in found


def test_doctor_names_every_packed_model(trained: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    digest = read_manifest(trained.folder("model", "toy", "ngame")).digest()
    assert ("ok", f"packed model of toy/ngame: {digest[:12]}") in [(f.level, f.text) for f in promotion.check()]


# without a server


@pytest.mark.parametrize(
    "arguments",
    [
        ["promote", "--dataset", "toy"],
        ["promote", "--dataset", "toy", "--recipe", "ngame"],
        ["rollback", "--dataset", "toy"],
        ["predict", "--dataset", "toy", "falcon"],
    ],
)
def test_without_a_server_each_command_reports_it(xc: Xc, no_server: Workspace, arguments: list[str]) -> None:
    ended = xc(*arguments)
    ended.refused(69, f"no answer from MLflow at {UNREACHABLE}", "set MLFLOW_TRACKING_URI")
    assert not ended.out


def test_without_a_server_a_named_recipe_still_predicts(xc: Xc, no_server: Workspace) -> None:
    ended = xc("predict", "--dataset", "toy", "--recipe", "ngame", "--json", "falcon")
    assert json.loads(ended.out)[0]["title"] == "falcon"


def test_without_a_server_doctor_reports_a_fault(xc: Xc, no_server: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks", entry("mlflow", promotion.check))
    ended = xc("doctor")
    assert ended.code == 78
    assert f"fault  found no answer from MLflow at {UNREACHABLE}" in ended.out


# the pointer to the champion


def fetched(project: Workspace) -> Path:
    """Return the folder of the champion."""
    found = promotion.champion(project, "toy")
    assert found is not None
    return found.fetch()


def test_the_champion_is_found_again_without_mlflow_until_the_alias_moves(
    released: Released, project: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetched(project)
    assert alias_in_sqlite(store.uri, "xc-toy", "champion") == released.version
    asked: list[str] = []
    monkeypatch.setattr(promotion, "_asked", lambda workspace, dataset: asked.append(dataset))
    assert fetched(project) == folder
    assert not asked, "the pointer is enough"
    monkeypatch.setattr(promotion, "alias_in_sqlite", lambda uri, name, alias: released.version + 1)
    assert promotion.champion(project, "toy") is None
    assert asked == ["toy"], "a moved alias is noticed"


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


def test_a_second_answer_imports_neither_mlflow_nor_transformers(released: Released, project: Workspace) -> None:
    promotion.champion(project, "toy")
    code = (
        "import sys; from xc_core.cli.main import cli; "
        "cli(['predict', '--dataset', 'toy', 'x'], standalone_mode=False); "
        "print({'mlflow', 'transformers', 'dagster', 'sklearn'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "set()"
