"""Ingest: the same data in every layout gives the same corpus; splits, filters and constants; bounded memory."""

from __future__ import annotations

import gc
import hashlib
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import ToyWorld
from tests.data.worlds import FILTERS, LAYOUTS, contents, facts_of, files_of, read_world, small_world, write_world
from xc_core.data import checks, splits
from xc_core.data.checks import check_block
from xc_core.data.formats import ReadOptions, tables
from xc_core.data.ingest import IngestConfig
from xc_core.data.propensity import PROPENSITY
from xc_core.errors import ConfigError


def expected_contents(world: ToyWorld, fraction: float = 0.1) -> dict[str, list[tuple[Any, ...]]]:
    """Return what a corpus of ``world`` must contain, computed from its rows."""

    def split(uid: str) -> str:
        low = int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=16).digest()[:8], "little")
        return "validation" if low < fraction * 2**64 else "train"

    rows = world.train + world.test
    names = [split(row["uid"]) for row in world.train] + ["test"] * len(world.test)
    first = {"train": 0, "test": len(world.train)}
    return {
        "documents": [(r["uid"], r["title"], r["content"], name) for r, name in zip(rows, names, strict=True)],
        "labels": [(r["uid"], r["title"], r["content"]) for r in world.labels],
        "pairs": [(doc, label) for doc, row in enumerate(rows) for label in row["target_ind"]],
        "filters": [(first[split] + doc, label) for split, pairs in FILTERS.items() for doc, label in pairs],
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reads_the_same_world_into_the_same_corpus(tmp_path: Path, layout: str) -> None:
    corpus = read_world(write_world(tmp_path / "world", layout))
    assert contents(corpus) == expected_contents(small_world())
    name = layout.removesuffix(".gz")
    assert facts_of(corpus)["layout"] == ("tabular" if name in ("parquet", "csv", "tsv", "jsonl") else name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_blocks_give_the_same_corpus(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a block does not matter, neither for texts nor for the matrix rows joined to them."""
    monkeypatch.setattr(IngestConfig, "read_options", lambda self: ReadOptions(block_bytes=257))
    monkeypatch.setattr(tables, "_ROWS", 7)
    assert contents(read_world(write_world(tmp_path / "world", layout))) == expected_contents(small_world())


def test_titles_and_contents_stay_apart(tmp_path: Path, toy: ToyWorld) -> None:
    corpus = read_world(toy.write(tmp_path / "toy"))
    assert contents(corpus)["documents"][0][:3] == ("D0000", toy.train[0]["title"], toy.train[0]["content"])
    assert contents(corpus)["labels"][3] == ("L3", "violin", "violin0 violin1")


def test_facts_count_what_is_there(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    corpus = read_world(folder)
    rows = corpus.facts["rows"]
    assert rows["train"] + rows["validation"] == 60 and rows["test"] == 12
    assert {split: len(corpus.rows(split)) for split in rows} == rows
    assert {split: int(corpus.labels.rows(corpus.rows(split)).counts_N.sum()) for split in rows} == corpus.facts[
        "pairs"
    ]
    assert (corpus.num_documents, corpus.num_labels, corpus.facts["unseen_labels"]) == (72, 10, 0)
    assert facts_of(corpus)["source"]["trn.json"] == {
        "bytes": (folder / "trn.json").stat().st_size,
        "sha256": hashlib.sha256((folder / "trn.json").read_bytes()).hexdigest(),
    }


@pytest.mark.parametrize("name", PROPENSITY.names())
def test_propensity_constants_go_into_the_corpus(tmp_path: Path, name: str) -> None:
    assert read_world(write_world(tmp_path / "world"), propensity=name).propensity == PROPENSITY[name]


def test_published_propensity_constants() -> None:
    assert {name: PROPENSITY[name] for name in PROPENSITY.names()} == {
        "default": (0.55, 1.5),
        "wikipedia": (0.5, 0.4),
        "amazon": (0.6, 2.6),
    }


def test_propensities_come_from_train_and_validation_rows_together(tmp_path: Path) -> None:
    corpus = read_world(write_world(tmp_path / "world"), validation_fraction=0.5)
    published = corpus.published_train()
    assert len(published) == 60
    assert published.frequency_L().tolist() == corpus.labels.rows(np.arange(60)).frequency_L().tolist()


@pytest.mark.parametrize("present", [("train",), ("test",), ()])
def test_a_missing_filter_file_is_an_empty_filter(tmp_path: Path, present: tuple[str, ...]) -> None:
    folder = write_world(tmp_path / "world")
    for split in {"train", "test"} - set(present):
        (folder / f"filter_labels_{split}.txt").unlink()
    facts = facts_of(read_world(folder))["filters"]
    assert facts["pairs"] == sum(len(FILTERS[split]) for split in present)
    assert facts["files"] == [f"filter_labels_{split}.txt" for split in present]


def test_filters_none_reads_no_filter_file(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    (folder / "filter_labels_test.txt").write_text("nonsense\n")
    assert contents(read_world(folder, filters="none"))["filters"] == []


def test_a_filter_pair_given_twice_counts_once_and_order_does_not_matter(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    (folder / "filter_labels_test.txt").write_text("7 9\n0\t2\r\n7 9\n")
    assert contents(read_world(folder)) == expected_contents(small_world())


@pytest.mark.parametrize("layout", ["xc-json", "xc-text", "csv"])
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path, layout: str) -> None:
    folder = write_world(tmp_path / "world", layout)
    for path in folder.iterdir():
        if not path.name.startswith("filter"):
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert contents(read_world(folder)) == expected_contents(small_world())


@pytest.mark.parametrize("layout", ["xc-json", "xc-text", "pecos"])
def test_a_last_line_without_its_newline_is_read(tmp_path: Path, layout: str) -> None:
    folder = write_world(tmp_path / "world", layout)
    for path in folder.iterdir():
        if path.suffix != ".npz":
            path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert contents(read_world(folder)) == expected_contents(small_world())


@pytest.mark.parametrize("layout", ["xc-json", "csv"])
def test_row_order_does_not_decide_who_is_held_out(tmp_path: Path, layout: str) -> None:
    world = small_world()
    before = read_world(write_world(tmp_path / "world", layout, world), validation_fraction=0.3)
    world.train.reverse()
    after = read_world(write_world(tmp_path / "reversed", layout, world), validation_fraction=0.3)
    held_out = [{row[0] for row in contents(c)["documents"] if row[3] == "validation"} for c in (before, after)]
    assert held_out[0] == held_out[1] and 5 < len(held_out[0]) < 40
    assert contents(after)["documents"][0][0] == "train-59"


def test_a_validation_fraction_of_zero_holds_out_nothing(tmp_path: Path) -> None:
    rows = read_world(write_world(tmp_path / "world"), validation_fraction=0.0).facts["rows"]
    assert rows == {"train": 60, "validation": 0, "test": 12}


def test_the_source_folder_is_left_as_it_was(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "world")
    before = files_of(folder)
    read_world(folder)
    assert files_of(folder) == before


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (read_world(write_world(tmp_path / name, "xc-json.gz")) for name in ("a", "b"))
    assert first.digest == second.digest and files_of(first.folder) == files_of(second.folder)


@pytest.mark.parametrize(("settings", "found"), [
    ({"validation_fraction": 1.0}, "validation_fraction 1.0"),
    ({"validation_fraction": float("nan")}, "validation_fraction nan"),
    ({"validation_fraction": -0.1}, "validation_fraction -0.1"),
    ({"test_fraction": 0.0}, "test_fraction 0.0"),
    ({"test_fraction": 1.0}, "test_fraction 1.0"),
    ({"max_line_bytes": 0}, "max_line_bytes 0"),
    ({"label_separator": ""}, "an empty label_separator"),
    ({"fields": ()}, "fields ()"),
    ({"fields": ("title", "text")}, "fields ('title', 'text')"),
    ({"fields": ("title", "title")}, "fields ('title', 'title')"),
    ({"filters": "some"}, "filters 'some'"),
    ({"layout": "xc-jsn"}, "layout 'xc-jsn' (nearest: 'xc-json')"),
    ({"propensity": "amazn"}, "'amazn' (nearest: 'amazon')"),
    ({"allow": ("empty-txt",)}, "allow 'empty-txt' (nearest: 'empty-text')"),
    ({"allow": (3,)}, "allow 3"),
])  # fmt: skip
def test_a_wrong_setting_is_refused(settings: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(found)):
        IngestConfig(**settings)


# streaming


def peak_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the peak memory of Python during an ingest plus that of Arrow at the check of a block."""
    gc.collect()
    before, arrow = pa.total_allocated_bytes(), [0]

    def check(*arguments: Any, **settings: Any) -> None:
        arrow.append(pa.total_allocated_bytes() - before)
        check_block(*arguments, **settings)

    monkeypatch.setattr(checks, "check_block", check)
    tracemalloc.start()
    try:
        read_world(folder)
        return tracemalloc.get_traced_memory()[1] + max(arrow)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("layout", ["xc-json.gz", "xc-text", "csv", "jsonl", "parquet"])
def test_memory_does_not_grow_with_the_number_of_rows(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IngestConfig, "read_options", lambda self: ReadOptions(block_bytes=4096))
    monkeypatch.setattr(tables, "_ROWS", 64)
    monkeypatch.setattr(splits, "_BUFFERED", 256)
    small, large = small_world(1_000), small_world(4_000)
    folders = [write_world(tmp_path / name, layout, world) for name, world in (("small", small), ("large", large))]
    read_world(folders[0])  # imports and caches of the first use are not part of the comparison
    few, many = (min(peak_bytes(folder, monkeypatch) for _ in range(2)) for folder in folders)
    added = sum(len(row["title"]) for row in large.train) - sum(len(row["title"]) for row in small.train)
    assert many - few < added / 3, f"{few} bytes for 1,000 rows, {many} for 4,000"
