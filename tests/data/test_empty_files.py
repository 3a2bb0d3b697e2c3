"""A file of documents without rows has none, in every layout."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.worlds import LAYOUTS, read_world, small_world, write_world
from xc_core import artifacts
from xc_core.data.corpus import Corpus
from xc_core.data.formats.base import open_source
from xc_core.data.formats.texts import blocks_of
from xc_core.data.ingest import IngestConfig, ingest
from xc_core.errors import DataError

SETTINGS = IngestConfig(filters="none", allow=("unseen-labels",), validation_fraction=0.0)
"""Filter files of the test world would name test documents, and labels of test documents alone may be unseen."""


def read_part(folder: Path) -> dict[str, int]:
    """Read a folder as ``xc update`` does; return the documents of each split."""
    target = folder.with_name(f"{folder.name}-part")
    with artifacts.building(target, kind=Corpus.kind) as build:
        ingest(folder, build, SETTINGS, part=True)
    rows: dict[str, int] = dict(artifacts.read_made(target).facts["rows"])
    return rows


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("empty", ["test", "train"])
def test_an_update_may_have_a_file_without_rows_and_an_ingest_needs_train_and_test(
    tmp_path: Path, layout: str, empty: str
) -> None:
    """JSON lines alone were refused: an export of a day without test documents stopped the update of the others."""
    world = small_world()
    world = replace(world, **{empty: []})
    folder = write_world(tmp_path / "data", layout, world)
    assert read_part(folder) == {"train": len(world.train), "validation": 0, "test": len(world.test)}
    with pytest.raises(DataError, match=r"found .* train and \d+ test documents"):
        read_world(folder, filters="none", allow=("unseen-labels",), validation_fraction=0.0)


@pytest.mark.parametrize(
    ("row", "expected"), [("", True), ('{"uid": "b", "text": "x"}', True), ('{"text": "x"}', False)]
)
def test_documents_have_uids_if_each_file_with_rows_has_them(tmp_path: Path, row: str, expected: bool) -> None:
    """An update knows documents by their uids then; otherwise a row of the new files replaces none."""
    (tmp_path / "train.jsonl").write_text('{"uid": "a", "text": "x"}\n')
    (tmp_path / "test.jsonl").write_text(row)
    _, source = open_source(tmp_path, "auto", replace(SETTINGS.read_options(), part=True))
    assert source.has_uids is expected


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.endswith(".gz")])
def test_a_compressed_file_of_no_bytes_is_truncated(tmp_path: Path, layout: str) -> None:
    """Python reads it as an empty text, so that documents of a failed export were missing without a message."""
    folder = write_world(tmp_path / "data", layout)
    (file,) = [path for path in folder.glob("*.gz") if path.name.startswith(("tst.", "tst_X.", "X.tst.", "test."))]
    file.write_bytes(b"")
    with pytest.raises(DataError, match=re.escape("truncated or broken gzip stream (0 bytes)")) as caught:
        read_part(folder)
    assert caught.value.where.startswith(file.name)


@pytest.mark.parametrize("end", [".jsonl", ".jsonl.gz"])
def test_labels_need_rows(tmp_path: Path, end: str) -> None:
    folder = write_world(tmp_path / "data", f"jsonl{end.removeprefix('.jsonl')}")
    (folder / f"labels{end}").write_bytes(gzip.compress(b"") if end.endswith(".gz") else b"")
    with pytest.raises(DataError, match=f"labels{end}: found no line"):
        read_part(folder)


def test_a_compressed_file_of_texts_of_no_bytes_is_truncated(tmp_path: Path) -> None:
    """``xc predict --input`` answered its 0 rows."""
    path = tmp_path / "texts.jsonl.gz"
    for content, expected in ((b"", "0 bytes"), (gzip.compress(b""), "")):
        path.write_bytes(content)
        with path.open("rb") as stream:
            if not expected:
                assert list(blocks_of(stream, path, "text")) == []
                continue
            with pytest.raises(DataError, match=r"a file that cannot be read \(0 bytes\)"):
                list(blocks_of(stream, path, "text"))
