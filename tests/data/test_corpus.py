"""The reader of a corpus: splits, matrices, texts and tables equal the ingested rows; damage is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import ToyWorld
from tests.data.worlds import FILTERS, contents, read_world, small_world, write_world
from xc_core.data.corpus import Corpus
from xc_core.errors import ConfigError, CorruptError, MissingError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return read_world(write_world(tmp_path_factory.mktemp("corpus") / "world"), validation_fraction=0.3)


def test_splits_share_the_rows_without_overlap(corpus: Corpus) -> None:
    rows = {split: corpus.rows(split).tolist() for split in ("train", "validation", "test")}
    assert sorted(rows["train"] + rows["validation"]) == list(range(60)) and rows["test"] == list(range(60, 72))
    names = [row[3] for row in contents(corpus)["documents"]]
    assert all(names[row] == split for split, found in rows.items() for row in found)


def test_an_unknown_split_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="split 'dev'"):
        corpus.rows("dev")


def test_labels_and_filters_are_matrices_over_all_documents(corpus: Corpus) -> None:
    world = small_world()
    assert [corpus.labels.row(doc).tolist() for doc in range(72)] == [r["target_ind"] for r in world.train + world.test]
    expected = {*FILTERS["train"], *((60 + doc, label) for doc, label in FILTERS["test"])}
    docs, labels = corpus.filters.pairs()
    assert set(zip(docs.tolist(), labels.tolist(), strict=True)) == expected
    assert corpus.filters.shape == corpus.labels.shape == (72, 10)


@pytest.mark.parametrize("fields", [("title", "content"), ("title",), ("content", "title")])
@pytest.mark.parametrize("side", ["documents", "labels"])
def test_texts_join_the_fields_that_are_not_empty(
    tmp_path: Path, toy: ToyWorld, side: str, fields: tuple[str, ...]
) -> None:
    toy.labels[3]["content"] = ""
    toy.labels[4]["title"] = ""
    folder = toy.write(tmp_path / "toy")
    rows = toy.labels if side == "labels" else toy.train + toy.test
    expected = [" ".join(row[name] for name in fields if row[name]) for row in rows]
    assert [text for block in read_world(folder, fields=fields).texts(side) for text in block] == expected


def test_the_mean_characters_are_those_of_all_texts(corpus: Corpus) -> None:
    world = small_world()
    for side, rows in (("documents", world.train + world.test), ("labels", world.labels)):
        chars = [len(row.get("title") or "") + len(row.get("content") or "") for row in rows]
        assert corpus.mean_chars(side) == pytest.approx(np.mean(chars))


def test_texts_of_are_those_of_the_rows_in_their_order(corpus: Corpus) -> None:
    texts = [text for block in corpus.texts("documents") for text in block]
    for rows in ([], [71], [61, 3, 3, 0, 59]):
        assert corpus.texts_of("documents", np.array(rows, np.int64)) == [texts[row] for row in rows]


def test_blocks_of_texts_of_some_rows_leave_out_the_others(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xc_core.data.corpus._ROWS_AT_ONCE", 20)
    rows = np.array([0, 3, 4, 60, 61], np.int64)
    expected = corpus.texts_of("documents", rows)
    assert list(corpus.texts("documents", rows=rows)) == [expected[:3], expected[3:]]


def test_each_text_is_that_of_its_row_and_rows_that_do_not_ascend_are_refused(corpus: Corpus) -> None:
    rows = np.array([0, 3, 4, 60, 61], np.int64)
    assert list(corpus.each_text("documents", rows)) == corpus.texts_of("documents", rows)
    assert list(corpus.each_text("labels", rows[:0])) == []
    with pytest.raises(ValueError, match="ascend"):
        next(corpus.each_text("documents", rows[::-1]))
    with pytest.raises(IndexError):
        next(corpus.each_text("documents", np.array([10**6])))


def test_texts_of_have_the_fields_of_the_corpus(tmp_path: Path, toy: ToyWorld) -> None:
    corpus = read_world(toy.write(tmp_path / "toy"), fields=("title",))
    assert corpus.fields == ("title",)
    assert corpus.texts_of("documents", np.array([60, 2])) == [toy.train[60]["title"], toy.train[2]["title"]]
    assert corpus.texts_of("labels", np.array([3])) == [toy.labels[3]["title"]]


def regrouped(corpus: Corpus, folder: Path) -> Corpus:
    """Copy a corpus into row groups of 20 documents."""
    shutil.copytree(corpus.folder, folder)
    pq.write_table(pq.read_table(corpus.folder / "documents.parquet"), folder / "documents.parquet", row_group_size=20)
    return Corpus.unsealed(folder)


def test_texts_of_are_found_in_every_row_group_and_batch(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = [text for block in corpus.texts("documents") for text in block]
    monkeypatch.setattr("xc_core.data.corpus._ROWS_AT_ONCE", 7)
    grouped, rows = regrouped(corpus, tmp_path / "grouped"), np.random.default_rng(0).permutation(len(texts))
    for some in (rows, rows[:9], np.repeat(rows[:5], 3), np.array([19, 20, 71, 0])):
        assert grouped.texts_of("documents", some) == [texts[row] for row in some]
        assert grouped.table("documents", some).equals(corpus.table("documents")[some.tolist()])
        assert grouped.uids(some) == grouped.table("documents", some)["uid"].to_list()


def test_other_row_groups_are_not_read(corpus: Corpus, tmp_path: Path) -> None:
    grouped, path = regrouped(corpus, tmp_path / "grouped"), tmp_path / "grouped" / "documents.parquet"
    groups, content = pq.ParquetFile(path).metadata, bytearray(path.read_bytes())
    for group in (0, 1, 3):  # rows 40 to 59 stay readable
        for column in map(groups.row_group(group).column, range(groups.num_columns)):
            first = column.dictionary_page_offset or column.data_page_offset
            content[first : first + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    rows = np.array([59, 40, 47])
    assert grouped.texts_of("documents", rows) == corpus.texts_of("documents", rows)
    assert grouped.table("documents", rows).equals(corpus.table("documents", rows))
    with pytest.raises(OSError):
        grouped.texts_of("documents", np.array([0]))


@pytest.mark.parametrize("row", [-1, 72])
def test_a_row_that_there_is_not_is_refused(corpus: Corpus, row: int) -> None:
    for read in (corpus.texts_of, corpus.table):
        with pytest.raises(IndexError, match=f"rows {min(row, 3)} to {max(row, 3)} of 72 documents"):
            read("documents", np.array([3, row]))


def test_the_digest_of_the_test_documents_is_that_of_their_uid_text_labels_and_filters(corpus: Corpus) -> None:
    world, digest = small_world(), hashlib.blake2b(digest_size=8)
    uids = [label["uid"] for label in world.labels]
    for at, row in enumerate(world.test):
        filtered = [label for doc, label in FILTERS["test"] if doc == at]
        names = [sorted(uids[label] for label in found) for found in (row["target_ind"], filtered)]
        text = " ".join(part for part in (row["uid"], row["title"], row["content"]) if part)
        digest.update(json.dumps([text, *names]).encode())
    assert corpus.test_digest() == digest.hexdigest()


def test_table_gives_the_rows_asked_for_in_their_order(corpus: Corpus) -> None:
    assert corpus.table("documents", np.array([61, 3, 3]))["uid"].to_list() == ["test-1", "train-3", "train-3"]
    assert corpus.table("documents", np.zeros(0, np.int64)).height == 0
    assert corpus.table("labels").height == 10


def test_the_digest_is_that_of_the_content(corpus: Corpus) -> None:
    assert Corpus.open(corpus.folder).digest == corpus.digest and len(corpus.digest) == 64


def test_a_folder_without_a_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no artefact"):
        Corpus.open(tmp_path)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    corpus = read_world(write_world(tmp_path / "world"))
    data = bytearray((corpus.folder / "pairs.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (corpus.folder / "pairs.parquet").write_bytes(bytes(data))
    with pytest.raises(CorruptError, match=r"pairs\.parquet"):
        Corpus.open(corpus.folder)
