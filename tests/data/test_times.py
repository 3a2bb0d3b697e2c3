"""A split by time: the last documents are held out, whatever the layout and the form of the times."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ToyWorld, write_json
from tests.data.worlds import contents, facts_of, read_world, small_world, write_table, write_world, write_xc_json
from xc_core.data.corpus import Corpus
from xc_core.data.formats import ReadOptions, open_source
from xc_core.data.formats.times import moments
from xc_core.data.ingest import IngestConfig
from xc_core.data.splits import digests, is_acceptance
from xc_core.errors import DataError

DOCUMENTS = 60
BEGIN = datetime(2026, 11, 30, 23, tzinfo=UTC)


def later(number: int) -> datetime:
    return BEGIN + timedelta(hours=7 * number)


ZONES = [timezone(timedelta(hours=-11, minutes=-30)), UTC]
FORMS: dict[str, Callable[[int], object]] = {
    "whole numbers": lambda number: number - 30,
    "numbers": lambda number: (number - 30) / 7,
    "digits": lambda number: str(20260000 + number),
    "exponents": lambda number: f"{number / 8:.3e}",
    "dates": lambda number: (BEGIN + timedelta(days=number)).date().isoformat(),
    "times": lambda number: later(number).isoformat(),
    "times in Z": lambda number: later(number).isoformat().replace("+00:00", "Z"),
    "times in other zones": lambda number: later(number).astimezone(ZONES[number % 2]).isoformat(),
}
"""Times that ascend with a number, as texts do not: "2" is after "10", and 01:00+02:00 is before 00:00."""


def timed_world(form: str = "whole numbers") -> ToyWorld:
    """Return a world whose train rows are shuffled; the uid of each says when it was made."""
    world = small_world(DOCUMENTS)
    for number, row in enumerate(world.train):
        row["time"] = FORMS[form](number)
    Random(0).shuffle(world.train)
    return world


COLUMNS = {"uid": "uid", "text": "title", "labels": "target_ind", "time": "time"}


def write_parquet(world: ToyWorld, folder: Path) -> None:
    for stem, rows in (("train", world.train), ("test", world.test)):
        columns = {name: [row.get(key) for row in rows] for name, key in COLUMNS.items()}
        pq.write_table(pa.table(columns), folder / f"{stem}.parquet")
    labels = {key: [row[key] for row in world.labels] for key in ("uid", "title")}
    pq.write_table(pa.table(labels), folder / "labels.parquet")


def write_csv(world: ToyWorld, folder: Path, *, test: bool = True) -> None:
    for stem, rows in (("train", world.train), ("test", world.test))[: 1 + test]:
        cells = [[r["uid"], r["title"], ";".join(map(str, r["target_ind"])), str(r.get("time", ""))] for r in rows]
        write_table(folder / f"{stem}.csv", [[*COLUMNS], *cells])


def write_jsonl(world: ToyWorld, folder: Path) -> None:
    for stem, rows in (("train", world.train), ("test", world.test)):
        own = [{name: row[key] for name, key in COLUMNS.items() if key in row} for row in rows]
        write_json(folder / f"{stem}.jsonl", [row | {"labels": list(map(str, row["labels"]))} for row in own])


WRITERS: dict[str, Callable[[ToyWorld, Path], None]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "xc-json": write_xc_json,
}


def written(folder: Path, layout: str, world: ToyWorld) -> Path:
    folder.mkdir(parents=True)
    WRITERS[layout](world, folder)
    return folder


def held_out(corpus: Corpus, split: str = "validation") -> set[str]:
    return set(corpus.uids(corpus.rows(split)))


def last(count: int, before: int = DOCUMENTS) -> set[str]:
    return {f"train-{number}" for number in range(before - count, before)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", WRITERS)
def test_the_last_documents_are_held_out(tmp_path: Path, layout: str, form: str) -> None:
    corpus = read_world(written(tmp_path / "world", layout, timed_world(form)), split="time")
    assert held_out(corpus) == last(6)
    assert facts_of(corpus)["rows"] == {"train": 54, "validation": 6, "test": 12}
    assert facts_of(corpus)["split"] == {"by": "time", "given": False, "grouped": 0, "timed": True}
    halves = [len(rows) for rows in corpus.validation_halves()]
    assert sum(halves) == 6


@pytest.mark.parametrize("kind", [
    pa.timestamp("s"), pa.timestamp("ms", "Europe/Helsinki"), pa.timestamp("us"), pa.timestamp("ns"), pa.date32(),
    pa.date64(), pa.int16(), pa.float64(),
], ids=str)  # fmt: skip
def test_types_of_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    world = timed_world()
    folder = written(tmp_path / "world", "parquet", world)
    table, numbers = pq.read_table(folder / "train.parquet"), [row["time"] for row in world.train]
    if pa.types.is_temporal(kind):
        days = [BEGIN + timedelta(days=number) for number in numbers]
        times = pa.array([day.date() if pa.types.is_date(kind) else day for day in days], kind)
    else:
        times = pa.array(numbers, kind)
    pq.write_table(table.set_column(table.column_names.index("time"), "time", times), folder / "train.parquet")
    assert held_out(read_world(folder, split="time")) == last(6)


@pytest.mark.parametrize("kind", [
    pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.bool_(), pa.binary(), pa.time32("s"),
], ids=str)  # fmt: skip
def test_columns_of_parquet_that_are_no_times_are_an_error_only_if_they_decide(
    tmp_path: Path, kind: pa.DataType
) -> None:
    values = {"bool": True, "binary": b"\xff", "time32[s]": 5, "list<item: int64>": [1]}
    folder = written(tmp_path / "world", "parquet", timed_world())
    table = pq.read_table(folder / "train.parquet").drop_columns("time")
    times = pa.array([values.get(str(kind), {"a": 1})] * len(table), kind)
    pq.write_table(table.append_column("time", times), folder / "train.parquet")
    assert len(read_world(folder).rows("validation"))
    with pytest.raises(DataError, match="the time "):
        read_world(folder, split="time")


def test_equal_times_are_ordered_by_the_uid_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    found = []
    for seed in range(2):
        world = small_world(DOCUMENTS)
        for number, row in enumerate(world.train):
            row["time"] = number // 20
        Random(seed).shuffle(world.train)
        found.append(held_out(read_world(written(tmp_path / f"{seed}", "csv", world), split="time")))
    assert found[0] == found[1] and len(found[0]) == 6 and found[0] < last(20)
    expected = sorted(last(20), key=lambda uid: int(digests([uid])["high"][0]))[-6:]
    assert found[0] == set(expected)


@pytest.mark.parametrize("blocks", [False, True])
def test_without_a_test_table_the_last_rows_are_the_test_set(
    tmp_path: Path, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation documents are the last of the others."""
    if blocks:
        from xc_core.data.formats import tables

        monkeypatch.setattr(tables, "_ROWS", 7)
    (tmp_path / "world").mkdir()
    write_csv(timed_world("dates"), tmp_path / "world", test=False)
    corpus = read_world(tmp_path / "world", split="time", allow=("unseen-labels",))
    assert held_out(corpus, "test") == last(12)
    assert held_out(corpus) == last(5, DOCUMENTS - 12)
    texts = {row["uid"]: row["title"] for row in timed_world().train}
    table = corpus.table("documents")
    assert all(texts[uid] == title for uid, title in zip(table["uid"], table["title"], strict=True))


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_no_document_is_the_last_of_none(tmp_path: Path, share: float) -> None:
    corpus = read_world(written(tmp_path / "world", "csv", timed_world()), split="time", validation_fraction=share)
    assert held_out(corpus) == set()


def test_with_a_validation_file_times_hold_nothing_out_and_need_not_be_there(tmp_path: Path) -> None:
    world = timed_world()
    folder = written(tmp_path / "world", "xc-json", world)
    write_json(folder / "val.json", [small_world(DOCUMENTS + 2).train[-1] | {"uid": "V"}])
    del world.train[3]["time"]
    write_json(folder / "trn.json", world.train)
    corpus = read_world(folder, split="time")
    assert held_out(corpus) == {"V"}


def test_no_document_of_the_acceptance_set_was_or_will_be_validated(tmp_path: Path) -> None:
    """By their hash, so that no document goes from validation to the acceptance set when others become the last."""
    for documents in (DOCUMENTS, DOCUMENTS + 6):
        world = small_world(documents)
        for number, row in enumerate(world.train):
            row["time"] = number
        corpus = read_world(
            written(tmp_path / f"{documents}", "csv", world),
            split="time",
            acceptance_fraction=0.4,
            allow=("unseen-labels",),
        )
        uids = [row["uid"] for row in world.train]
        free = [uid for uid, taken in zip(uids, is_acceptance(digests(uids), 0.4), strict=True) if not taken]
        assert held_out(corpus) == set(free[-round(documents / 10) :])
        assert held_out(corpus, "acceptance") and not held_out(corpus, "acceptance") & set(free)


def test_other_splits_read_times_and_change_nothing(tmp_path: Path) -> None:
    plain = read_world(write_world(tmp_path / "a", world=small_world(DOCUMENTS)), filters="none")
    world = small_world(DOCUMENTS)
    for number, row in enumerate(world.train):
        row["time"] = number
    timed = read_world(write_world(tmp_path / "b", world=world), filters="none")
    assert contents(timed) == contents(plain) and timed.digest == plain.digest


@pytest.mark.parametrize(("first", "share"), [(0, 0.0), (30, 1.0), (18, 0.5)])
def test_the_share_of_test_documents_that_are_later(tmp_path: Path, first: int, share: float) -> None:
    world = timed_world()
    for number, row in enumerate(world.test):
        row["time"] = first + number
    facts = facts_of(read_world(written(tmp_path / "world", "xc-json", world)))["split"]
    assert facts["later_tests"] == share, "nine tenths of -30 to 29 are below 24"


def test_later_is_later_than_nine_tenths_of_the_documents(tmp_path: Path) -> None:
    """23 is later than 53 of 60, so what is between 23 and 24 is later than 54."""
    world = timed_world()
    for row in world.test:
        row["time"] = 23.05
    assert facts_of(read_world(written(tmp_path / "world", "xc-json", world)))["split"]["later_tests"] == 1.0


def test_dates_are_not_later_than_numbers(tmp_path: Path) -> None:
    world = timed_world()
    for row in world.test:
        row["time"] = "2026-11-30"
    assert facts_of(read_world(written(tmp_path / "world", "csv", world)))["split"]["later_tests"] == 0.0


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        alike = moments(["a", "b", "c"], ["2026-11-30", "2026-11-30T00:00:00Z", "2026-11-30T02:00+02:00"])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert len(set(alike.tolist())) == 1


def test_of_equal_times_the_test_set_takes_the_highest_digests(tmp_path: Path) -> None:
    world = timed_world()
    for row in world.train:
        row["time"] = 7
    (tmp_path / "world").mkdir()
    write_csv(world, tmp_path / "world", test=False)
    corpus = read_world(tmp_path / "world", split="time", test_fraction=0.21, allow=("unseen-labels",))
    uids = sorted((row["uid"] for row in world.train), key=lambda uid: int(digests([uid])["high"][0]))
    assert held_out(corpus, "test") == set(uids[-13:])


def test_the_error_of_two_kinds_names_the_first_of_each() -> None:
    with pytest.raises(DataError, match=r"document 'b'.*the first: document 'a'"):
        moments(["a", "b", "c", "d"], ["1", "2026-11-30", "2", "2026-12-01"])


def test_a_shard_without_times_says_nothing_of_the_test_documents(tmp_path: Path) -> None:
    world = timed_world()
    for number, row in enumerate(world.test):
        row["time"] = DOCUMENTS + number
    folder = written(tmp_path / "world", "parquet", world)
    table = pq.read_table(folder / "train.parquet")
    (folder / "train.parquet").unlink()
    pq.write_table(table[:30], folder / "train-00000-of-00002.parquet")
    pq.write_table(table[30:].drop_columns("time"), folder / "train-00001-of-00002.parquet")
    split = facts_of(read_world(folder))["split"]
    assert split["timed"] and "later_tests" not in split


@pytest.mark.parametrize(("where", "value"), [
    ("train", ""), ("train", "yesterday"), ("train", "2026-11-30"), ("test", ""), ("test", "soon"),
    ("test", "2026-11-30"),
])  # fmt: skip
def test_times_that_cannot_be_compared_say_nothing_of_the_test_documents(
    tmp_path: Path, where: str, value: str
) -> None:
    """Without a split by time they are no error."""
    world = timed_world()
    for number, row in enumerate(world.test):
        row["time"] = DOCUMENTS + number
    (world.train if where == "train" else world.test)[5]["time"] = value
    facts = facts_of(read_world(written(tmp_path / "world", "csv", world)))["split"]
    assert facts["timed"] and not facts.get("later_tests")


WRONG: dict[str, tuple[object, str]] = {
    "empty": ("", "found no time"),
    "a word": ("yesterday", "the time 'yesterday'"),
    "not a number": ("nan", "the time 'nan'"),
    "infinite": ("inf", "the time 'inf'"),
    "too large": ("9" * 320, "the time '999"),
    "an impossible date": ("2026-02-30", "the time '2026-02-30'"),
    "another order": ("30.11.2026", "the time '30.11.2026'"),
    "other digits": ("١٢", "the time"),
    "a date beside numbers": ("2026-11-30", "times that are dates, and times that are numbers"),
}


@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize(("value", "found"), WRONG.values(), ids=WRONG)
def test_a_wrong_time_is_named_with_its_row(tmp_path: Path, value: object, found: str, test: bool) -> None:
    world = timed_world()
    world.train[41]["time"] = value
    (tmp_path / "world").mkdir()
    write_csv(world, tmp_path / "world", test=test)
    with pytest.raises(DataError) as error:
        read_world(tmp_path / "world", split="time")
    assert found in str(error.value) and "train.csv, row 43" in str(error.value)


def test_a_train_file_without_times_is_refused(tmp_path: Path) -> None:
    for layout in ("csv", "xc-json", "xc-text", "pecos"):
        with pytest.raises(DataError, match="no time of the documents, but the split is by time"):
            read_world(write_world(tmp_path / layout, layout, small_world(DOCUMENTS)), split="time")


@pytest.mark.parametrize("value", [5, 2.5, True, None, "5 min", [1], {"a": 1}, 10**400], ids=lambda v: f"{v}"[:9])
@pytest.mark.parametrize("row", [0, 41])
def test_times_in_xc_json_are_an_error_only_if_they_decide(tmp_path: Path, value: Any, row: int) -> None:
    """A field ``time`` may mean something else, and was ignored before."""
    world = timed_world("dates")
    world.train[row]["time"] = value
    folder = written(tmp_path / "world", "xc-json", world)
    assert facts_of(read_world(folder))["split"]["timed"]
    with pytest.raises(DataError, match=r"found no time|the time |times that are dates") as error:
        read_world(folder, split="time")
    assert value == 5 or value == 2.5 or f"trn.json, line {row + 1}" in str(error.value)


@pytest.mark.parametrize("number", [2**53, 1.5])
def test_times_of_xc_json_are_read_as_they_are_written(tmp_path: Path, number: float) -> None:
    """The first document may have none, and large numbers stay whole."""
    world = timed_world()
    for row in world.train:
        row["time"] += number
    expected = [str(row["time"]) for row in world.train]
    del world.train[0]["time"]
    _, source = open_source(written(tmp_path / "world", "xc-json", world), "auto", ReadOptions())
    (block,) = source.documents("train")
    assert block.times == ["", *expected[1:]]


def test_settings(tmp_path: Path) -> None:
    assert IngestConfig(split="time").read_options().test_by == "time"
    assert [IngestConfig(split=by).read_options().test_by for by in ("uid", "group", "family")] == [
        "uid",
        "group",
        "uid",
    ]


def test_a_time_of_a_document_is_read_and_one_of_a_label_is_ignored(tmp_path: Path, lines: list[str]) -> None:
    world = timed_world()
    world.labels[0]["time"] = 5
    read_world(written(tmp_path / "world", "xc-json", world))
    assert [line for line in lines if "ignored" in line] == ["lbl.json: ignored fields: 'time'"]


@pytest.mark.parametrize("by", ["uid", "group"])
def test_groups_split_off_as_a_whole_only_in_a_split_by_group(tmp_path: Path, by: str) -> None:
    folder = tmp_path / "world"
    folder.mkdir()
    rows = [[f"r{number}", f"a text {number}", "a", f"g{number // 10}"] for number in range(100)]
    write_table(folder / "train.csv", [["uid", "text", "labels", "group"], *rows])
    tests = {int(uid[1:]) for uid in held_out(read_world(folder, split=by), "test")}
    divided = [group for group in range(10) if 0 < len(tests & set(range(10 * group, 10 * group + 10))) < 10]
    assert bool(divided) == (by == "uid")
