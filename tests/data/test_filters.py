"""Filter pairs derived from uids equal a naive implementation, on random worlds of items that are also labels."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.worlds import contents, facts_of, read_world, small_world, write_world
from xc_core.data import corpus as schema
from xc_core.data.filters import generated_pairs, given_pairs
from xc_core.data.formats import ReadOptions
from xc_core.errors import DataError

ITEMS = "ABCDEFGH"


def naive_pairs(
    documents: list[tuple[str, str]], labels: list[str], pairs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return with sets what is left out: an item for itself, and the mirror of a train pair."""
    place = {uid: label for label, uid in enumerate(labels)}
    found = {(doc, place[uid]) for doc, (uid, _) in enumerate(documents) if uid in place}
    seen = {(documents[doc][0], labels[label]) for doc, label in pairs if documents[doc][1] != "test"}
    for doc, (uid, _) in enumerate(documents):
        found |= {(doc, place[a]) for a, b in seen if b == uid and a in place}
    return sorted(found)


@st.composite
def item_worlds(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[str], list[tuple[int, int]]]:
    """Draw documents (uid, split), train before test, label uids of the same alphabet, and pairs."""
    uids = draw(st.lists(st.sampled_from(ITEMS), unique=True, min_size=1))
    tests = draw(st.integers(0, len(uids)))
    splits = [draw(st.sampled_from(["train", "validation"])) for _ in uids[tests:]] + ["test"] * tests
    labels = draw(st.lists(st.sampled_from(ITEMS), unique=True, min_size=1))
    every = [(doc, label) for doc in range(len(uids)) for label in range(len(labels))]
    return list(zip(uids, splits, strict=True)), labels, sorted(draw(st.sets(st.sampled_from(every))))


def write_tables(
    folder: Path, documents: list[tuple[str, str]], labels: list[str], pairs: list[tuple[int, int]]
) -> None:
    rows: dict[str, tuple[pa.Schema, list[dict[str, Any]]]] = {
        "documents": (schema.DOCUMENTS, [{"uid": u, "title": u, "content": "", "split": s} for u, s in documents]),
        "labels": (schema.LABELS, [{"uid": uid, "title": uid, "content": ""} for uid in labels]),
        "pairs": (schema.PAIRS, [{"doc": doc, "label": label} for doc, label in pairs]),
    }
    for name, (columns, table) in rows.items():
        pq.write_table(pa.Table.from_pylist(table, columns), folder / f"{name}.parquet")


@settings(deadline=None, max_examples=60)
@given(item_worlds())
def test_generated_filters_equal_a_naive_implementation(
    world: tuple[list[tuple[str, str]], list[str], list[tuple[int, int]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder), *world)
        assert [tuple(pair) for pair in generated_pairs(Path(folder)).tolist()] == naive_pairs(*world)


def test_an_item_is_left_out_for_itself_and_for_its_mirror_image(tmp_path: Path) -> None:
    """A and B are train items, C is a test item. A -> C and B -> A are train pairs, so C -> A and A -> B are known."""
    world = small_world(3, 2)
    world.labels = [{"uid": uid, "title": f"item {uid}", "content": ""} for uid in "CAB"]
    for row, uid, targets in zip(world.train + world.test, "ABXCY", ([0], [1], [2], [2], [0]), strict=True):
        row |= {"uid": uid, "target_ind": targets, "target_rel": [1.0]}
    corpus = read_world(write_world(tmp_path / "items", world=world), filters="generate")
    c, a, b = 0, 1, 2
    assert contents(corpus)["filters"] == [(0, a), (0, b), (1, b), (3, c), (3, a)]
    assert facts_of(corpus)["filters"] == {"source": "generate", "pairs": 5, "files": []}


def test_the_labels_of_test_items_make_no_filters(tmp_path: Path) -> None:
    """C is a test item: C -> A would make A -> C a filter, and reveal a label of C."""
    world = small_world(3, 2)
    world.labels = [{"uid": uid, "title": f"item {uid}", "content": ""} for uid in "CAB"]
    for row, uid, targets in zip(world.train + world.test, "ABXCY", ([1], [2], [0], [1], [0]), strict=True):
        row |= {"uid": uid, "target_ind": targets, "target_rel": [1.0]}
    corpus = read_world(write_world(tmp_path / "items", world=world), filters="generate")
    assert contents(corpus)["filters"] == [(0, 1), (1, 2), (3, 0)], "each item's own label only"


@pytest.mark.parametrize(
    "line", ["", "3", "3 4 5", "3,4", "-1 2", "1.0 2", "1 -2", "a b", "1" * 30 + " 2", "٣ ٤", " 3 4"]
)
def test_a_line_that_is_no_pair_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "filter.txt"
    path.write_text(f"0 0\n{line}\n", "utf-8")
    with pytest.raises(DataError, match=r"filter\.txt, line 2: "):
        given_pairs(path, first_row=0, rows=9, labels=9, options=ReadOptions())


@pytest.mark.parametrize("block_bytes", [40, 1 << 20])
def test_given_pairs_are_those_of_a_loop(tmp_path: Path, block_bytes: int) -> None:
    """With spaces and tabs, Windows' line ends, leading zeros, and pairs that are repeated."""
    random = Random(0)
    pairs = [(random.randrange(30), random.randrange(20)) for _ in range(400)]
    ends = ["\n", "\r\n", " \n", "\t\r\n", "\f\n", "\v\r\r\n"]
    text = "".join(
        f"{'0' * random.randrange(3)}{document}{random.choice([' ', chr(9), '  '])}{label}{random.choice(ends)}"
        for document, label in pairs
    )
    (tmp_path / "filter.txt").write_bytes(text.removesuffix("\n").encode())
    options = ReadOptions(block_bytes=block_bytes)
    found = given_pairs(tmp_path / "filter.txt", first_row=7, rows=30, labels=20, options=options)
    assert [tuple(pair) for pair in found.tolist()] == sorted({(7 + document, label) for document, label in pairs})


@pytest.mark.parametrize(("line", "found"), [("1", "the line '1'"), ("", "an empty line"), (f"{10**17} 2", "document")])
def test_the_first_wrong_line_of_a_file_of_many_blocks_is_named(tmp_path: Path, line: str, found: str) -> None:
    lines = ["1 2"] * 80
    lines[36], lines[70] = line, "?"
    (tmp_path / "filter.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"filter\.txt, line 37: ") as refused:
        given_pairs(tmp_path / "filter.txt", first_row=0, rows=9, labels=9, options=ReadOptions(block_bytes=64))
    assert found in str(refused.value)


def test_an_empty_filter_file_is_no_filter(tmp_path: Path) -> None:
    (tmp_path / "filter.txt").write_text("")
    pairs = given_pairs(tmp_path / "filter.txt", first_row=5, rows=9, labels=9, options=ReadOptions())
    assert pairs.shape == (0, 2)
