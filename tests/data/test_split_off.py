"""A rare label whose only documents our own split puts into test: the dataset is taken in, with a word about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.worlds import empty_workspace, read_world
from xc_core import artifacts
from xc_core.chain import run_stage
from xc_core.data.corpus import Corpus
from xc_core.data.ingest import IngestConfig
from xc_core.errors import DataError


def write(folder: Path, *, test: bool = False) -> Path:
    """Write 100 documents, each tenth with a label of its own; with ``test`` two more of a label without others."""
    folder.mkdir()
    rows = [f"uid{i},text number {i},common" + (f";rare{i}" if i % 10 == 0 else "") for i in range(100)]
    (folder / "train.csv").write_text("\n".join(["uid,text,labels", *rows, ""]))
    if test:
        (folder / "test.csv").write_text("uid,text,labels\nt1,a test text,common;alone\n")
    return folder


def split(corpus: Corpus) -> dict[str, int]:
    return dict(artifacts.read_made(corpus.folder).facts["split"])


def test_our_own_split_never_refuses_a_dataset(tmp_path: Path) -> None:
    corpus = read_world(write(tmp_path / "world"))
    unseen = int((corpus.published_train().frequency_L() == 0).sum())
    assert unseen > 0
    assert split(corpus)["labels_in_test_only"] == corpus.labels_in_test_only == unseen


@pytest.mark.parametrize(("by", "how"), [("uid", "split off by a hash"), ("time", "the last ones")])
def test_the_stage_reports_such_labels(tmp_path: Path, lines: list[str], by: str, how: str) -> None:
    workspace = empty_workspace(tmp_path)
    workspace.params.declare_dataset("toy", IngestConfig(split=by))
    workspace.raw("toy").parent.mkdir(parents=True)
    table = write(workspace.raw("toy")) / "train.csv"
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{head},time", *(f"{row},{number}" for number, row in enumerate(rows)), ""]))
    count = run_stage(workspace, "corpus", "toy").facts["split"]["labels_in_test_only"]
    (found,) = (line.partition(" and no other")[0] for line in lines if " in test only" in line)
    assert found == f"corpus: {count} labels in test only, because the test rows are {how}"


def test_a_label_without_any_document_is_refused_still(tmp_path: Path) -> None:
    folder = write(tmp_path / "world")
    names = ["common", "nowhere", *(f"rare{i}" for i in range(0, 100, 10))]
    (folder / "labels.csv").write_text("\n".join(["uid,text", *(f"{name},{name}" for name in names), ""]))
    with pytest.raises(DataError, match="1 of 12 labels without a train document, the first is 'nowhere'"):
        read_world(folder)
    corpus = read_world(folder, allow=("unseen-labels",))
    accepted = artifacts.read_made(corpus.folder).facts["accepted"]
    assert corpus.labels_in_test_only > 0
    assert accepted["labels"] == {"unseen-labels": 1}, "not those that our own split made"


def test_a_test_file_of_the_user_is_read_as_strictly_as_before(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'alone'"):
        read_world(write(tmp_path / "world", test=True))
    corpus = read_world(write(tmp_path / "other", test=True), allow=("unseen-labels",))
    assert corpus.labels_in_test_only == 0
    assert "labels_in_test_only" not in split(corpus)
