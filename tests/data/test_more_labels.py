"""Labels are added to a corpus without reading its documents again: the bytes are those of an ingest of all files."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import write_lines
from tests.data.spoil import put_json
from tests.data.test_split_off import write
from tests.data.worlds import FILTERS, LAYOUTS, small_world, write_filters
from xc_core import artifacts, manifests
from xc_core.data.checks import Allowed, accepted_sentence
from xc_core.data.corpus import Corpus
from xc_core.data.formats import open_source
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.data.more_labels import with_more_labels
from xc_core.errors import DataError

CASES: Final[dict[str, dict[str, Any]]] = {
    "xc-json": {},
    "xc-json.gz": {"split": "family", "acceptance_fraction": 0.2},
    "xc-json with matrices": {},
    "csv": {"split": "group", "filters": "none"},
    "csv.gz": {"filters": "none", "test_fraction": 0.3},
    "xc-json generated": {"filters": "generate"},
}


def made(folder: Path, target: Path, config: IngestConfig, before: Corpus | None = None) -> Corpus:
    with artifacts.building(target, kind=Corpus.kind) as build:
        if before is None:
            ingest(folder, build, config)
        else:
            opened = open_source(folder, config.layout, config.read_options())
            with_more_labels(folder, opened, build, config, before)
    return Corpus.open(target)


def world_of(case: str, folder: Path) -> IngestConfig:
    """Write the files of a case into ``folder`` and return its settings."""
    settings, world = CASES[case], small_world()
    for number, row in enumerate(world.train):
        row["group"] = f"g{number // 2}"
    for row in world.labels:
        row["uid"] = f"b{row['uid']}"
    folder.mkdir()
    if not case.startswith("csv"):
        LAYOUTS[case.split()[0]](world, folder)
        write_filters(folder, FILTERS)
        if case.endswith("matrices"):
            write_lines(folder / "trn_X_Y.txt", [f"{len(world.train)} {len(world.labels)}", "0:1.0 1:1.0"])
            write_lines(folder / "tst_X_Y.txt.gz", [f"{len(world.test)} {len(world.labels)}", "3:1.0"])
    else:
        with_tests = case == "csv"
        for stem, rows in (("train", world.train), ("test", world.test))[: 1 + with_tests]:
            frame = pl.DataFrame({"uid": [row["uid"] for row in rows], "text": [row["title"] for row in rows],
                                  "labels": [";".join(world.labels[i]["uid"] for i in row["target_ind"])
                                             for row in rows]})  # fmt: skip
            if "group" in rows[0]:
                frame = frame.with_columns(group=pl.Series([row["group"] for row in rows]))
            frame.write_csv(folder / f"{stem}.csv")
        if with_tests:
            pl.DataFrame(world.labels).select("uid", "title").write_csv(folder / "labels.csv")
    return IngestConfig(**settings)


def add(raw: Path, config: IngestConfig, before: Corpus, new: pl.DataFrame) -> None:
    """Add labels to the files in ``raw``, whose corpus is ``before``."""
    layout, source = open_source(raw, config.layout, config.read_options())
    assert source.documents_stay
    assert layout.add_labels is not None
    layout.add_labels(raw, pl.concat([before.table("labels"), new]), len(new))


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_are_those_of_an_ingest(case: str, tmp_path: Path) -> None:
    raw, config = tmp_path / "raw", world_of(case, tmp_path / "raw")
    before = made(raw, tmp_path / "before", config)
    new = pl.DataFrame({"uid": ["z1", "a0"], "title": ["meadow", "Tunnel"], "content": ["", "dark"]})
    add(raw, config, before, new)
    config = replace(config, allow=("unseen-labels",))
    quick, full = made(raw, tmp_path / "quick", config, before), made(raw, tmp_path / "full", config)
    assert quick.num_labels == before.num_labels + 2
    assert manifests.read_manifest(quick.folder) == manifests.read_manifest(full.folder)
    facts = dict(artifacts.read_made(quick.folder).facts)
    assert facts.pop("alike_labels") == {}
    assert facts == artifacts.read_made(full.folder).facts
    documents = "documents.parquet"
    assert (quick.folder / documents).stat().st_ino == (before.folder / documents).stat().st_ino


def test_accepted_rows_are_counted_as_by_an_ingest(tmp_path: Path) -> None:
    raw, config = tmp_path / "raw", world_of("xc-json", tmp_path / "raw")
    put_json(raw / "trn.json", 3, title="", content="")
    put_json(raw / "lbl.json", 2, title="a\x00", content="")
    config = replace(config, allow=("empty-text", "clean-text", "shared-texts"))
    before = made(raw, tmp_path / "before", config)
    new = pl.DataFrame({"uid": ["z1", "a0"], "title": ["", "dark\x00"], "content": [""] * 2})
    add(raw, config, before, new)
    config = replace(config, allow=Allowed.kinds())
    quick, full = made(raw, tmp_path / "quick", config, before), made(raw, tmp_path / "full", config)
    found = artifacts.read_made(quick.folder).facts["accepted"]
    assert found == artifacts.read_made(full.folder).facts["accepted"]
    assert found == {
        "documents": {"empty-text": 1},
        "labels": {"empty-text": 1, "clean-text": 2, "unseen-labels": 2},
    }


def test_labels_that_our_own_split_left_in_test_only_are_not_counted_as_accepted(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw")
    before = made(raw, tmp_path / "before", IngestConfig())
    assert before.labels_in_test_only > 0
    add(raw, IngestConfig(), before, pl.DataFrame({"uid": ["z1"], "title": ["meadow"], "content": [""]}))
    quick = made(raw, tmp_path / "quick", IngestConfig(allow=("unseen-labels",)), before)
    assert artifacts.read_made(quick.folder).facts["accepted"]["labels"] == {"unseen-labels": 1}


def test_a_corpus_of_an_earlier_version_names_accepted_rows_without_a_number(tmp_path: Path) -> None:
    raw, config = tmp_path / "raw", world_of("xc-json", tmp_path / "raw")
    put_json(raw / "trn.json", 3, title="", content="")
    config = replace(config, allow=("empty-text", "unseen-labels"))
    before = made(raw, tmp_path / "before", config)
    file = before.folder / artifacts.MADE
    file.write_text(file.read_text().replace('"accepted"', '"not yet there"'))
    add(raw, config, before, pl.DataFrame({"uid": ["z1"], "title": ["meadow"], "content": [""]}))
    quick = made(raw, tmp_path / "quick", config, before)
    assert accepted_sentence(artifacts.read_made(quick.folder).facts) == "empty-text, unseen-labels"


def test_the_rows_of_a_matrix_stay(tmp_path: Path) -> None:
    """Of a matrix beside JSON only the header is read, and so only the number of labels in it changes."""
    raw, config = tmp_path / "raw", world_of("xc-json with matrices", tmp_path / "raw")
    before = made(raw, tmp_path / "before", config)
    new = pl.DataFrame({"uid": ["z1"], "title": ["meadow"], "content": [""]})
    add(raw, config, before, new)
    assert (raw / "trn_X_Y.txt").read_text() == f"60 {before.num_labels + 1}\n0:1.0 1:1.0\n"
    assert gzip.decompress((raw / "tst_X_Y.txt.gz").read_bytes()) == b"12 %d\n3:1.0\n" % (before.num_labels + 1)


def test_a_matrix_whose_gzip_stream_ends_early_is_refused(tmp_path: Path) -> None:
    """An ingest reads its header only."""
    raw, config = tmp_path / "raw", world_of("xc-json with matrices", tmp_path / "raw")
    matrix = raw / "tst_X_Y.txt.gz"
    lines = np.random.default_rng(0).integers(0, 9, (20_000, 2)).tolist()
    content = gzip.compress("\n".join(["12 10", *(f"{a}:{b}" for a, b in lines)]).encode())
    matrix.write_bytes(content[: len(content) // 2])
    before = made(raw, tmp_path / "before", config)
    with pytest.raises(DataError, match=r"tst_X_Y\.txt\.gz"):
        add(raw, config, before, before.table("labels").head(1))
    assert matrix.read_bytes() == content[: len(content) // 2]


def test_a_new_label_with_the_uid_of_a_document_would_change_generated_filters(tmp_path: Path) -> None:
    raw, config = tmp_path / "raw", world_of("xc-json generated", tmp_path / "raw")
    before = made(raw, tmp_path / "before", config)
    new = pl.DataFrame({"uid": ["train-3"], "title": ["x"], "content": [""]})
    add(raw, config, before, new)
    with pytest.raises(DataError, match="new labels with the uid of a document"):
        made(raw, tmp_path / "quick", replace(config, allow=("unseen-labels",)), before)


@pytest.mark.parametrize(
    ("kind", "stay"), [(pa.list_(pa.int64()), False), (pa.list_(pa.string()), True), (pa.string(), True)]
)
def test_numbers_of_labels_in_a_table_are_read_again(kind: pa.DataType, stay: bool, tmp_path: Path) -> None:
    """What a number means depends on the table of labels."""
    value = "0" if kind == pa.string() else [0] if kind == pa.list_(pa.int64()) else ["0"]
    columns = {"uid": pa.array(["D0"]), "text": pa.array(["words"]), "labels": pa.array([value], kind)}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    assert open_source(tmp_path, "tabular", IngestConfig().read_options())[1].documents_stay is stay
