"""Updates of a dataset whose last documents are held out: new ones become the last; no train document is validated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assets.inbox import inbox, ingest_arguments
from tests.cli.conftest import Ended, Xc
from tests.conftest import ToyWorld, open_corpus, write_json
from tests.data.worlds import empty_workspace
from xc_core.chain import Workspace
from xc_core.cli.ingest import place
from xc_core.data.ingest import IngestConfig
from xc_core.data.merge import Tables
from xc_core.errors import DataError
from xc_core.lifecycle.forget import forget
from xc_core.lifecycle.update import raw_source, update

DOCUMENTS = 60


def day(number: int) -> str:
    return f"2026-{1 + number // 28:02}-{1 + number % 28:02}"


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Return a project with the dataset toy: document D0007 was made on the seventh day."""
    return dataset(tmp_path, monkeypatch)


def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Workspace:
    workspace = empty_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    world = ToyWorld.make(documents=DOCUMENTS, tests=10)
    for number, document in enumerate(world.train):
        document["time"] = day(number)
    for number, document in enumerate(world.test):
        document["time"] = day(DOCUMENTS + number)
    place(workspace, world.write(tmp_path / "begin"), "toy", IngestConfig(split="time", **settings), replace=False)
    return workspace


def splits(workspace: Workspace) -> dict[str, str]:
    return dict(open_corpus(workspace).table("documents").select("uid", "split").iter_rows())


def _rows_of(workspace: Workspace, stem: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workspace.raw("toy") / f"{stem}.json").read_text().splitlines()]


def held_out(workspace: Workspace) -> list[str]:
    return sorted(uid for uid, split in splits(workspace).items() if split == "validation")


def times(workspace: Workspace) -> dict[str, str]:
    documents = Tables.of(open_corpus(workspace), raw_source(workspace, "toy")).documents
    return dict(documents.select("uid", "time").iter_rows())


def drop(folder: Path, rows: dict[str, str | None], test: dict[str, str] | None = None, **fields: str) -> Path:
    """Write an update of documents with these times, and these other fields."""
    folder.mkdir()
    write_json(folder / "lbl.json", [{"uid": "L0", "title": "river", "content": ""}])
    for stem, documents in (("trn", rows), ("tst", test or {})):
        lines: list[dict[str, Any]] = []
        for uid, time in documents.items():
            line = {"uid": uid, "title": f"a text of {uid}", "content": "", "target_ind": [0]} | fields
            lines.append(line | ({"time": time} if time is not None else {}))
        write_json(folder / f"{stem}.json", lines)
    return folder


def test_new_documents_are_the_last_and_older_ones_are_learnt_from(timed: Workspace, tmp_path: Path) -> None:
    assert held_out(timed) == [f"D{number:04}" for number in range(54, 60)]
    before = splits(timed)
    update(timed, drop(tmp_path / "a", {f"N{i}": day(80 + i) for i in range(4)}), "toy")
    assert held_out(timed) == ["D0058", "D0059", "N0", "N1", "N2", "N3"]
    update(timed, drop(tmp_path / "b", {f"M{i}": day(90 + i) for i in range(20)}), "toy")
    assert held_out(timed) == sorted(f"M{i}" for i in range(12, 20))
    after = splits(timed)
    assert {uid for uid in before if after[uid] != before[uid]} == {f"D{number:04}" for number in range(54, 60)}


def test_no_train_document_is_ever_validated(timed: Workspace, tmp_path: Path) -> None:
    """Documents that come late but are old: a model that is refreshed has learnt from those that are later."""
    update(timed, drop(tmp_path / "a", {f"N{i:02}": day(0) for i in range(30)}), "toy")
    found = held_out(timed)
    assert len(found) == 9 and found[:6] == [f"D{number:04}" for number in range(54, 60)]
    assert all(uid.startswith("N") for uid in found[6:])
    forget(timed, "toy", found[:5], [])
    assert held_out(timed) == found[5:]
    before = splits(timed)
    update(timed, drop(tmp_path / "b", {"M0": day(90)}), "toy")
    assert {uid for uid, split in splits(timed).items() if split == "validation"} - {"M0"} <= set(found[5:])
    assert all(splits(timed)[uid] == "train" for uid, split in before.items() if split == "train")


def test_times_are_kept(timed: Workspace, tmp_path: Path) -> None:
    expected = {f"D{number:04}": day(number) for number in range(DOCUMENTS)}
    expected |= {f"D{DOCUMENTS + number:04}": day(DOCUMENTS + number) for number in range(10)}
    assert times(timed) == expected
    update(timed, drop(tmp_path / "a", {"N0": day(80), "D0003": None, "D0004": day(99)}, {"X0": day(81)}), "toy")
    expected |= {"N0": day(80), "D0004": day(99), "X0": day(81)}
    assert times(timed) == expected
    forget(timed, "toy", ["D0007"], [])
    del expected["D0007"]
    assert times(timed) == expected
    assert [row["time"] for row in _rows_of(timed, "tst")] == [day(DOCUMENTS + number) for number in range(10)] + [
        day(81)
    ]


def test_a_corrected_time_moves_no_train_document(timed: Workspace, tmp_path: Path) -> None:
    update(timed, drop(tmp_path / "a", {"D0004": day(99), "D0057": day(1)}), "toy")
    assert splits(timed)["D0004"] == "train"
    assert held_out(timed) == [f"D{number:04}" for number in range(54, 60)]


def again(folder: Path, rows: dict[str, str]) -> Path:
    """Write documents of the dataset as they are, but with these times, and new ones with the labels of the first."""
    world = ToyWorld.make(documents=DOCUMENTS, tests=10)
    known = {document["uid"]: document for document in world.train}
    world.train = [known.get(uid, world.train[0] | {"uid": uid}) | {"time": time} for uid, time in rows.items()]
    world.test = []
    return world.write(folder)


def refused_times(ended: Ended, found: str) -> None:
    assert ended.code == 77, ended.err
    assert f": found another time of {found}" in ended.err
    assert "writes its own date into each row; if the new times are right, run the command by hand with " in ended.err
    assert ended.err.endswith("--new-times\n")


ONE_DATE = {f"D{number:04}": day(90) for number in range(DOCUMENTS)}
NOW = {uid: f"{day(90)}T08:00:{number:02}" for number, uid in enumerate(ONE_DATE)}
OVERLAP = {f"D{number:04}": day(90) for number in range(40, DOCUMENTS)}


@pytest.mark.parametrize(("rows", "found"), [
    (ONE_DATE, "half of them now 2026-04-07, before from 2026-01-14 to 2026-02-12"),
    (NOW, "half of them now from 2026-04-07T08:00:13 to 2026-04-07T08:00:39, before from 2026-01-14 to 2026-02-12"),
])  # fmt: skip
def test_an_update_that_gives_known_documents_one_time_is_refused(
    timed: Workspace, tmp_path: Path, xc: Xc, rows: dict[str, str], found: str
) -> None:
    """An export that writes its own date into each row: the last documents were drawn by a hash since then."""
    before, folder = splits(timed), again(tmp_path / "a", {**rows, "N0": day(90)})
    refused_times(xc("update", folder, "--dataset", "toy"), f"54 of the 54 known train documents of toy: {found}")
    assert splits(timed) == before
    assert xc("update", folder, "--dataset", "toy", "--new-times").code == 0
    assert times(timed)["D0003"] == rows["D0003"]


def test_an_update_with_a_part_of_the_documents_is_refused_if_these_are_most_of_a_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xc: Xc
) -> None:
    """An export of the last month repeats documents of validation, which is the last ones."""
    dataset(tmp_path, monkeypatch, validation_fraction=0.3)
    ended = xc("update", again(tmp_path / "a", OVERLAP), "--dataset", "toy")
    refused_times(ended, "18 of the 18 known validation documents of toy")


@pytest.mark.parametrize("rows", [
    {f"D{number:04}": day(90) for number in range(50, DOCUMENTS)} | {"N0": day(90)},  # few
    {f"D{number:04}": day(number + 20) for number in range(DOCUMENTS)},  # corrected, and no closer to one another
    {f"D{number:04}": f"{day(number)}T00:00:00Z" for number in range(DOCUMENTS)},  # the same times in another form
    {f"D{number:04}": f"{day(number - number % 3)}" for number in range(DOCUMENTS)},  # coarser
])  # fmt: skip
def test_other_times_that_are_no_closer_are_taken(timed: Workspace, tmp_path: Path, xc: Xc, rows: Any) -> None:
    assert xc("update", again(tmp_path / "a", rows), "--dataset", "toy").code == 0


def test_times_that_do_not_decide_may_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xc: Xc) -> None:
    workspace = dataset(tmp_path, monkeypatch)
    place(workspace, workspace.raw("toy"), "toy", IngestConfig(split="uid"), replace=False)
    assert xc("update", again(tmp_path / "a", ONE_DATE), "--dataset", "toy").code == 0


@pytest.mark.parametrize("known", [range(80), range(0, 80, 2)])
def test_a_replacement_that_gives_known_documents_one_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xc: Xc, known: range
) -> None:
    """Documents that moved between train and test were reported, and those of validation were another draw."""
    workspace = empty_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(workspace.root))

    def table(name: str, time_of: Callable[[int], str], rows: int) -> Path:
        (tmp_path / name).mkdir()
        lines = [f"D{i},text {i},L{i % 2},{time_of(i)}" for i in range(rows)]
        (tmp_path / name / "train.csv").write_text("\n".join(["uid,text,labels,time", *lines, ""]))
        return tmp_path / name

    assert xc("ingest", table("a", day, 80), "--dataset", "toy", "--split", "time").code == 0
    before, asked = splits(workspace), ("--dataset", "toy", "--replace")
    wrong = table("b", lambda i: day(95) if i in known else day(i), 90)
    changed = sum(split == "train" and int(uid[1:]) in known for uid, split in before.items())
    found = f"{changed} of the 58 known train documents of toy: half of them now 2026-04-12, before from 2026-01-15 to"
    refused_times(xc("ingest", wrong, *asked), found)
    assert splits(workspace) == before
    assert xc("ingest", wrong, *asked, "--split", "uid").code == 0, "no time decides then"
    assert xc("ingest", wrong, *asked, "--split", "time").code == 0, "nor did one before"
    assert xc("ingest", table("c", day, 90), *asked).code == 0
    assert xc("ingest", wrong, *asked, "--new-times").code == 0


def test_an_inbox_with_one_time_is_refused_until_the_command_is_run_by_hand(
    timed: Workspace, tmp_path: Path, xc: Xc
) -> None:
    """A run cannot be given an option; its message has the command and what to add."""
    world, before = ToyWorld.make(documents=DOCUMENTS, tests=10), splits(timed)
    for document in (*world.train, *world.test):
        document["time"] = day(90)
    shutil.move(world.write(tmp_path / "a"), inbox(timed, "toy"))
    asked = ingest_arguments(timed, "toy")
    refused_times(xc(*asked), "54 of the 54 known train documents of toy: ")
    assert splits(timed) == before
    assert any(inbox(timed, "toy").iterdir())
    assert xc(*asked, "--new-times").code == 0
    assert xc(*ingest_arguments(timed, "toy")).code == 0, "the run that is started again archives the files"


def test_files_that_cannot_be_read_any_more_are_compared_by_no_time(timed: Workspace, tmp_path: Path, xc: Xc) -> None:
    (timed.raw("toy") / "trn.json").write_text("damaged")
    world = ToyWorld.make(documents=DOCUMENTS, tests=10)
    for document in (*world.train, *world.test):
        document["time"] = day(90)
    assert xc("ingest", world.write(tmp_path / "a"), "--dataset", "toy", "--replace").code == 0


def test_a_split_by_another_rule_keeps_times_for_a_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = dataset(tmp_path, monkeypatch)
    place(workspace, workspace.raw("toy"), "toy", IngestConfig(split="uid"), replace=False)
    forget(workspace, "toy", ["D0058"], [])
    (workspace.raw("toy") / "val.json").unlink(missing_ok=True)
    assert len(times(workspace)) == DOCUMENTS + 10 - 1 and times(workspace)["D0059"] == day(59)


@pytest.mark.parametrize("split", ["uid", "group", "family"])
@pytest.mark.parametrize("timed", [True, False])
def test_an_update_keeps_times_that_do_not_decide(tmp_path: Path, split: str, timed: bool) -> None:
    """Also if the first documents of a file have none, and those of a corpus of 0.3.0, which does not know of them."""
    workspace = empty_workspace(tmp_path / "project")
    world = ToyWorld.make(documents=DOCUMENTS, tests=10)
    for document in (world.train[30], world.test[5]) if timed else ():
        document["time"] = "5 min"
    for document in world.train:
        document["group"] = document["uid"]
    place(workspace, world.write(tmp_path / "begin"), "toy", IngestConfig(split=split), replace=False)
    _forget_fact(workspace, "timed")
    folder = drop(tmp_path / "a", {"N0": day(80), "N1": None}, {"X0": day(81)})
    update(workspace, folder, "toy")
    expected = {"D0030": "5 min", "D0065": "5 min"} if timed else {}
    for name in ("b", "c"):
        expected |= {"N0": day(80), "X0": day(81)}
        assert {uid: time for uid, time in times(workspace).items() if time} == expected
        update(workspace, drop(tmp_path / name, {f"N{name}": day(82)}), "toy")
        expected[f"N{name}"] = day(82)


def _forget_fact(workspace: Workspace, name: str) -> None:
    path = workspace.folder("corpus", "toy") / "made.json"
    made = json.loads(path.read_text())
    del made["facts"]["split"][name]
    path.write_text(json.dumps(made))


def test_the_same_update_again_changes_nothing(timed: Workspace, tmp_path: Path, lines: list[str]) -> None:
    """A split by time holds no groups together, so it says nothing of those in test and train."""
    folder = drop(tmp_path / "a", {"N0": day(80)}, {"X0": day(81)}, group="one")
    update(timed, folder, "toy")
    update(timed, folder, "toy")
    assert any("toy has all that is in the new files; nothing changes" in line for line in lines)
    assert not any("group" in line for line in lines)


@pytest.mark.parametrize(("time", "found"), [
    (None, "document 'N0': found no time"),
    ("soon", "document 'N0': found the time 'soon'"),
    ("17", "times that are dates, and times that are numbers (the first: document 'N0')"),
])  # fmt: skip
def test_an_update_whose_times_cannot_be_ordered_is_refused_whole(
    timed: Workspace, tmp_path: Path, xc: Xc, time: str | None, found: str
) -> None:
    before = splits(timed)
    ended = xc("update", drop(tmp_path / "a", {"N0": time}), "--dataset", "toy")
    ended.refused(65, found)
    assert splits(timed) == before


def test_new_documents_of_the_acceptance_set_are_not_validated_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two updates: none of the second's acceptance documents was a validation document."""
    workspace = dataset(tmp_path, monkeypatch, acceptance_fraction=0.3)
    seen = set(held_out(workspace))
    for number in range(3):
        update(workspace, drop(tmp_path / f"{number}", {f"N{number}{i}": day(80 + number) for i in range(9)}), "toy")
        accepted = {uid for uid, split in splits(workspace).items() if split == "acceptance"}
        assert any(uid.startswith(f"N{number}") for uid in accepted)
        assert not accepted & seen
        seen |= set(held_out(workspace))


def test_a_table_may_lack_times_of_known_documents(timed: Workspace, tmp_path: Path) -> None:
    """No row of a train table is a test row in an update, so no time decides that."""
    folder = tmp_path / "a"
    folder.mkdir()
    lines = ["uid,text,labels,time", f"D0003,a corrected text,L0000,{day(3)}", "D0004,another,L0000,", ""]
    (folder / "train.csv").write_text("\n".join(lines))
    before = times(timed)
    update(timed, folder, "toy")
    assert times(timed) == before
    assert "another" in open_corpus(timed).table("documents")["title"]


def test_a_validation_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = empty_workspace(tmp_path / "project")
    world = ToyWorld.make(documents=DOCUMENTS, tests=10)
    folder = world.write(tmp_path / "begin")
    write_json(folder / "val.json", [world.train[0] | {"uid": "V0"}])
    place(workspace, folder, "toy", IngestConfig(split="time"), replace=False)
    update(workspace, drop(tmp_path / "a", {"N0": None}), "toy")
    assert held_out(workspace) == ["V0"]


def test_validation_documents_without_a_time_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """A split by hash held them out; an update wrote them into a validation file, which decides since then.

    Each later update was refused, though nobody asks for times where a validation file decides.
    """
    workspace = empty_workspace(tmp_path / "project")
    monkeypatch.setenv("XC_ROOT", str(workspace.root))
    folder = ToyWorld.make(documents=DOCUMENTS, tests=10).write(tmp_path / "begin")
    place(workspace, folder, "toy", IngestConfig(), replace=False)
    update(workspace, drop(tmp_path / "a", {"N0": None}), "toy")
    place(workspace, workspace.raw("toy"), "toy", IngestConfig(split="time"), replace=False)
    held = held_out(workspace)
    update(workspace, drop(tmp_path / "b", {f"N{i:02}": day(80) for i in range(30)}), "toy")
    assert held_out(workspace) == held
    assert any(f"no time of the {len(held)} validation documents, so they stay" in line for line in lines)
    with pytest.raises(DataError, match=f"no time of {len(held) - 1} validation documents of the dataset"):
        update(workspace, drop(tmp_path / "c", {held[0]: day(1), "M0": day(81)}), "toy")
    update(workspace, drop(tmp_path / "d", dict.fromkeys(held, day(1)) | {"M1": day(82)}), "toy")
    assert "M1" in held_out(workspace)


def test_the_error_of_a_wrong_time_says_what_to_do(timed: Workspace, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="xc ingest --split"):
        update(timed, drop(tmp_path / "a", {"N0": "soon"}), "toy")


def test_no_train_document_is_validated_when_all_validation_documents_are_forgotten(timed: Workspace) -> None:
    forget(timed, "toy", held_out(timed), [])
    assert held_out(timed) == []
    forget(timed, "toy", ["D0001"], [])
    assert held_out(timed) == []
