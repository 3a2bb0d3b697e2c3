"""JSON lines as tables: a file is read in parts, whose rows need not have the same fields."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from xc_core.data.formats import ReadOptions, tabular
from xc_core.data.formats.tables import column_type
from xc_core.errors import DataError
from xc_core.progress import listen, silence


@pytest.mark.parametrize(("first", "later"), [("text", "title"), ("content", "title"), ("content", "text")])
def test_a_field_that_would_move_the_texts_of_earlier_parts_is_refused(tmp_path: Path, first: str, later: str) -> None:
    """A single content is the title of a document; beside a title it is the content. Parts must not differ in this."""
    rows = [{first: "words " * 9, "labels": ["a"]} for _ in range(4)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in [*rows, rows[0] | {later: "x"}]))
    (tmp_path / "test.csv").write_text("text,labels\nx,a\n")
    with pytest.raises(DataError, match=f"found a {later}, but none in the first line") as found:
        list(tabular.Tabular(tmp_path, ReadOptions(block_bytes=80)).documents("train"))
    assert (found.value.where, found.value.expected) == (
        "train.jsonl, line 5",
        f"a {later} in the first line, or in none",
    )


def test_a_field_of_lines_of_json_that_no_earlier_part_has_is_read(tmp_path: Path) -> None:
    rows = [{"text": "words " * 9, "labels": ["a"]} for _ in range(4)]
    rows.append(rows[0] | {"content": "more", "group": 7})
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "test.csv").write_text("text,labels\nx,a\n")
    *_, last = tabular.Tabular(tmp_path, ReadOptions(block_bytes=80)).documents("train")
    assert (last.uids, last.contents, last.groups) == (["train-5"], ["more"], ["7"])


@pytest.mark.parametrize("size", [80, 200])
@pytest.mark.parametrize("more", [[{"uid": "x"}], [{}, {}, {"uid": "x"}]])
def test_a_uid_in_some_lines_only_is_refused_in_each_part(
    tmp_path: Path, more: list[dict[str, str]], size: int
) -> None:
    rows = [{"text": "words " * 9, "labels": ["a"]} for _ in range(4)]
    rows += [rows[0] | field for field in more]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match="found a uid, but none in the first line") as found:
        list(tabular.Tabular(tmp_path, ReadOptions(block_bytes=size)).documents("train"))
    assert found.value.where == f"train.jsonl, line {len(rows)}"


def test_lists_in_lines_of_json_are_never_cut(tmp_path: Path) -> None:
    """So no separator is proposed: names with commas are common."""
    lines: list[str] = []
    for cells, proposes in ((["a, b", "a, c", "b, c"], False), ("a, b;a, c;b, c", True)):
        (tmp_path / "train.jsonl").write_text("\n".join([json.dumps({"text": "words", "labels": cells})] * 20))
        listen(lines.append)
        try:
            (block,) = tabular.Tabular(tmp_path, ReadOptions()).labels()
        finally:
            silence()
        assert block.uids == ["a, b", "a, c", "b, c"]
        assert any("--label-separator" in line for line in lines) is proposes
        assert column_type(tmp_path / "train.jsonl", "labels") == (pa.string() if proposes else pa.list_(pa.string()))


@pytest.mark.parametrize(("value", "number"), [("5", True), ("true", False), ("5.0", False), ('"5"', False)])
def test_uids_of_labels_in_lines_of_json_are_numbers_if_the_first_is_one(
    tmp_path: Path, value: str, number: bool
) -> None:
    (tmp_path / "labels.jsonl").write_text(f'{{"uid": {value}, "text": "x"}}')
    assert pa.types.is_integer(column_type(tmp_path / "labels.jsonl", "uid")) is number


@pytest.mark.parametrize(
    ("number", "do"), [(1, "write each object of the list on a line"), (2, "fix or delete the line")]
)
def test_a_list_is_the_form_of_a_file_if_it_is_the_first_line(tmp_path: Path, number: int, do: str) -> None:
    line = '{"text": "x", "labels": ["a"]}'
    (tmp_path / "train.jsonl").write_text("\n".join([*[line] * (number - 1), f"[{line}]"]))
    with pytest.raises(DataError) as found:
        list(tabular.Tabular(tmp_path, ReadOptions()).documents("train"))
    assert found.value.where == f"train.jsonl, line {number}" and found.value.do.startswith(do)


@pytest.mark.parametrize("later", ["{}", '{"text": "x", "labels": ["a"]}'])
def test_a_first_line_without_fields_is_named(tmp_path: Path, later: str) -> None:
    """The columns were named, of which there are none, or the next line was to be deleted."""
    (tmp_path / "train.jsonl").write_text("{}\n" + later)
    for rows in (tabular.Tabular.labels, lambda source: source.documents("train")):
        with pytest.raises(DataError, match=r"train\.jsonl, line 1: found an object without fields"):
            list(rows(tabular.Tabular(tmp_path, ReadOptions())))


def test_labels_that_are_added_to_lines_of_json_with_whole_numbers_are_numbers_too(tmp_path: Path) -> None:
    """As texts they would be taken for row numbers by the documents that have them."""
    (tmp_path / "labels.jsonl").write_text('{"uid": 5, "text": "five"}\n{"uid": 6, "text": "six"}\n')
    labels = pl.DataFrame({"uid": ["5", "6", "9"], "title": ["five", "six", "nine"], "content": ["", "", ""]})
    tabular.add_labels(tmp_path, labels, 1)
    assert not (tmp_path / "labels.jsonl").exists()
    assert pl.read_parquet(tmp_path / "labels.parquet", glob=False)["uid"].to_list() == [5, 6, 9]


@pytest.mark.parametrize(
    ("ending", "row", "stay"), [("jsonl", '{"text": "x", "labels": ["a"]}', False), ("csv", "x,a", True)]
)
def test_documents_in_lines_of_json_may_have_numbers_so_they_are_read_again(
    tmp_path: Path, ending: str, row: str, stay: bool
) -> None:
    """What a number means depends on the table of labels, and any line of JSON may have one."""
    header = "text,labels\n" if ending == "csv" else ""
    for split in ("train", "test"):
        (tmp_path / f"{split}.{ending}").write_text(f"{header}{row}\n")
    assert tabular.Tabular(tmp_path, ReadOptions()).documents_stay is stay
