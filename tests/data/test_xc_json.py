"""XC JSON: valid variants of a line give the same result in every block; the error names the one wrong line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import write_json
from tests.data.spoil import drop_key, put, put_json
from tests.data.worlds import contents, facts_of, read_world, small_world, write_world
from xc_core.data.formats import ReadOptions, xc_json
from xc_core.data.formats.json_rows import object_of
from xc_core.data.formats.xc_json import XCJson
from xc_core.data.ingest import IngestConfig
from xc_core.errors import DataError

LINES = [(1, 60), (30, 60), (1, 1), (60, 60)]


def expected() -> dict[str, list[tuple[Any, ...]]]:
    """Return what the corpus of the unchanged world contains, without filters."""
    world = small_world()
    return {"pairs": [(d, x) for d, row in enumerate(world.train + world.test) for x in row["target_ind"]]}


@pytest.mark.parametrize("spelling", [
    {"target_rel": None}, {"content": None}, {"extra": [{"a": 1}], "more": 2}, {"more": "of another type"},
    {"target_rel": [1, 1]}, {"target_rel": [0.1, 7.5]},
])  # fmt: skip
@pytest.mark.parametrize("lines", LINES)
def test_valid_variants_of_some_lines_change_nothing(
    tmp_path: Path, lines: tuple[int, int], spelling: dict[str, Any]
) -> None:
    """It does not matter whether one line or all lines vary, although a block is parsed at once."""
    folder = write_world(tmp_path / "world")
    for line in range(lines[0], lines[1] + 1):
        row = json.loads((folder / "trn.json").read_bytes().split(b"\n")[line - 1])
        relevance = spelling.get("target_rel")
        fitting = spelling | ({"target_rel": relevance[: len(row["target_ind"])]} if relevance else {})
        put_json(folder / "trn.json", line, **fitting)
    assert contents(read_world(folder))["pairs"] == expected()["pairs"]


def test_a_field_that_is_not_read_may_have_another_type_in_each_line(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    for line, value in ((1, 2), (2, "two"), (3, [{"a": 1}]), (4, {"a": [1]})):
        put_json(folder / "trn.json", line, more=value)
    assert contents(read_world(folder))["pairs"] == expected()["pairs"]


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("keys", [("target_rel",), ("content",), ("target_rel", "content")])
def test_fields_that_may_be_absent_may_be_absent_in_some_lines(
    tmp_path: Path, lines: tuple[int, int], keys: tuple[str, ...]
) -> None:
    folder = write_world(tmp_path / "world")
    for line in range(lines[0], lines[1] + 1):
        drop_key(folder / "trn.json", line, *keys)
    assert contents(read_world(folder))["pairs"] == expected()["pairs"]


def test_a_relevance_is_checked_in_its_row_if_other_rows_have_none(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    for line in (*range(1, 40), *range(41, 61)):
        drop_key(folder / "trn.json", line, "target_rel")
    put_json(folder / "trn.json", 40, target_ind=[1, 2], target_rel=[1.0, 0.0])
    with pytest.raises(DataError, match=r"trn\.json, line 40: found the relevance 0 of the label 2"):
        read_world(folder)


@pytest.mark.parametrize("bad", [1, 2, 31, 59, 60])
@pytest.mark.parametrize("block_bytes", [200, 5_000, 1 << 22])
def test_the_bad_line_is_named_among_many(
    tmp_path: Path, bad: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IngestConfig, "read_options", lambda self: ReadOptions(block_bytes=block_bytes))
    folder = write_world(tmp_path / "world")
    drop_key(folder / "trn.json", min(bad + 1, 60), "target_rel")  # unusual, but right
    put_json(folder / "trn.json", bad, target_ind="3")
    with pytest.raises(DataError, match=rf'trn\.json, line {bad}: found target_ind "3"'):
        read_world(folder)


def test_the_first_of_several_bad_lines_is_named(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    for line in (50, 22, 41):
        put(folder / "trn.json", line, b"{")
    with pytest.raises(DataError, match=r"trn\.json, line 22: "):
        read_world(folder)


def test_a_last_line_that_is_no_object_is_not_given_to_pyarrow() -> None:
    """A line that is null would end the process."""
    assert xc_json._rows(b'{"a": {}}\n{}\n') == 2
    assert xc_json._rows(b'{"a": {}}\nnull\n') is None


def test_the_time_to_explain_a_line_does_not_grow_with_the_square_of_its_keys() -> None:
    line = json.dumps(dict.fromkeys(map(str, range(40_000)), 0))
    started = time.process_time()
    assert len(object_of(line)) == 40_000
    assert time.process_time() - started < 5, "a second at most; each key was compared with all others"
    assert "the key '7' twice" in object_of(line.replace('"8"', '"7"'))[0]


def test_a_label_matrix_that_agrees_with_the_json_is_accepted(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    (folder / "trn_X_Y.txt").write_text("60 10\n0:1.0 1:1.0\nwhatever follows is not read\n")
    (folder / "tst_X_Y.txt").write_text("12 10 \r\n")
    corpus = read_world(folder)
    assert contents(corpus)["pairs"] == expected()["pairs"]
    assert "trn_X_Y.txt" in facts_of(corpus)["source"]


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029"), max_size=20)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(TEXT, TEXT, st.lists(st.integers(-(2**40), 2**40), max_size=5)), min_size=1, max_size=12),
    st.booleans(),
    st.integers(60, 400),
)
def test_what_json_writes_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, list[int]]],
    ascii_only: bool,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("json")
    objects = [{"uid": str(i), "title": t, "content": c, "target_ind": x} for i, (t, c, x) in enumerate(rows)]
    lines = [json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in objects]
    for stem in ("trn", "tst", "lbl"):
        (folder / f"{stem}.json").write_bytes("".join(lines).encode())
    found = []
    for block in XCJson(folder, ReadOptions(block_bytes=block_bytes)).documents("train"):
        ends = block.label_counts.cumsum()
        ids = [block.label_ids[end - n : end].tolist() for end, n in zip(ends, block.label_counts, strict=True)]
        found += list(zip(block.titles, block.contents, ids, strict=True))
    assert found == [(title, content, targets) for title, content, targets in rows]


VALUES = ["1", "-0", "1.5", "1e3", "1e999", "01", "+1", "NaN", "Infinity", "null", "true", "[]", "{}", "[1]", '"1"',
          '""', '"a"', '"\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\u00e4 ö"', '"\\n"', '"\\x"', '"a\tb"',
          "9" * 19, "9" * 25, "[1, 2]", "[1,2,]", "[1, null]", "[1.0]", "[1.0, 2]", "['1']", "", '"a',
          "[4611686018427387904]", "[4611686018427387903, 0]"]  # fmt: skip
GOOD = {"uid": '"a"', "title": '"t"', "content": '"c"', "target_ind": "[1, 2]", "target_rel": "[1.0, 0.5]"}
UNREAD = ("more", "uid ")
PART = st.tuples(st.sampled_from([*GOOD, "group", "near_duplicate_of"]), st.sampled_from(VALUES)) | st.tuples(
    st.sampled_from(UNREAD), st.sampled_from([value for value in VALUES if value not in ("NaN", "Infinity", "1e999")])
)
"""A field that is not read may be NaN, but not a number that is too large for a float, which Python takes."""
FORMS = [
    '{"uid": "a", "title": "t", "target_ind": [1]} ', ' {"uid": "a", "title": "t", "target_ind": []}\r', "{}", "null",
    "", " ", "{", "}", '{"uid": "a", "title": "t", "target_ind": [1]}{"uid": "b", "title": "t", "target_ind": [1]}',
    '{"uid": "a", "title": "t", "target_ind": [1]} null',
    '{"uid": "a", "uid": "b", "title": "t", "target_ind": [1]}', '{"uid": "a", "title": "}", "target_ind": [1]}',
]  # fmt: skip


@st.composite
def json_lines(draw: st.DrawFn) -> str:
    """Return a line: often right, or with a few fields that have another value, are new, or are away."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(FORMS))
    fields = dict(GOOD) | dict(draw(st.lists(PART, max_size=2)))
    for key in draw(st.lists(st.sampled_from([*GOOD]), max_size=1)):
        fields.pop(key)
    comma, colon = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,\t", " : ")]))
    return "{" + comma.join(f'"{key}"{colon}{value}' for key, value in fields.items()) + "}"


def naive(line: str) -> tuple[Any, ...] | None:
    """Return uid, title, content, targets and relevance of a line as Python's parser reads it; None if it is wrong."""
    row = object_of(line)
    if not isinstance(row, dict) or not isinstance(row.get("uid"), str):
        return None
    title, content, targets = row.get("title"), row.get("content"), row.get("target_ind")
    names = [title, content, row.get("group"), row.get("near_duplicate_of")]
    if not all(isinstance(name, str | None) for name in names) or (title is None and content is None):
        return None
    if not isinstance(targets, list) or any(
        type(target) is not int or not -(2**63) <= target < 2**63 for target in targets
    ):
        return None
    relevance = row.get("target_rel", None)
    if relevance is None:
        return row["uid"], title or "", content or "", targets, [1.0] * len(targets)
    if not isinstance(relevance, list) or len(relevance) != len(targets):
        return None
    if any(type(value) not in (int, float) for value in relevance):
        return None
    return row["uid"], title or "", content or "", targets, [float(value) for value in relevance]


@settings(deadline=None, max_examples=400)
@given(st.lists(json_lines(), min_size=1, max_size=6), st.integers(1, 500))
def test_blocks_are_read_as_python_reads_each_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block_bytes: int
) -> None:
    """Valid or not: every line before the first wrong one has the values of Python's parser, and the error names it."""
    folder = tmp_path_factory.mktemp("json")
    for stem in ("trn", "tst", "lbl"):
        (folder / f"{stem}.json").write_text("\n".join(lines) + "\n", "utf-8", newline="")
    rows = [naive(line) for line in lines]
    wrong = rows.index(None) if None in rows else None
    found: list[tuple[Any, ...]] = []
    try:
        for block in XCJson(folder, ReadOptions(block_bytes=block_bytes)).documents("train"):
            ends = block.label_counts.cumsum()
            assert block.relevance is not None
            parts = [slice(end - n, end) for end, n in zip(ends, block.label_counts, strict=True)]
            numbers = [(block.label_ids[part].tolist(), block.relevance[part].tolist()) for part in parts]
            texts = zip(block.uids, block.titles, block.contents, strict=True)
            found += [(*text, *own) for text, own in zip(texts, numbers, strict=True)]
    except DataError as error:
        assert wrong is not None, f"{error} of a right line"
        assert f"trn.json, line {wrong + 1}:" in str(error)
    else:
        assert wrong is None
        assert found == rows
    assert found == rows[: len(found)]


@pytest.mark.parametrize(("times", "passes", "read"), [
    (["2026-11-30", None], 1, ["2026-11-30", ""]),
    ([None, None], 1, ["", ""]),
    ([3, None], 4, ["3", ""]),  # both as texts, without times, as texts, as numbers
    ([1.0, 2], 5, ["1.0", "2.0"]),
    (["soon", 2], 5, ["soon", "2"]),
])  # fmt: skip
def test_times_that_are_texts_are_read_with_the_other_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[Any], passes: int, read: list[str]
) -> None:
    """Each block was parsed twice."""
    tables, found = [], xc_json._table
    monkeypatch.setattr(xc_json, "_table", lambda *given: tables.append(found(*given)) or tables[-1])
    write_json(tmp_path / "lbl.json", [{"uid": "L", "title": "label", "content": ""}])
    rows = [{"uid": f"D{i}", "title": "text", "content": "", "target_ind": [0]} for i in range(len(times))]
    write_json(tmp_path / "trn.json", [row | {"time": time} for row, time in zip(rows, times, strict=True)])
    write_json(tmp_path / "tst.json", [])
    (block,) = XCJson(tmp_path, ReadOptions()).documents("train")
    assert (block.times, len(tables)) == (read, passes)


def test_files_without_the_field_time_have_no_times(tmp_path: Path) -> None:
    write_json(tmp_path / "lbl.json", [{"uid": "L", "title": "label", "content": ""}])
    write_json(tmp_path / "trn.json", [{"uid": "D", "title": "text", "content": "", "target_ind": [0]}])
    write_json(tmp_path / "tst.json", [])
    (block,) = XCJson(tmp_path, ReadOptions()).documents("train")
    assert block.times is None
