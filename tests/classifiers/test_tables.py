"""The artefact of label tables: every fold is read as it was written, and damage is detected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from xc_core import artifacts
from xc_core.classifiers import LabelTables, TablesWriter
from xc_core.data.folds import FINAL, Fold
from xc_core.data.labels import LabelMatrix
from xc_core.data.learnt import Learnt
from xc_core.errors import CorruptError, MissingError
from xc_core.sampling.noise import FrequencyNoise
from xc_core.shapes import F32, I64

FOLDS = [Fold("half-0", refit=True, half=0), Fold(FINAL, refit=True)]
LABELS = pl.DataFrame({"uid": ["a", "b", "c"], "text": ["1", "2", "3"]})
LEARNT = Learnt(np.array([(7, 0), (9, 2)], [("digest", "<u8"), ("part", "u1")]))
HISTORY: dict[str, Any] = {"losses": [0.5, 0.25], "epochs": [0.5, 1.0], "refreshes": []}


def rows(fold: int) -> F32:
    return np.arange(6, dtype=np.float32).reshape(3, 2) + fold


def noise(fold: int) -> FrequencyNoise:
    return FrequencyNoise.of(LabelMatrix.from_pairs(np.arange(3), np.array([0, fold, 2]), (3, 3)))


def write(
    folder: Path, *, batches: list[I64] | None = None, documents: int = 4, drawn: bool = False, unit: bool = False
) -> LabelTables:
    """Write tables of two folds and open them; ``batches`` are of ``documents`` documents."""
    with artifacts.building(folder, kind=LabelTables.kind) as build:
        writer = TablesWriter(build)
        for number, fold in enumerate(FOLDS):
            writer.fold(fold, rows(number), noise(number) if drawn else None)
        if batches is not None:
            writer.batches(batches, documents)
        writer.finish(FOLDS, LABELS, LEARNT, HISTORY, unit=unit)
    return LabelTables.open(folder)


@pytest.mark.parametrize("unit", [True, False])
def test_tables_are_read_as_they_were_written(tmp_path: Path, unit: bool) -> None:
    tables = write(tmp_path / "tables", unit=unit)
    assert tables.folds == FOLDS
    assert np.array_equal(tables.rows(), rows(1)), "the default is the final fold"
    assert np.array_equal(tables.rows("half-0"), rows(0))
    assert (tables.unit, tables.drawn, tables.trained) == (unit, False, False)
    assert tables.history == HISTORY
    assert tables.labels().equals(LABELS)
    assert tables.learnt().record_M.tolist() == [(7, 0), (9, 2)]
    assert tables.noise() is None
    facts = artifacts.read_made(tmp_path / "tables").facts
    assert facts == {"rows": 3, "finite": True, "steps": 2, "folds": 2}


def test_rows_are_mapped_and_writing_to_them_changes_no_file(tmp_path: Path) -> None:
    tables = write(tmp_path / "tables")
    tables.rows()[0] = 7
    assert np.array_equal(LabelTables.open(tables.folder).rows(), rows(1))


def test_each_fold_has_its_noise(tmp_path: Path) -> None:
    tables = write(tmp_path / "tables", drawn=True)
    assert not np.array_equal(noise(0).log_prob_L, noise(1).log_prob_L)
    for number, fold in enumerate(FOLDS):
        found = tables.noise(fold.name)
        assert isinstance(found, FrequencyNoise)
        assert np.array_equal(found.log_prob_L, noise(number).log_prob_L)


def test_the_batches_of_the_first_epoch_are_stored_without_label_texts(tmp_path: Path) -> None:
    """Positions from 4 on are label texts; a batch of label texts only is left out."""
    tables = write(tmp_path / "tables", batches=[np.array([3, 5, 0]), np.array([1]), np.array([4, 6]), np.array([2])])
    found = tables.audited_batches()
    assert found is not None
    assert [batch.tolist() for batch in found] == [[0, 3], [1], [2]]
    assert tables.trained
    assert write(tmp_path / "untrained").audited_batches() is None


def test_the_documents_of_a_batch_are_in_their_order(tmp_path: Path) -> None:
    """Whatever sort the processor is fast at; so an audit adds them up alike everywhere."""
    batches = np.array_split(np.random.default_rng(0).permutation(4000), 7)
    found = write(tmp_path / "tables", batches=batches, documents=4000).audited_batches()
    assert found is not None
    assert [batch.tolist() for batch in found] == [sorted(batch.tolist()) for batch in batches]


def test_rows_that_are_not_finite_are_recorded_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written block by block, here one by one; the first is wrong."""
    monkeypatch.setattr("xc_core.classifiers.storage._BLOCK", 2)
    wrong = rows(0)
    wrong[0, 1] = np.nan
    with artifacts.building(tmp_path / "tables", kind=LabelTables.kind) as build:
        writer = TablesWriter(build)
        writer.fold(FOLDS[1], wrong, None)
        writer.finish(FOLDS[1:], LABELS, LEARNT, HISTORY, unit=True)
    assert artifacts.read_made(tmp_path / "tables").facts["finite"] is False


@pytest.mark.parametrize("name", ["labels.parquet", "history.json", "tables.json", "final/rows.npy", "half-0/rows.npy"])
def test_a_damaged_or_missing_artefact_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(MissingError):
        LabelTables.open(tmp_path / "tables")
    path = write(tmp_path / "tables").folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match=path.name):
        LabelTables.open(tmp_path / "tables")


def test_an_artefact_of_another_kind_is_refused(tmp_path: Path) -> None:
    with artifacts.building(tmp_path / "other", kind="index"):
        pass
    with pytest.raises(CorruptError, match="kind 'index'"):
        LabelTables.open(tmp_path / "other")
