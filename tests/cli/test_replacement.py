"""What a replacement does to a dataset: the difference, the guard against loss, the changelog and kept versions."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assets.shown import SHOWN
from tests.cli.conftest import Xc
from tests.conftest import ToyWorld
from tests.data.worlds import empty_workspace, files_of, read_world
from xc_core.chain import Workspace, changelog
from xc_core.cli.ingest import place
from xc_core.data.corpus import Corpus
from xc_core.data.difference import Difference, Moves
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import ACCEPTANCE, TRAIN
from xc_core.errors import RefusedError
from xc_core.lifecycle.update import update


def world_of(folder: Path, *, without: int = 0, labels: int = 10, mark: str = "") -> Path:
    """Write a toy world without its first documents and last labels; ``mark`` changes the text of the first one."""
    world = ToyWorld.make(documents=100, tests=20)
    world.train = world.train[without:]
    world.labels = world.labels[:labels]
    for row in [*world.train, *world.test]:
        kept = [label for label in row["target_ind"] if label < labels] or [0]
        row |= {"target_ind": kept, "target_rel": [1.0] * len(kept)}
    world.train[0]["title"] += mark
    return world.write(folder)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    workspace = empty_workspace(tmp_path / "project")
    place(workspace, world_of(tmp_path / "first"), "toy", IngestConfig(), replace=False)
    return workspace


def replaced(workspace: Workspace, source: Path, allow_loss: float | None = None) -> None:
    place(workspace, source, "toy", IngestConfig(), replace=True, allow_loss=allow_loss)


# the difference


def test_the_difference_names_what_came_went_and_changed(tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=10)
    before = read_world(world.write(tmp_path / "before"))
    gone = world.train.pop(3)
    world.train[5]["content"] += " more"
    world.train[9]["target_ind"] = sorted({*world.train[9]["target_ind"][:1], 8, 9})  # one gone, two new
    world.train[9]["target_rel"] = [1.0] * len(world.train[9]["target_ind"])
    word, _, rest = world.train[12]["content"].partition(" ")
    world.train[12] |= {"title": f"{world.train[12]['title']} {word}", "content": rest}
    world.test.append(world.train.pop(0))
    world.train.append({**world.train[1], "uid": "new"})
    world.labels[2]["title"] = "other"
    found = Difference.of(before, read_world(world.write(tmp_path / "after")))
    assert found.documents == Moves(70, 70, ["new"], [gone["uid"]], ["D0006", "D0010", "D0013"])
    assert found.labels == Moves(10, 10, [], [], ["L2"])
    assert found.moved == ["D0000"]
    assert (found.pairs["lost"], found.tests) == (0, {"before": 10, "lost": 0, "gone": 0})
    assert found.pairs["after"] - found.pairs["before"] == found.pairs["added"] - found.pairs["removed"]
    assert found.known_tests == 0, "a document that moved has its uid"


def test_a_test_document_is_known_if_a_model_has_learnt_from_its_text(tmp_path: Path) -> None:
    world = ToyWorld.make(documents=60, tests=10)
    before = read_world(world.write(tmp_path / "before"), acceptance_fraction=0.3)
    held, train = (set(before.uids(before.rows(split))) for split in (ACCEPTANCE, TRAIN))
    for uids, count in ((held, 3), (train, 2)):
        for row in [row for row in world.train if row["uid"] in uids][:count]:
            world.train.remove(row)
            world.test.append({**row, "uid": f"new-{row['uid']}"})
    world.test[0]["uid"] = "another name of a test document"
    found = Difference.of(before, read_world(world.write(tmp_path / "after"), acceptance_fraction=0.3))
    assert found.known_tests == 2, "the acceptance set is not learnt from"


def test_rows_without_uids_that_moved_into_test_are_counted(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    """Their uids are their places, so a row that is inserted gives all later ones another split."""
    source, rows = tmp_path / "table", [f"text {number},a" for number in range(40)]
    source.mkdir()
    for lines, options in ((rows, ()), (["a first row,a", *rows], ("--replace",))):
        (source / "train.csv").write_text("\n".join(["text,labels", *lines]), "utf-8")
        ended = xc("ingest", source, "--dataset", "new", *options)
        assert ended.code == 0
    (entry,) = changelog.entries(fresh, "new")
    assert entry["known_tests"] > 1
    assert f"ingest: {entry['known_tests']} test documents had their text in train or validation" in ended.err


# the guard


def timed_table(folder: Path, first: int, count: int) -> Path:
    folder.mkdir()
    rows = [f"u{number},text {number},a,{number}" for number in range(first, first + count)]
    (folder / "train.csv").write_text("\n".join(["uid,text,labels,time", *rows, ""]), "utf-8")
    return folder


def test_test_documents_by_time_may_become_train_documents_and_are_lost_only_if_gone(
    xc: Xc, fresh: Workspace, tmp_path: Path
) -> None:
    """Each new table has later rows, of which the last fifth is the test set."""
    name = ("--dataset", "new")
    assert xc("ingest", timed_table(tmp_path / "a", 0, 100), *name, "--split", "time").code == 0
    assert xc("ingest", timed_table(tmp_path / "b", 0, 140), *name, "--replace").code == 0
    (entry,) = changelog.entries(fresh, "new")
    assert len(entry["moved"]) == 20
    gone = timed_table(tmp_path / "c", 0, 136)  # 4 of 140 documents, and of 28 test documents
    ended = xc("ingest", gone, *name, "--replace")
    assert (ended.code, "4 of the 28 test documents of new (14.3%) are gone or in another split" in ended.err) == (
        77,
        True,
    )


def test_a_replacement_that_loses_too_much_is_refused_and_nothing_changes(project: Workspace, tmp_path: Path) -> None:
    before = files_of(project.root)
    locks = {name: b"" for name in before if name.startswith(".xc/lock")}
    with pytest.raises(
        RefusedError, match=r"(?s)13 of the 120 documents of toy \(10.8%.*D0000, D0001, D0002.*--allow-loss 0.11"
    ):
        replaced(project, world_of(tmp_path / "new", without=13))
    assert files_of(project.root) | locks == before | locks
    replaced(project, world_of(tmp_path / "twelve", without=12))


@pytest.mark.parametrize("lost", [0, 1, 37, 101, 155, 199, 200])
def test_the_share_that_a_refusal_advises_is_enough_and_hardly_more(lost: int) -> None:
    advised = changelog._rounded_up_percent(lost / 200)
    assert lost / 200 <= advised <= min(lost / 200 + 0.01, 1)
    assert advised == round(advised, 2)


def test_a_share_that_is_no_number_allows_nothing(project: Workspace, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="40 of the 120 documents"):
        replaced(project, world_of(tmp_path / "new", without=40), allow_loss=float("nan"))


def test_labels_count_as_documents_do(project: Workspace, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"2 of the 10 labels of toy \(20.0%"):
        replaced(project, world_of(tmp_path / "new", labels=8))
    replaced(project, tmp_path / "new", allow_loss=0.2)


def fewer_pairs(folder: Path, documents: int) -> Path:
    """Write the world with one label less for so many of the documents."""
    world = ToyWorld.make(documents=100, tests=20)
    for row in [row for row in world.train if len(row["target_ind"]) > 1][:documents]:
        row |= {"target_ind": row["target_ind"][1:], "target_rel": row["target_rel"][1:]}
    return world.write(folder)


def test_pairs_count_as_documents_do(project: Workspace, tmp_path: Path) -> None:
    """All documents and labels are there, but with fewer labels per document."""
    pairs = sum(len(row["target_ind"]) for world in [ToyWorld.make(100, 20)] for row in [*world.train, *world.test])
    most = pairs // 10
    with pytest.raises(RefusedError, match=rf"{most + 1} of the {pairs} pairs of toy \(10\.\d%\)"):
        replaced(project, fewer_pairs(tmp_path / "more", most + 1))
    replaced(project, fewer_pairs(tmp_path / "most", most))


def test_an_update_that_loses_pairs_is_refused_too(project: Workspace, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="pairs of toy") as caught:
        update(project, fewer_pairs(tmp_path / "new", 60), "toy")
    assert caught.value.do == "change the setting, if they should go", "xc update has no --allow-loss"


def test_pairs_with_other_labels_are_no_loss(project: Workspace, tmp_path: Path) -> None:
    world = ToyWorld.make(documents=100, tests=20)
    for row in world.train[:60]:
        row |= {"target_ind": sorted((label + 1) % 10 for label in row["target_ind"])}
    replaced(project, world.write(tmp_path / "new"))


@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "moved"])
def test_test_documents_count_as_documents_do(project: Workspace, tmp_path: Path, gone: bool) -> None:
    """They are few, so all of them may be fewer than a tenth of the documents."""
    world = ToyWorld.make(documents=100, tests=20)
    left, world.test = world.test[:3], world.test[3:]
    world.train += [] if gone else left
    with pytest.raises(RefusedError, match=r"3 of the 20 test documents of toy \(15.0%\)"):
        replaced(project, world.write(tmp_path / "new"))
    replaced(project, tmp_path / "new", allow_loss=0.15)


def test_files_that_were_changed_by_hand_and_are_ingested_where_they_are_are_compared_as_new_ones(
    project: Workspace, tmp_path: Path
) -> None:
    """The guard took a lost test document for one that other settings had moved."""
    raw = project.raw("toy")

    def again(config: IngestConfig, allow_loss: float | None = None) -> list[str]:
        place(project, raw, "toy", config, replace=False, allow_loss=allow_loss)
        return [entry["what"] for entry in changelog.entries(project, "toy")]

    assert again(IngestConfig(validation_fraction=0.3)) == ["settings"]
    world = ToyWorld.make(documents=100, tests=20)
    world.test = world.test[3:]
    world.write(tmp_path / "new")
    shutil.copytree(tmp_path / "new", raw, dirs_exist_ok=True)
    with pytest.raises(RefusedError, match=r"3 of the 20 test documents of toy \(15.0%\)"):
        again(IngestConfig(validation_fraction=0.3))
    assert again(IngestConfig(validation_fraction=0.3), 0.15) == ["settings", "replace"]


def test_a_new_dataset_may_already_have_its_files_in_its_folder(tmp_path: Path) -> None:
    workspace = empty_workspace(tmp_path / "project")
    place(workspace, world_of(workspace.raw("toy")), "toy", IngestConfig(), replace=False)
    assert (workspace.params.datasets(), changelog.entries(workspace, "toy")) == (["toy"], [])


def test_a_smaller_test_fraction_may_move_test_documents(tmp_path: Path) -> None:
    workspace = empty_workspace(tmp_path / "project")
    rows = [f"uid{number},text number {number},common" for number in range(200)]
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "train.csv").write_text("\n".join(["uid,text,labels", *rows, ""]))
    place(workspace, tmp_path / "first", "toy", IngestConfig(test_fraction=0.5), replace=False)
    smaller = IngestConfig(test_fraction=0.1)
    place(workspace, workspace.raw("toy"), "toy", smaller, replace=False)
    assert len(Corpus.open(workspace.folder("corpus", "toy")).rows("test")) < 50
    place(workspace, tmp_path / "first", "toy", IngestConfig(test_fraction=0.02), replace=True)
    assert len(Corpus.open(workspace.folder("corpus", "toy")).rows("test")) < 12


def test_the_share_is_a_setting_of_the_dataset(project: Workspace, tmp_path: Path, edit: Any) -> None:
    edit(project, {"datasets/toy/update/allow_loss": 0.5})
    replaced(project, world_of(tmp_path / "new", without=40))
    edit(project, {"datasets/toy/update/allow_loss": 0.0})
    with pytest.raises(RefusedError):
        replaced(project, world_of(tmp_path / "less", without=41))
    assert project.params.dataset("toy").update.allow_loss == 0


def test_a_missing_corpus_does_not_switch_the_guard_off(project: Workspace, tmp_path: Path) -> None:
    manifest = project.folder("corpus", "toy") / "manifest.json"
    manifest.unlink()
    with pytest.raises(RefusedError, match="40 of the 120 documents"):
        replaced(project, world_of(tmp_path / "new", without=40))


# what is kept


def test_the_files_before_a_change_are_kept_and_can_be_ingested_again(project: Workspace, tmp_path: Path) -> None:
    first = files_of(project.raw("toy"))
    replaced(project, world_of(tmp_path / "new", without=40, mark=" other"), allow_loss=1)
    kept = changelog.version(project, "toy", 1)
    assert files_of(kept) == first
    replaced(project, kept)
    assert files_of(project.raw("toy")) == first
    assert [len(e["documents"]["added"]) for e in changelog.entries(project, "toy")] == [0, 40]


def test_files_that_cannot_be_read_any_more_are_kept_too(project: Workspace, tmp_path: Path, lines: list[str]) -> None:
    (project.folder("corpus", "toy") / "manifest.json").unlink()
    next(project.raw("toy").glob("trn.json*")).write_bytes(b"damaged")
    damaged = files_of(project.raw("toy"))
    replaced(project, world_of(tmp_path / "new"))
    assert any("so nothing is compared" in line for line in lines)
    assert files_of(changelog.version(project, "toy", 1)) == damaged


def test_the_last_three_versions_are_kept(project: Workspace, tmp_path: Path) -> None:
    for number in range(5):
        replaced(project, world_of(tmp_path / f"{number}", mark=f" {number}"))
    assert [p.name for p in sorted(changelog.version(project, "toy", 0).parent.iterdir())] == ["0003", "0004", "0005"]
    assert [e["number"] for e in changelog.entries(project, "toy")] == [1, 2, 3, 4, 5]


def test_after_9999_changes_the_order_is_that_of_the_numbers(project: Workspace, tmp_path: Path) -> None:
    """Names have four digits, and by name 10000 comes before 9999."""
    replaced(project, world_of(tmp_path / "first", mark=" first"))
    (entry,), versions = changelog.entries(project, "toy"), changelog.version(project, "toy", 1).parent
    for number in (9_998, 9_999, 10_000):
        changelog.write(project, "toy", {**entry, "number": number})
        changelog.version(project, "toy", number).mkdir()
    replaced(project, world_of(tmp_path / "next", mark=" next"))
    assert [e["number"] for e in changelog.entries(project, "toy")] == [1, 9_998, 9_999, 10_000, 10_001]
    last = changelog.last(project.folder("corpus", "toy"))
    assert last is not None and last["number"] == 10_001
    assert {folder.name for folder in versions.iterdir()} == {"9999", "10000", "10001"}


def test_the_same_files_again_are_no_change(project: Workspace, tmp_path: Path) -> None:
    replaced(project, tmp_path / "first")
    assert changelog.entries(project, "toy") == []


def test_dagster_gets_numbers_of_what_changed_and_no_uid(project: Workspace, tmp_path: Path) -> None:
    replaced(project, world_of(tmp_path / "new", without=2, labels=9, mark=" other"))
    (entry,) = changelog.entries(project, "toy")
    assert "D0000" in json.dumps(entry) and "L9" in json.dumps(entry)
    shown = SHOWN["corpus"](project.folder("corpus", "toy")).metadata["change"].data
    assert (shown["documents"]["removed"], shown["labels"]["removed"], shown["number"]) == (2, 1, 1)
    assert not re.search(r'"[DL]\d', json.dumps(shown))


def test_status_shows_the_last_change(
    xc: Xc, project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(project.root))
    replaced(project, world_of(tmp_path / "new", without=2, mark=" other"))
    assert "documents 1 changed, 2 removed; labels as before" in xc("status", "--dataset", "toy").out
    line = json.loads(xc("status", "--dataset", "toy", "--json").out.splitlines()[0])
    assert line["last_change"]["documents"]["removed"] == ["D0000", "D0001"]


def test_a_replacement_keeps_the_settings_that_no_option_changes(
    xc: Xc, project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XC_ROOT", str(project.root))
    new = world_of(tmp_path / "new", mark=" other")
    ingest = ("ingest", new, "--dataset", "toy", "--replace")
    assert xc(*ingest, "--validation-fraction", "0.3", "--filters", "none", "--split", "family").code == 0
    ended = xc(*ingest, "--filters", "generate", "--allow", "shared-texts")
    assert ended.code == 0, ended.err
    assert project.params.dataset("toy").corpus == IngestConfig(
        validation_fraction=0.3, filters="generate", split="family", allow=("shared-texts",)
    )
    assert "ingest: settings that stay as they were: validation_fraction 0.3, split family\n" in ended.err
    none_held = replace(project.params.dataset("toy").corpus, validation_fraction=0.0, layout="xc-json")
    project.params.declare_dataset("toy", none_held)
    ended = xc(*ingest)
    assert ended.code == 0, "an update wrote these beside a validation file"
    assert "ingest: validation_fraction is 0.1 again;" in ended.err
    assert project.params.dataset("toy").corpus == replace(none_held, validation_fraction=0.1, layout="auto")
    project.params.declare_dataset("toy", none_held)
    ended = xc(*ingest, "--validation-fraction", "0")
    assert (ended.code, "again" in ended.err) == (0, False), "it was asked for"
    assert xc(*ingest, "--validation-fraction", "0.1", "--split", "uid", "--filters", "given").code == 0
    assert project.params.dataset("toy").corpus == IngestConfig(allow=("shared-texts",))
