"""Hard negatives of the stage negatives: the pools of M4 that use them, and their artefact."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from xc_core import artifacts, manifests
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError, CorruptError, MissingError
from xc_core.sampling import NEGATIVES, Documents, InBatch, NegativeSource, Stored
from xc_core.sampling.hard import HardNegatives
from xc_core.shapes import I32, PAD_ID, Shortlist

SIZE, LABELS = 6, 40
TRUTH = LabelMatrix.from_pairs(np.arange(SIZE), np.arange(SIZE), (SIZE, LABELS))
HARD: I32 = np.arange(10, 10 + 4 * SIZE, dtype=np.int32).reshape(SIZE, 4)
HARD[2, 1:] = PAD_ID


def source(**settings: int) -> NegativeSource:
    return Stored(positives=0, **settings).build(Documents(TRUTH, hard=lambda: HARD), 0)  # type: ignore[arg-type]


def test_a_pool_holds_the_positives_of_the_batch_and_draws_of_its_hard_negatives() -> None:
    docs = np.array([4, 2])
    for step in range(20):
        pool = source(hard=3).pool(docs, step)
        labels = set(pool.labels_U.tolist())
        drawn = labels - {2, 4}
        assert {2, 4} <= labels
        assert len(drawn & set(HARD[4].tolist())) == 3
        assert drawn - set(HARD[4].tolist()) == {int(HARD[2, 0])}, "document 2 has one; holes are no labels"
        assert pool.chosen_BU.sum() == pool.known_BU.sum() == 2


def test_each_stored_hard_negative_is_drawn_equally_often() -> None:
    drawn = np.concatenate([source(hard=1).pool(np.array([0]), step).labels_U for step in range(4000)])
    counts = np.bincount(drawn, minlength=LABELS)[HARD[0]]
    assert counts.sum() == 4000
    assert (abs(counts - 1000) < 4 * math.sqrt(4000 * (1 / 4) * (3 / 4))).all()


def test_labels_without_train_documents_are_added_as_in_batch_pools_add_them() -> None:
    both = source(hard=1, unseen=5).pool(np.array([0]), 3).labels_U.tolist()
    unseen = InBatch(positives=0, unseen=5).build(Documents(TRUTH), 0).pool(np.array([0]), 3).labels_U.tolist()
    assert set(unseen) < set(both)
    assert set(both) - set(unseen) <= set(HARD[0].tolist())


def test_stored_hard_negatives_are_an_input_and_no_state() -> None:
    own = source(hard=2)
    assert own.arrays() == {}
    assert own.refresh(0, np.zeros((SIZE, 2), np.float32), {}) == {}
    assert not any(Stored().due(epoch) for epoch in range(5))


def test_stored_hard_negatives_are_refused_in_a_training_that_has_none() -> None:
    assert [kind for kind in NEGATIVES if NEGATIVES[kind].stored] == ["stored"]
    with pytest.raises(ConfigError, match="stored hard negatives in a training that has none"):
        Stored().build(Documents(TRUTH), 0)


ROWS = np.array([1, 4, 5, 9])
FOUND = Shortlist(HARD[:4], np.linspace(1, 0, 16, dtype=np.float32).reshape(4, 4))


def write(folder: Path, negatives: HardNegatives) -> HardNegatives:
    with artifacts.building(folder, kind=HardNegatives.kind) as build:
        negatives.write(build)
    return HardNegatives.open(folder)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = write(tmp_path / "negatives", HardNegatives(ROWS, FOUND))
    assert np.array_equal(found.rows_N, ROWS)
    assert np.array_equal(found.found.ids_NK, FOUND.ids_NK)
    assert np.array_equal(found.found.scores_NK, FOUND.scores_NK)
    assert artifacts.read_made(tmp_path / "negatives").facts == {"documents": 4, "k": 4}


def test_the_same_hard_negatives_are_the_same_content(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, HardNegatives(ROWS, FOUND))
    assert manifests.read_manifest(tmp_path / "one") == manifests.read_manifest(tmp_path / "other")


def test_documents_get_their_own_hard_negatives() -> None:
    negatives = HardNegatives(ROWS, FOUND)
    assert np.array_equal(negatives.of(np.array([4, 9])), HARD[[1, 3]])
    assert np.array_equal(negatives.of(ROWS), HARD[:4])
    assert negatives.of(ROWS).dtype == np.int32


@pytest.mark.parametrize("rows", [[0], [1, 2], [9, 10], [4, 11]])
def test_documents_without_stored_hard_negatives_are_refused(rows: list[int]) -> None:
    with pytest.raises(
        ConfigError, match=f"1 of {len(rows)} documents without .*\n.*\n.*run the stage negatives again"
    ):
        HardNegatives(ROWS, FOUND).of(np.array(rows))
    nothing = HardNegatives(np.zeros(0, np.int64), Shortlist(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)))
    with pytest.raises(ConfigError, match=r"set negatives\.k above 0"):
        nothing.of(np.array(rows))


def test_a_missing_or_damaged_artefact_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "negatives"
    with pytest.raises(MissingError):
        HardNegatives.open(folder)
    write(folder, HardNegatives(ROWS, FOUND))
    (file,) = (path for path in folder.iterdir() if path.suffix == ".npz")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptError, match="changed since it was written"):
        HardNegatives.open(folder)
    with artifacts.building(folder, kind="clusters"):
        pass
    with pytest.raises(CorruptError, match="kind 'clusters'"):
        HardNegatives.open(folder)
