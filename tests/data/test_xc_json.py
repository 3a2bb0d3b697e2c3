"""XC JSON: valid variants of a line give the same result in every block; the error names the one wrong line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.spoil import drop_key, put, put_json
from tests.data.worlds import contents, facts_of, read_world, small_world, write_world
from xc_core.data.formats import ReadOptions
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
