"""``xc ingest --split auto`` chooses by the data, says so, writes its choice down and keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ended, Xc
from tests.conftest import ToyWorld, write_json
from tests.data.worlds import files_of
from xc_core import artifacts
from xc_core.chain import Workspace, recut_corpus
from xc_core.cli import ingest as module
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import ingest as read
from xc_core.stages import corpus as corpus_stage


def plain_world() -> ToyWorld:
    """Return a world in which no two documents have a word in common."""
    world = ToyWorld.make(documents=400, tests=60)
    for row in (*world.train, *world.test):
        row["title"], row["content"] = row["uid"], " ".join(f"{row['uid']}w{i}" for i in range(16))
    return world


def family_world() -> ToyWorld:
    """Return a world in which documents of train have three siblings each, and those of test have none."""
    world = plain_world()
    for number, row in enumerate(world.train):
        row["title"], row["content"] = f"n{number}", " ".join(f"f{number // 4}w{i}" for i in range(16))
    return world


def grouped_world() -> ToyWorld:
    world = plain_world()
    for number, row in enumerate(world.train):
        row["group"] = f"g{number // 4}"
    return world


def ingest(xc: Xc, folder: Path, *more: str) -> Ended:
    ended = xc("ingest", folder, "--dataset", "new", *more)
    assert ended.code == 0, ended.err
    return ended


def recorded(workspace: Workspace) -> dict[str, object]:
    return dict(workspace.params.read()["datasets"]["new"]["corpus"])


def split_facts(workspace: Workspace) -> dict[str, object]:
    return dict(artifacts.read_made(workspace.folder("corpus", "new")).facts["split"])


def test_near_duplicates_are_held_out_together_if_validation_would_be_nearer(
    xc: Xc, fresh: Workspace, tmp_path: Path
) -> None:
    ended = ingest(xc, family_world().write(tmp_path / "drop"))
    assert recorded(fresh) == {"split": "family"}
    assert split_facts(fresh)["families"] == 100
    assert "splitting again with --split family" in ended.err and "the lines above are of the first split" in ended.err
    assert "400 train and validation documents are in 100 families of at least two" in ended.err
    assert "0.0% of the validation and 0.0% of the test documents" in ended.err.splitlines()[-1]
    assert xc("run", "corpus", "--dataset", "new").out.startswith("corpus: up to date")


@pytest.mark.parametrize(("named", "more", "reads"), [
    (False, (), 1), (True, (), 2), (False, ("--acceptance-fraction", "0.1"), 2),
])  # fmt: skip
def test_the_files_are_read_once_if_the_first_corpus_has_all_that_families_need(
    xc: Xc, fresh: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    named: bool, more: tuple[str, ...], reads: int,
) -> None:  # fmt: skip
    """The result is that of --split family."""
    world, calls = family_world(), []
    world.train[5]["time"] = "5 min"
    if named:
        world.train[3]["near_duplicate_of"] = world.train[8]["uid"]

    def counted(*given: Any) -> None:
        calls.append(given)
        read(*given)

    folder = world.write(tmp_path / "drop")
    with monkeypatch.context() as patch:
        patch.setattr(corpus_stage, "ingest", counted)
        ingest(xc, folder, *more)
    assert len(calls) == reads
    found = files_of(fresh.folder("corpus", "new"))
    assert json.loads(found["made.json"])["settings"]["split"] == "family"
    ended = xc("ingest", folder, "--dataset", "new", "--replace", "--split", "family", *more)
    assert ended.code == 0, ended.err
    assert files_of(fresh.folder("corpus", "new")) == found


def test_files_that_change_between_the_two_corpora_are_refused(
    xc: Xc, fresh: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are where they stay, so no copy of them is read. The corpus would count as one of the changed files."""
    raw = family_world().write(fresh.raw("new"))

    def changes_a_file(*given: Any) -> Any:
        world = family_world()
        world.train[0]["title"] = "another title"
        world.write(raw)
        return recut_corpus(*given)

    with monkeypatch.context() as patch:
        patch.setattr(module, "recut_corpus", changes_a_file)
        ended = xc("ingest", raw, "--dataset", "new")
    assert ended.code == 76 and "inputs of corpus that changed during the run" in ended.err
    assert not fresh.folder("corpus", "new").exists()
    assert ingest(xc, raw).code == 0


def test_groups_are_used_if_there_are_any(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    ingest(xc, grouped_world().write(tmp_path / "drop"))
    assert recorded(fresh) == {"split": "group"}
    assert split_facts(fresh) == {
        "by": "group", "given": False, "grouped": 400, "timed": False, "families": 100, "documents": 400, "largest": 4
    }  # fmt: skip


def timed_world(first_test: int) -> ToyWorld:
    """Return a world with groups: train documents are of the days 0 to 399, test documents begin on ``first_test``."""
    world = grouped_world()
    for rows, first in ((world.train, 0), (world.test, first_test)):
        for number, row in enumerate(rows):
            row["time"] = str(first + number)
    return world


def test_the_last_documents_are_held_out_if_test_documents_are_later(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = timed_world(400)
    ended = ingest(xc, world.write(tmp_path / "drop"))
    assert "splitting again with --split time: the last documents are held out" in ended.err
    assert recorded(fresh) == {"split": "time"}
    assert split_facts(fresh) == {"by": "time", "given": False, "grouped": 400, "timed": True, "later_tests": 1.0}
    corpus = fresh.open(Corpus, "new")
    assert corpus.uids(corpus.rows("validation")) == [row["uid"] for row in world.train[-40:]]


@pytest.mark.parametrize(("first", "split"), [(354, "time"), (353, "group")])
def test_nine_tenths_of_the_test_documents_have_to_be_later(
    xc: Xc, fresh: Workspace, tmp_path: Path, first: int, split: str
) -> None:
    """They are 60; later is what is later than day 359."""
    ingest(xc, timed_world(first).write(tmp_path / "drop"))
    assert split_facts(fresh)["by"] == split


def write_table(folder: Path, columns: str, cells: str) -> Path:
    """Write train.csv: 300 rows, each with a text and the cells, in which # is the number of the row modulo 9."""
    folder.mkdir()
    rows = (f"word{n} other{n % 7},{cells.replace('#', str(n % 9))}" for n in range(300))
    (folder / "train.csv").write_text("\n".join([columns, *rows]))
    return folder


_HINT = "--split time --replace --allow-loss 1"


def test_drawn_test_documents_with_times_are_reported_and_the_advice_works(
    xc: Xc, fresh: Workspace, tmp_path: Path
) -> None:
    folder = write_table(tmp_path / "drop", "text,labels,time", "label#,2020-01-0#T10:00:00".replace("0#", "1#"))
    ended = ingest(xc, folder)
    assert f"ingest again with {_HINT}" in ended.err and split_facts(fresh)["some_are_tests"] is True
    again = ingest(xc, folder, *_HINT.split())
    assert "every document has a time" not in again.err and split_facts(fresh)["last_are_tests"] is True


def test_no_split_by_time_is_proposed_for_a_dataset_that_has_a_split(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    folder = write_table(tmp_path / "drop", "text,labels,time", "label#,2020-01-1#T10:00:00")
    for proposed in (True, False):
        ended = ingest(xc, folder, *([] if proposed else ["--replace"]))
        assert ("every document has a time" in ended.err) is proposed
        assert split_facts(fresh)["some_are_tests"] is True


@pytest.mark.parametrize(("columns", "cells", "more"), [
    ("text,labels", "label#", []), ("text,labels,time", "label#,2020-01-1#", ["--split", "uid"]),
])  # fmt: skip
def test_no_split_by_time_is_proposed_without_times_or_if_another_one_was_asked_for(
    xc: Xc, fresh: Workspace, tmp_path: Path, columns: str, cells: str, more: list[str]
) -> None:
    assert "has a time" not in ingest(xc, write_table(tmp_path / "drop", columns, cells), *more).err


def test_no_split_by_time_is_proposed_beside_a_test_file(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    assert "has a time" not in ingest(xc, timed_world(200).write(tmp_path / "drop")).err
    assert "later_tests" in split_facts(fresh)


def test_the_proposed_separator_works(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    """Without both options the dataset that is there refused it twice."""
    folder = write_table(tmp_path / "drop", "text,labels", "label#|other#")
    hint = "--label-separator '|' --replace --allow-loss 1"
    assert f"ingest again with {hint}" in ingest(xc, folder).err
    ingest(xc, folder, *hint.replace("'", "").split())
    assert fresh.open(Corpus, "new").num_labels == 18


def test_beside_a_validation_file_times_choose_nothing(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = timed_world(400)
    folder = world.write(tmp_path / "drop")
    write_json(folder / "val.json", [world.train[-1] | {"uid": "V"}])
    ingest(xc, folder)
    assert split_facts(fresh)["by"] == "group"


def test_otherwise_the_uid_decides_as_before(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    ended = ingest(xc, plain_world().write(tmp_path / "drop"))
    assert recorded(fresh) == {}
    assert "splitting again" not in ended.err and "too good" not in ended.err


def test_a_chosen_split_wins_and_a_warning_says_what_it_costs(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    ended = ingest(xc, family_world().write(tmp_path / "drop"), "--split", "uid")
    assert split_facts(fresh)["by"] == "uid"
    assert "figures on validation are too good" in ended.err
    shown = xc("status", "--dataset", "new").out
    assert "figures on validation are too good" in shown
    rows = [json.loads(line) for line in xc("status", "--dataset", "new", "--json").out.splitlines()]
    assert [row["nearness"]["nearer"] for row in rows if "nearness" in row] == [True]


def test_the_warning_proposes_no_split_by_time_if_that_is_the_split(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = family_world()
    for number, row in enumerate(world.train):
        row["time"] = str(number % 4)  # the last document of each family is held out
    ended = ingest(xc, world.write(tmp_path / "drop"), "--split", "time")
    for shown in (ended.err, xc("status", "--dataset", "new").out):
        assert "add the latest ones to the test file" in shown
        assert "--split time" not in shown


@pytest.mark.parametrize(("split", "do"), [
    ("uid", "move its lines into trn.json, delete it and ingest again with another --split"),
    ("time", "add the latest documents to the test file too"),
])  # fmt: skip
def test_the_warning_proposes_no_split_beside_a_validation_file(
    xc: Xc, fresh: Workspace, tmp_path: Path, split: str, do: str
) -> None:
    """It decides, so no split changes the validation documents."""
    world = family_world()
    documents = [row | {"time": "1"} for row in world.train]
    world.train = [row for number, row in enumerate(documents) if number % 4 != 1]
    folder = world.write(tmp_path / "drop")
    write_json(folder / "val.json", documents[1::4])
    ended = ingest(xc, folder, "--split", split)
    for shown in (ended.err, xc("status", "--dataset", "new").out):
        assert "if you wrote it, give one that resembles the test file; if an update did (val.json), " + do in shown
        assert not any(part in shown for part in ("--split time", "--split uid", "--split family"))


@pytest.mark.parametrize("before", ["uid", "group"])
def test_a_known_dataset_keeps_its_split(xc: Xc, fresh: Workspace, tmp_path: Path, before: str) -> None:
    """New data of an old dataset: a document has to stay in its split."""
    world = family_world()
    for number, row in enumerate(world.train):
        row["group"] = f"g{number // 4}"
    folder = world.write(tmp_path / "drop")
    ingest(xc, folder, "--split", before)
    fresh.params.declare_experiment("new", "ngame", "ngame", {"encoder": {"epochs": 2}})
    ended = ingest(xc, folder, "--replace")
    assert split_facts(fresh)["by"] == before
    assert ended.out.splitlines()[-2:] == [
        "next: train again:",
        "  xc train --dataset new --recipe ngame --set encoder.epochs=2 --budget none",
    ], "a refresh may be refused, if documents went from train to test"


def test_an_ingest_that_changes_nothing_proposes_no_training(xc: Xc, own: Workspace) -> None:
    ended = xc("ingest", own.raw("toy"), "--dataset", "toy", "--replace")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[1:] == ["toy: every experiment is up to date"]
    own.params.declare_experiment("toy", "dpr", "dpr", {})
    ended = xc("ingest", own.raw("toy"), "--dataset", "toy", "--replace")
    assert ended.out.splitlines()[1:] == ["next: train again:", "  xc train --dataset toy --recipe dpr --budget none"]


def test_an_empty_test_table_is_refused_and_rows_are_split_off_without_it(
    xc: Xc, fresh: Workspace, tmp_path: Path
) -> None:
    rows = [f"a text of number {number},{'cat' if number % 2 else 'dog'}" for number in range(40)]
    (folder := tmp_path / "drop").mkdir()
    (folder / "train.csv").write_text("\n".join(["text,labels", *rows]) + "\n")
    (folder / "test.csv").write_text("text,labels\n")
    xc("ingest", folder, "--dataset", "new").refused(65, "and 0 test documents", "delete an empty one")
    (folder / "test.csv").unlink()
    xc("ingest", folder, "--dataset", "new", "--test-fraction", 1e-9).refused(
        65, "0 test documents", "raise --test-fraction"
    )
    assert xc("ingest", folder, "--dataset", "new").code == 0


def test_a_given_validation_file_is_kept(xc: Xc, fresh: Workspace, tmp_path: Path) -> None:
    world = family_world()
    folder = ToyWorld(world.train[60:], world.test, world.labels).write(tmp_path / "drop")
    lines = [json.dumps(row) for row in world.train[:60]]
    (folder / "val.json").write_text("\n".join(lines) + "\n", "utf-8")
    ended = ingest(xc, folder)
    assert "new: 340 train, 60 validation, 60 test documents" in ended.out
    assert split_facts(fresh) == {"by": "uid", "given": True, "grouped": 0, "timed": False}
    ended = xc("ingest", folder, "--dataset", "other", "--split", "family")
    assert "60 validation" in ended.out and "chooses no validation documents" not in ended.err, "it changes no split"


def test_another_split_says_that_the_validation_file_of_an_update_decides(
    xc: Xc, fresh: Workspace, tmp_path: Path
) -> None:
    world, note = plain_world(), "chooses no validation documents"
    ingest(xc, ToyWorld(world.train[1:], world.test, world.labels).write(tmp_path / "drop"))
    assert xc("update", world.write(tmp_path / "more"), "--dataset", "new").code == 0
    raw, held = fresh.raw("new"), Corpus.open(fresh.folder("corpus", "new")).rows("validation")
    ended = ingest(xc, raw, "--split", "family")
    assert f"--split family {note}" in ended.err
    assert note not in ingest(xc, raw, "--split", "family").err, "it is no news"
    assert list(Corpus.open(fresh.folder("corpus", "new")).rows("validation")) == list(held)
    with (raw / "trn.json").open("a") as train:
        train.write((raw / "val.json").read_text())
    (raw / "val.json").unlink()
    assert note not in ingest(xc, raw, "--split", "uid").err
    assert not split_facts(fresh)["given"]
