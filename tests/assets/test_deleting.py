"""``xc delete``: experiments, datasets and registered versions, and nothing else."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sqlite3
import threading
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from assets.release import candidate, deleting, holdings
from assets.release.best import BEST
from assets.settings import local_folder
from assets.tracking import connect
from assets.waiting import RETRIES, without_retries
from tests.assets.conftest import Registry, Store, failing
from tests.cli.conftest import NGAME, TOY, Xc
from xc_core import leftovers
from xc_core.artifacts import write_file
from xc_core.chain import Workspace, incoming
from xc_core.chain.reports import write_report
from xc_core.chain.workspace import at_rest, training, working
from xc_core.data.ingest import IngestConfig
from xc_core.errors import StorageError
from xc_core.lifecycle import delete as delete_files
from xc_core.lifecycle import dvc_lock
from xc_core.sqlite import sqlite_address

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow warns of features that it will drop

LOCK = "schema: '2.0'\nstages:\n" + "".join(
    f"  {name}:\n    cmd: x\n"
    for name in ("corpus@toy", "encoder@toy_ngame", "encoder@toy_other", "encoder@toys_ngame")
)
OTHERS = ("data/toys/ngame/model/f", "data/toy/raw/f", "data/toy/other/f", ".xc/run/encoder@toy_other/f",
          ".xc/run/encoder@toys_ngame/f", ".xc/run/tokens@toy/f", ".xc/reports/toy/other.html", ".xc/tune/toy/study/f",
          ".xc/champions/toy.json", ".xc/source/toy.json", ".xc/ingest/toy.json",
          ".xc/versions/toy/0001/f", ".xc/inbox/toy/f", ".xc/models/toy/f", ".xc/cost/tokens@toy",
          ".xc/budget/toy-0123456789abcdef.json", ".xc/budget/toy-s-0123456789abcdef.json")  # fmt: skip
OWN = ("data/toy/ngame/model/f", ".xc/run/encoder@toy_ngame/f", ".xc/cost/model@toy_ngame/f",
       ".xc/drift/toy/ngame.json", ".xc/reports/toy/ngame.html")  # fmt: skip
ALL_THREE = ("--version", 1, "--version", 2, "--version", 3)


@pytest.fixture
def full(fresh: Workspace) -> Workspace:
    """A project with files of three experiments and two datasets."""
    for name in (*OTHERS, *OWN):
        (fresh.root / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh.root / name).write_text("x" * 50_000)
    (fresh.root / dvc_lock.FILE).write_text(LOCK)
    fresh.params.declare_dataset("toys", IngestConfig())
    fresh.params.declare_experiment("toy", "other", "ngame", {})
    return fresh


def files(workspace: Workspace) -> set[str]:
    """Return those of ``OWN`` and ``OTHERS`` that are there."""
    return {name for name in (*OWN, *OTHERS) if (workspace.root / name).exists()}


def test_an_experiment_goes_with_its_files_and_entries_and_nothing_else_does(xc: Xc, full: Workspace) -> None:
    shown = xc("delete", *NGAME)
    assert shown.code == 0
    assert shown.out.startswith("the experiment toy/ngame:\n")
    assert "         0.1 MB  data/toy/ngame\n" in shown.out
    assert shown.out.endswith("nothing was deleted; --yes deletes it\n")
    assert files(full) == {*OWN, *OTHERS}
    assert ("toy", "ngame") in full.params.experiments()
    done = xc("delete", *NGAME, "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (
        0,
        "deleted, and 1 stage of dvc.lock; commit dvc.lock and params.yaml if git has it",
    )
    assert files(full) == {*OTHERS}
    assert full.params.experiments() == [("toy", "other")]
    assert full.params.datasets() == ["toy", "toys"]
    assert "toy_ngame" not in (full.root / dvc_lock.FILE).read_text()
    assert (full.root / dvc_lock.FILE).read_text().count("cmd") == 3
    xc("delete", *NGAME, "--yes").refused(66, "no experiment 'ngame'", "if it was deleted already")


def test_on_a_full_disk_files_go_first(xc: Xc, full: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new dvc.lock needs a block, which the files of the experiment have."""

    def written(path: Path, content: bytes) -> None:
        if files(full) & set(OWN):
            raise StorageError("a full disk", expected="free space", do="free space")
        write_file(path, content)

    monkeypatch.setattr(dvc_lock, "write_file", written)
    done = xc("delete", *NGAME, "--yes")
    assert (done.code, files(full)) == (0, {*OTHERS})
    assert "deleted, and 1 stage of dvc.lock" in done.out
    assert "toy_ngame" not in (full.root / dvc_lock.FILE).read_text()


def test_a_dataset_goes_with_all_of_its_experiments(xc: Xc, full: Workspace) -> None:
    (full.root / ".git").mkdir()
    done = xc("delete", *TOY, "--yes")
    assert done.code == 0, done.err
    assert "the history of git: " in done.out.partition("may still hold them:\n")[2]
    assert done.out.startswith("the dataset toy with the experiments toy/ngame, toy/other:\n")
    assert files(full) == {"data/toys/ngame/model/f", ".xc/run/encoder@toys_ngame/f", OTHERS[-1]}
    assert (full.params.datasets(), full.params.experiments()) == (["toys"], [])
    assert (full.root / dvc_lock.FILE).read_text().count("cmd") == 1
    assert xc("delete", "--dataset", "toys", "--yes").code == 0, "it has no experiment"
    xc("delete", *TOY).refused(66, "no dataset 'toy'", "if it was deleted already")


def test_what_lost_its_entry_is_found_by_its_folder(xc: Xc, full: Workspace) -> None:
    full.params.remove("toy", ["ngame", "other"], whole=True)
    assert xc("delete", *NGAME, "--yes").code == 0
    assert files(full) == {*OTHERS}
    assert xc("delete", *TOY, "--yes").code == 0
    assert not (full.root / "data" / "toy").exists()


def test_names_that_would_leave_the_folder_of_the_data_are_refused(xc: Xc, full: Workspace) -> None:
    for name in ("..", "../..", "raw", "corpus", "", "*", "x' OR name != 'y"):
        assert xc("delete", "--dataset", name, "--keep", 1, "--yes").code == 64
        assert xc("delete", "--dataset", name, "--version", 1, "--yes").code == 64
        assert xc("delete", *TOY, "--recipe", name, "--yes").code == 64
        assert xc("delete", "--dataset", name, "--yes").code == 64
    assert files(full) == {*OWN, *OTHERS}


def test_nothing_is_deleted_while_somebody_works_on_it(xc: Xc, full: Workspace) -> None:
    for busy in (training(full, "toy", "ngame"), working(full, "toy")):
        with busy:
            for asked in (NGAME, TOY):
                xc("delete", *asked, "--yes").refused(75, "running", "wait for it to end")
    with incoming.change_lock(full, "toy"):
        xc("delete", *TOY, "--yes").refused(75, "running", "wait for it to end")
    assert files(full) == {*OWN, *OTHERS}


def test_what_a_stage_makes_before_the_locks_are_held_is_deleted_too(
    xc: Xc, full: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command looks once before them, to know which locks it needs."""
    late = full.state / "run" / "fusion@toy_ngame"

    def ends(workspace: Workspace, dataset: str) -> AbstractContextManager[None]:
        late.mkdir()
        return at_rest(workspace, dataset)

    monkeypatch.setattr(delete_files, "at_rest", ends)
    assert xc("delete", *NGAME, "--yes").code == 0
    assert not late.exists()


def test_a_recipe_that_competes_is_taken_out_of_the_list_first(xc: Xc, full: Workspace, edit: object) -> None:
    edit(full, {"datasets/toy/release": {"recipes": ["ngame", "other"]}})  # type: ignore[operator]
    xc("delete", *NGAME, "--yes").refused(
        78, "datasets.toy.release.recipes, which names 'ngame'", "take the recipe out"
    )
    assert files(full) == {*OWN, *OTHERS}
    assert xc("delete", *TOY, "--yes").code == 0


def test_timings_of_stages_share_a_line(xc: Xc, full: Workspace) -> None:
    for stage in ("encoder@toy_ngame", "scores@toy_other", "encoder@toys_ngame"):
        (full.root / ".xc" / "cost" / stage).write_text("x" * 50_000)
    shown = xc("delete", *TOY).out
    assert "         0.2 MB  4 files in .xc/cost\n" in shown
    assert shown.count(".xc/cost") == 1
    assert "         0.1 MB  1 file in .xc/cost\n" in xc("delete", "--dataset", "toys").out


def test_what_is_deleted_is_shown_beside_a_training_that_deletes_its_own_files(
    xc: Xc, full: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstat = Path.lstat

    def gone(path: Path) -> Any:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "lstat", lambda path: gone(path) if path.suffix == ".json" else lstat(path))
    ended = xc("delete", *TOY, "--recipe", "ngame")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "nothing was deleted; --yes deletes it"


def test_what_a_link_names_stays_and_is_not_counted(xc: Xc, full: Workspace, tmp_path: Path) -> None:
    elsewhere = (full.root / "data" / "toy").rename(tmp_path / "elsewhere")
    (full.root / "data" / "toy").symlink_to(elsewhere)
    done = xc("delete", *TOY, "--yes")
    assert done.code == 0
    assert f"         0.0 MB  data/toy, a link; {elsewhere} stays\n" in done.out
    assert (elsewhere / "ngame" / "model" / "f").exists()
    assert not (full.root / "data" / "toy").is_symlink()


def test_a_link_to_a_folder_that_is_gone_is_deleted(xc: Xc, full: Workspace, tmp_path: Path) -> None:
    shutil.rmtree(full.root / "data" / "toy")
    (full.root / "data" / "toy").symlink_to(tmp_path / "gone")
    assert xc("delete", *TOY, "--yes").code == 0
    assert not (full.root / "data" / "toy").is_symlink()


def test_what_cannot_be_deleted_is_named_and_keeps_its_entry(
    xc: Xc, full: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "drop", lambda path: None)
    xc("delete", *NGAME, "--yes").refused(73, "which cannot be deleted", "belongs to")
    assert ("toy", "ngame") in full.params.experiments()


def test_a_trained_experiment_leaves_a_project_that_works(xc: Xc, own: Workspace) -> None:
    write_report(own, "toy", "ngame")
    assert xc("delete", *NGAME, "--yes").code == 0
    assert xc("status").code == 0
    assert [path for path in own.root.rglob("*ngame*") if "lock" not in path.parts] == []


# registered versions


@pytest.fixture
def declared(versions: Registry, fresh: Workspace) -> Registry:
    """Five versions of a dataset that params.yaml knows: 2 was champion, 4 is, 3 is the best so far, 5 was refused."""
    fresh.params.declare_dataset(versions.dataset, IngestConfig())
    for number in range(1, 6):
        versions.release(versions.version(), passes=number in (2, 4))
    best = json.dumps({"acceptance": 1, "models": {"P@5": versions.digests[3]}})
    versions.client.set_model_version_tag(versions.name, "4", BEST, best)
    return versions


def numbers(versions: Registry) -> list[int]:
    found = versions.client.search_model_versions(f"name = '{versions.name}'")
    return sorted(int(version.version) for version in found)


def test_earlier_champions_are_deleted_if_asked_for(xc: Xc, declared: Registry) -> None:
    """After xc forget they may hold what was forgotten, and one rollback made it the champion again."""
    asked = ("delete", "--dataset", declared.dataset, "--even-previous")
    xc(*asked, "--version", 4, "--yes").refused(77, "version 4, which has the alias champion", "others")
    xc(*asked, "--keep", 1).refused(64, "--even-previous without --version", "--version")
    done = xc(*asked, "--version", 2, "--version", 3, "--yes")
    assert (done.code, numbers(declared)) == (0, [1, 4, 5])
    assert declared.aliases() == {"champion": 4, "challenger": 4}
    xc("rollback", "--dataset", declared.dataset).refused(66, "no previous champion", "")


def test_versions_that_are_in_use_stay(xc: Xc, declared: Registry) -> None:
    asked = ("delete", "--dataset", declared.dataset)
    assert declared.aliases() == {"champion": 4, "challenger": 4, "previous": 2}
    for number, why in (
        (4, "has the alias champion"),
        (2, "has the alias previous"),
        (3, "is one that the gate compares with"),
    ):
        xc(*asked, "--version", 1, "--version", number, "--yes").refused(77, f"version {number}, which {why}", "others")
    xc(*asked, "--version", 9, "--yes").refused(66, "no version 9", "name one that is there")
    assert numbers(declared) == [1, 2, 3, 4, 5]
    shown = xc(*asked, "--keep", 1)
    assert (shown.code, shown.out) == (
        0,
        f"{declared.name}: version 1\nkept: version 2 has the alias previous, version 3 is one that the gate "
        "compares with, version 4 has the alias champion, version 5 is the newest\n"
        "nothing was deleted; --yes deletes it\n",
    )
    assert xc(*asked, "--keep", 1, "--yes").code == 0
    assert numbers(declared) == [2, 3, 4, 5]
    assert xc(*asked, "--version", 5, "--version", 5, "--yes").code == 0
    assert numbers(declared) == [2, 3, 4]
    assert xc(*asked, "--keep", 1, "--yes").out == (
        f"{declared.name}: no version to delete of 3\nkept: version 2 has the alias previous, version 3 is one that "
        "the gate compares with, version 4 has the alias champion\n"
    )


def test_a_keep_that_keeps_all_says_how_many_there_are(xc: Xc, declared: Registry) -> None:
    """It left open whether the dataset had no version at all, or which ones were in use."""
    asked = ("delete", "--dataset", declared.dataset, "--keep")
    assert xc(*asked, 9).out.endswith("version 1 is one of the newest 9, version 5 is one of the newest 9\n")
    assert xc(*asked, 4).out.startswith(f"{declared.name}: version 1\n"), "those in use are among the newest 4"
    assert xc("delete", "--dataset", "unknown", "--keep", 1).out == "xc-unknown: no version to delete of 0\n"


def test_of_versions_with_the_best_model_only_the_one_that_the_gate_measures_stays(xc: Xc, declared: Registry) -> None:
    """Each repair leaves a version with the same model, and none of them could be deleted."""
    declared.client.set_model_version_tag(declared.name, "1", "bundle", declared.digests[3])
    assert xc("delete", "--dataset", declared.dataset, "--keep", 1, "--yes").code == 0
    assert numbers(declared) == [2, 3, 4, 5]


def test_an_alias_of_a_version_that_is_gone_keeps_nothing(xc: Xc, declared: Registry, store: Store) -> None:
    """MLflow's server removes it with the version, unless it is set at the same moment; it ended the command (69)."""
    with closing(sqlite3.connect(store.uri.removeprefix("sqlite:///"))) as database, database:
        added = "INSERT INTO registered_model_aliases (alias, version, name) VALUES (?, 9, ?)"
        for alias in ("absent", "ghost"):  # before and after the others
            database.execute(added, (alias, declared.name))
    ended = xc("delete", "--dataset", declared.dataset, "--keep", 1)
    assert (ended.code, ended.out.splitlines()[0]) == (0, f"{declared.name}: version 1"), ended.err


@pytest.mark.parametrize("lock", [candidate.registering, candidate.moving])
def test_no_version_is_deleted_while_one_is_registered_or_becomes_champion(
    xc: Xc, declared: Registry, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, lock: Any
) -> None:
    monkeypatch.setattr(candidate, "_PATIENCE", 0.0)
    monkeypatch.setattr(candidate, "_COPY_PATIENCE", 0.0)
    with lock(fresh, declared.dataset):
        xc("delete", "--dataset", declared.dataset, "--version", 1, "--yes").refused(75, "running", "wait")
    assert numbers(declared) == [1, 2, 3, 4, 5]


def test_all_versions_of_a_deleted_dataset_may_go(xc: Xc, declared: Registry, fresh: Workspace) -> None:
    fresh.params.remove(declared.dataset, [], whole=True)
    asked = ("delete", "--dataset", declared.dataset)
    assert xc(*asked, "--keep", 1, "--yes").code == 0
    assert numbers(declared) == [2, 3, 4, 5], "those in use are named by their numbers"
    declared.version()
    assert xc(*asked, *(x for n in range(2, 7) for x in ("--version", n)), "--yes").code == 0
    assert declared.client.search_registered_models(f"name = '{declared.name}'") == []
    xc(*asked, "--version", 1, "--yes").refused(66, "no version 1", "register one")


@pytest.mark.parametrize(
    "more", [("--recipe", "r", "--version", "1"), ("--version", "1", "--keep", "1"), ("--recipe", "r", "--keep", "1")]
)
def test_one_kind_of_thing_is_deleted_at_a_time(xc: Xc, fresh: Workspace, more: tuple[str, ...]) -> None:
    xc("delete", *TOY, *more).refused(64, "several of --recipe, --version and --keep", "drop the others")
    assert xc("delete", *TOY, "--keep", "0").code == 2


@pytest.mark.parametrize(
    "asked", [("delete", *TOY, "--version", -1), ("promote", *TOY, "--version", 0), ("lineage", *TOY, "--", -1)]
)
def test_a_number_that_no_version_has_is_refused_before_the_registry_is_asked(
    xc: Xc, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[object, ...]
) -> None:
    """Without a database of MLflow the database was blamed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_address(tmp_path / "none.db"))
    ended = xc(*asked)
    assert (ended.code, f"{asked[-1]} is not in the range x>=1" in ended.err) == (2, True), ended.err


def with_files(store: Store, name: str, folder: Path) -> list[Path]:
    """Register two versions with files of their own; return the folders of their packed models."""
    store.client.create_registered_model(name)
    experiment = store.client.create_experiment(name, artifact_location=folder.as_uri())
    found = []
    for _ in range(2):
        run = store.client.create_run(experiment)
        model = store.client.create_logged_model(experiment, source_run_id=run.info.run_id)
        place = local_folder(model.artifact_location)
        assert place is not None
        (place / "artifacts").mkdir(parents=True)
        (place / "artifacts" / "encoder.safetensors").write_text("weights")
        store.client.create_model_version(name, f"models:/{model.model_id}", run_id=run.info.run_id)
        found.append(place)
    return found


def test_the_files_of_a_version_are_deleted_with_its_model_and_its_run(
    xc: Xc, store: Store, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = local_folder(store.artifacts)
    assert root is not None
    first, second = with_files(store, "xc-filled", root / "filled")
    version = store.client.get_model_version("xc-filled", "1")
    asked = ("delete", "--dataset", "filled", "--version", 1, "--yes")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(store.client), "delete_run", killed)
        assert xc(*asked).code == 130
    assert (first.exists(), second.exists()) == (False, True)
    assert xc(*asked).code == 0, "the same command does the rest"
    assert (first.exists(), second.exists()) == (False, True)
    assert store.client.get_run(version.run_id).info.lifecycle_stage == "deleted"
    assert (
        store.client.get_run(store.client.get_model_version("xc-filled", "2").run_id).info.lifecycle_stage == "active"
    )
    with pytest.raises(Exception, match="not found"):
        store.client.get_logged_model(version.source.removeprefix("models:/"))


def test_what_goes_from_mlflow_with_versions_is_counted_first(xc: Xc, store: Store, fresh: Workspace) -> None:
    root = local_folder(store.artifacts)
    assert root is not None
    first, second = with_files(store, "xc-counted", root / "counted")
    (first / "artifacts" / "encoder.safetensors").write_bytes(bytes(1_200_000))
    run = store.client.get_model_version("xc-counted", "1").run_id
    store.client.create_model_version("xc-counted", str(first), run_id=run)  # which needs that run
    asked, place = ("delete", "--dataset", "counted"), f"in MLflow at {store.uri}: "
    assert f"\nwith it, {place}1 packed model (1.2 MB)\n" in xc(*asked, "--version", 1).out
    assert f"\nwith them, {place}1 packed model (1.2 MB), 1 run\n" in xc(*asked, "--version", 1, "--version", 3).out
    store.client.delete_run(run)
    every = xc(*asked, *ALL_THREE).out
    all_of_it = "2 packed models (1.2 MB), 1 run, the registered model xc-counted, which has no other version"
    assert f"\nwith them, {place}{all_of_it}\n" in every
    assert (first.exists(), second.exists()) == (True, True)
    shutil.rmtree(first)  # as a killed command leaves it
    assert f"\nwith them, {place}1 packed model (0.0 MB), 1 run, the registered model" in xc(*asked, *ALL_THREE).out
    assert " in MLflow at " not in xc(*asked, "--version", 1).out


def test_what_mlflow_keeps_of_a_dataset_or_an_experiment_is_counted(
    xc: Xc, versions: Registry, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was said of it before the files were gone."""
    for recipe in ("ngame", "other"):
        fresh.params.declare_dataset(versions.dataset, IngestConfig())
        fresh.params.declare_experiment(versions.dataset, recipe, "ngame", {})
    asked, place = ("delete", "--dataset", versions.dataset), f"stays in MLflow at {mlflow.get_tracking_uri()}"
    none = f"\n{place}: 0 versions of the registered model {versions.name}, 0 runs\n"
    assert none in xc(*asked).out
    for recipe, passes in (("ngame", True), ("other", False), ("ngame", True)):
        versions.release(number := versions.version(), passes=passes)
        versions.client.set_model_version_tag(versions.name, str(number), "recipe", recipe)
    for title in (versions.name, f"{versions.name} (2)", f"{versions.name}-more"):
        experiment = versions.client.create_experiment(title)
        for recipe in ("ngame", "ngame", "other"):
            versions.client.create_run(experiment, tags={"xc.recipe": recipe})
    monkeypatch.setattr(holdings, "_PAGE", 2)
    all_of_it = f"\n{place}: 3 versions (1, 2, 3; 3 is the champion) of the registered model {versions.name}, 6 runs\n"
    shown = xc(*asked).out
    assert all_of_it in shown
    assert f"would not be deleted, and may hold its data:\n  MLflow at {mlflow.get_tracking_uri()}: " in shown
    of_one = f"\n{place}: 1 version (2) of the registered model {versions.name}, 2 runs\n"
    shown = xc(*asked, "--recipe", "other").out
    assert of_one in shown
    assert "would not be deleted" not in shown


def test_versions_that_stay_are_listed_by_number_and_the_first_eight_are_named(
    xc: Xc, versions: Registry, fresh: Workspace
) -> None:
    """As texts 10 comes before 2, and MLflow lists the newest first."""
    fresh.params.declare_dataset(versions.dataset, IngestConfig())
    for recipe in ("many", "ngame"):
        fresh.params.declare_experiment(versions.dataset, recipe, "ngame", {})
    for number in range(1, 12):
        versions.release(versions.version(), passes=number in (1, 10))
        recipe = "ngame" if number in (2, 9, 10) else "many"
        versions.client.set_model_version_tag(versions.name, str(number), "recipe", recipe)
    asked = ("delete", "--dataset", versions.dataset)
    assert ": 11 versions (1, 2, 3, 4, 5, 6, 7, 8 and 3 more; 10 is the champion) of " in xc(*asked).out
    assert ": 3 versions (2, 9, 10; 10 is the champion) of " in xc(*asked, "--recipe", "ngame").out


def test_what_would_be_deleted_is_shown_without_mlflow_too(
    xc: Xc, full: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shown = xc("delete", *NGAME)
    assert (shown.code, shown.err) == (0, "")
    assert "what stays in MLflow could not be counted: no answer from MLflow at http://127.0.0.1:9 (" in shown.out
    assert shown.out.endswith("nothing was deleted; --yes deletes it\n")


def test_a_server_that_answers_with_errors_is_asked_once_for_what_stays(
    xc: Xc, full: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is no part of the deletion, and with retries one that hangs took 105 seconds."""
    monkeypatch.delenv(RETRIES, raising=False)
    asked: list[str] = []

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        shown = xc("delete", *NGAME)
        server.shutdown()
    assert (shown.code, len(asked), RETRIES in os.environ) == (0, 1, False)
    assert "what stays in MLflow could not be counted: " in shown.out


def test_retries_that_the_user_has_set_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RETRIES, "3")
    with without_retries():
        assert os.environ[RETRIES] == "3"
    assert os.environ[RETRIES] == "3"


def test_versions_that_cannot_be_made_again_without_those_are_named_before_they_are_deleted(
    xc: Xc, store: Store, fresh: Workspace
) -> None:
    """The rows of a refreshed model are those of the version that was trained; nothing said that it is still needed."""
    root = local_folder(store.artifacts)
    assert root is not None
    with_files(store, "xc-later", root / "later")
    trained, refreshed = (store.client.get_model_version("xc-later", number).run_id for number in "12")
    facts = {trained: {"digest": "a"}, refreshed: {"digest": "b", "refreshed": True, "kept_from": ["a"]}}
    for run, classifier in facts.items():
        store.client.log_text(run, json.dumps({"classifier": classifier}), "origin/artefacts.json")
    asked = ("delete", "--dataset", "later")
    warning = (
        "warning: afterwards xc lineage --rebuild cannot make version 2 again: it keeps trained parts of a version "
        "that is deleted"
    )
    shown = xc(*asked, "--version", 1).out.splitlines()
    lost = f"with it, in MLflow at {store.uri}: 1 packed model (0.0 MB), 1 run"
    assert shown == ["xc-later: version 1", warning, lost, "nothing was deleted; --yes deletes it"]
    assert "warning" not in xc(*asked, "--version", 2).out + xc(*asked, "--version", 1, "--version", 2).out
    assert warning in xc(*asked, "--keep", 1, "--yes").out.splitlines()
    assert "warning" not in xc(*asked, "--version", 2, "--yes").out


@pytest.mark.parametrize("raised", [StorageError("a full disk", expected="x", do="y"), OSError(28, "No space left")])
def test_on_a_full_disk_versions_are_deleted_without_a_look_at_later_ones(
    xc: Xc, store: Store, fresh: Workspace, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    """Their records are copied for it, and whoever deletes versions may do so because the disk is full."""
    root = local_folder(store.artifacts)
    assert root is not None
    name = f"space{isinstance(raised, StorageError)}".lower()
    with_files(store, f"xc-{name}", root / name)
    monkeypatch.setattr(deleting, "losing_history", failing(raised))
    ended = xc("delete", "--dataset", name, "--version", 1, "--yes")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "deleted"), ended.err
    assert "note: later versions that cannot be made again without those are not named: a full disk" in ended.err


def test_the_model_of_a_version_is_asked_for_once(
    xc: Xc, store: Store, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = local_folder(store.artifacts)
    assert root is not None
    with_files(store, "xc-asked", root / "asked")
    asked, found = [], store.client.get_logged_model
    monkeypatch.setattr(type(store.client), "get_logged_model", lambda _, name: asked.append(name) or found(name))
    assert xc("delete", "--dataset", "asked", "--version", 1, "--version", 2, "--yes").code == 0
    assert len(asked) == len(set(asked)) == 2


def test_a_fault_of_mlflow_keeps_the_version(
    xc: Xc, store: Store, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = local_folder(store.artifacts)
    assert root is not None
    with_files(store, "xc-faulty", root / "faulty")
    monkeypatch.setattr(type(store.client), "delete_run", failing(MlflowException("no connection")))
    assert xc("delete", "--dataset", "faulty", "--version", 1, "--yes").code == 69
    assert store.client.get_model_version("xc-faulty", "1").version == 1


def test_files_of_another_project_stay(xc: Xc, store: Store, fresh: Workspace, tmp_path: Path) -> None:
    """A copy of a project has the addresses of the original in its database."""
    first, _ = with_files(store, "xc-copied", tmp_path / "original")
    xc("delete", "--dataset", "copied", "--version", 1, "--yes").refused(77, "under another root", "in the project")
    assert (first / "artifacts" / "encoder.safetensors").exists()


def test_versions_of_a_project_that_was_moved_can_be_deleted(
    xc: Xc, store: Store, fresh: Workspace, tmp_path: Path
) -> None:
    with_files(store, "xc-gone", tmp_path / "original")
    (tmp_path / "original").rename(tmp_path / "new")
    assert xc("delete", "--dataset", "gone", "--version", 1, "--yes").code == 0
    assert (tmp_path / "new").exists()


def test_the_files_that_came_with_a_moved_project_are_deleted_with_their_version(
    xc: Xc, store: Store, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stayed for ever: nothing named them any more."""
    first, second = with_files(store, "xc-carried", tmp_path / "original" / "xc-carried")
    (tmp_path / "original").rename(tmp_path / "new")
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "new").as_uri())
    assert xc("delete", "--dataset", "carried", "--version", 1, "--yes").code == 0
    there = [tmp_path / "new" / path.relative_to(tmp_path / "original") for path in (first, second)]
    assert [path.exists() for path in there] == [False, True]
    assert not (tmp_path / "original").exists()


def test_what_versions_share_goes_with_the_last_of_them(xc: Xc, store: Store, fresh: Workspace) -> None:
    root = local_folder(store.artifacts)
    assert root is not None
    first, _ = with_files(store, "xc-shared", root / "shared")
    version = store.client.get_model_version("xc-shared", "1")
    for _ in range(2):
        store.client.create_model_version("xc-shared", version.source, run_id=version.run_id)
    asked = ("delete", "--dataset", "shared", "--yes")
    assert xc(*asked, "--version", 1).code == 0
    assert (first / "artifacts" / "encoder.safetensors").exists()
    assert store.client.get_run(version.run_id).info.lifecycle_stage == "active"
    assert xc(*asked, "--version", 3, "--version", 4).code == 0
    assert not first.exists()
    assert store.client.get_run(version.run_id).info.lifecycle_stage == "deleted"


@pytest.fixture
def apart(tmp_path: Path, fresh: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose runs and registered models are in databases of their own."""
    runs, registry = (sqlite_address(tmp_path / f"{name}.db") for name in ("runs", "registry"))
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", runs)
    monkeypatch.setenv("XC_MLFLOW_ARTIFACTS", (tmp_path / "files").as_uri())
    return Store(runs, (tmp_path / "files").as_uri(), store.lock, connect(runs, store.lock))


@pytest.mark.parametrize("made_again", [False, True])
def test_without_its_runs_a_version_is_deleted_with_its_files_and_what_is_left_is_named(
    xc: Xc, apart: Store, tmp_path: Path, made_again: bool
) -> None:
    """The files stayed for ever, and nothing said so."""
    first, second = with_files(apart, "xc-apart", tmp_path / "files" / "apart")
    (tmp_path / "runs.db").unlink()
    if made_again:
        connect(apart.uri, apart.lock)
    asked = ("delete", "--dataset", "apart", "--yes")
    done = xc(*asked, "--version", 1)
    left = f"; entries of their runs and models are not: there is no database of runs at {tmp_path / 'runs.db'}"
    assert (done.code, done.out.splitlines()[-1]) == (0, "deleted" + left * (not made_again)), done.err
    assert (first.exists(), second.exists(), (tmp_path / "runs.db").exists()) == (False, True, made_again)
    xc(*asked, "--version", 1).refused(66, "no version 1 of xc-apart", "name one that is there")
    assert xc(*asked, "--version", 2).code == 0
    assert not second.exists()


@pytest.mark.parametrize(
    ("registry", "code", "found"),
    [
        ("http://127.0.0.1:9", 69, "no answer from MLflow at http://127.0.0.1:9 ("),
        ("nonsense://x", 78, "MLFLOW_REGISTRY_URI = nonsense://x, an address that MLflow does not take ("),
        (
            "mssql+pymssql://x",
            78,
            "MLFLOW_REGISTRY_URI = mssql+pymssql://x, a database whose driver cannot be imported",
        ),
    ],
)
@pytest.mark.parametrize("has_runs", [False, True])
def test_a_wrong_address_of_the_registry_is_the_one_that_is_named(
    xc: Xc, apart: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    registry: str, code: int, found: str, has_runs: bool,
) -> None:  # fmt: skip
    """Without a database of runs MLFLOW_TRACKING_URI was blamed, and one command said that nobody answers."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", registry)
    if not has_runs:
        (tmp_path / "runs.db").unlink()
    refused = xc("delete", "--dataset", "apart", "--version", 1)
    refused.refused(code, found)
    assert "MLFLOW_REGISTRY_URI" in refused.err
    assert "MLFLOW_TRACKING_URI" not in refused.err


def test_without_its_runs_no_file_of_another_project_is_deleted(xc: Xc, apart: Store, tmp_path: Path) -> None:
    first, _ = with_files(apart, "xc-theirs", tmp_path / "original")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "file").write_text("a folder that no command made")
    apart.client.create_model_version("xc-theirs", str(tmp_path / "own"))
    (tmp_path / "runs.db").unlink()
    asked = ("delete", "--dataset", "theirs", "--yes", "--version")
    xc(*asked, 1).refused(77, "under another root", "in the project")
    assert xc(*asked, 3).code == 0
    assert (first / "artifacts" / "encoder.safetensors").exists() and (tmp_path / "own" / "file").exists()
