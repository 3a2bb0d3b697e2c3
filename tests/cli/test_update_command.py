"""``xc update``: what is merged, what keeps its place, and that a bad update changes nothing."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.cli.conftest import Xc
from tests.conftest import ToyWorld, open_corpus, write_lines
from tests.data.worlds import LAYOUTS, empty_workspace, files_of, read_world, small_world, write_world
from xc_core.chain import Workspace, changelog
from xc_core.chain.workspace import working
from xc_core.cli import doctor
from xc_core.cli.ingest import place
from xc_core.data.formats import text_uid
from xc_core.data.ingest import IngestConfig
from xc_core.data.merge import Tables
from xc_core.data.new_documents import NewDocuments
from xc_core.errors import BusyError, DataError
from xc_core.lifecycle.arrival import scratch
from xc_core.lifecycle.forget import forget
from xc_core.lifecycle.update import update

pytestmark = pytest.mark.chain

OWN = ("data/toy/raw", "data/toy/corpus", "data/toy/changes", "params")
"""Files of the dataset that an update changes."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = empty_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    place(
        workspace,
        ToyWorld.make(documents=100, tests=20).write(tmp_path / "begin"),
        "toy",
        IngestConfig(),
        replace=False,
    )
    return workspace


def splits(workspace: Workspace) -> dict[str, str]:
    return dict(open_corpus(workspace).table("documents").select("uid", "split").iter_rows())


def labels_of(workspace: Workspace, uid: str) -> list[str]:
    pairs = Tables.of(open_corpus(workspace)).pairs
    return sorted(pairs.filter(pl.col("doc") == uid)["label"].to_list())


def row(uid: str, text: str, labels: list[int]) -> dict[str, Any]:
    return {"uid": uid, "title": text, "content": "", "target_ind": labels, "target_rel": [1.0] * len(labels)}


def drop(folder: Path, train: list[Any], labels: list[Any], test: list[Any] | None = None) -> Path:
    """Write an update; ``labels`` are (uid, title)."""
    world = ToyWorld(train, test or [], [{"uid": uid, "title": title, "content": ""} for uid, title in labels])
    return world.write(folder)


# what is merged


def test_what_is_next_is_a_command_that_keeps_the_settings(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    update = drop(tmp_path / "new", [row("N1", "a new text", [0])], [("L0", "river")])
    assert "\nnext: xc train --dataset toy --recipe words\n" in xc("update", update, "--dataset", "toy").out
    project.params.declare_experiment("toy", "ngame", "ngame", {"classifier": {"epochs": 2}})
    project.params.declare_experiment("toy", "short", "ngame", {"classifier": {"epochs": 1}})
    second = drop(tmp_path / "second", [row("N2", "a newer text", [0])], [("L0", "river")])
    assert xc("update", second, "--dataset", "toy").out.splitlines()[-3:] == [
        "next: train again, or refresh (docs/runbook.md#refresh):",
        "  xc train --dataset toy --recipe ngame --set classifier.epochs=2 --budget none",
        "  xc train --dataset toy --recipe short",
    ]


def test_new_corrected_and_untouched_rows(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    before, kept = splits(project), labels_of(project, "D0010")
    train = [row("N1", "a new text", [0, 1]), row("D0001", "a corrected text", [1])]
    update = drop(tmp_path / "new", train, [("NEW", "brand new"), ("L3", "violins")], [row("N2", "a test text", [1])])
    ended = xc("update", update, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert "documents: 2 new, 1 changed, 0 removed; labels: 1 new, 1 changed, 0 removed" in ended.out
    assert "up to date" not in ended.err
    after = splits(project)
    assert after.pop("N2") == "test"
    assert after.pop("N1") in ("train", "validation")
    assert after == before
    assert labels_of(project, "D0001") == ["L3"]
    assert labels_of(project, "D0010") == kept
    assert labels_of(project, "N1") == ["L3", "NEW"]
    corpus = open_corpus(project)
    assert corpus.table("labels")["uid"].to_list() == [f"L{i}" for i in range(10)] + ["NEW"]
    texts = dict(corpus.table("labels").select("uid", "title").iter_rows())
    assert (texts["L3"], texts["L4"]) == ("violins", "glacier")
    (entry,) = changelog.entries(project, "toy")
    assert (entry["what"], entry["documents"]["added"], entry["labels"]["added"]) == ("update", ["N1", "N2"], ["NEW"])
    assert (changelog.version(project, "toy", 1) / "trn.json.gz").is_file()


def test_who_reads_the_version_that_is_replaced_is_named(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    """A training went on for hours, and kept nothing at its end; the update said nothing."""
    labels = tmp_path / "labels.csv"
    labels.write_text("uid,text\nL77,a new label\n", "utf-8")
    update = drop(tmp_path / "new", [row("N1", "a new text", [0])], [("L0", "river")])
    for given in (("update", update), ("add-labels", labels)):
        with working(project, "toy"):
            ended = xc(*given, "--dataset", "toy")
        assert ended.code == 0
        assert f"gate of the dataset toy, which process {os.getpid()} is running, on the version before" in ended.err
        assert "on the version before" not in xc(*given, "--dataset", "toy").err


@pytest.mark.parametrize(("what", "setting"), [("replace", False), ("settings", True)])
def test_what_was_changed_by_hand_is_in_the_changelog_before_the_update(
    project: Workspace, tmp_path: Path, what: str, setting: bool
) -> None:
    """The corpus was made again from the changed files without an entry."""
    before, raw = open_corpus(project).digest, project.raw("toy")
    if setting:
        params = project.params.path
        params.write_text(params.read_text().replace("corpus: {}", "corpus: {validation_fraction: 0.3}"))
    else:
        lines = gzip.decompress((raw / "trn.json.gz").read_bytes()).decode().splitlines()
        write_lines(raw / "trn.json.gz", [*lines, json.dumps(row("hand", "a text by hand", [0]))])
    assert update(project, raw, "toy") is not None
    (entry,) = changelog.entries(project, "toy")
    assert (entry["what"], entry["documents"]["added"]) == (what, [] if setting else ["hand"])
    assert entry["corpus"] == {"before": before, "after": open_corpus(project).digest}
    assert entry["settings"]["before"]["validation_fraction"] == IngestConfig().validation_fraction
    assert entry["settings"]["after"]["validation_fraction"] == (0.3 if setting else IngestConfig().validation_fraction)


def test_a_changelog_without_the_present_version_is_noted(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    """A backup without the newest record was restored, and nothing said so."""
    for number in (1, 2):
        new = [row(f"n{number}", f"new text {number}", [0])]
        update(project, drop(tmp_path / f"more-{number}", new, [("L0", "river")]), "toy")
    entry, note = project.home("toy") / "changes" / "0002.json", "has no record of this version"
    for lost in (False, True):
        if lost:
            entry.unlink()
        assert (note in xc("status", "--dataset", "toy").out) is lost
        assert (note in xc("status", "--dataset", "toy", "--json").out) is lost
        found = [one for one in doctor._project() if note in one.text]
        assert [(one.level, one.text.partition(":")[0]) for one in found] == [("note", "toy")] * lost
    shutil.rmtree(entry.parent)
    assert note not in xc("status", "--dataset", "toy").out, "a dataset that was ingested once has no changelog"


def test_a_changelog_that_lost_its_only_entry_is_noted_and_the_next_update_goes_on_as_before(
    xc: Xc, project: Workspace, tmp_path: Path
) -> None:
    """Its next number was 1, so the kept files were replaced, and no new document was held out for validation."""
    kept = changelog.version(project, "toy", 1)
    for number in (1, 2):
        new = [row(f"N{number}-{i}", f"text {number} {i} of its own", [0]) for i in range(60)]
        ended = xc("update", drop(tmp_path / f"more-{number}", new, [("L0", "river")]), "--dataset", "toy")
        assert (ended.code, "has no record of this version" in ended.err) == (0, number == 2)
        assert {split for uid, split in splits(project).items() if f"N{number}-" in uid} == {"train", "validation"}
        if number == 1:
            before = files_of(kept)
            (project.home("toy") / "changes" / "0001.json").unlink()
            assert "has no record of this version" in xc("status", "--dataset", "toy").out
    assert [entry["number"] for entry in changelog.entries(project, "toy")] == [2]
    assert files_of(kept) == before and changelog.version(project, "toy", 2).is_dir()
    assert project.params.dataset("toy").corpus.validation_fraction == IngestConfig().validation_fraction


def test_a_table_without_a_labels_table_names_labels_and_keeps_their_texts(
    xc: Xc, project: Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    for stem, uid in (("train", "N1"), ("test", "N2")):
        with (folder / f"{stem}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([["uid", "text", "labels"], [uid, f"some words of {uid}", "L2;fresh"]])
    ended = xc("update", folder, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert "update: 1 new label with no text but the uid (the first: fresh)\n" in ended.err
    texts = dict(open_corpus(project).table("labels").select("uid", "title").iter_rows())
    assert (texts["L2"], texts["fresh"], len(texts)) == ("engine", "fresh", 11)
    (folder / "test.csv").unlink()
    assert "with no text" not in xc("update", folder, "--dataset", "toy").err


def test_a_train_table_alone_brings_no_test_documents(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    """An ingest would split a fifth of it off as test."""
    folder, before = tmp_path / "new", splits(project)
    folder.mkdir()
    with (folder / "train.csv").open("w", newline="") as stream:
        lines = [[f"N{number}", f"some words of {number}", "L2"] for number in range(60)]
        csv.writer(stream).writerows([["uid", "text", "labels"], *lines])
    assert xc("update", folder, "--dataset", "toy").code == 0
    after = splits(project)
    assert {uid: split for uid, split in after.items() if uid in before} == before
    assert {after[f"N{number}"] for number in range(60)} == {"train", "validation"}


@pytest.mark.parametrize("layout", ["csv", "xc-json"])
def test_an_update_has_only_the_files_that_have_rows(xc: Xc, project: Workspace, tmp_path: Path, layout: str) -> None:
    folder, before = tmp_path / "new", splits(project)
    folder.mkdir()
    if layout == "csv":
        (folder / "test.csv").write_text("uid,text,labels\nN1,a test text,L2\n")
    else:
        drop(folder, [], [("L2", "engine")], [row("N1", "a test text", [0])])
        (folder / "trn.json.gz").unlink()
    ended = xc("update", folder, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert splits(project) == before | {"N1": "test"}
    for path in folder.iterdir():
        path.unlink()
    if layout == "csv":
        (folder / "labels.csv").write_text("uid,text\nL3,violins\n")
    else:
        drop(folder, [], [("L3", "violins")])
        (folder / "trn.json.gz").unlink()
        (folder / "tst.json.gz").unlink()
    ended = xc("update", folder, "--dataset", "toy")
    assert ended.code == 0, ended.err
    texts = dict(open_corpus(project).table("labels").select("uid", "title").iter_rows())
    assert (texts["L3"], splits(project)) == ("violins", before | {"N1": "test"})


def test_a_dataset_needs_its_train_file_and_an_update_any_file(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for asked in (("ingest", tmp_path / "new", "--dataset", "other"), ("update", tmp_path / "new", "--dataset", "toy")):
        xc(*asked).refused(66, "no known layout", "add or rename files")
        xc(*asked, "--layout", "tabular").refused(66, "no train table", "add the table")
    (tmp_path / "new" / "test.csv").write_text("uid,text,labels\nN1,a test text,L2\n")
    xc("ingest", tmp_path / "new", "--dataset", "other").refused(66, "no known layout", "add or rename files")


def test_an_update_of_a_dataset_in_any_layout_keeps_texts_pairs_filters_and_splits(tmp_path: Path) -> None:
    """Reading, writing and reading again gives the same tables."""
    for name, write in LAYOUTS.items():
        folder = tmp_path / name
        folder.mkdir()
        write(small_world(), folder)
        (folder / "filter_labels_train.txt").write_text("0 3\n5 1\n")
        (folder / "filter_labels_test.txt").write_text("2 4\n")
        first = Tables.of(read_world(folder))
        first.write(tmp_path / f"{name}-again", "uid")
        second = Tables.of(read_world(tmp_path / f"{name}-again"))
        for table in ("documents", "labels", "pairs", "filters"):
            one, other = getattr(first, table), getattr(second, table)
            assert one.sort(one.columns).equals(other.sort(one.columns)), (name, table)


@pytest.mark.parametrize(("by", "expected"), [
    ("uid", [("", ""), ("", ""), ("", "")]),
    ("family", [("", ""), ("", "group theory"), ("", "")]),
    ("group", [("", ""), ("one", ""), ("one", "")]),
])  # fmt: skip
def test_a_uid_that_begins_as_a_group_does_names_a_family(
    tmp_path: Path, by: str, expected: list[tuple[str, str]]
) -> None:
    text = "a study of symmetry by means of groups"
    rows = [row("group theory", text, [0]), row("groups", text, [0]) | {"group": "one"},
            row("other", "words", [0]) | {"group": "one"}]  # fmt: skip
    tests = [row("test", "a text", [0])]
    ToyWorld(rows, tests, [{"uid": "L", "title": "label", "content": ""}]).write(tmp_path / "raw")
    found = Tables.of(read_world(tmp_path / "raw", split=by, validation_fraction=0.0)).documents
    assert found.select("group", "family").rows()[:3] == expected


# the split


def documents(rows: list[tuple[str, str, str, str]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, schema=["uid", "title", "split", "group"], orient="row")
    return frame.select("uid", "title", pl.lit("").alias("content"), "split", "group", family=pl.lit(""))


def test_filter_files_that_are_not_in_use_are_named_when_they_leave(tmp_path: Path, lines: list[str]) -> None:
    for filters, told in (("none", 1), ("given", 0)):
        workspace, begin = empty_workspace(tmp_path / filters), small_world().write(tmp_path / f"{filters}-begin")
        (begin / "filter_labels_test.txt").write_text("2 4\n")
        place(workspace, begin, "toy", IngestConfig(filters=filters), replace=False)
        lines.clear()
        for uid in ("N1", "N2"):
            update(workspace, drop(tmp_path / f"{filters}-{uid}", [row(uid, f"text {uid}", [0])], [("L0", "a")]), "toy")
        files = "filter_labels_train.txt, filter_labels_test.txt"
        assert lines.count(f"{files}: not in the new version, because the setting filters is none") == told


def test_files_of_an_update_that_are_not_read_are_named(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    """A file with another name than its layout expects would be missed."""
    update = drop(tmp_path / "new", [row("N1", "a new text", [0])], [("L0", "river")])
    (update / "valid.json").write_text("a\n", "utf-8")
    assert "files that are not read: 'valid.json'\n" in xc("update", update, "--dataset", "toy").err


def test_a_corrected_document_keeps_its_group_unless_the_update_names_another(tmp_path: Path) -> None:
    workspace = empty_workspace(tmp_path / "project")
    groups = {f"D{number:04}": f"series {number // 3}" for number in range(60)}
    world = ToyWorld.make(documents=60, tests=10)
    for document in world.train:
        document["group"] = groups[document["uid"]]
    place(workspace, world.write(tmp_path / "begin"), "toy", IngestConfig(split="group"), replace=False)
    texts = [row("D0001", "a corrected text", [0]), row("D0002", "another text", [0]) | {"group": "series 7"}]
    update(workspace, drop(tmp_path / "new", texts, [("L1", "castle")]), "toy")
    found = Tables.of(open_corpus(workspace)).documents
    after = dict(found.filter(pl.col("group") != "").select("uid", "group").iter_rows())
    assert after == groups | {"D0002": "series 7"}
    update(workspace, drop(tmp_path / "ungrouped", [row("D0003", "a text", [0])], [("L1", "castle")]), "toy")
    assert Tables.of(open_corpus(workspace)).documents.filter(uid="D0003")["group"].to_list() == ["series 1"]


@pytest.mark.parametrize("split", ["uid", "family"])
def test_groups_that_did_not_decide_about_the_split_stay_for_a_later_one(tmp_path: Path, split: str) -> None:
    workspace, world, groups = empty_workspace(tmp_path / "project"), small_world(), {}
    for number, document in enumerate(world.train[:40]):
        document["group"] = groups[document["uid"]] = f"series {number // 4}"
    place(workspace, world.write(tmp_path / "begin"), "toy", IngestConfig(split=split), replace=False)
    texts = [row("train-0", "a corrected text", [0]), row("train-1", "a text", [0]) | {"group": "series 9"}]
    new = [row("new-1", "new text", [0]) | {"group": "series 7"}, row("new-2", "a new one", [0])]
    update(workspace, drop(tmp_path / "new", texts + new, [("0", "castle")]), "toy")
    forget(workspace, "toy", ["train-2"], [])
    place(workspace, workspace.raw("toy"), "toy", IngestConfig(split="group"), replace=False)
    found = Tables.of(open_corpus(workspace)).documents.filter(pl.col("group") != "")
    groups |= {"train-1": "series 9", "new-1": "series 7"}
    del groups["train-2"]
    assert dict(found.select("uid", "group").iter_rows()) == groups


def test_a_group_that_an_update_divides_between_train_and_test_is_named(tmp_path: Path, lines: list[str]) -> None:
    """The tables of the first ingest have no test file: no group is in train and test."""
    workspace, begin = empty_workspace(tmp_path / "project"), tmp_path / "begin"
    begin.mkdir()
    rows = [f"D{number:02},words {number},L{number % 2},g{number // 2}" for number in range(40)]
    (begin / "train.csv").write_text("\n".join(["uid,text,labels,group", *rows]))
    place(workspace, begin, "toy", IngestConfig(split="group"), replace=False)
    tested = open_corpus(workspace).uids(open_corpus(workspace).rows("test"))
    group = f"g{int(tested[0][1:]) // 2}"
    for number, told in enumerate([True, False, False]):  # once, for the documents that do it
        (tmp_path / f"{number}").mkdir()
        text = f"uid,text,labels,group\nN{max(number, 1)},a text {max(number, 1)},L1,{group}\n"
        (tmp_path / f"{number}" / "train.csv").write_text(text)
        lines.clear()
        changed = update(workspace, tmp_path / f"{number}", "toy")
        assert changed is not None and bool(changed.documents.added) == (number != 1)
        assert told == any(f"divide 1 group between test and other splits (the first: {group})" in at for at in lines)


def test_only_a_group_in_test_and_another_split_is_divided() -> None:
    rows = [("a", "train", "G"), ("b", "test", "G"), ("c", "train", "H"), ("d", "validation", "H"), ("e", "test", "I")]
    found = documents(
        [(uid, uid, split, group) for uid, split, group in [*rows, ("f", "train", ""), ("g", "test", "")]]
    )
    assert Tables(found, *[pl.DataFrame()] * 3).divided() == {"G"}


def test_a_new_document_goes_where_its_group_or_its_near_duplicates_are(tmp_path: Path) -> None:
    text = "one two three four five six seven eight nine ten"
    old = documents([("a", "something else", "train", "G"), ("b", text, "validation", "H"), ("c", text, "test", "")])
    new = documents(
        [("n1", f"{text} x", "train", "G"), ("n2", "unlike all others", "train", "H"), ("n3", "t", "test", "")]
    )
    placed = {
        by: NewDocuments(by, 0.0, 0.0, tmp_path / by).placed(old, new)["split"].to_list()
        for by in ("group", "family", "uid")
    }
    assert placed == {
        "group": ["train", "validation", "test"],
        "family": ["validation", "train", "test"],
        "uid": ["train", "train", "test"],
    }
    assert NewDocuments("uid", 1.0, 0.0, tmp_path / "x").placed(old, new)["split"].to_list() == ["validation"] * 2 + [
        "test"
    ]
    named = old.with_columns(family=pl.when(pl.col("uid") == "b").then(pl.lit("z")).otherwise(pl.lit("")))
    assert [
        NewDocuments("family", 0.0, 0.0, tmp_path / "y").placed(there, new)["family"].to_list()
        for there in (old, named)
    ] == [["b", "n2", ""], ["z", "n2", ""]], "a family keeps its name also if the document of this name has gone"


@pytest.mark.parametrize("split", ["uid", "family"])
def test_no_document_moves_in_four_updates(xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    """Each update has a bridge: a text that is nearly one train and one validation document."""
    workspace = empty_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    world = ToyWorld.make(documents=60, tests=10)
    place(workspace, world.write(tmp_path / "first"), "toy", IngestConfig(split=split), replace=False)
    for number in range(4):
        before = splits(workspace)
        texts = open_corpus(workspace).table("documents").filter(pl.col("split") != "test")["content"].to_list()
        train = [row(f"N{number}-{i}", f"{texts[i]} {texts[-i - 1]}", [0]) for i in range(12)]
        assert xc("update", drop(tmp_path / f"{number}", train, [("L0", "river")]), "--dataset", "toy").code == 0
        after = splits(workspace)
        assert {uid: after[uid] for uid in before} == before
    new = {after[uid] for uid in after if uid.startswith("N")}
    assert new == {"train", "validation"} if split == "uid" else new <= {"train", "validation"}


def siblings(groups: int, size: int) -> list[str]:
    """Texts of one large family: groups of near-duplicates that resemble each other a little less, shuffled."""
    random = Random(0)
    common, texts = [f"c{i}" for i in range(40)], []
    for group in range(groups):
        own = [f"g{group}-{i}" for i in range(5)]
        texts += [" ".join([*common, *own, *(f"x{group}-{i}-{j}" for j in range(3))]) for i in range(size)]
    random.shuffle(texts)
    return texts


def test_a_large_family_keeps_its_names_in_an_update(tmp_path: Path) -> None:
    """It is divided by the links that are found, which depend on the order of the documents.

    Its names decide about the halves of the validation documents and about the acceptance set.
    """
    workspace, world = empty_workspace(tmp_path / "project"), ToyWorld.make(documents=60, tests=10)
    world.train += [row(f"F{i:03}", text, [i % 10]) for i, text in enumerate(siblings(40, 10))]
    config = IngestConfig(split="family", validation_fraction=0.3, acceptance_fraction=0.1)
    place(workspace, world.write(tmp_path / "begin"), "toy", config, replace=False)

    def cut() -> tuple[dict[str, str], dict[str, str], list[set[str]]]:
        corpus = open_corpus(workspace)
        rows = np.flatnonzero((corpus.table("documents")["split"] != "test").to_numpy())
        names = dict(zip(corpus.uids(rows), corpus.family_names(rows), strict=True))
        return names, splits(workspace), [set(corpus.uids(half)) for half in corpus.validation_halves()]

    first, before, halves = cut()
    assert max(Counter(first.values()).values()) < 200, "the family was divided"
    assert all(halves) and "acceptance" in before.values()
    new = [row(f"N{number}", f"{siblings(40, 10)[number]} new", [0]) for number in range(20)]
    update(workspace, drop(tmp_path / "new", new, [("L0", "river")]), "toy")
    names, after, now = cut()
    assert {uid: names[uid] for uid in first} == first
    assert {uid: after[uid] for uid in before} == before
    assert all(old <= half for old, half in zip(halves, now, strict=True))
    update(workspace, drop(tmp_path / "more", [row("M", "unlike all others", [0])], [("L0", "river")]), "toy")
    assert {uid: name for uid, name in cut()[0].items() if uid != "M"} == names


def test_corrected_texts_that_become_near_duplicates_move_no_document(tmp_path: Path) -> None:
    """There was no family before, so no file named one; the search of a new ingest would find one."""
    workspace, config = empty_workspace(tmp_path / "project"), IngestConfig(split="family", acceptance_fraction=0.3)
    train = [row(f"D{number}", " ".join(f"w{number}x{at}" for at in range(6)), [0]) for number in range(40)]
    begin = drop(tmp_path / "begin", train, [("L0", "river")], [row("T", "a test", [0])])
    place(workspace, begin, "toy", config, replace=False)
    rows, before = np.arange(40), splits(workspace)
    names, halves = open_corpus(workspace).family_names(rows), open_corpus(workspace).validation_halves()
    halves_before = [set(open_corpus(workspace).uids(half)) for half in halves]
    order = dict(zip(open_corpus(workspace).uids(rows), names, strict=True))
    same = [row(f"D{number}", "one two three four five six", [0]) for number in range(20)]
    update(workspace, drop(tmp_path / "new", same, [("L0", "river")]), "toy")
    after = open_corpus(workspace)
    assert splits(workspace) == before
    assert dict(zip(after.uids(rows), after.family_names(rows), strict=True)) == order
    assert [set(after.uids(half)) for half in after.validation_halves()] == halves_before


def test_a_family_whose_first_document_is_forgotten_takes_the_name_of_the_next(tmp_path: Path) -> None:
    frame = documents([(uid, "text", "train", "") for uid in "abcd"])
    family = pl.Series(["", "a", "a", ""], dtype=pl.String)
    none = pl.DataFrame(schema={"doc": pl.String, "label": pl.String})
    labels = pl.DataFrame({"uid": ["L"], "title": ["l"], "content": [""]})
    left = Tables(frame.with_columns(family=family), labels, none, none).without(["a"], [])
    assert left.documents["family"].to_list() == ["b", "b", ""]
    left.write(tmp_path / "raw", "family")
    written = [json.loads(line) for line in (tmp_path / "raw" / "trn.json").read_text().splitlines()]
    assert [line.get("near_duplicate_of") for line in written] == [None, "b", None]


@pytest.mark.parametrize("history", ["an ingest", "a removal", "none"])
def test_no_document_is_held_out_beside_a_validation_file(
    xc: Xc, project: Workspace, tmp_path: Path, history: str
) -> None:
    """But where validation was our own cut, the next update cuts again."""
    train = [row(f"N{i}", f"a new text {i}", [0]) for i in range(60)]
    update = drop(tmp_path / "new", train, [("L0", "river")])
    assert xc("update", update, "--dataset", "toy").code == 0
    assert {split for uid, split in splits(project).items() if uid.startswith("N")} == {"train", "validation"}
    given = ToyWorld.make(documents=100, tests=20)
    folder = given.write(tmp_path / "given")
    (folder / "val.json").write_text(json.dumps(row("V1", "a validation text", [0])) + "\n")
    assert xc("ingest", folder, "--dataset", "toy", "--replace", "--allow-loss", "1").code == 0
    if history == "a removal":
        assert xc("forget", "--document", "D0001", "--dataset", "toy").code == 0
    if history == "none":  # as after a first ingest
        shutil.rmtree(project.home("toy") / "changes")
    for name in ("first", "second"):
        more = [row(f"{name}{i}", f"another new text {i}", [0]) for i in range(60)]
        assert xc("update", drop(tmp_path / name, more, [("L0", "river")]), "--dataset", "toy").code == 0
    assert [uid for uid, split in splits(project).items() if split == "validation"] == ["V1"]


def test_a_document_that_the_update_has_on_the_other_side_stays_and_this_is_reported(
    xc: Xc, project: Workspace, tmp_path: Path
) -> None:
    update = drop(tmp_path / "new", [row("D0110", "a test document", [0])], [("L0", "river")])
    ended = xc("update", update, "--dataset", "toy")
    assert "kept the split of 1 document that the new files move between train and test" in ended.err
    assert splits(project)["D0110"] == "test"


# what is refused


@pytest.mark.parametrize(
    ("train", "labels", "found"),
    [
        ([row("N1", "x", [7])], [("L0", "river")], "the label index 7"),
        ([row("N1", "x", [0]), row("N1", "y", [0])], [("L0", "river")], "the uid 'N1' again"),
        ([row("N1", "", [0])], [("L0", "river")], "an empty text"),
        ([row("N1", "x", [0])], [("L0", "river"), ("LONE", "lonely")], "without a train document"),
        ([row("N1", "x", [])], [("L0", "river")], "a document without labels"),
    ],
)
def test_an_update_with_anything_wrong_is_refused_whole(
    xc: Xc, project: Workspace, tmp_path: Path, train: list[Any], labels: list[Any], found: str
) -> None:
    before = {k: v for k, v in files_of(project.root).items() if k.startswith(OWN)}
    ended = xc("update", drop(tmp_path / "new", train, labels), "--dataset", "toy")
    assert ended.code == 65
    assert found in ended.err
    assert {k: v for k, v in files_of(project.root).items() if k.startswith(OWN)} == before


def test_a_label_without_documents_is_added_if_that_is_allowed(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    update = drop(tmp_path / "new", [], [("LONE", "lonely")])
    assert xc("update", update, "--dataset", "toy", "--allow", "unseen-labels").code == 0
    assert open_corpus(project).num_labels == 11
    assert project.params.dataset("toy").corpus.allow == ("unseen-labels",)


def test_rare_labels_that_our_own_split_put_into_test_refuse_no_update(tmp_path: Path) -> None:
    """The update writes a test file, in which such labels would be refused."""
    workspace = empty_workspace(tmp_path / "project")
    rows = [f"uid{number},text number {number},common;rare{number}" for number in range(9)]
    for folder, lines in (("first", rows), ("more", ["new,a new text,common"])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.csv").write_text("\n".join(["uid,text,labels", *lines, ""]))
    place(workspace, tmp_path / "first", "toy", IngestConfig(test_fraction=0.4), replace=False)
    assert open_corpus(workspace).labels_in_test_only > 0
    update(workspace, tmp_path / "more", "toy")
    assert len(splits(workspace)) == 10
    assert workspace.params.dataset("toy").corpus.allow == ("unseen-labels",)


def test_an_update_of_documents_that_are_known_by_their_place_says_so(
    xc: Xc, project: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    rows = "".join(f"word{number} text,{'ab'[number % 2]}\n" for number in range(40))
    (tmp_path / "plain" / "train.csv").write_text(f"text,labels\n{rows}")
    assert xc("ingest", tmp_path / "plain", "--dataset", "plain").code == 0
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "train.csv").write_text("uid,text,labels\nN1,more words,a\n")
    ended = xc("update", tmp_path / "new", "--dataset", "plain")
    assert ended.code == 0, ended.err
    assert "the files of plain have no uids" in ended.err


def test_datasets_change_side_by_side_and_one_dataset_in_turn(project: Workspace) -> None:
    with scratch(project, "toy"):
        with scratch(project, "another"):
            pass
        with pytest.raises(BusyError), scratch(project, "toy"):
            raise AssertionError("two changes of one dataset")


@pytest.mark.parametrize("layout", ["xc-text", "pecos", "csv"])
def test_labels_without_uids_are_refused(xc: Xc, project: Workspace, tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    if layout == "csv":
        (folder / "train.csv").write_text("uid,text,labels\nN1,some words,0\n")
        (folder / "labels.csv").write_text("text\nriver\n")
    else:
        LAYOUTS[layout](ToyWorld.make(documents=20, tests=5), folder)
    xc("update", folder, "--dataset", "toy").refused(65, "labels that are known by their line number", "column labels")


@pytest.mark.parametrize("layout", ["xc-text", "pecos"])
def test_numbered_labels_are_those_of_the_dataset_if_their_texts_are(
    xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """These layouts were refused, whatever their labels."""
    workspace, world = empty_workspace(tmp_path / "project"), ToyWorld.make(documents=60, tests=10)
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    place(workspace, write_world(tmp_path / "begin", layout, world), "toy", IngestConfig(), replace=False)
    titles = [one["title"] for one in world.train]
    number = next(number for number, title in enumerate(titles) if titles.count(title) == 1)
    before, new = labels_of(workspace, f"train-{number}"), row("", "words of nobody else", [10])
    known = {**world.train[number], "target_ind": [3], "target_rel": [1.0]}
    more = ToyWorld([known, new], [], [*world.labels, label("meadow")])
    folder = tmp_path / "more"
    folder.mkdir()
    LAYOUTS[layout](more, folder)
    for again in (False, True):  # the second time the raw files are xc-json, whose uids are these numbers
        ended = xc("update", folder, "--dataset", "toy")
        assert ended.code == 0, ended.err
        assert ("nothing changes" in ended.err) is again
    assert (before != ["3"], labels_of(workspace, f"train-{number}")) == (True, ["3"])
    assert open_corpus(workspace).table("labels")["uid"].to_list() == list(map(str, range(11)))
    assert labels_of(workspace, text_uid("words of nobody else", "")) == ["10"]
    spoilt = replace(more, labels=[*more.labels[1:], more.labels[0]])
    LAYOUTS[layout](spoilt, folder)
    xc("update", folder, "--dataset", "toy").refused(65, "other labels at these lines than in the dataset")


@pytest.mark.parametrize("layout", ["xc-text", "pecos"])
def test_a_label_that_was_forgotten_does_not_end_the_updates_of_a_layout_without_uids(
    xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Line numbers and uids differ from then on, and such files were refused although they had the labels in order."""
    workspace, world = empty_workspace(tmp_path / "project"), ToyWorld.make(documents=60, tests=10)
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    place(workspace, write_world(tmp_path / "begin", layout, world), "toy", IngestConfig(), replace=False)
    forget(workspace, "toy", [], ["3"], with_documents=True)
    left = [*world.labels[:3], *world.labels[4:]]
    new = [row("", "words of nobody else", [3, 9]), row("", "words of no other", [8, 9])]
    folder = tmp_path / "more"
    folder.mkdir()
    LAYOUTS[layout](ToyWorld(new, [], [*left, label("meadow")]), folder)
    for again in (False, True):
        ended = xc("update", folder, "--dataset", "toy")
        assert ended.code == 0, ended.err
        assert ("nothing changes" in ended.err) is again
    table = open_corpus(workspace).table("labels")
    assert table["uid"].to_list() == ["0", "1", "2", "4", "5", "6", "7", "8", "9", "10"]
    assert table["title"].to_list() == [*(one["title"] for one in left), "meadow"]
    assert set(labels_of(workspace, text_uid("words of nobody else", ""))) == {"4", "10"}
    assert set(labels_of(workspace, text_uid("words of no other", ""))) == {"9", "10"}
    LAYOUTS[layout](ToyWorld(new, [], [*world.labels, label("meadow")]), folder)
    xc("update", folder, "--dataset", "toy").refused(65, "other labels at these lines than in the dataset")


def label(title: str) -> dict[str, Any]:
    return {"uid": "", "title": title, "content": ""}


# documents without uids


def table(folder: Path, **tables: str) -> Path:
    """Write CSV tables of text and labels."""
    folder.mkdir()
    for stem, rows in tables.items():
        (folder / f"{stem}.csv").write_text(rows)
    return folder


def test_documents_without_uids_are_known_by_their_text(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    """A known text gets other labels and keeps its title, content and place; another one is new, once for all times."""
    old = Tables.of(open_corpus(project)).documents.filter(uid="D0001")
    text = f"{old['title'][0]}  {old['content'][0]}"
    before = splits(project)
    first = table(tmp_path / "1", train=f"text,labels\n{text},L3\nbrand new words,L2;L4\n")
    ended = xc("update", first, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert "1 have the text of a document of toy, whose labels they replace; the others are new" in ended.err
    assert "documents: 1 new, 1 changed, 0 removed" in ended.out
    assert labels_of(project, "D0001") == ["L3"]
    assert Tables.of(open_corpus(project)).documents.filter(uid="D0001").equals(old)
    (new,) = set(splits(project)) - set(before)
    assert new.startswith("text-") and labels_of(project, new) == ["L2", "L4"]
    assert {uid: split for uid, split in splits(project).items() if uid != new} == before
    again = table(tmp_path / "2", train="text,labels\nbrand new words,L5\n")
    ended = xc("update", again, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert "1 have the text of a document of toy, whose labels they replace" in ended.err
    assert set(splits(project)) == {*before, new} and labels_of(project, new) == ["L5"]


def test_an_update_of_a_dataset_without_uids_needs_none_either(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    rows = "".join(f"word{number} text,{'ab'[number % 2]}\n" for number in range(40))
    assert xc("ingest", table(tmp_path / "1", train=f"text,labels\n{rows}"), "--dataset", "plain").code == 0
    new = table(tmp_path / "2", train="text,labels\nword3 text,a\nmore words,b\n", test="text,labels\nlast words,a\n")
    ended = xc("update", new, "--dataset", "plain")
    assert ended.code == 0, ended.err
    assert "documents: 2 new, 1 changed, 0 removed" in ended.out


@pytest.mark.parametrize("rows", ["castle3,L1\ncastle3,L2\n", "river0 castle1,L1\nriver0  castle1,L2\n",
                                  "new words,L1\nnew  words,L2\n"])  # fmt: skip
def test_a_text_of_several_rows_without_uids_is_refused(xc: Xc, project: Workspace, tmp_path: Path, rows: str) -> None:
    known = drop(tmp_path / "0", [row("N1", "river0 castle1", [0])], [("L0", "river")])
    assert xc("update", known, "--dataset", "toy").code == 0
    ended = xc("update", table(tmp_path / "1", train=f"text,labels\n{rows}"), "--dataset", "toy")
    assert ended.code == 65, ended.err
    assert "uid" in ended.err


def test_a_text_of_several_documents_names_none_of_them(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    twice = [row("N1", "the same words", [0]), row("N2", "the same words", [0])]
    assert xc("update", drop(tmp_path / "0", twice, [("L0", "river")]), "--dataset", "toy").code == 0
    ended = xc("update", table(tmp_path / "1", train="text,labels\nthe same words,L1\n"), "--dataset", "toy")
    assert ended.code == 65
    assert "a row without a uid with the text of N1 and N2" in ended.err


def test_a_row_without_a_uid_and_one_with_the_uid_of_its_document_are_refused() -> None:
    def tables(*documents: tuple[str, str]) -> Tables:
        rows = [{"uid": uid, "title": "", "content": text, "split": "train", "group": "", "family": ""}
                for uid, text in documents]  # fmt: skip
        pairs = pl.DataFrame({"doc": [], "label": []}, {"doc": pl.String, "label": pl.String})
        labels = pl.DataFrame({"uid": ["L1"], "title": ["river"], "content": [""]})
        return Tables(pl.DataFrame(rows), labels, pairs, pairs)

    known, text = tables(("D1", "the old text")), "the old text"
    found, count = tables((text_uid("", text), text)).known_by_text(known)
    assert (found.documents["uid"].to_list(), count) == (["D1"], 1)
    composed, decomposed = (unicodedata.normalize(form, "kesäyö") for form in ("NFC", "NFD"))
    found, _ = tables((text_uid("", decomposed), decomposed)).known_by_text(tables(("D1", composed)))
    assert found.documents.select("uid", "content").rows() == [("D1", composed)]
    with pytest.raises(DataError, match="with the text of D1, and another row with this uid"):
        tables(("D1", "a corrected text"), (text_uid("", text), text)).known_by_text(known)


def test_pairs_and_filters_of_a_row_without_a_uid_become_those_of_its_document() -> None:
    def tables(uid: str) -> Tables:
        document = {"uid": uid, "title": "", "content": "the text", "split": "test", "group": "", "family": ""}
        labels = pl.DataFrame({"uid": ["L1", "L2"], "title": ["river", "sea"], "content": ["", ""]})
        pairs, filters = (pl.DataFrame({"doc": [uid], "label": [label]}) for label in ("L1", "L2"))
        return Tables(pl.DataFrame([document]), labels, pairs, filters)

    found, _ = tables(text_uid("", "the text")).known_by_text(tables("D1"))
    assert (found.pairs.rows(), found.filters.rows()) == ([("D1", "L1")], [("D1", "L2")])


def test_after_a_killed_update_that_was_complete_the_next_command_is_named(
    xc: Xc, project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xc_core.cli.update.update", lambda *_, **__: None)
    assert "next: xc train" in xc("update", tmp_path, "--dataset", "toy").out


def test_the_raw_files_can_be_ingested_again(xc: Xc, project: Workspace, tmp_path: Path) -> None:
    update = drop(tmp_path / "new", [row("N1", "a new text", [0])], [("L0", "river")])
    assert xc("update", update, "--dataset", "toy").code == 0
    before = splits(project)
    assert json.loads(xc("status", "--dataset", "toy", "--json").out.splitlines()[0])["status"] == "up to date"
    assert xc("ingest", project.raw("toy"), "--dataset", "toy").code == 0
    assert splits(project) == before


def test_an_update_that_changes_nothing_leaves_files_and_models_as_they_are(
    xc: Xc, project: Workspace, tmp_path: Path
) -> None:
    """Written again, validation documents would stand after those of train, and the corpus have another digest."""
    before, toy = {k: v for k, v in files_of(project.root).items() if k.startswith(OWN)}, ToyWorld.make(100, 20)
    same = ToyWorld(toy.train[90:], toy.test[:5], toy.labels).write(tmp_path / "same")
    ended = xc("update", same, "--dataset", "toy")
    assert "documents: 0 new, 0 changed, 0 removed; labels: 0 new, 0 changed, 0 removed; pairs: 0 new" in ended.out
    assert "toy has all that is in the new files; nothing changes" in ended.err
    assert "next:" not in ended.out, "there is nothing to train"
    assert {k: v for k, v in files_of(project.root).items() if k.startswith(OWN)} == before
    assert xc("update", same, "--dataset", "toy", "--allow", "empty-text").code == 0
    assert project.params.dataset("toy").corpus.allow == ("empty-text",), "the dataset accepts it from now on"


def test_an_update_of_a_dataset_without_its_files_says_how_to_get_them(
    project: Workspace, xc: Xc, tmp_path: Path
) -> None:
    """The advice was to pass the folder that has the files, as if that of the update were missing."""
    shutil.rmtree(project.raw("toy"))
    folder = drop(tmp_path / "new", [row("N1", "river0 river1", [0])], [("L0", "river")])
    found = f"no folder {project.raw('toy')}"
    xc("update", folder, "--dataset", "toy").refused(66, found, "xc ingest PATH --dataset toy (or `dvc pull`")


def test_documents_beside_an_empty_file_are_known_by_their_uids(
    xc: Xc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without rows has no column uid, and no row that lacks one."""
    workspace = empty_workspace(tmp_path / "project")
    monkeypatch.chdir(workspace.root)
    begin = write_world(tmp_path / "begin", "jsonl")
    assert xc("ingest", begin, "--dataset", "toy", "--filters", "none", "--validation-fraction", "0").code == 0
    more = tmp_path / "more"
    more.mkdir()
    (more / "train.jsonl").write_text('{"uid": "train-0", "text": "a corrected text", "labels": ["1"]}\n')
    (more / "test.jsonl.gz").write_bytes(gzip.compress(b""))
    ended = xc("update", more, "--dataset", "toy")
    assert ended.code == 0, ended.err
    assert "without uids" not in ended.err
    documents = open_corpus(workspace).table("documents")
    assert documents.filter(documents["uid"] == "train-0")["title"].to_list() == ["a corrected text"]
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("train.jsonl", "test.jsonl"):
        (empty / name).write_bytes(b"")
    ended = xc("update", empty, "--dataset", "toy")
    assert ended.code == 0 and "there is no document in the new files, and no label that toy lacks" in ended.err
