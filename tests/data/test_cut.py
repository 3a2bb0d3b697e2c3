"""What is held out as a whole: documents, groups of the data, near-duplicates, or a given validation file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ToyWorld, write_lines
from tests.data.worlds import (
    contents,
    facts_of,
    files_of,
    read_world,
    small_world,
    write_table,
    write_world,
    write_xc_json,
)
from xc_core import manifests
from xc_core.data.corpus import Corpus
from xc_core.data.splits import digests, is_validation
from xc_core.errors import ConfigError, DataError

FRACTION = 0.3
DOCUMENTS = 240


def splits_of(corpus: Corpus) -> dict[str, str]:
    table = corpus.table("documents")
    return dict(zip(table["uid"], table["split"], strict=True))


def halves_of(corpus: Corpus) -> dict[str, int]:
    uids = corpus.table("documents")["uid"].to_list()
    return {uids[row]: half for half, rows in enumerate(corpus.validation_halves()) for row in rows.tolist()}


def held(name: str, fraction: float = FRACTION) -> bool:
    return bool(is_validation(digests([name]), fraction)[0])


# groups


def grouped_world() -> ToyWorld:
    """Return a world with groups of four documents, except for every fifth document, which has none."""
    world = small_world(DOCUMENTS)
    for number, row in enumerate(world.train):
        row["group"] = None if number % 5 == 0 else f"source {number // 4}"
    return world


def write_grouped_parquet(world: ToyWorld, folder: Path) -> None:
    for stem, rows in (("train", world.train), ("test", world.test)):
        columns = {key: [row.get(name) for row in rows] for key, name in
                   (("uid", "uid"), ("text", "title"), ("labels", "target_ind"), ("group", "group"))}  # fmt: skip
        pq.write_table(pa.table(columns), folder / f"{stem}.parquet")
    labels = {key: [row[key] for row in world.labels] for key in ("uid", "title")}
    pq.write_table(pa.table(labels), folder / "labels.parquet")


def write_grouped_csv(world: ToyWorld, folder: Path, end: str = "") -> None:
    for stem, rows in (("train", world.train), ("test", world.test)):
        cells = [[r["uid"], r["title"], ";".join(map(str, r["target_ind"])), r.get("group") or ""] for r in rows]
        write_table(folder / f"{stem}.csv{end}", [["uid", "text", "labels", "group"], *cells])


GROUPED: dict[str, Callable[[ToyWorld, Path], None]] = {
    "parquet": write_grouped_parquet,
    "csv": write_grouped_csv,
    "csv.gz": lambda world, folder: write_grouped_csv(world, folder, ".gz"),
    "xc-json": write_xc_json,
    "xc-json.gz": lambda world, folder: write_xc_json(world, folder, ".gz"),
}


def grouped(folder: Path, layout: str = "xc-json", world: ToyWorld | None = None) -> Path:
    folder.mkdir(parents=True)
    GROUPED[layout](world or grouped_world(), folder)
    return folder


@pytest.mark.parametrize("layout", GROUPED)
def test_a_group_is_in_one_split_and_one_half(tmp_path: Path, layout: str) -> None:
    corpus = read_world(grouped(tmp_path / "world", layout), split="group", validation_fraction=FRACTION)
    splits, halves = splits_of(corpus), halves_of(corpus)
    groups: dict[str, set[tuple[str, int | None]]] = {}
    for row in grouped_world().train:
        name = f"group {row['group']}" if row["group"] else row["uid"]
        assert splits[row["uid"]] == ("validation" if held(name) else "train")
        groups.setdefault(name, set()).add((splits[row["uid"]], halves.get(row["uid"])))
    assert all(len(places) == 1 for places in groups.values())
    assert {place for places in groups.values() for place in places} == {
        ("train", None), ("validation", 0), ("validation", 1)
    }  # fmt: skip
    facts = facts_of(corpus)["split"]
    assert facts == {
        "by": "group",
        "given": False,
        "grouped": 192,
        "timed": False,
        "families": 60,
        "documents": 192,
        "largest": 4,
    }


@pytest.mark.parametrize("layout", ["parquet", "xc-json"])
def test_blocks_do_not_matter(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from xc_core.data.formats import ReadOptions, tabular
    from xc_core.data.ingest import IngestConfig

    whole = read_world(grouped(tmp_path / "a", layout), split="group")
    monkeypatch.setattr(IngestConfig, "read_options", lambda self: ReadOptions(block_bytes=257))
    monkeypatch.setattr(tabular, "_ROWS", 7)
    parts = read_world(grouped(tmp_path / "b", layout), split="group")
    assert contents(parts) == contents(whole)
    assert pl.read_parquet(parts.folder / "families.parquet", glob=False).equals(
        pl.read_parquet(whole.folder / "families.parquet", glob=False)
    )


def test_a_group_stays_in_its_split_when_documents_are_added(tmp_path: Path) -> None:
    world = grouped_world()
    before = splits_of(read_world(grouped(tmp_path / "a", world=world), split="group", validation_fraction=FRACTION))
    more = small_world(DOCUMENTS + 60)
    for number, row in enumerate(more.train):
        row["group"] = world.train[number]["group"] if number < DOCUMENTS else f"source {number % 7}"
    Random(0).shuffle(more.train)
    after = splits_of(read_world(grouped(tmp_path / "b", world=more), split="group", validation_fraction=FRACTION))
    assert {uid: after[uid] for uid in before} == before


def test_with_a_split_by_uid_groups_change_nothing(tmp_path: Path) -> None:
    with_groups = read_world(grouped(tmp_path / "a"))
    without = read_world(write_world(tmp_path / "b", world=small_world(DOCUMENTS)), filters="none")
    assert contents(with_groups) == contents(without)
    assert with_groups.digest == without.digest, "the corpus has the same files with the same bytes"
    assert facts_of(with_groups)["split"] == {"by": "uid", "given": False, "grouped": 192, "timed": False}


def test_a_split_by_group_without_groups_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no group in the train file") as error:
        read_world(write_world(tmp_path / "world"), split="group")
    assert "--split family" in error.value.do


@pytest.mark.parametrize(("layout", "value"), [("xc-json", 5), ("xc-json", ["a"]), ("parquet", 1.5)])
def test_a_group_of_another_type_is_refused_with_its_place(tmp_path: Path, layout: str, value: Any) -> None:
    world = grouped_world()
    for row in world.train:
        row["group"] = value if layout == "parquet" else row["group"]
    world.train[6]["group"] = value
    with pytest.raises(DataError, match="group") as error:
        read_world(grouped(tmp_path / "world", layout, world))
    assert error.value.where in ("trn.json, line 7", "train.parquet, row 1")


def test_a_group_may_be_a_number_in_a_table(tmp_path: Path) -> None:
    world = grouped_world()
    for number, row in enumerate(world.train):
        row["group"] = number // 4
    corpus = read_world(grouped(tmp_path / "world", "parquet", world), split="group")
    assert facts_of(corpus)["split"]["families"] == 60


def test_rows_split_off_as_test_keep_groups_together(tmp_path: Path) -> None:
    folder = grouped(tmp_path / "world", "csv")
    (folder / "test.csv").unlink()
    splits = splits_of(read_world(folder, split="group", test_fraction=0.4))
    groups: dict[str, set[str]] = {}
    for row in grouped_world().train:
        if row["group"]:
            groups.setdefault(row["group"], set()).add(splits[row["uid"]])
    assert all(len(found) == 1 for found in groups.values())
    assert {"train", "test"} <= {name for found in groups.values() for name in found}
    alone = splits_of(read_world(folder, test_fraction=0.4))
    assert alone != splits, "without a split by group, test rows are chosen by uid as before"


# near-duplicates


def family_world(families: int = 40, siblings: int = 3) -> ToyWorld:
    """Return a world in which each document of train has two siblings that differ in one word of sixteen."""
    world = small_world(families * siblings)
    order = list(range(families * siblings))
    Random(4).shuffle(order)
    for place, number in enumerate(order):
        words = [f"f{number % families}w{i}" for i in range(16)]
        words[number // families] = f"n{number}"
        world.train[place]["title"] = " ".join(words)
        world.train[place]["family"] = number % families
    return world


def ingested(folder: Path, world: ToyWorld, **settings: Any) -> Corpus:
    folder.mkdir(parents=True)
    write_xc_json(world, folder)
    return read_world(folder, **{"validation_fraction": FRACTION, "split": "family", **settings})


def test_siblings_are_in_one_split_and_one_half(tmp_path: Path) -> None:
    world = family_world()
    corpus = ingested(tmp_path / "world", world)
    splits, halves = splits_of(corpus), halves_of(corpus)
    first: dict[int, str] = {}
    for row in world.train:
        name = first.setdefault(row["family"], row["uid"])
        assert splits[row["uid"]] == ("validation" if held(name) else "train")
        assert halves.get(row["uid"]) == halves.get(name)
    assert set(halves.values()) == {0, 1}
    assert facts_of(corpus)["split"] == {
        "by": "family", "given": False, "grouped": 0, "timed": False, "families": 40, "documents": 120, "largest": 3
    }  # fmt: skip
    by_uid = ingested(tmp_path / "uid", world, split="uid")
    divided = {row["family"] for row in world.train if splits_of(by_uid)[row["uid"]] == "validation"} & {
        row["family"] for row in world.train if splits_of(by_uid)[row["uid"]] == "train"
    }
    assert divided, "a split by uid divides families, or this test shows nothing"


def test_moved_documents_are_counted_where_they_are(tmp_path: Path) -> None:
    corpus = ingested(tmp_path / "world", family_world())
    rows, pairs = corpus.facts["rows"], corpus.facts["pairs"]
    assert {split: len(corpus.rows(split)) for split in rows} == rows
    assert {split: int(corpus.labels.rows(corpus.rows(split)).counts_N.sum()) for split in rows} == pairs
    assert not corpus.wrong_schemas()
    plain = ingested(tmp_path / "uid", family_world(), split="uid")
    drop = lambda found: [row[:3] for row in found["documents"]]  # noqa: E731
    assert drop(contents(corpus)) == drop(contents(plain)), "order and texts are the same"
    assert contents(corpus)["pairs"] == contents(plain)["pairs"]


def test_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (ingested(tmp_path / name, family_world()) for name in ("a", "b"))
    names = [*manifests.read_manifest(first.folder).files]
    assert "families.parquet" in names and not (first.folder / "near-duplicates").exists()
    assert {n: files_of(first.folder)[n] for n in names} == {n: files_of(second.folder)[n] for n in names}


def test_documents_without_siblings_are_split_as_by_uid(tmp_path: Path) -> None:
    world = small_world(DOCUMENTS)
    for number, row in enumerate(world.train):
        row["title"] = " ".join(f"d{number}w{i}" for i in range(8))
    by_family, by_uid = (ingested(tmp_path / split, world, split=split) for split in ("family", "uid"))
    assert contents(by_family) == contents(by_uid)
    for one, other in zip(by_family.validation_halves(), by_uid.validation_halves(), strict=True):
        assert one.tolist() == other.tolist()


def test_appended_siblings_follow_their_family(tmp_path: Path) -> None:
    world = family_world()
    before = splits_of(ingested(tmp_path / "a", world))
    more = ToyWorld(list(world.train), world.test, world.labels)
    for number, row in enumerate(world.train[:10]):
        words = row["title"].split()
        more.train.append(row | {"uid": f"late{number}", "title": " ".join([*words[:15], "late"])})
    after = splits_of(ingested(tmp_path / "b", more))
    assert {uid: after[uid] for uid in before} == before
    for number, row in enumerate(world.train[:10]):
        assert after[f"late{number}"] == before[row["uid"]]


# a given validation file


def write_given(folder: Path, layout: str, world: ToyWorld, held_out: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    GROUPED[layout](world, folder)
    other = folder / "other"
    other.mkdir()
    GROUPED[layout](ToyWorld(held_out, world.test, world.labels), other)
    names = {"xc-json": ("trn.json", "val.json"), "xc-json.gz": ("trn.json.gz", "val.json.gz")}
    source, target = names.get(layout, (f"train.{layout}", f"validation.{layout}"))
    (other / source).rename(folder / target)
    shutil.rmtree(other)
    return folder


@pytest.mark.parametrize("layout", GROUPED)
@pytest.mark.parametrize("split", ["uid", "group", "family"])
def test_a_given_validation_file_wins_over_every_split(tmp_path: Path, layout: str, split: str) -> None:
    world = grouped_world()
    held_out, world.train = world.train[:50], world.train[50:]
    corpus = read_world(write_given(tmp_path / "world", layout, world, held_out), split=split)
    wanted = [("train", world.train), ("validation", held_out), ("test", world.test)]
    assert [(uid, name) for uid, name in splits_of(corpus).items()] == [
        (row["uid"], name) for name, rows in wanted for row in rows
    ]
    assert corpus.facts["rows"] == {"train": 190, "validation": 50, "test": 12}
    assert corpus.published_train().frequency_L().sum() == sum(len(r["target_ind"]) for r in world.train + held_out)
    facts = facts_of(corpus)
    assert facts["split"]["given"] is True
    assert [name for name in facts["source"] if name.startswith("val")]


def test_halves_of_a_given_validation_file_keep_groups_together(tmp_path: Path) -> None:
    world = grouped_world()
    held_out, world.train = world.train[:80], world.train[80:]
    corpus = read_world(write_given(tmp_path / "world", "xc-json", world, held_out), split="group")
    halves = halves_of(corpus)
    groups: dict[str, set[int]] = {}
    for row in held_out:
        if row["group"]:
            groups.setdefault(row["group"], set()).add(halves[row["uid"]])
    assert all(len(found) == 1 for found in groups.values())
    assert set(halves.values()) == {0, 1}


def test_filters_of_a_validation_file_are_numbered_within_it(tmp_path: Path) -> None:
    world = grouped_world()
    held_out, world.train = world.train[:50], world.train[50:]
    folder = write_given(tmp_path / "world", "xc-json", world, held_out)
    for split, pair in (("train", "3 4"), ("validation", "49 5"), ("test", "11 6")):
        write_lines(folder / f"filter_labels_{split}.txt", [pair])
    assert contents(read_world(folder))["filters"] == [(3, 4), (190 + 49, 5), (190 + 50 + 11, 6)]
    write_lines(folder / "filter_labels_validation.txt", ["50 5"])
    with pytest.raises(DataError, match="the document 50"):
        read_world(folder)


def test_a_uid_in_train_and_validation_is_refused(tmp_path: Path) -> None:
    world = grouped_world()
    folder = write_given(tmp_path / "world", "xc-json", world, world.train[:5])
    with pytest.raises(DataError, match="again"):
        read_world(folder)


def test_a_split_of_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="split 'families'"):
        read_world(write_world(tmp_path / "world"), split="families")


def test_families_are_numbered_in_the_order_of_rows(tmp_path: Path) -> None:
    world = family_world()
    corpus = ingested(tmp_path / "world", world)
    rows = np.random.default_rng(0).permutation(len(world.train))
    first: dict[int, int] = {}
    assert corpus.families(rows).tolist() == [first.setdefault(world.train[i]["family"], len(first)) for i in rows]
