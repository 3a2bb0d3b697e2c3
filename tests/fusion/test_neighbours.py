"""The neighbours' vote against a loop over documents and voters; and that nobody without a label has one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xc_core.ann import load_index, save_index
from xc_core.ann.faiss_index import FaissIndex
from xc_core.data.labels import LabelMatrix
from xc_core.errors import ConfigError
from xc_core.fusion import FusionConfig, Neighbours, Query, Sources, feature_table
from xc_core.fusion import neighbours as module
from xc_core.fusion.neighbours import NEAREST, TEMPERATURE
from xc_core.shapes import F32, PAD_ID

DOCUMENTS, LABELS, WIDTH = 12, 20, 6


def unit(size: int, seed: int) -> F32:
    vectors = np.random.default_rng(seed).standard_normal((size, WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def world(voters: int) -> tuple[F32, LabelMatrix, Neighbours]:
    """Train vectors, their labels (the first voter has none), the neighbours."""
    held = np.random.default_rng(2).random((voters, LABELS)) < 0.15
    held[0] = False
    truth = LabelMatrix.from_pairs(*np.nonzero(held), held.shape)
    vectors = unit(voters, 1)
    return vectors, truth, Neighbours.of(vectors, truth)


def by_loop(vectors: F32, truth: LabelMatrix, doc: F32) -> list[float]:
    """The share of each label in the votes for one document."""
    cosines = sorted(((float(doc @ v), j) for j, v in enumerate(vectors.astype(float))), reverse=True)[:NEAREST]
    weights = [math.exp(cosine / TEMPERATURE) for cosine, _ in cosines]
    votes = [0.0] * LABELS
    for weight, (_, voter) in zip(weights, cosines, strict=True):
        for label in truth.row(voter).tolist():
            votes[label] += weight / sum(weights)
    return votes


@pytest.mark.parametrize("voters", [1, 7, NEAREST, 100])
def test_the_votes_are_those_of_a_loop(voters: int) -> None:
    vectors, truth, neighbours = world(voters)
    docs = unit(DOCUMENTS, 3)
    ids = np.random.default_rng(4).permuted(np.tile(np.arange(LABELS, dtype=np.int32), (DOCUMENTS, 1)), axis=1)
    found = neighbours.vote(docs).of(ids)
    expected = np.array([by_loop(vectors, truth, doc) for doc in docs])
    np.testing.assert_allclose(found, np.take_along_axis(expected, ids, 1), atol=2e-6)


def test_many_documents_are_searched_in_cells_whose_votes_are_nearly_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    docs, labels = unit(50, 3), np.tile(np.arange(LABELS, dtype=np.int32), (50, 1))
    vectors, truth, exact = world(3000)
    expected = exact.vote(docs).of(labels)
    monkeypatch.setattr(module, "EXACT_UP_TO", 2999)
    monkeypatch.setattr(module, "_CELLS", replace(Neighbours.searched(3000), probes=64))
    cells = Neighbours.of(vectors, truth)
    assert isinstance(cells.index, FaissIndex)
    assert np.abs(cells.vote(docs).of(labels) - expected).sum(1).mean() < 0.02
    save_index(cells.index, Neighbours.searched(cells.index.size), tmp_path)
    again = Neighbours(load_index(tmp_path), truth)
    np.testing.assert_array_equal(again.vote(docs).of(labels), cells.vote(docs).of(labels))


@pytest.mark.parametrize("voters", [1, 7, 100])
def test_the_labels_of_neighbours_are_those_with_a_vote_each_once_holes_last(voters: int) -> None:
    vectors, truth, neighbours = world(voters)
    docs = unit(DOCUMENTS, 3)
    for ids, doc in zip(neighbours.vote(docs).labels(), docs, strict=True):
        assert ids[ids != PAD_ID].tolist() == [label for label, vote in enumerate(by_loop(vectors, truth, doc)) if vote]
        assert not (np.diff((ids == PAD_ID).astype(int)) < 0).any()


def test_a_hole_has_no_vote() -> None:
    _, _, neighbours = world(50)
    docs = unit(DOCUMENTS, 3)
    holes = np.full((DOCUMENTS, 3), PAD_ID, np.int32)
    assert (neighbours.vote(docs).of(holes) == 0).all()


def test_votes_without_voters_are_an_error_that_says_what_to_do() -> None:
    table = unit(LABELS, 5)
    sources = Sources(table, table, np.zeros(LABELS, np.int64))
    with pytest.raises(ConfigError, match="run the stage fusion"):
        feature_table(("neighbours",), Query(unit(2, 3), sources), np.zeros((2, 1), np.int32))


def test_vectors_and_labels_of_different_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="3 vectors for 2 documents"):
        Neighbours.of(unit(3, 0), LabelMatrix.from_pairs(np.array([0, 1]), np.array([0, 0]), (2, 1)))


def test_a_fusion_may_add_the_votes() -> None:
    config = FusionConfig(features=("classifier", "neighbours"), add=("classifier", "neighbours"))
    assert config.needed == ("classifier", "neighbours")
