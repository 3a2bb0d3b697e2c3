"""The registry: who becomes champion, how it is undone, and that a failure leaves the last champion serving."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from assets import registry
from assets.commands import check
from assets.registry import Candidate, Released
from assets.resources import Tracking
from tests.assets.conftest import Registry, Store, failing
from tests.cli.conftest import Xc, entry, offered
from tests.test_bundle import pickled
from xc_core.artifacts import read_manifest
from xc_core.bundle import open_bundle
from xc_core.errors import MissingError, UnavailableError
from xc_core.stages import Workspace

# MLflow and its dependencies warn of their own future; nothing here calls what they warn of
pytestmark = pytest.mark.filterwarnings("ignore")

UNREACHABLE = "http://127.0.0.1:9"
"""Port 9 (discard) of this machine, where nothing listens."""


@pytest.fixture
def project(trained: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The trained toy project, its MLflow the session's."""
    monkeypatch.setenv("XC_ROOT", str(trained.root))
    return trained


@pytest.fixture
def no_server(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The same with a tracking server that does not answer."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", UNREACHABLE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return project


# the gate


def test_the_first_version_is_champion(versions: Registry) -> None:
    first = versions.version(20.0)
    assert versions.ask(first, 20.0) == Released(first, True, f"version {first} is champion: the first one")
    assert versions.aliases() == {"champion": first, "challenger": first}


@pytest.mark.parametrize(
    ("precision", "max_drop", "passes"),
    [
        (40.0, 1.0, True),
        (41.0, 1.0, True),
        (39.5, 1.0, True),
        (39.0, 1.0, True),
        (38.99, 1.0, False),
        (39.99, 0.0, False),
        (40.0, 0.0, True),
        (0.0, 1.0, False),
        (math.nan, 1.0, False),
        (math.nan, math.inf, False),
        (0.0, math.inf, True),
    ],
)
def test_the_gate_lets_a_challenger_be_at_most_so_much_worse(
    versions: Registry, precision: float, max_drop: float, passes: bool
) -> None:
    first = versions.version(40.0)
    versions.ask(first, 40.0)
    second = versions.version(precision)
    said = versions.ask(second, precision, max_drop)
    assert said.is_champion is passes
    assert f"P@5 {precision:.2f} against 40.00" in said.said
    expected = {"champion": second, "previous": first} if passes else {"champion": first}
    assert versions.aliases() == {"challenger": second, **expected}


def test_a_refused_challenger_says_whom_it_lost_to(versions: Registry) -> None:
    versions.ask(versions.version(40.0), 40.0)
    said = versions.ask(versions.version(30.0), 30.0).said
    assert said == "version 2 stays challenger: P@5 30.00 against 40.00 of the champion (version 1)"


@pytest.mark.parametrize(("anew", "passes"), [(30.5, True), (31.5, False)])
def test_a_champion_judged_on_other_documents_is_judged_anew(
    versions: Registry, monkeypatch: pytest.MonkeyPatch, anew: float, passes: bool
) -> None:
    monkeypatch.setattr(registry, "bundle_folder", lambda client, dataset: Path(f"bundle of {dataset}"))
    judged: list[Path] = []

    def judge(folder: Path) -> dict[str, float]:
        judged.append(folder)
        return {"P_at_5": anew}

    versions.ask(versions.version(40.0), 40.0)
    same = versions.ask(versions.version(39.5), 39.5, judge=judge)
    assert same.is_champion and judged == [], "the same documents"
    other = versions.ask(versions.version(30.0, test="t2"), 30.0, judge=judge)
    assert judged == [Path(f"bundle of {versions.dataset}")]
    assert other.is_champion is passes
    assert f"P@5 30.00 against {anew:.2f} of" in other.said and "judged anew" in other.said


def test_a_champion_that_cannot_be_judged_anew_stays(versions: Registry) -> None:
    versions.ask(versions.version(40.0), 40.0)  # registered without files
    said = versions.ask(versions.version(50.0, test="t2"), 50.0, judge=lambda folder: {"P_at_5": 0.0})
    assert not said.is_champion
    assert "which cannot be judged anew (no files of" in said.said


def test_a_champion_without_known_metrics_gives_way(versions: Registry) -> None:
    versions.ask(versions.version(None), 0.0)
    assert versions.ask(versions.version(10.0), 10.0).is_champion


def test_the_same_bundle_is_registered_once_and_stays_champion(versions: Registry) -> None:
    first = versions.version(40.0)
    versions.ask(first, 40.0)
    again = versions.ask(first, 40.0)
    assert again == Released(first, True, f"version {first} is champion: it is already")
    assert versions.aliases() == {"champion": first, "challenger": first}


def test_an_alias_that_cannot_be_read_is_not_taken_for_a_missing_champion(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else any model would pass the gate as the first one while the server is away."""
    first = versions.version(40.0)
    versions.ask(first, 40.0)
    second = versions.version(1.0)
    with monkeypatch.context() as away:
        away.setattr(type(versions.client), "get_model_version_by_alias", failing(MlflowException("no connection")))
        with pytest.raises(MlflowException, match="no connection"):
            versions.ask(second, 1.0)
    assert versions.aliases()["champion"] == first


# aliases


def test_promoting_remembers_what_was_champion(versions: Registry) -> None:
    first, second, third = (versions.version(p) for p in (1.0, 2.0, 3.0))
    for number in (first, second, second, third):
        registry.set_champion(versions.client, versions.name, number)
    assert versions.aliases() == {"champion": third, "previous": second}


def test_rollback_exchanges_champion_and_previous_and_twice_is_nothing(versions: Registry) -> None:
    first, second = versions.version(1.0), versions.version(2.0)
    for number in (first, second):
        registry.set_champion(versions.client, versions.name, number)
    assert registry.roll_back(versions.client, versions.dataset) == (first, second)
    assert versions.aliases() == {"champion": first, "previous": second}
    assert registry.roll_back(versions.client, versions.dataset) == (second, first)
    assert versions.aliases() == {"champion": second, "previous": first}


@pytest.mark.parametrize(("promoted", "found"), [(False, "no champion of"), (True, "no previous champion of")])
def test_rollback_needs_a_champion_before(versions: Registry, promoted: bool, found: str) -> None:
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


def test_a_registered_model_says_where_it_is_from(released: Released, store: Store, trained: Workspace) -> None:
    assert released == Released(1, True, "version 1 is champion: the first one")
    version = registry.version_of(store.client, "xc-toy", registry.CHAMPION)
    assert version is not None
    tags = version.tags
    assert (tags["recipe"], tags["dagster_run"], tags["git"]) == ("ngame", "r1", "abc")
    assert tags["bundle"] == read_manifest(trained.folder("model", "toy", "ngame")).digest()
    assert json.loads(tags["metrics"])["P_at_1"] > 90


def test_the_champion_answers_by_its_alias_as_the_bundle_does(
    released: Released, store: Store, trained: Workspace
) -> None:
    model = mlflow.pyfunc.load_model("models:/xc-toy@champion")
    texts = ["falcon", "castle0 castle1", ""]
    own = open_bundle(trained.folder("model", "toy", "ngame"))
    for params, k in ((None, 5), ({"k": 2}, 2), ({"k": 100}, 100)):
        expected = [
            [{"uid": one.uid, "title": one.title, "score": one.score} for one in row] for row in own.predict(texts, k)
        ]
        assert model.predict(texts, params=params) == expected
    assert model.predict([]) == []


def test_the_model_has_a_schema_with_k(released: Released, store: Store) -> None:
    signature = mlflow.models.get_model_info("models:/xc-toy@champion").signature.to_dict()
    assert json.loads(signature["inputs"]) == [{"type": "string", "required": True}]
    (k,) = json.loads(signature["params"])
    assert (k["name"], k["type"], k["default"]) == ("k", "long", 5)
    (answer,) = json.loads(signature["outputs"])
    assert set(answer["items"]["properties"]) == {"uid", "title", "score"}


@pytest.mark.parametrize(
    ("texts", "params", "said"),
    [
        (["a"], {"k": "many"}, "Failed to validate type and shape for 'k'"),
        (["a"], {"k": 2.5}, "Failed to validate type and shape for 'k'"),
        (["a"], {"k": 0}, "found k 0"),
        (["a", None], None, "Expected type str, but got NoneType"),
        ("a", None, "Expected list, but got str"),
        ([1], None, "Expected type str, but got int"),
    ],
)
def test_the_model_refuses_what_its_schema_does_not_have(
    released: Released, store: Store, texts: Any, params: dict[str, Any] | None, said: str
) -> None:
    model = mlflow.pyfunc.load_model("models:/xc-toy@champion")
    with pytest.raises(Exception, match=said):
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


def test_the_champions_bundle_is_found_by_its_alias(released: Released, store: Store) -> None:
    folder = registry.bundle_folder(store.client, "toy")
    assert folder is not None
    assert open_bundle(folder).predict(["falcon"], 1)[0][0].title == "falcon"
    assert registry.bundle_folder(store.client, "toy", registry.PREVIOUS) is None
    assert registry.bundle_folder(store.client, "unheard-of") is None


# failures


def test_a_failing_registration_leaves_the_last_champion_serving(
    released: Released, store: Store, trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(trained.folder("model", "toy", "ngame"), tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["facts"]["recipe"] = "other"
    (other / "manifest.json").write_text(json.dumps(manifest))
    tracking = Tracking(uri=store.uri, artifacts=store.artifacts, lock=str(store.lock))
    monkeypatch.setattr(mlflow.pyfunc, "log_model", failing(MlflowException("connection lost")))
    with pytest.raises(UnavailableError, match="connection lost"), tracking.client() as client:
        registry.register(client, store.artifacts, Candidate("toy", "other", other, {"P_at_5": 99.0}, 1.0, {}))
    assert mlflow.active_run() is None
    champion = registry.version_of(store.client, "xc-toy", registry.CHAMPION)
    assert champion is not None
    assert int(champion.version) == released.version
    assert mlflow.pyfunc.load_model("models:/xc-toy@champion").predict(["falcon"])[0][0]["title"] == "falcon"


def test_a_champion_whose_files_are_gone_is_an_error_that_says_so(
    released: Released, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", failing(OSError("No such file or directory: 'x'")))
    with pytest.raises(MissingError, match="no files of xc-toy version 1") as caught:
        registry.bundle_folder(store.client, "toy")
    assert "--recipe" in caught.value.do


def test_a_bundle_whose_registered_files_are_gone_is_registered_anew(
    store: Store, trained: Workspace, released: Released
) -> None:
    candidate = Candidate("lost", "ngame", trained.folder("model", "toy", "ngame"), {"P_at_5": 50.0}, 1.0, {})
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["promote", "--dataset", "toy"],
        ["promote", "--dataset", "toy", "--recipe", "ngame"],
        ["rollback", "--dataset", "toy"],
        ["predict", "--dataset", "toy", "falcon"],
    ],
)
def test_without_a_server_each_command_says_so(xc: Xc, no_server: Workspace, arguments: list[str]) -> None:
    ended = xc(*arguments)
    ended.refused(69, f"no answer from MLflow at {UNREACHABLE}", "set MLFLOW_TRACKING_URI")
    assert not ended.out


def test_without_a_server_a_named_recipe_still_answers(xc: Xc, no_server: Workspace) -> None:
    ended = xc("predict", "--dataset", "toy", "--recipe", "ngame", "--json", "falcon")
    assert json.loads(ended.out)[0]["title"] == "falcon"


def test_without_a_server_doctor_finds_a_fault(xc: Xc, no_server: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "xc.checks", entry("mlflow", check))
    ended = xc("doctor")
    assert ended.code == 78
    assert f"fault  found no answer from MLflow at {UNREACHABLE}" in ended.out


# the commands


def test_doctor_names_the_champion(released: Released, project: Workspace, store: Store) -> None:
    found = [(finding.level, finding.text) for finding in check()]
    assert found[:2] == [
        ("ok", f"MLflow answers at {store.uri}"),
        ("ok", "champion of toy: version 1, recipe ngame"),
    ]


def test_promote_and_rollback_move_the_champion_that_predict_asks(
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


def test_a_model_of_other_artefacts_than_there_are_is_not_promoted(
    released: Released, xc: Xc, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assets.commands.outdated", lambda *place: place == (project, "model", "toy", "ngame"))
    promoted = xc("promote", "--dataset", "toy", "--recipe", "ngame")
    promoted.refused(76, "packed from other artefacts", "xc train --dataset toy --recipe ngame")


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
