"""What planted bugs showed no other test to see: repairs, the pointer after a promotion, what lineage copies."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from assets.mlflow_internals import Alias, alias_in_sqlite
from assets.release import aliases, ancestry, champions, health, rebuilding, registry, repair
from assets.release import versions as released_versions
from assets.release.ancestry import Lineage
from assets.release.judge import describe
from assets.release.origin import ARTEFACTS, DIFF, FOLDER, origin
from assets.release.page import Page, figures, log_page
from assets.release.registry import Candidate, Released
from tests.assets.conftest import Registry, Store, failing
from tests.cli.conftest import Xc, spoil
from tests.conftest import TOY_CHANGES
from xc_core.artifacts import building
from xc_core.chain import STAGES, Workspace
from xc_core.data.ingest import IngestConfig
from xc_core.errors import CorruptError, MissingError, MovedError, RefusedError, StorageError
from xc_core.git import Checkout, checkout
from xc_core.manifests import Manifest, read_manifest
from xc_core.metrics.calibration import calibration

pytestmark = pytest.mark.filterwarnings("ignore")
AUTHOR = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def repaired(versions: Registry, number: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Register version ``number`` again; return the aliases afterwards."""
    monkeypatch.setattr(registry, "_new_version", lambda *_: versions.version())
    old = versions.client.get_model_version(versions.name, str(number))
    candidate = Candidate(versions.dataset, "ngame", versions.folder, versions.digests[number], lambda *_: None)  # type: ignore[arg-type,return-value]
    made = registry.replaced(versions.client, "", candidate, old)
    tags = versions.client.get_model_version(versions.name, str(made)).tags
    assert (tags["repairs"], tags["bundle"]) == (str(number), versions.digests[number])
    return versions.aliases()


def test_the_figures_of_a_version_have_those_of_its_probabilities_that_are_known() -> None:
    """No label has a probability of a half: there is no precision. An evaluation of 0.2.0 has none of them."""
    own = {"metrics": {"P_at_1": 60.0, "PSP_at_1": None}}
    some = np.array([[0.9, 0.45, 0.2], [0.55, 0.45, 0.0]], np.float32)
    true = np.array([[True, True, False], [False, False, False]])
    found = calibration(some, true, 4)
    assert figures({**own, "calibration": found}) == pytest.approx({
        "P_at_1": 60.0, "calibration_error": found["error"], "precision_at_probability_half": 50.0,
        "recall_at_probability_half": 25.0, "f1_at_probability_half": 100 / 3, "labels_at_probability_half": 1.0,
    })  # fmt: skip
    few = figures({**own, "calibration": calibration(some / 2, true, 4)})
    assert set(few) == {
        "P_at_1",
        "calibration_error",
        *(f"{one}_at_probability_half" for one in ("recall", "f1", "labels")),
    }
    assert figures(own) == figures({**own, "calibration": None}) == {"P_at_1": 60.0}


def test_registered_files_are_on_the_disk_before_an_alias_points_at_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow does not wait for the disk; after a power cut the champion would have empty files."""
    bundle, synced = tmp_path / "m-1" / "artifacts" / "artifacts" / "model", set[str]()
    with building(bundle, kind="model") as build:
        (build.path / "weights").touch()
    (tmp_path / "m-1" / "artifacts" / "MLmodel").touch()
    own = Candidate("toy", "ngame", bundle, read_manifest(bundle).digest(), lambda *_: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(registry, "download", lambda version: bundle)
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(Path(f"/proc/self/fd/{number}").readlink().name))
    registry._check_logged(MagicMock(), "xc-toy", 1, own)
    assert synced >= {"model", "weights", "manifest.json", "made.json", "MLmodel", "artifacts", "m-1", tmp_path.name}

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EINVAL, "Invalid argument")))
    registry._check_logged(MagicMock(), "xc-toy", 1, own)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StorageError, match="a failing disk"):
        registry._check_logged(MagicMock(), "xc-toy", 1, own)


def test_a_repair_takes_over_all_aliases_of_the_damaged_version(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        versions.release(versions.version())
    assert versions.aliases() == {"champion": 2, "challenger": 2, "previous": 1}
    assert repaired(versions, 2, monkeypatch) == {"champion": 3, "challenger": 3, "previous": 1}


def test_a_repair_leaves_another_challenger_and_makes_no_previous(
    versions: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.release(versions.version())
    versions.release(versions.version(), auto=False)
    assert versions.aliases() == {"champion": 1, "challenger": 2}
    assert repaired(versions, 1, monkeypatch) == {"champion": 3, "challenger": 2}, "the damaged one is not previous"


def test_a_damaged_packed_model_repairs_nothing(
    released: Released, own: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(released_versions, "own_folder", lambda version, artifact_root: None)
    spoil(own)
    with pytest.raises(CorruptError):
        repair.repaired(own, store.client, "toy")
    assert len(store.client.search_model_versions("name = 'xc-toy'")) == 1, "nothing was registered"


def test_files_belong_to_the_project_whatever_path_leads_to_its_artifact_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("XC_ROOT", str(tmp_path))
    for root in ((tmp_path / "link").as_uri(), (tmp_path / "disk").as_uri()):
        assert not any(released_versions.is_elsewhere(tmp_path / name / "1", root) for name in ("link", "disk"))
        assert released_versions.is_elsewhere(tmp_path / "1", root)
        copy = tmp_path / ".xc" / "models" / "toy" / "1-abc" / "artifacts" / "model"
        assert not released_versions.is_elsewhere(copy, root), "as of a registry with files of its own"
    assert not released_versions.is_elsewhere(tmp_path / "1", "s3://bucket/models"), "a copy"


def test_a_new_registry_is_nothing_new_to_a_project_without_models(
    fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'new.db'}")
    assert champions.champion(fresh, "toy") is None
    assert not any("is new" in finding.text for finding in health.check())


def test_doctor_names_a_packed_model_that_is_out_of_date(released: Released, own: Workspace) -> None:
    own.params.declare_experiment("toy", "ngame", "ngame", {**TOY_CHANGES, "fusion": {"candidates": 5}})
    assert any(finding.text.startswith("packed model of toy/ngame: ") for finding in health.check())


def test_doctor_names_packed_models_without_a_database(own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///none.db")
    assert [finding.text.partition(":")[0] for finding in health.check()][1:] == ["packed model of toy/ngame"]


def test_doctor_names_whole_models_beside_a_wrong_setting_and_none_that_is_damaged(
    released: Released, own: Workspace, edit: Callable[[Workspace, Any], None]
) -> None:
    """The checks of the project itself report these faults."""

    def packed() -> list[str]:
        return [finding.text.partition(":")[0] for finding in health.check() if "packed model" in finding.text]

    own.params.declare_experiment("toy", "first", "ngame", TOY_CHANGES)
    edit(own, {"experiments/toy_first/stages/encoder/epochs": -1})
    assert packed() == ["packed model of toy/ngame"]
    (own.folder("model", "toy", "ngame") / "model.json").write_bytes(b"{}")
    assert packed() == []


def test_a_registry_with_a_model_is_not_new(versions: Registry) -> None:
    versions.version()
    assert not released_versions.registry_is_new(versions.client)
    assert released_versions.hint_if_new(versions.client) == ""


def test_the_page_of_a_version_that_is_judged_again_names_who_made_it(versions: Registry) -> None:
    """The run that registers the same model again has another origin."""
    number = versions.version()
    versions.client.set_model_version_tag(versions.name, str(number), "made_by", "Ada")
    versions.release(number, passes=False)
    assert "- made by: Ada" in versions.client.get_model_version(versions.name, str(number)).description


def test_the_tenth_version_of_a_model_is_newer_than_the_ninth() -> None:
    """MLflow has numbers of versions as texts."""
    found = [SimpleNamespace(version=number) for number in ("9", "10", "2")]
    client = SimpleNamespace(search_model_versions=lambda _: found)
    assert [one.version for one in released_versions.versions_of(client, "xc-toy", "aa")] == ["10", "9", "2"]


def test_an_answer_without_a_version_is_none_of_mlflow() -> None:
    """Another service at the address answers with JSON of its own."""
    for version in ("", "latest"):
        client = SimpleNamespace(get_model_version_by_alias=lambda *_, own=version: SimpleNamespace(version=own))
        with pytest.raises(MlflowException, match="MLflow's address"):
            aliases.version_of(client, "xc-toy", aliases.CHAMPION)


def test_an_alias_whose_version_is_no_number_is_left_to_mlflow(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE registered_model_aliases (name, alias, version)")
        database.execute("CREATE TABLE model_version_tags (name, version, key, value)")
        database.execute(
            "INSERT INTO registered_model_aliases VALUES ('xc-toy', 'champion', 7), ('xc-a', 'champion', '')"
        )
    found = [
        alias_in_sqlite(f"sqlite:///{tmp_path}/mlflow.db", name, "champion") for name in ("xc-toy", "xc-a", "xc-b")
    ]
    assert found == [Alias(7, None), None, None]


@pytest.fixture
def by_hand(versions: Registry, released: Released, own: Workspace, store: Store) -> Registry:
    """A dataset whose champion, version 2, is the toy model: somebody registered it in MLflow."""
    own.params.declare_dataset(versions.dataset, IngestConfig())
    versions.version()
    source = store.client.get_model_version("xc-toy", str(released.version)).source
    number = store.client.create_model_version(versions.name, source).version
    store.client.set_registered_model_alias(versions.name, aliases.CHAMPION, number)
    return versions


def test_a_model_of_another_dataset_is_neither_served_nor_promoted(by_hand: Registry, xc: Xc) -> None:
    asked = ("--dataset", by_hand.dataset)
    for command in (
        ("predict", *asked, "falcon"),
        ("serve", *asked, "--port", 0),
        ("promote", *asked, "--version", 2, "--reason", "it is good"),
        ("promote", *asked, "--repair"),
    ):
        xc(*command).refused(77, "a model of the dataset toy", f"xc run model --force --dataset {by_hand.dataset}")
    (fault,) = [finding.text for finding in health.check() if finding.level == "fault"]
    assert "found a model of the dataset toy" in fault and "--repair" not in fault


@pytest.mark.parametrize("content", [b"", b"\xff", b"a: [b", b"- 1\n", b"flavors: {sklearn: {}}\n"])
def test_files_that_mlflow_does_not_describe_as_a_packed_model_can_be_repaired(
    released: Released, own: Workspace, store: Store, xc: Xc, content: bytes
) -> None:
    version = store.client.get_model_version("xc-toy", str(released.version))
    path = released_versions.download(version).parents[1] / "MLmodel"
    before = path.read_bytes()
    try:
        path.write_bytes(content)
        assert not released_versions.is_whole(version), "xc promote --repair registers it again"
        ended = xc("promote", "--dataset", "toy", "--version", released.version)
    finally:
        path.write_bytes(before)
    ended.refused(74, "no packed model in the MLmodel of xc-toy version", "--repair; the champion is unchanged")


@pytest.mark.parametrize("name", ["constraints.txt", "params.yaml", "data/toy/raw.dvc"])
def test_a_file_that_may_hold_a_secret_is_not_copied_beside_the_diff_that_leaves_it_out(
    own: Workspace, name: str
) -> None:
    for command in (["init", "-q"], ["add", "params.yaml"], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=me", "-c", "user.email=me@here"]
        subprocess.run(["git", *who, *command], cwd=own.root, check=True)
    before = origin(own, "toy", "ngame")
    assert "params.yaml" in before.files and "not recorded" not in before.tags["git_changed"]
    with (own.root / name).open("a") as stream:
        stream.write("# --extra-index-url https://bob:s3cr3tvalue@pypi.corp/simple\n")
    found = origin(own, "toy", "ngame")
    assert [kept for kept, content in found.files.items() if "s3cr3tvalue" in content] == []
    assert name not in found.files
    assert f"{name} (holds a password, a key or a login)" in found.tags["git_changed"].partition(";")[0]


def test_the_origin_keeps_each_byte_of_a_file_that_is_not_utf8(own: Workspace, store: Store, tmp_path: Path) -> None:
    """A comment in Latin-1, in a file that is recorded whole and in the changes to the commit."""
    (own.root / "constraints.txt").write_bytes(b"# caf\xe9\n")
    (own.root / "b.txt").write_text("one\n")
    for command in (["init", "-q"], ["add", "b.txt"], ["commit", "-qm", "first"]):
        subprocess.run(["git", "-c", "user.name=me", "-c", "user.email=me@here", *command], cwd=own.root, check=True)
    (own.root / "b.txt").write_bytes(b"th\xe9\n")
    run = store.client.create_run(store.client.create_experiment(f"origin of {tmp_path}", f"{tmp_path}/files")).info
    log_page(store.client, run.run_id, "", Page(), origin(own, "toy", "ngame"))
    kept = Path(store.client.download_artifacts(run.run_id, FOLDER))
    assert (kept / "constraints.txt").read_bytes() == b"# caf\xe9\n"
    assert b"\n-one\n+th\xe9\n" in (kept / DIFF).read_bytes()
    assert (kept / "params.yaml").read_bytes() == (own.root / "params.yaml").read_bytes()


def test_the_origin_names_the_source_of_the_stage_that_reads_it(trained: Workspace) -> None:
    found = json.loads(origin(trained, "toy", "ngame").files[ARTEFACTS])
    assert {name for name, facts in found.items() if "source" in facts} == {
        name for name, stage in STAGES.items() if stage.needs_source
    }
    assert found["corpus"]["source"]


def test_the_requirements_of_a_registered_model_are_enough_to_predict(trained: Workspace) -> None:
    """MLflow adds itself to them. In the new process every other package cannot be imported."""
    needed, left = {"xc-platform"}, ["mlflow", *registry._SERVING_NEEDS]
    while left:
        if (name := canonicalize_name(left.pop())) not in needed:
            needed.add(name)
            wanted = map(Requirement, metadata.requires(name) or ())
            left += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    owners = metadata.packages_distributions().items()
    others = [module for module, own in owners if not needed & set(map(canonicalize_name, own)) and module[0] != "_"]
    model = trained.folder("model", "toy", "ngame")
    program = (
        f"import pathlib, sys; sys.modules |= dict.fromkeys({others}); import mlflow.pyfunc\n"
        f"from xc_core.infer.bundle import open_predictor; open_predictor(pathlib.Path({str(model)!r})).predict(['a'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]


def test_after_a_promotion_the_pointer_leads_to_the_champion(
    released: Released, own: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = champions._pointer_file(own, "toy")
    path.unlink(missing_ok=True)
    champions.write_pointer(own, "toy")
    assert path.is_file(), "the next prediction asks no MLflow"


def test_an_acceptance_set_says_what_is_left_of_it() -> None:
    class Documents(list[int]):
        facts = type("Facts", (), {"version": 2, "source": "given"})

    whole: Any = Documents(range(50))
    part: Any = Documents([1])
    assert describe(whole, whole) == "acceptance set version 2 (given), 50 documents"
    assert describe(whole, part) == (
        "acceptance set version 2 (given), 1 document (few: figures of fewer than 50 are uncertain), "
        "49 left out (in train, or without a label today)"
    )


def test_lineage_names_the_run(released: Released, own: Workspace, store: Store, xc: Xc) -> None:
    run = store.client.get_model_version("xc-toy", str(released.version)).run_id
    ended = xc("lineage", released.version, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert f"MLflow run:                 {run}\n" in ended.out


def test_a_version_that_kept_rows_of_an_unknown_one_is_shown_and_not_made_again(
    released: Released, own: Workspace, store: Store, xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = MovedError("no version with these rows", expected="one", do="train")
    monkeypatch.setattr("assets.release.lineage.history", failing(unknown))
    shown = xc("lineage", released.version, "--dataset", "toy")
    assert shown.code == 0, shown.err
    assert shown.out.endswith("made from:                  not known: no version with these rows\n")
    again = xc("lineage", released.version, "--dataset", "toy", "--rebuild", tmp_path / "again")
    again.refused(76, "no version with these rows", "train")
    assert not (tmp_path / "again").exists()


def test_a_version_outlives_its_run(
    released: Released, own: Workspace, store: Store, xc: Xc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow gc` deletes runs that were deleted in the interface; the files of the version are another matter."""
    gone = MlflowException("no run", error_code=RESOURCE_DOES_NOT_EXIST)
    monkeypatch.setattr(type(store.client), "get_run", failing(gone))
    ended = xc("lineage", released.version, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert "MLflow run:" in ended.out


def test_a_rebuild_gets_the_recorded_files_in_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {"params.yaml": "a", "data/toy/raw.dvc": "b", ARTEFACTS: "{}", DIFF: "c", "environment.txt": "d"}
    files = {name: tmp_path / "recorded" / name for name in recorded}
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(recorded[name])
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(rebuilding, "_checked_out", lambda workspace, found, folder: folder / "sub")
    for name in ("_fetch_raw", "_run_xc", "_check_equal"):
        monkeypatch.setattr(rebuilding, name, lambda *given, name=name: done.append((name, *given)))
    found = Lineage("toy", "ngame", 1, "run", {}, files, {"corpus": {}, "encoder": {}, "leaderboard": {}})
    again = tmp_path / "again"
    rebuilding.rebuilt(Workspace(tmp_path), [found], again)
    held = {path.relative_to(again).as_posix(): path.read_text() for path in again.rglob("*") if path.is_file()}
    assert held == {"sub/params.yaml": "a", "sub/data/toy/raw.dvc": "b"}
    ran = [(what[1]["XC_ROOT"], *what[2:5]) for what in done if what[0] == "_run_xc"]
    own = again / "sub"
    assert ran == [(str(own), own, "run", "corpus"), (str(own), own, "run", "encoder")]
    assert {what[-1] for what in done if what[0] == "_fetch_raw"} == {again / "sub"}
    assert {what[0] for what in done} == {"_fetch_raw", "_run_xc", "_check_equal"}
    assert replace(found, files={}).chain.keys() == {"corpus", "encoder"}


def test_a_rebuild_never_writes_into_the_data_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link from data/toy to a larger disk is in git, so the clone has it too."""

    def cloned(_: object, __: object, folder: Path) -> Path:
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "toy").symlink_to(tmp_path)
        return folder

    monkeypatch.setattr(rebuilding, "_checked_out", cloned)
    monkeypatch.setattr(rebuilding, "_run_command", failing(AssertionError()))
    (tmp_path / "params.yaml").touch()
    found = Lineage("toy", "ngame", 1, "run", {}, {"params.yaml": tmp_path / "params.yaml"}, {"corpus": {}})
    with pytest.raises(RefusedError, match=f"which leads by a link to {re.escape(str(tmp_path))}"):
        rebuilding.rebuilt(Workspace(tmp_path), [found], tmp_path / "again")


@pytest.mark.parametrize("place", [".", "projects/mine"])
def test_the_project_in_a_clone_is_where_it_is_in_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    root = tmp_path / "repository" / place
    root.mkdir(parents=True)
    (root / "recipes.yaml").write_text("own\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=me", "-c", "user.email=me@here"]
        subprocess.run(["git", *who, *command], cwd=tmp_path / "repository", check=True)
    found = Lineage("toy", "ngame", 1, "none", {"git": checkout(root).commit}, {}, {})
    branch = ["git", "symbolic-ref", "HEAD"]
    before = subprocess.check_output(branch, cwd=root)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "repository" / ".git"))  # as git sets it for a hook
    own = rebuilding._checked_out(Workspace(root), found, tmp_path / "clone")
    assert own == tmp_path / "clone" / place
    assert (own / "recipes.yaml").read_text() == "own\n"
    assert subprocess.check_output(branch, cwd=root) == before, "HEAD of the project is where it was"


def test_a_project_outside_git_is_the_clone_of_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Lineage("toy", "ngame", 1, "none", {"git": "abc"}, {}, {})
    monkeypatch.setattr(rebuilding, "project_checkout", lambda root: Checkout("abc", tmp_path / "platform"))
    monkeypatch.setattr(rebuilding, "_run_command", lambda *_: "")
    assert rebuilding._checked_out(Workspace(tmp_path / "own"), found, tmp_path / "clone") == tmp_path / "clone"


@pytest.mark.parametrize("recorded", [{}, {"trn.json.gz": {"sha256": "0" * 64}}])
def test_a_rebuild_takes_no_raw_data_that_is_not_known_to_be_the_same(
    workspace: Workspace, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    found = Lineage("toy", "ngame", 1, "none", {}, {}, {"corpus": {"digest": "aa", "source": recorded}})
    with pytest.raises(MissingError, match="no raw data of version 1"):
        rebuilding._fetch_raw(workspace, found, tmp_path / "clone")
    assert not (tmp_path / "clone").exists()


@pytest.mark.parametrize(
    ("stage", "file", "is_tree"),
    [
        ("classifier", "final/rows.npy", False),
        ("scores", "final/lexical/forest.safetensors", True),
        ("scores", "final/lexical/tree0/tree0.cbor", True),
        ("scores", "final/label_words/labels.safetensors", False),
    ],
)
@pytest.mark.parametrize("is_old", [True, False])
def test_a_rebuild_of_a_model_with_label_trees_of_old_code_says_that_they_always_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, file: str, is_tree: bool, is_old: bool
) -> None:
    folder = tmp_path if is_old else tmp_path / "without code"  # then the version runs with the code that is here
    (tmp_path / "xc_core").mkdir()
    files: dict[str, dict[str, Any]] = {file: {}}
    found = Lineage("toy", "ngame", 1, "none", {}, {}, {stage: {"digest": "0" * 64}})
    monkeypatch.setattr(rebuilding, "read_manifest", lambda _: Manifest(stage, files))
    with pytest.raises(MovedError, match=f"{stage} with another content") as caught:
        clone = rebuilding._Clone(found, folder, Workspace(tmp_path), {})
        rebuilding._check_equal(clone, [stage])
    assert caught.value.do.endswith("and the machine, with this one")
    assert ("cannot be seeded" in caught.value.do) is (is_tree and is_old)


@pytest.mark.parametrize(("folder", "name"), [("own", "lab.disk"), ("dépôt, #1", "new"), ('5%(s) of "it\'s"', "new")])
def test_a_clone_gets_the_remotes_of_the_project_whatever_their_names(tmp_path: Path, folder: str, name: str) -> None:
    """A remote that was renamed since the commit, or a path that is not ASCII or has quotes, ended the rebuild."""
    own, clone = tmp_path / folder, tmp_path / "clone"
    for place, remote in ((own, name), (clone, "lab.disk")):
        (place / ".dvc" / "cache").mkdir(parents=True)
        section = f"['remote \"{remote}\"']\n    url = ../store\n    verify = true\n"
        (place / ".dvc" / "config").write_text(f"[core]\n    remote = {remote}\n{section}")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    rebuilding._share_remotes(own, clone)
    settings = subprocess.check_output([sys.executable, "-m", "dvc", "config", "--list"], cwd=clone, text=True)
    wanted = {f"remote.{name}.url={own / 'store'}", f"remote.{name}.verify=true", f"core.remote={name}"}
    assert {*wanted, f"cache.dir={own / '.dvc' / 'cache'}"} <= set(settings.splitlines())


@pytest.mark.parametrize("level", ["config", "config.local"])
def test_a_clone_gets_the_cache_of_the_project_wherever_it_is(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that a shared cache alone had were not found, and a relative path led to a folder beside the clone.

    dvc, which takes a second, is asked once for all of its settings.
    """
    own, clone, cache = tmp_path / "own", tmp_path / "elsewhere" / "clone", tmp_path / "our cache"
    for place in (own / ".dvc" / "cache", clone / ".dvc", cache):
        place.mkdir(parents=True)
    (own / ".dvc" / level).write_text("[cache]\n    dir = ../../our cache\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    asked, run = list[list[str]](), subprocess.run
    with monkeypatch.context() as counting:
        counting.setattr(subprocess, "run", lambda command, **more: asked.append(command) or run(command, **more))
        rebuilding._share_remotes(own, clone)
    assert len(asked) == 1
    settings = subprocess.check_output([sys.executable, "-m", "dvc", "cache", "dir"], cwd=clone, text=True)
    assert settings.strip() == str(cache)


@pytest.mark.parametrize("content", ["{", "[]", '{"corpus": 5}', '{"corpus": {}}'])
def test_a_damaged_origin_is_no_fault_of_xc(tmp_path: Path, content: str) -> None:
    (tmp_path / ARTEFACTS).write_text(content)
    with pytest.raises(CorruptError, match=r"an unreadable origin/artefacts\.json in the MLflow run of version 7"):
        ancestry._artefacts(tmp_path / ARTEFACTS, 7)


@pytest.mark.parametrize(("recipe", "artefacts"), [("ngame", {}), ("", {"corpus": {"source": {}}})])
def test_a_version_without_a_recorded_corpus_or_recipe_cannot_be_made_again(
    own: Workspace, tmp_path: Path, recipe: str, artefacts: dict[str, Any]
) -> None:
    (tmp_path / "params.yaml").write_text("")
    found = Lineage("toy", recipe, 7, "r", {}, {"params.yaml": tmp_path / "params.yaml"}, artefacts)
    with pytest.raises(
        MissingError, match=r"no recorded origin of version 7(.|\n)+restore MLflow.s files if they were moved"
    ):
        rebuilding.rebuilt(own, [found], tmp_path / "again")


def test_mlflow_logs_no_traceback_of_what_it_raises(store: Store) -> None:
    """A database that refuses a write was a page of tracebacks before the message."""
    assert not logging.getLogger("mlflow.store.db.utils").isEnabledFor(logging.ERROR)


def test_a_recorded_commit_is_not_replaced_by_the_installed_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without git, or in a copy of the project without its repository, it was said that no commit is recorded."""
    monkeypatch.setattr(rebuilding, "project_checkout", lambda root: Checkout("none"))
    found = Lineage("toy", "ngame", 7, "r", {"git": "0123456789" * 4}, {}, {})
    with pytest.raises(MissingError, match=r"or no git, to clone commit 012345678901 of version 7"):
        rebuilding._checked_out(Workspace(tmp_path), found, tmp_path / "again")


def test_a_commit_that_is_not_in_the_repository_is_named_before_anything_is_cloned(tmp_path: Path) -> None:
    """A shallow clone, or a branch that was deleted where the model was made."""
    home = tmp_path / "home"
    for command in (
        ["init", "-q", str(home)],
        ["-C", str(home), *AUTHOR, "commit", "-q", "--allow-empty", "-m", "one"],
    ):
        subprocess.run(["git", *command], check=True)
    found = Lineage("toy", "ngame", 7, "r", {"git": "0123456789" * 4}, {}, {})
    with pytest.raises(MissingError, match=r"no commit 012345678901 in .+home\n(.|\n)+git fetch --unshallow"):
        rebuilding._checked_out(Workspace(home), found, tmp_path / "again")
    assert not (tmp_path / "again").exists()
