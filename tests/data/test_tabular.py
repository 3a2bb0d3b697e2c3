"""Parquet and CSV: every valid form of texts and labels is read; without a test table, test rows are chosen by uid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.worlds import FILTERS, contents, read_world, small_world, write_table, write_world
from xc_core.data.corpus import Corpus
from xc_core.data.formats import ReadOptions, tables, tabular
from xc_core.data.formats.columns import _are_indicators
from xc_core.errors import DataError, MissingError

WORLD = small_world()
NAMES = [f"{row['title'].split()[0]}" for row in WORLD.labels]


def names_of(row: dict[str, Any]) -> list[str]:
    return [NAMES[label] for label in row["target_ind"]]


def write_named(folder: Path, split: str, cells: Any, **more: Any) -> None:
    """Write one split with label names and no uids."""
    rows = WORLD.train if split == "train" else WORLD.test
    folder.mkdir(exist_ok=True)
    columns = {"text": [row["title"] for row in rows], "labels": cells(rows)} | more
    pq.write_table(pa.table(columns), folder / f"{split}.parquet")


def pairs_by_name(corpus: Corpus) -> list[tuple[str, str]]:
    """Return (text, label name) of every pair."""
    found = contents(corpus)
    return [(found["documents"][doc][1], found["labels"][label][1]) for doc, label in found["pairs"]]


EXPECTED = sorted((row["title"], name) for row in WORLD.train + WORLD.test for name in names_of(row))


@pytest.mark.parametrize("cells", [
    lambda rows: [names_of(row) for row in rows],
    lambda rows: pa.array([names_of(row) for row in rows], pa.large_list(pa.string())),
    lambda rows: pa.array([names_of(row) for row in rows], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    lambda rows: [" ; ".join(names_of(row)) + ";" for row in rows],
], ids=["list", "large list", "categories", "separated text"])  # fmt: skip
def test_label_names_become_labels_without_a_labels_table(tmp_path: Path, cells: Any) -> None:
    for split in ("train", "test"):
        write_named(tmp_path / "world", split, cells)
    corpus = read_world(tmp_path / "world")
    assert sorted(pairs_by_name(corpus)) == EXPECTED
    assert [row[:2] for row in contents(corpus)["labels"]] == [(name, name) for name in sorted(NAMES)]
    assert contents(corpus)["documents"][1][0] == "train-2", "rows are numbered from 1 if there are no uids"


def test_a_label_name_that_is_refused_is_named_by_its_number(tmp_path: Path) -> None:
    """Among the distinct names in order, from 1, as rows of a table are numbered."""
    third = sorted(NAMES)[2]
    names = {name: f"{name}\x1b" if name == third else name for name in NAMES}
    for split in ("train", "test"):
        write_named(tmp_path / "world", split, lambda rows: [[names[name] for name in names_of(row)] for row in rows])
    with pytest.raises(DataError, match=r"labels column, label 3\b"):
        read_world(tmp_path / "world")


def test_whole_numbers_are_names_without_a_labels_table(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_named(tmp_path / "world", split, lambda rows: [[label + 1000 for label in r["target_ind"]] for r in rows])
    assert [row[0] for row in contents(read_world(tmp_path / "world"))["labels"]] == [str(i) for i in range(1000, 1010)]


def test_names_are_uids_with_a_labels_table(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    for split in ("train", "test"):
        write_named(folder, split, lambda rows: [names_of(row) for row in rows])
    texts = [f"the text of {name}" for name in reversed(NAMES)]
    pq.write_table(pa.table({"uid": NAMES[::-1], "content": texts}), folder / "labels.parquet")
    found = contents(read_world(folder))
    assert found["labels"] == [(name, text, "") for name, text in zip(NAMES[::-1], texts, strict=True)]
    assert found["pairs"][:2] == sorted((0, 9 - label) for label in WORLD.train[0]["target_ind"])


@pytest.mark.parametrize(("columns", "title", "content"), [
    ({"text": "a"}, "a", ""),
    ({"title": "a"}, "a", ""),
    ({"content": "b"}, "b", ""),
    ({"title": "a", "content": "b"}, "a", "b"),
    ({"title": "a", "text": "b"}, "a", "b"),
    ({"text": "a", "content": "b"}, "a", "b"),
])  # fmt: skip
def test_no_column_of_text_is_lost(tmp_path: Path, columns: dict[str, str], title: str, content: str) -> None:
    table = [[*columns, "labels"], *([*columns.values(), "x"] for _ in range(30))]
    (tmp_path / "world").mkdir()
    write_table(tmp_path / "world" / "train.csv", table)
    write_table(tmp_path / "world" / "test.csv", table[:2])
    assert {row[1:3] for row in contents(read_world(tmp_path / "world"))["documents"]} == {(title, content)}


@pytest.mark.parametrize("separator", [";", "|", ", ", "::"])
def test_the_separator_of_labels_can_be_chosen(tmp_path: Path, separator: str) -> None:
    (tmp_path / "world").mkdir()
    for split, rows in (("train", WORLD.train), ("test", WORLD.test)):
        table = [['"the" text', "labels", "text"]]
        table += [["not, used", separator.join(names_of(row)), row["title"]] for row in rows]
        write_table(tmp_path / "world" / f"{split}.csv", table)
    corpus = read_world(tmp_path / "world", label_separator=separator)
    assert sorted(pairs_by_name(corpus)) == EXPECTED


@pytest.mark.parametrize("cells", [[["a"]] * 59 + [None], [["a"]] * 59 + [[]], ["a"] * 59 + [""], ["a"] * 59 + [" ; "]])
def test_a_row_without_labels_is_one_in_every_spelling(tmp_path: Path, cells: list[Any]) -> None:
    folder = tmp_path / "world"
    write_named(folder, "train", lambda rows: cells)
    write_named(folder, "test", lambda rows: [["a"]] * 12)
    with pytest.raises(DataError, match=r"train\.parquet, row 60: found a document without labels"):
        read_world(folder)
    assert read_world(folder, allow=("empty-labels",)).labels.counts_N.tolist() == [1] * 59 + [0] + [1] * 12


def cut_world(folder: Path, order: list[int]) -> Corpus:
    """Ingest a single table with its rows in ``order``; a fifth of them becomes test."""
    uids = [f"d{i}" for i in order]
    write_named(folder, "train", lambda rows: [["a", "b"]] * len(order), text=[f"text {i}" for i in order], uid=uids)
    return read_world(folder, test_fraction=0.2, validation_fraction=0.2)


def test_without_a_test_table_test_rows_are_chosen_by_uid(tmp_path: Path) -> None:
    size = 1_000
    corpus, again = (cut_world(tmp_path / name, o) for name, o in (("a", [*range(size)]), ("b", [*range(size)][::-1])))
    splits = [{row[0]: row[3] for row in contents(c)["documents"]} for c in (corpus, again)]
    assert splits[0] == splits[1] and len(splits[0]) == size
    rows = corpus.facts["rows"]
    assert 150 < rows["test"] < 250 and 120 < rows["validation"] < 200, rows
    assert [row[3] == "test" for row in contents(corpus)["documents"]] == [False] * (size - rows["test"]) + [
        True
    ] * rows["test"]
    assert all(row[0].replace("d", "text ") == row[1] for row in contents(corpus)["documents"])


def test_a_row_of_a_cut_table_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    uids = [f"d{i}" for i in range(200)]
    write_named(folder, "train", lambda rows: [["a"]] * 150 + [[]] + [["a"]] * 49, text=["t"] * 200, uid=uids)
    with pytest.raises(DataError, match=r"train\.parquet, row 151: found a document without labels"):
        read_world(folder)


def test_a_repeated_label_is_named_as_in_the_file(tmp_path: Path) -> None:
    """Numbers of labels that are names stand nowhere in the files of the user; only texts are cut at a separator."""
    cases = {"name": ([["b", "a", "b"]] * 9, "'b'"), "row": ([[2, 1, 2]] * 9, "2"), "text": (["b;a;b"] * 9, "'b'")}
    for name, (cells, shown) in cases.items():
        write_named(tmp_path / name, "train", lambda rows, cells=cells: cells, text=["t"] * 9)
        if name == "row":
            pq.write_table(pa.table({"uid": ["x", "y", "z"], "title": NAMES[:3]}), tmp_path / name / "labels.parquet")
        with pytest.raises(DataError, match=rf"train\.parquet, row \d: found the label {shown} twice") as found:
            read_world(tmp_path / name)
        assert ("--label-separator" in str(found.value)) == (name == "text")


def test_a_repeated_uid_of_a_cut_table_is_named(tmp_path: Path) -> None:
    again = r"train\.parquet, row 101: found the uid 'd7' again, which is also the uid of train\.parquet, row 8\n"
    with pytest.raises(DataError, match=again):
        cut_world(tmp_path / "world", [*range(100), 7])


def test_filter_files_without_a_test_table_are_refused(tmp_path: Path) -> None:
    """Their numbers would be positions after the split by hash, which are unknown to the writer of the file."""
    write_named(tmp_path / "world", "train", lambda rows: [names_of(row) for row in rows])
    (tmp_path / "world" / "filter_labels_train.txt").write_text("0 1\n")
    with pytest.raises(DataError, match=r"^filter_labels_train\.txt: found no test table.*\n  expected: a test table"):
        read_world(tmp_path / "world")
    assert contents(read_world(tmp_path / "world", filters="none"))["filters"] == []


def test_names_with_a_labels_table_without_uids_are_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_named(tmp_path / "world", split, lambda rows: [names_of(row) for row in rows])
    pq.write_table(pa.table({"title": NAMES}), tmp_path / "world" / "labels.parquet")
    with pytest.raises(DataError, match=r"expected: a column uid in labels\.parquet"):
        read_world(tmp_path / "world")


def test_filters_count_rows_within_their_split(tmp_path: Path) -> None:
    corpus = read_world(write_world(tmp_path / "world", "csv.gz"))
    assert contents(corpus)["filters"][-1] == (60 + FILTERS["test"][1][0], FILTERS["test"][1][1])


def test_a_long_cell_does_not_hide_the_line_that_is_no_utf_8(tmp_path: Path) -> None:
    """Cells have no limit of a line's bytes."""
    long = "a" * (ReadOptions.block_bytes + ReadOptions.max_line_bytes)
    (tmp_path / "train.csv").write_bytes(f"text,labels\n{long},x\ncaf".encode() + b"\xe9,y\n")
    with pytest.raises(DataError) as failed:
        read_world(tmp_path)
    assert failed.value.found.startswith("the byte 0xe9") and failed.value.where == "train.csv, line 3"


def test_the_search_for_the_line_that_is_no_utf_8_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may decompress to a line of any length."""
    monkeypatch.setattr("xc_core.data.formats.tables.LONGEST", 1 << 10)
    (tmp_path / "train.csv").write_bytes(b"text,labels\ncaf\xe9" + b"a" * (2 * ReadOptions.block_bytes))
    with pytest.raises(DataError, match="a line of") as failed:
        read_world(tmp_path)
    assert failed.value.where == "train.csv, line 2"


def test_a_gzipped_parquet_is_not_a_table(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world", "parquet")
    (folder / "train.parquet").rename(folder / "train.parquet.gz")
    with pytest.raises(MissingError, match=r"train\.parquet, or train\.csv, \.tsv"):
        read_world(folder)


def test_a_row_group_is_not_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet often has one group of a million rows; only pages of it may be in memory."""
    monkeypatch.setattr(tables, "_BUFFER", 1 << 16)
    monkeypatch.setattr(tables, "_ROWS", 16)
    table = pa.table({"text": [f"{i} " * 2_000 for i in range(1_000)], "labels": [["a"]] * 1_000})
    pages = {"data_page_size": 1 << 14, "write_batch_size": 16, "use_dictionary": False}
    pq.write_table(table, tmp_path / "train.parquet", compression="none", **pages)
    size = table.nbytes
    del table
    before = pa.total_allocated_bytes()
    rows = tabular.Tabular(tmp_path, ReadOptions()).documents("train")
    held = [pa.total_allocated_bytes() - before for _ in rows]
    assert len(held) == 63 and max(held) < size / 4, f"{max(held)} of {size} bytes at once"


def test_two_numbers_per_row_are_labels_and_three_zeros_and_ones_are_none() -> None:
    """Labels 0 and 1 of a row are two labels; a third number of these would repeat one."""
    assert not _are_indicators([[0, 1], [1, 0]])
    assert not _are_indicators([[0, 1, 2], [0, 1, 1]])
    assert _are_indicators([[0, 1, 1], [1, 0, 0]])


LINE = '{"uid": "d%d", "text": "%s", "labels": %s}'


@pytest.mark.parametrize("break_", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_lines_of_json_need_no_field_that_may_be_missing(tmp_path: Path, start: str, break_: str) -> None:
    """A byte order mark, line breaks of Windows and a missing last line break do not matter."""
    (tmp_path / "world").mkdir()
    rows = [LINE % (row, "a castle", '["A;B", 3]') for row in range(18)]
    rows += [
        '{"uid": 18, "title": "狗 🐕", "labels": "C ; B", "more": [{}]}',
        '{"labels": ["C"], "content": "x", "uid": 7}',
    ]
    (tmp_path / "world" / "train.jsonl").write_bytes((start + break_.join(rows)).encode())
    (tmp_path / "world" / "test.ndjson").write_text(LINE % (99, "a moat", '["C"]'))
    with pytest.raises(DataError, match="line 19: found a title, but none in the first line"):
        read_world(tmp_path / "world")
    rows[18:] = [row.replace("title", "text").replace('"content"', '"text": null, "content"') for row in rows[18:]]
    (tmp_path / "world" / "train.jsonl").write_bytes((start + break_.join(rows)).encode())
    corpus = read_world(tmp_path / "world")
    found = {row[0]: row[1:3] for row in contents(corpus)["documents"]}
    assert found["d0"] == ("a castle", "") and found["18"] == ("狗 🐕", "") and found["7"] == ("", "x")
    assert [row[0] for row in contents(corpus)["labels"]] == ["3", "A;B", "B", "C"]


@pytest.mark.parametrize(("uids", "labels"), [([5, 6], {"5": "five", "6": "six"}), ([1, 0], {"1": "five", "0": "six"})])
def test_numbers_in_lines_of_json_are_uids_if_the_uids_of_labels_are_numbers(
    tmp_path: Path, uids: list[int], labels: dict[str, str]
) -> None:
    (tmp_path / "world").mkdir()
    rows = [LINE % (row, "words", [uids[row % 2]]) for row in range(20)]
    (tmp_path / "world" / "train.jsonl").write_text("\n".join(rows[:18]))
    (tmp_path / "world" / "test.jsonl").write_text("\n".join(rows[18:]))
    texts = [json.dumps({"uid": uid, "text": text}) for uid, text in zip(uids, ("five", "six"), strict=True)]
    (tmp_path / "world" / "labels.jsonl").write_text("\n".join(texts))
    found = contents(read_world(tmp_path / "world"))
    assert dict(row[:2] for row in found["labels"]) == labels
    first = found["documents"][0][0]
    assert found["labels"][found["pairs"][0][1]][0] == str(uids[int(first[1:]) % 2])


def sharded(folder: Path, split: str, size: int, hashes: Sequence[str] = ("",)) -> None:
    table = pq.read_table(folder / f"{split}.parquet")
    for number, start in enumerate(range(0, len(table), size)):
        total = f"{-(-len(table) // size):05}{hashes[number % len(hashes)]}"
        pq.write_table(table.slice(start, size), folder / f"{split}-{number:05}-of-{total}.parquet")
    (folder / f"{split}.parquet").unlink()


def test_shards_are_one_table(tmp_path: Path) -> None:
    whole, folder = (write_world(tmp_path / name, "parquet") for name in ("whole", "shards"))
    sharded(folder, "train", 6)
    sharded(folder, "test", 12)
    assert contents(read_world(folder)) == contents(read_world(whole))
    (whole / "test.parquet").unlink()
    (folder / "test-00000-of-00001.parquet").unlink()
    cut = {"filters": "none", "test_fraction": 0.3}
    assert contents(read_world(folder, **cut)) == contents(read_world(whole, **cut))
    put = {"text": [""], "uid": ["x"], "labels": [[1]]}
    pq.write_table(pa.table(put), folder / "train-00003-of-00010.parquet")
    with pytest.raises(DataError, match=r"train-00003-of-00010\.parquet, row 1: found an empty text"):
        read_world(folder, **cut)


def test_a_shard_may_have_a_hash_in_its_name(tmp_path: Path) -> None:
    """`datasets` writes one; it may be another one for each shard, and says nothing of their order."""
    whole, folder = (write_world(tmp_path / name, "parquet") for name in ("whole", "shards"))
    sharded(folder, "train", 6, ("-f3a1b2c3d4e5f607", "-0a1b2c3d4e5f6071"))
    sharded(folder, "test", 12, ("-abc12",))
    assert contents(read_world(folder)) == contents(read_world(whole))
    shutil.copy(folder / "train-00000-of-00010-f3a1b2c3d4e5f607.parquet", folder / "train-00000-of-00010-abc.parquet")
    with pytest.raises(DataError, match=r"11 shards\n  expected: one table named train: 10 files \.parquet"):
        read_world(folder)


LAST = "train-00009-of-00010"


@pytest.mark.parametrize(("spoil", "found"), [
    (lambda folder: (folder / "train-00003-of-00010.parquet").unlink(), f"{LAST}.parquet, 9 shards"),
    (lambda folder: (folder / f"{LAST}.parquet").unlink(), "train-00008-of-00010.parquet, 9 shards"),
    (lambda folder: (folder / f"{LAST}.parquet").rename(folder / "train-00010-of-00010.parquet"), "10 shards"),
    (lambda folder: (folder / f"{LAST}.parquet").rename(folder / f"{LAST}.csv"), f"{LAST}.csv, 10 shards"),
    (lambda folder: (folder / "train.csv").write_text("text,labels"), "train.csv and train-00000-of-00010.parquet and"),
])  # fmt: skip
def test_a_table_with_a_shard_missing_is_refused(tmp_path: Path, spoil: Any, found: str) -> None:
    folder = write_world(tmp_path / "shards", "parquet")
    sharded(folder, "train", 6)
    spoil(folder)
    with pytest.raises(DataError, match=found) as caught:
        read_world(folder)
    assert caught.value.expected == "one table named train: 10 files .parquet, numbered from 0"
