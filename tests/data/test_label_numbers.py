"""Whole numbers in the column labels beside a labels table: uids if its uids are whole numbers, otherwise its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.conftest import write_json
from tests.data.worlds import read_world
from xc_core.data.corpus import Corpus
from xc_core.data.formats import columns, tabular
from xc_core.errors import DataError


def world(folder: Path, uids: list[Any], labels: list[list[Any]]) -> Path:
    folder.mkdir()
    pl.DataFrame({"uid": uids, "text": [f"label {uid}" for uid in uids]}).write_parquet(folder / "labels.parquet")
    for split in ("train", "test"):
        texts = [f"{split} text {number}" for number in range(len(labels))]
        rows = {"uid": [f"{split}{number}" for number in range(len(labels))], "text": texts, "labels": labels}
        pl.DataFrame(rows).write_parquet(folder / f"{split}.parquet")
    return folder


def named(corpus: Corpus) -> list[str]:
    """Return the uid of the label of each train document."""
    uids, rows = corpus.table("labels")["uid"].to_list(), corpus.labels.rows(corpus.published_rows())
    return [uids[label] for label in rows.indices.tolist()]


def test_whole_numbers_are_uids_if_the_uids_are_whole_numbers(tmp_path: Path) -> None:
    """A shuffled table of numbered labels would otherwise give every document another label, without a word."""
    corpus = read_world(world(tmp_path / "raw", [2, 0, 1], [[0], [1], [2]]))
    assert named(corpus) == ["0", "1", "2"]


def test_whole_numbers_are_rows_beside_uids_that_are_names(tmp_path: Path) -> None:
    assert named(read_world(world(tmp_path / "raw", ["c", "a", "b"], [[0], [1], [2]]))) == ["c", "a", "b"]
    assert named(read_world(world(tmp_path / "more", ["0", "1", "2"], [[0], [1], [2]]))) == ["0", "1", "2"]


def test_names_are_uids_whatever_they_look_like(tmp_path: Path) -> None:
    for folder, uids in (("whole", [2, 0, 1]), ("texts", ["2", "0", "1"])):
        assert named(read_world(world(tmp_path / folder, uids, [["0"], ["1"], ["2"]]))) == ["0", "1", "2"]


def test_numbers_that_can_be_read_in_two_ways_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="uids of labels that are numbers"):
        read_world(world(tmp_path / "raw", ["2", "0", "1"], [[0], [1], [2]]))


@pytest.mark.parametrize("uids", [["c", 0, "b"], [0, "c", 1]])
def test_whole_numbers_beside_uids_of_both_kinds_are_refused(tmp_path: Path, uids: list[Any]) -> None:
    """The first line decided whether they were rows or uids."""
    folder = world(tmp_path / "raw", ["a", "b", "c"], [[0], [1], [2]])
    (folder / "labels.parquet").unlink()
    write_json(folder / "labels.jsonl", [{"uid": uid, "text": f"label {uid}"} for uid in uids])
    with pytest.raises(DataError, match="some uids of labels that are texts, and some that are whole numbers"):
        read_world(folder)
    named_by_texts = pl.DataFrame({"uid": ["d"], "text": ["train text"], "labels": [["c", "0"]]})
    for split in ("train", "test"):
        named_by_texts.with_columns(uid=pl.lit(split)).write_parquet(folder / f"{split}.parquet")
    assert read_world(folder, allow=["unseen-labels", "shared-texts"]).num_labels == 3


def test_the_kinds_of_uids_are_read_once_for_all_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = world(tmp_path / "raw", ["b", "a"], [[0], [1]]), list[Path]()
    (folder / "labels.parquet").unlink()
    write_json(folder / "labels.jsonl", [{"uid": uid, "text": f"label {uid}"} for uid in ("b", "a")])
    are_rows = columns.are_rows

    def counted(labels: Path, ids: dict[str, int]) -> bool:
        asked.append(labels)
        return are_rows(labels, ids)

    monkeypatch.setattr(columns, "are_rows", counted)
    assert named(read_world(folder)) == ["b", "a"]
    assert asked == [folder / "labels.jsonl"]


@pytest.mark.parametrize(("labels", "fits"), [([[5], [6]], False), ([["5"], ["6"]], True)])
def test_a_text_as_the_uid_of_an_added_label_beside_whole_numbers(
    tmp_path: Path, labels: list[list[Any]], fits: bool
) -> None:
    """The numbers of the documents were row numbers then, so the command spoke of documents that differ."""
    folder = world(tmp_path / "raw", [5, 6], labels)
    added = pl.DataFrame({"uid": ["5", "6", "new"], "title": ["five", "six", "new"], "content": ["", "", ""]})
    if fits:
        tabular.add_labels(folder, added, 1)
        assert pl.read_parquet(folder / "labels.parquet", glob=False)["uid"].to_list() == ["5", "6", "new"]
        return
    with pytest.raises(DataError, match="the uid 'new' beside uids of labels that are whole numbers"):
        tabular.add_labels(folder, added, 1)
    assert pl.read_parquet(folder / "labels.parquet", glob=False)["uid"].to_list() == [5, 6], "nothing has changed"
